"""InfoCSE's second stage: the paper's computation as loops in float64, what is frozen, saved and refused."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM
from transformers.models.bert.modeling_bert import BertLayer

from csekit.modeling import InfoCSEConfig, InfoCSEForPreTraining, InfoCSEModel
from csekit.modeling.auxiliary_head import AuxiliaryHead
from csekit.modeling.objective_aux_mlm import replace_first

B, L, H, V = 4, 9, 16, 97
DEEP = {"num_hidden_layers": 4}  # k = 2
RELEASED = Path(__file__).parents[2] / "examples" / "configs" / "infocse-bert-large-released.yaml"
REFUSED = ("modernbert", "albert")


# The paper's computation


class Paper:
    """Eqs. 3, 5 and 7 from the checkpoint's files in float64: a sentence and a masked position at a time, no padding,
    logits of every position, the states of layer k from a second encoder of full depth."""

    def __init__(self, folder: Path, model: InfoCSEModel, k: int) -> None:
        def own(kind: Any) -> Any:
            return kind.from_pretrained(folder).double().eval()

        self.encoder, self.second, self.mlm, self.k = own(AutoModel), own(AutoModel), own(AutoModelForMaskedLM).cls, k
        if model.config.head_init in ("random", "new_layers"):
            state = model.objectives["aux_mlm"].head.model.state_dict()
        else:
            state = load_file(folder / "auxiliary_head" / "model.safetensors")
        if model.config.head_init == "random":
            lm_head = model.objectives["aux_mlm"].lm_head
            self.mlm.predictions.transform.load_state_dict(lm_head.model.cls.predictions.transform.state_dict())
            self.mlm.predictions.decoder.weight.data.copy_(lm_head.decoder.weight)
            self.mlm.predictions.decoder.bias.data.copy_(lm_head.bias)
        config = copy.deepcopy(model.config.encoder_config)
        config._attn_implementation = "eager"
        self.layers = nn.ModuleList([BertLayer(config) for _ in range(model.config.head_layers)]).double().eval()
        self.layers.load_state_dict({name.removeprefix("encoder.layer."): value for name, value in state.items()})
        self.projector = copy.deepcopy(model.projector).double()

    def losses(self, batch: dict[str, Tensor], naive: Any, config: Any) -> tuple[Tensor, Tensor]:
        ids, masks = (batch[name].transpose(0, 1).flatten(0, 1) for name in ("input_ids", "attention_mask"))
        h = [self.encoder(row[None, : mask.sum()])[0][0, 0] for row, mask in zip(ids, masks, strict=True)]
        z = self.projector(torch.stack(h))
        contrast = naive.info_nce(z[:B], z[B:], config.temperature)
        answers = dict(zip(batch["aux_mlm_positions"].tolist(), batch["aux_mlm_labels"].tolist(), strict=True))
        total, count = torch.zeros((), dtype=torch.float64), 0
        for row, copied in enumerate(batch["aux_mlm_input_ids"]):
            n = int(masks[row].sum())
            with torch.set_grad_enabled(not config.detach):
                M = self.second(copied[None, :n], output_hidden_states=True).hidden_states[self.k][0]
            C = torch.stack([h[row], *M[1:]])[None]
            for layer in self.layers:
                out = layer(C)
                C = out if isinstance(out, Tensor) else out[0]
            logits = self.mlm(C)[0]
            for t in range(n):
                if row * L + t in answers:
                    total = total + naive.token_loss(logits[t : t + 1], [answers[row * L + t]])
                    count += 1
        assert count == len(answers) > 5
        return contrast, total / count

    def gradients(self) -> dict[str, Tensor]:
        """By the names of our model."""
        aux, mlm = "objectives.aux_mlm.", self.mlm.predictions
        named = [("backbone.", self.encoder), ("projector.", self.projector), (f"{aux}lower.model.", self.second)]
        named.append((f"{aux}head.model.encoder.layer.", self.layers))
        named.append((f"{aux}lm_head.model.cls.predictions.transform.", mlm.transform))
        found = {prefix + name: p.grad for prefix, part in named for name, p in part.named_parameters()}
        found |= {f"{aux}lm_head.decoder.weight": mlm.decoder.weight.grad, f"{aux}lm_head.bias": mlm.decoder.bias.grad}
        return {name: gradient for name, gradient in found.items() if gradient is not None}


SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "plain": {"gradient": "plain", "weight": 0.3},
    "one view": {"views": 1, "weight": 0.3},
    "plain, one view": {"views": 1, "gradient": "plain", "weight": 0.3},
    "not detached": {"detach": False, "weight": 0.3},
    "plain, not detached": {"detach": False, "gradient": "plain", "weight": 0.3},
    "another layer": {"layer": 3, "weight": 0.3},
    "as released": {},  # its preset
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_losses_and_gradients_equal_the_paper_s(infocse, stage1, batch_with, naive, setting, encoder_config):
    fields = {f"aux_mlm_{name}": value for name, value in SETTINGS[setting].items()}
    if setting == "as released":
        fields = {name: value for name, value in yaml.safe_load(RELEASED.read_text()).items() if "aux_mlm" in name}
        assert fields.pop("aux_mlm_layer") == 6  # the encoder here has four layers
        assert fields["aux_mlm_gradient"] == "plain" and fields["aux_mlm_head_init"] == "new_layers"
    folder = stage1("bert", 0.0, **DEEP)
    if setting == "another layer":  # the head of a stage 1 with that layer
        config = encoder_config("bert", 0.0, **DEEP)
        folder = stage1("bert", 0.0, **DEEP, classifier_dropout=0.0)
        AuxiliaryHead(config).save(folder, 3)
    model = InfoCSEModel.from_backbone(folder, **fields).train()
    config, weight = model.config, model.config.aux_mlm_weight
    batch = batch_with(views=config.views)
    paper = Paper(folder, model, k=config.layer or 2)
    contrast, auxiliary = paper.losses(batch, naive, config)
    if config.gradient == "plain":
        (contrast + weight * auxiliary).backward()
        expected = paper.gradients()
    else:  # the encoder learns from L_cl + λ·L_aux, the auxiliary network from L_aux
        (contrast + weight * auxiliary).backward(retain_graph=True)
        joint = {name: gradient.clone() for name, gradient in paper.gradients().items()}
        for part in (paper.encoder, paper.projector, paper.second, paper.layers, paper.mlm):
            part.zero_grad()
        auxiliary.backward()
        expected = paper.gradients()
        expected |= {name: joint[name] for name in joint if not name.startswith("objectives.")}

    output = model(**batch)
    output.loss.backward()
    torch.testing.assert_close(output.loss_dict["contrastive"].double(), contrast, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(output.loss_dict["aux_mlm"].double(), weight * auxiliary, rtol=1e-5, atol=0)
    torch.testing.assert_close(output.metrics["aux_mlm_cross_entropy"].double(), auxiliary, rtol=1e-5, atol=0)
    trained = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert trained.keys() == expected.keys()
    assert any(name.startswith("objectives.aux_mlm.lower.") for name in trained) is not config.detach
    for part in ("backbone.", "projector.", "objectives.aux_mlm."):
        names = [name for name in trained if name.startswith(part)]
        largest = max(expected[name].abs().max().item() for name in names)
        for name in names:
            torch.testing.assert_close(
                trained[name].double(), expected[name], rtol=1e-3, atol=1e-4 * largest, msg=name
            )


def test_the_encoder_gets_exactly_weight_times_the_gradient(infocse, batch_with):
    """λ = 2⁻¹⁰ scales without rounding; the head's gradient does not know λ."""
    found = {}
    for kind, weight in (("scaled", 2.0**-10), ("plain", 2.0**-10), ("plain", 1.0)):
        model = infocse(aux_mlm_weight=weight, gradient=kind, contrastive_weight=0.0)
        output = model(**batch_with())
        output.loss.backward()
        found[kind, weight] = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        assert output.loss_dict.keys() == {"aux_mlm"}
        assert output.loss_dict["aux_mlm"] == weight * output.metrics["aux_mlm_cross_entropy"]
    scaled, full = found["scaled", 2.0**-10], found["plain", 1.0]
    assert scaled.keys() == full.keys() == found["plain", 2.0**-10].keys()
    for name, gradient in full.items():
        assert torch.equal(scaled[name], gradient * (2.0**-10 if name.startswith("backbone.") else 1.0)), name
        assert torch.equal(found["plain", 2.0**-10][name], gradient * 2.0**-10), name


