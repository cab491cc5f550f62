"""The last layer computed where it is read: the same states and gradients, less work."""

import copy

import pytest
import torch

from csekit.modeling import CSEModel, SimCSEModel
from csekit.modeling.backbone import layer_list
from csekit.modeling.fast_layers import attention_output
from csekit.modeling.fast_packing import run_encoder

#: Families whose last layer can be cut short.
CAN = {"bert", "roberta", "xlm-roberta", "electra", "deberta-v2"}


@pytest.mark.parametrize("lengths", [[3, 12, 1, 7], [6, 6, 6], [5]])
@pytest.mark.parametrize("packed", [True, False])
def test_states_and_gradients(family, checkpoint, encoder_config, lengths, packed):
    model = SimCSEModel.from_backbone(checkpoint(family), dropout=0.0)
    twin = copy.deepcopy(model)
    assert (attention_output(model.backbone) is not None) is (family in CAN)
    ids = torch.randint(8, 90, (len(lengths), max(lengths)))
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = ids.masked_fill(mask == 0, encoder_config(family).pad_token_id)
    real = mask.flatten().nonzero().squeeze(1)
    for wanted, places in {
        "one a row": torch.tensor([row * max(lengths) + length // 2 for row, length in enumerate(lengths)]),
        "one a row, known": torch.arange(len(lengths)) * max(lengths) + (torch.tensor(lengths) - 1),
        "some, in any order": real[torch.randperm(len(real))[: 1 + len(real) // 3]],
        "none": torch.empty(0, dtype=torch.int64),
    }.items():
        weights = torch.randn(len(places), model.config.hidden_size)
        options = {"packed": packed, "places_M": places, "each_row": wanted == "one a row, known"}
        ours = run_encoder(model.backbone, mask, ids, **options).last_hidden_state
        theirs = run_encoder(twin.backbone, mask, ids, packed=False).last_hidden_state.flatten(0, 1)[places]
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=lambda text, of=wanted: f"{of}: {text}")
        model.zero_grad()
        twin.zero_grad()
        (ours * weights).sum().backward()
        (theirs * weights).sum().backward()
        for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None), (wanted, name)
            if one.grad is not None:
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-5, msg=f"{wanted}: {name}")


def test_only_the_pooled_states_meet_the_last_feed_forward(checkpoint):
    model = SimCSEModel.from_backbone(checkpoint("bert")).train()
    seen = []
    for layer in model.backbone.encoder.layer:
        layer.intermediate.register_forward_hook(lambda *args: seen.append(args[2].shape[:2].numel()))
    ids, mask = torch.randint(8, 90, (3, 1, 9)), torch.ones(3, 1, 9, dtype=torch.int64)
    mask[1, 0, 4:] = 0
    model(ids, mask, return_loss=True).loss.backward()
    assert seen == [*[2 * 22] * (len(seen) - 1), 6]
    seen.clear()
    embedded = model.eval()(ids[:, 0], mask[:, 0])
    assert seen[-1] > 3 and embedded.last_hidden_state.shape[:2] == (3, 9)
    torch.testing.assert_close(model.pooled(ids[:, 0], mask[:, 0]), embedded.sentence_embedding)


def test_only_the_pooled_states_ask_in_the_last_layer(checkpoint):
    model = SimCSEModel.from_backbone(checkpoint("bert")).train()
    asked, told = [], []
    for layer in model.backbone.encoder.layer:
        layer.attention.self.query.register_forward_hook(lambda _, given, __: asked.append(given[0].shape[1]))
        layer.attention.self.key.register_forward_hook(lambda _, given, __: told.append(given[0].shape[1]))
    ids, mask = torch.randint(8, 90, (3, 1, 9)), torch.ones(3, 1, 9, dtype=torch.int64)
    mask[1, 0, 4:] = 0
    model(ids, mask, return_loss=True).loss.backward()
    assert told == [2 * 22] * len(told)
    assert asked == [*[2 * 22] * (len(asked) - 1), 6]


def test_pooling_of_several_states_and_checkpointing_keep_the_layer_whole(checkpoint):
    ids, mask = torch.randint(8, 90, (3, 1, 9)), torch.ones(3, 1, 9, dtype=torch.int64)
    for pooling, checkpointed in (("mean", False), ("cls", True)):
        model = SimCSEModel.from_backbone(checkpoint("bert"), pooling=pooling).train()
        if checkpointed:
            model.gradient_checkpointing_enable()
        seen = []
        model.backbone.encoder.layer[-1].intermediate.register_forward_hook(
            lambda *args, seen=seen: seen.append(args[2].shape[:2].numel())
        )
        model(ids, mask, return_loss=True)
        assert seen == [54]


def test_masked_positions_alone_meet_the_last_feed_forward(checkpoint, batch_of):
    """Of every network whose states are read at some places: the encoder over masked copies, InfoCSE's head, DiffCSE's
    generator and discriminator, the conditional LM."""
    objectives = ["mlm", "aux_mlm", "rtd", "conditional_mlm"]
    fields = {"objectives": objectives, "aux_mlm_head_init": "random"}
    model = CSEModel.from_backbone(checkpoint("bert"), **fields).train()
    batch = batch_of(model)
    networks = {
        "mlm": model.backbone,
        "aux_mlm": model.objectives["aux_mlm"].head.model,
        "rtd": model.objectives["rtd"].generator.backbone,
        "scored": model.objectives["rtd"].discriminator.model,
        "conditional_mlm": model.objectives["conditional_mlm"].lm.encoder.model,
    }
    seen: dict[str, list[int]] = {name: [] for name in networks}
    for name, network in networks.items():
        network.encoder.layer[-1].intermediate.register_forward_hook(
            lambda *args, name=name: seen[name].append(args[2].shape[:2].numel())
        )
    model(**batch).loss.backward()
    wanted = {name: len(batch[f"{name}_positions"]) for name in objectives} | {"scored": len(batch["rtd_scored"])}
    rows = 2 * len(batch["input_ids"])
    assert all(0 < count < batch["attention_mask"].sum() for count in wanted.values())
    wanted = {name: 1 << (count - 1).bit_length() for name, count in wanted.items()}  # rows have few numbers
    gaps = {name: seen[name][1:] for name in ("aux_mlm", "scored")}  # the diagnostics' pass over a few copies, twice
    for name, counts in gaps.items():
        assert len(counts) == 1
        assert counts[0] <= 2 * wanted[name]
        del seen[name][1:]
    assert seen == {name: [rows, count] if name == "mlm" else [count] for name, count in wanted.items()}


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (5, 8), (64, 64), (70, 128)])
def test_without_gradient_the_last_layer_computes_few_numbers_of_rows(checkpoint, count, expected):
    """oneDNN keeps kernels for every number of rows: the rows are filled up, and the states are the same."""
    model = SimCSEModel.from_backbone(checkpoint("bert"), dropout=0.0).eval()
    seen = []
    last = layer_list(model.backbone)[-1]
    last.output.dense.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[-2]))
    ids, mask = torch.randint(8, 90, (count, 16)), torch.ones(count, 16, dtype=torch.int64)
    mask[0, 9:] = 0  # packed, also a single row
    with_gradient = model.pooled(ids, mask)
    with torch.no_grad():
        without = model.pooled(ids, mask)
    assert seen == [count, expected]
    assert without.shape == with_gradient.shape
    torch.testing.assert_close(without, with_gradient)


def test_there_are_no_more_rows_than_tokens(checkpoint):
    model = SimCSEModel.from_backbone(checkpoint("bert"), dropout=0.0).eval()
    ids, mask = torch.randint(8, 90, (3, 1)), torch.ones(3, 1, dtype=torch.int64)
    with torch.no_grad():
        found = model.pooled(ids, mask)
    torch.testing.assert_close(found, model.pooled(ids, mask))
