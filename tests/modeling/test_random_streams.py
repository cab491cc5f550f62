"""An objective does not change the random numbers that the encoder draws."""

import copy

import pytest
import torch

from csekit.modeling import CSEModel
from csekit.modeling.random_streams import own_stream

OBJECTIVES = ["reconstruction", "mlm", "edited", "dcm", "icm"]


def contrasts(model, batch, steps=3):
    """The contrastive term of some steps in training mode, from the same random state."""
    torch.manual_seed(5)
    return [model.train()(**batch).loss_dict["contrastive"] for _ in range(steps)]


def test_the_encoder_draws_the_same_dropout_with_every_objective(checkpoint, batch_of):
    folder = checkpoint("bert", 0.2)  # its first call seeds
    torch.manual_seed(3)
    joint = CSEModel.from_backbone(folder, objectives=OBJECTIVES)
    torch.manual_seed(3)
    alone = CSEModel.from_backbone(folder, objectives=[])
    batch = batch_of(joint)
    found, expected = contrasts(joint, batch), contrasts(alone, batch)
    assert found == expected
    assert len({float(each) for each in expected}) == 3  # the dropout of each step differs


@pytest.mark.parametrize("projector", ["tanh", "batchnorm", "linear"])
@pytest.mark.parametrize("objectives", [[name] for name in [*OBJECTIVES, "rtd", "aux_mlm"]] + [OBJECTIVES])
def test_the_projector_starts_alike_with_every_objective(checkpoint, objectives, projector):
    folder, models = checkpoint("bert"), []
    fields = {"aux_mlm_head_init": "top_layers"} if "aux_mlm" in objectives else {}
    for given in ({"objectives": []}, {"objectives": objectives, **fields}):
        torch.manual_seed(3)
        models.append(CSEModel.from_backbone(folder, projector=projector, **given))
    alone, joint = (model.projector.state_dict() for model in models)
    assert alone.keys() == joint.keys()
    assert all(torch.equal(alone[name], joint[name]) for name in alone)


def test_an_objective_draws_anew_in_every_step(checkpoint, batch_of):
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), objectives=["icm"], icm_decoder_dropout=0.5).train()
    batch = batch_of(model)
    losses = {float(model(**batch).loss_dict["icm"]) for _ in range(3)}
    assert len(losses) == 3


def test_streams_differ_by_name_and_repeat_by_seed():
    def draws(name, seed):
        with own_stream(name, seed, torch.device("cpu")):
            return torch.rand(4).tolist()

    before = torch.get_rng_state()
    assert draws("icm", 3) == draws("icm", 3)
    assert draws("icm", 3) != draws("rtd", 3)
    assert draws("icm", 3) != draws("icm", 4)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("decoder", ["causal", "denoising"])
def test_the_outputs_of_the_decoder(checkpoint, batch_of, decoder):
    """At the start the three kinds have the same loss; they differ in what it trains."""
    fields = {"objectives": ["icm"], "icm_decoder": decoder, "icm_decoder_heads": 1, "contrastive_weight": 0.0}
    tied = CSEModel.from_backbone(checkpoint("bert"), **fields)
    losses, gradients = [], []
    for output in ("tied", "detached", "untied"):
        model = CSEModel.from_backbone(checkpoint("bert"), icm_output=output, **fields)
        model.load_state_dict(copy.deepcopy(tied.state_dict()), strict=False)
        loss = model(**batch_of(model)).loss
        loss.backward()
        losses.append(loss.detach())
        output_layer = model.objectives["icm"].output
        gradients.append(
            (
                model.backbone.get_input_embeddings().weight.grad,
                None if output_layer is None else output_layer.weight.grad,
            )
        )
    torch.testing.assert_close(losses[1:], [losses[0]] * 2)
    (all_words, _), (own_words, none), (others, untied) = gradients
    assert none is None
    torch.testing.assert_close(own_words, others)
    torch.testing.assert_close(all_words - own_words, untied)
    assert untied.abs().max() > 0