def test_weight_zero_is_the_contrast_alone_for_the_encoder(infocse, stage1, batch_with):
    model, alone = infocse(aux_mlm_weight=0.0), infocse(objectives=[])
    alone.projector.load_state_dict(model.projector.state_dict())
    for each in (model, alone):
        each(**batch_with()).loss.backward()
    for name, parameter in alone.named_parameters():
        assert torch.equal(model.get_parameter(name).grad, parameter.grad), name


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_the_loss_is_the_sum_of_its_terms(stage1, batch_with, columns):
    model = InfoCSEModel.from_backbone(stage1("bert", **DEEP), mlm_weight=0.1).train()
    batch = batch_with(columns)
    output = model(**batch, **{name.removeprefix("aux_"): value for name, value in batch.items() if "aux_" in name})
    assert list(output.loss_dict) == ["contrastive", "aux_mlm", "mlm"]
    torch.testing.assert_close(output.loss.detach(), sum(output.loss_dict.values()), rtol=1e-7, atol=0)
    assert output.metrics.keys() >= {"aux_mlm_accuracy", "aux_mlm_cross_entropy"}
    assert not any(value.requires_grad for value in (*output.loss_dict.values(), *output.metrics.values()))


def test_another_pooling_conditions_on_its_own_state(infocse, batch_with):
    model, batch = infocse(pooling="mean"), batch_with()
    given = []
    model.objectives["aux_mlm"].head.register_forward_pre_hook(lambda module, args: given.append(args[0]))
    views = model.encode_views(batch["input_ids"], batch["attention_mask"])
    model(**batch)
    assert torch.equal(given[0][:, 0], views.h.flatten(0, 1))
    with torch.no_grad():
        lower = model.objectives["aux_mlm"].lower(batch["aux_mlm_input_ids"], views.attention_mask)
    assert torch.equal(given[0][:, 1:], lower[:, 1:])


# Families


def test_lower_layers_and_top_layers_make_up_the_encoder(family, stage1, checkpoint, make_batch, encoder_config):
    """Exact in every family: the frozen copy's states, and a head over them that is the encoder's own upper half."""
    if family in REFUSED:
        with pytest.raises(ValueError, match="has no plain list of layers: an auxiliary head is not possible"):
            InfoCSEModel.from_backbone(checkpoint(family), head_init="random")
        return
    model = InfoCSEModel.from_backbone(checkpoint(family), head_init="top_layers", head_layers=1)
    objective, pad = model.objectives["aux_mlm"], encoder_config(family).pad_token_id
    batch = make_batch(B, 0, L, pad=pad)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    plain = AutoModel.from_pretrained(checkpoint(family)).eval()
    with torch.no_grad():
        states = plain(**batch, output_hidden_states=True).hidden_states
        lower = objective.lower(ids, mask)
        torch.testing.assert_close(lower[mask.bool()], states[1][mask.bool()], rtol=1e-5, atol=1e-5)
        upper = objective.head(lower, mask)
        torch.testing.assert_close(upper[mask.bool()], states[-1][mask.bool()], rtol=1e-5, atol=1e-5)
        logits = objective.lm_head.logits(upper[mask.bool()])
        mlm = AutoModelForMaskedLM.from_pretrained(checkpoint(family)).eval()(**batch).logits
        torch.testing.assert_close(logits, mlm[mask.bool()], rtol=1e-4, atol=1e-4)


def test_families_train_save_and_do_not_see_padding(family, stage1, batch_with, encoder_config, tmp_path):
    if family in REFUSED:
        with pytest.raises(ValueError, match="has no plain list of layers"):
            InfoCSEModel(InfoCSEConfig(encoder_config=encoder_config(family)))
        return
    pad = encoder_config(family).pad_token_id
    model = InfoCSEModel.from_backbone(stage1(family, 0.0), aux_mlm_weight=1.0, projector="none")
    batch = batch_with(pad=pad)
    value = model(**batch).loss_dict["aux_mlm"]
    wide = {
        name: nn.functional.pad(v, (0, 4), value=pad * ("ids" in name)) for name, v in batch.items() if v.dim() > 1
    }
    rows, columns = batch["aux_mlm_positions"] // L, batch["aux_mlm_positions"] % L
    wide |= {"aux_mlm_positions": rows * (L + 4) + columns, "aux_mlm_labels": batch["aux_mlm_labels"]}
    torch.testing.assert_close(model(**wide).loss_dict["aux_mlm"], value, rtol=1e-5, atol=1e-5)
    model.save_pretrained(tmp_path)
    again = InfoCSEModel.from_pretrained(tmp_path)
    left, right = model.state_dict(), again.state_dict()
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    assert torch.equal(again(**batch).loss, model(**batch).loss)
    model.train()(**batch).loss.backward()
    lacking = [n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    unused = ("token_type_embeddings", "key.bias", "k_lin.bias", "attn.k.bias", "key_proj.bias", "embeddings_project")
    assert not [name for name in lacking if not any(part in name for part in unused)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(**batch).loss.isfinite()


def test_left_padded_rows_replace_their_own_first_token():
    states, h = torch.arange(24.0).view(2, 4, 3), torch.full((2, 3), -1.0)
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1]])
    replaced = replace_first(states, h, mask)
    assert (replaced[0, 0] == -1).all() and (replaced[1, 1] == -1).all()
    kept = torch.ones(2, 4, dtype=torch.bool)
    kept[0, 0] = kept[1, 1] = False
    assert torch.equal(replaced[kept], states[kept])


PRE_NORM: dict[str, dict[str, Any]] = {
    "megatron-bert": {},
    "roberta-prelayernorm": {},
    "xlm-roberta-xl": {},
    "xmod": {"languages": ["en"], "default_language": "en", "pre_norm": True},
}


@pytest.mark.parametrize("kind", list(PRE_NORM))
def test_a_norm_behind_the_layers_is_refused(kind: str) -> None:
    """The lower copy applied it to the states of layer k, and the head was not made of the encoder's layers. Stage 1
    takes the states of layer k without it."""
    sizes = {"hidden_size": H, "intermediate_size": 24, "num_attention_heads": 2, "vocab_size": V}
    config = AutoConfig.for_model(kind, **sizes, **DEEP, **PRE_NORM[kind])
    words = "has the norm '.*' outside its layers: an auxiliary head is not possible"
    with pytest.raises(ValueError, match=words):
        InfoCSEModel(InfoCSEConfig(encoder_config=config, head_init="top_layers"))
    with pytest.raises(ValueError, match=f"{words}; objective 'mlm' trains every family"):
        InfoCSEForPreTraining(InfoCSEForPreTraining.config_class(encoder_config=config))


def test_gradient_checkpointing_changes_nothing(family, stage1, batch_with, encoder_config, whole_layers):
    if family in (*REFUSED, "mpnet"):  # not MPNet's in Transformers
        return
    found = []
    for checkpointing in (False, True):
        model = InfoCSEModel.from_backbone(stage1(family), aux_mlm_weight=0.3, projector="none").train()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        torch.manual_seed(3)
        model(**batch_with(pad=encoder_config(family).pad_token_id)).loss.backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, msg=name)
