"""State dicts with the keys of released code, made here, against a forward by hand with the source's weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForMaskedLM
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding import load_encoder
from csekit.modeling import DiffCSEModel, InfoCSEModel, SimCSEModel
from csekit.modeling.conversion import convert_checkpoint, read_state

TEXTS = ["w1 w2 w3", "w4 w5 w6 w7 w8 w9 w1 w2", "w10"]
H = 16


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, ["convert", *[str(argument) for argument in arguments]])


def mlp(kind: str) -> nn.Module:
    """The heads of the released code, with running statistics that are not those of a new one."""
    if kind == "dense":
        return nn.ModuleDict({"dense": nn.Linear(H, H)})
    first = [nn.Linear(H, 2 * H, bias=False), nn.BatchNorm1d(2 * H), nn.ReLU()]
    net = nn.Sequential(*first, nn.Linear(2 * H, H, bias=False), nn.BatchNorm1d(H, affine=False))
    for _ in range(3):
        net.train()(torch.randn(32, H) * 2 + 1)
    return nn.ModuleDict({"net": net})


def prefixed(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value.clone() for name, value in module.state_dict().items()}


@pytest.fixture
def source(checkpoint: Any, disturb: Any) -> Any:
    """``source(family, head)``: the trained encoder, the head, and their state dict in SimCSE's form."""

    def make(family: str = "bert", head: str = "dense") -> tuple[Any, nn.Module, dict[str, Tensor]]:
        encoder = disturb(AutoModel.from_pretrained(checkpoint(family), add_pooling_layer=False), seed=3).eval()
        projector = mlp(head).eval()
        return encoder, projector, prefixed(f"{family}.", encoder) | prefixed("mlp.", projector)

    return make


def by_hand(encoder: Any, head: nn.Module | None, tokenizer: Any) -> Tensor:
    """[CLS] of each text by itself, then the head."""
    with torch.no_grad():
        rows = [encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[:, 0] for text in TEXTS]
        h = torch.cat(rows)
        if head is None:
            return h
        return head["dense"](h).tanh() if "dense" in head else head["net"](h)


def embed(model: Any, tokenizer: Any) -> Tensor:
    with torch.no_grad():
        return model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).sentence_embedding


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("head", ["dense", "net"])
@pytest.mark.parametrize("kept", [True, False])
def test_simcse_form(source, checkpoint, tokenizer_of, tmp_path, kind, head, kept):
    encoder, projector, state = source(kind, head)
    torch.save(state, tmp_path / "pytorch_model.bin")
    model, report = convert_checkpoint(tmp_path, checkpoint(kind), projector_at_inference=kept)
    assert isinstance(model, SimCSEModel)
    assert report.taken.keys() == state.keys()
    assert not report.dropped
    assert model.config.projector == {"dense": "tanh", "net": "batchnorm"}[head]
    tokenizer = tokenizer_of(kind)
    wanted = by_hand(encoder, projector if kept else None, tokenizer)
    torch.testing.assert_close(embed(model, tokenizer), wanted, rtol=0, atol=1e-5)
    z = model.projector(by_hand(encoder, None, tokenizer))
    torch.testing.assert_close(z, by_hand(encoder, projector, tokenizer), rtol=0, atol=1e-5)


def test_the_hub_s_form_has_the_head_as_pooler(source, checkpoint, tokenizer_of, tmp_path):
    encoder, projector, _ = source()
    state = prefixed("", encoder) | prefixed("pooler.", projector)
    state["embeddings.position_ids"] = torch.arange(40)[None]
    save_file(state, tmp_path / "model.safetensors")
    model, report = convert_checkpoint(tmp_path, checkpoint("bert"), projector_at_inference=True)
    wanted = by_hand(encoder, projector, tokenizer_of("bert"))
    torch.testing.assert_close(embed(model, tokenizer_of("bert")), wanted, rtol=0, atol=1e-5)
    assert report.dropped == {"a buffer that is computed anew": ["embeddings.position_ids"]}
    model, report = convert_checkpoint(tmp_path, checkpoint("bert"), projector="none")
    assert model.config.projector == "none" and len(report.dropped) == 2


def test_the_encoder_s_own_pooler_is_no_head(source, checkpoint, tmp_path):
    """InforMin-CL builds the encoder with BERT's pooler, which it never uses, beside its own head."""
    _, projector, state = source()
    own = {f"bert.{name}": value for name, value in prefixed("pooler.", mlp("dense")).items()}
    torch.save(state | own, tmp_path / "model.pt")
    model, report = convert_checkpoint(tmp_path / "model.pt", checkpoint("bert"), "informin")
    assert torch.equal(model.projector[0].weight, projector["dense"].weight)
    assert list(report.dropped.values()) == [["bert.pooler.dense.weight", "bert.pooler.dense.bias"]]
    assert [objective.name for objective in model.config.objectives] == ["reconstruction"]  # no weights of its own


def test_diffcse_with_its_discriminator_trains_on(source, checkpoint, disturb, tokenizer_of, tmp_path):
    _, _, state = source(head="net")
    disc = disturb(AutoModel.from_pretrained(checkpoint("bert"), add_pooling_layer=False), seed=4)
    electra = nn.Linear(H, 2)
    lm = AutoModelForMaskedLM.from_pretrained(checkpoint("bert"))
    more = prefixed("aux_bert.", disc) | prefixed("electra_head.", electra) | prefixed("generator.", lm)
    more |= {f"lm_head.{name}": value for name, value in prefixed("", lm.cls.predictions.transform).items()}
    torch.save(state | more, tmp_path / "pytorch_model.bin")
    model, report = convert_checkpoint(tmp_path, checkpoint("bert"), "diffcse")
    assert isinstance(model, DiffCSEModel) and report.left_out == []
    rtd = model.objectives["rtd"]
    assert torch.equal(rtd.head.weight, electra.weight) and torch.equal(rtd.head.bias, electra.bias)
    ids = tokenizer_of("bert")(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        found = rtd.discriminator.model.eval()(**ids).last_hidden_state
        torch.testing.assert_close(found[:, 0], disc.eval()(**ids).last_hidden_state[:, 0], rtol=0, atol=1e-5)
    assert {len(names) for names in report.dropped.values()} == {len(lm.state_dict()), 4}
    assert sum(map(len, report.dropped.values())) + len(report.taken) == len(state | more)
    model.save_pretrained(tmp_path / "training")
    again = DiffCSEModel.from_pretrained(tmp_path / "training", training=True)
    state = again.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert again.objectives["rtd"].generator.name_or_path == str(checkpoint("bert"))


def test_diffcse_as_an_encoder_alone(source, checkpoint, tmp_path):
    _, _, state = source(head="net")
    torch.save(state | prefixed("aux_bert.", nn.Linear(2, 2)), tmp_path / "pytorch_model.bin")
    model, report = convert_checkpoint(
        tmp_path, checkpoint("bert"), "diffcse"
    )  # no electra_head: nothing to go on with
    assert report.left_out == ["rtd"] and not model.objectives
    assert report.dropped == {"the discriminator (method diffcse takes it)": ["aux_bert.weight", "aux_bert.bias"]}


def test_infocse_s_dead_heads(source, checkpoint, tokenizer_of, tmp_path):
    encoder, _, state = source(head="net")
    copy = prefixed("mlm.", AutoModelForMaskedLM.from_pretrained(checkpoint("bert")))
    dead = copy | prefixed("c_head.0.", nn.Linear(H, H)) | prefixed("lm_head.transform.dense.", nn.Linear(H, H))
    torch.save({"state_dict": {f"module.{name}": value for name, value in (state | dead).items()}}, tmp_path / "m.pt")
    model, report = convert_checkpoint(tmp_path / "m.pt", checkpoint("bert"), "infocse")
    assert isinstance(model, InfoCSEModel) and report.left_out == ["aux_mlm"]
    assert sorted(name for names in report.dropped.values() for name in names) == sorted(dead)
    wanted = by_hand(encoder, None, tokenizer_of("bert"))
    torch.testing.assert_close(embed(model, tokenizer_of("bert")), wanted, rtol=0, atol=1e-5)


def test_old_names_of_norms(source, checkpoint, tmp_path):
    _, _, state = source()
    old = {
        n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): n for n in state
    }
    torch.save({before: state[name] for before, name in old.items()}, tmp_path / "pytorch_model.bin")
    model, _ = convert_checkpoint(tmp_path, checkpoint("bert"))
    assert "bert.embeddings.LayerNorm.gamma" in old
    assert torch.equal(model.backbone.embeddings.LayerNorm.weight, state["bert.embeddings.LayerNorm.weight"])
    assert torch.equal(model.backbone.embeddings.LayerNorm.bias, state["bert.embeddings.LayerNorm.bias"])


def test_mask_pooling_of_a_linear_head(source, checkpoint, tokenizer_of, tmp_path):
    """MSSE's form: a linear projector, the state of the template's mask token."""
    encoder, _, _ = source()
    projector = nn.Linear(H, H)
    torch.save(prefixed("bert.", encoder) | prefixed("mlp.", projector), tmp_path / "pytorch_model.bin")
    model, report = convert_checkpoint(tmp_path, checkpoint("bert"), "msse", prompt_template="{sentence} means {mask}")
    assert torch.equal(model.projector.weight, projector.weight) and model.config.pooling == "mask"
    assert report.left_out == ["icm"] and [o.name for o in model.config.objectives] == ["dcm"]
    batch = tokenizer_of("bert")(["w1 w2 means [MASK]"], return_tensors="pt")
    batch = {name: value[:, :-1] for name, value in batch.items()}  # a text that ends in the mask token has no [SEP]
    with torch.no_grad():
        wanted = encoder(**batch).last_hidden_state[:, -1]
        torch.testing.assert_close(model(**batch).sentence_embedding, wanted, rtol=0, atol=1e-5)


def test_the_command_writes_a_run_s_layout(source, checkpoint, tokenizer_of, tmp_path):
    encoder, projector, state = source()
    torch.save(state | {"lm_head.bias": torch.zeros(3)}, tmp_path / "pytorch_model.bin")
    out = tmp_path / "out"
    options = ("--backbone", checkpoint("bert"), "--projector_at_inference", "--set", "temperature=0.1")
    found = run(tmp_path / "pytorch_model.bin", "-o", out, *options)
    assert found.exit_code == 0, found.output
    assert "1 dropped, a masked-LM head: lm_head.bias" in found.output
    wanted = by_hand(encoder, projector, tokenizer_of("bert")).numpy()
    for folder in (out, out / "training"):
        torch.testing.assert_close(
            torch.tensor(load_encoder(folder, device="cpu").encode(TEXTS)), torch.tensor(wanted)
        )
    assert SimCSEModel.from_pretrained(out / "training").config.temperature == 0.1
    assert not [name for name in load_file(out / "model.safetensors") if "projector" in name]
    record = json.loads((out / "conversion.json").read_text())
    assert record["taken"]["mlp.dense.weight"] == "projector.0.weight" and record["source"] == "pytorch_model.bin"
    assert str(tmp_path) not in (out / "conversion.json").read_text()
    again = run(tmp_path / "pytorch_model.bin", "-o", out, *options)
    assert again.exit_code == 2 and "holds files already: choose another --output\n" in again.output  # no --overwrite
    with pytest.raises(ValueError, match=r"training is a training checkpoint.* in the folder that holds training/"):
        SimCSEModel.from_backbone(out / "training")
    SimCSEModel.from_backbone(out)
    own = run(out / "training", "-o", tmp_path / "own", *options)
    assert own.exit_code == 2 and "training is a checkpoint of csekit itself, which AutoModel loads" in own.output
    arguments = ("-o", tmp_path / "deep", "--backbone", checkpoint("bert"), "--pooling", "first_last_mean")
    found = run(tmp_path / "pytorch_model.bin", *arguments)
    assert found.exit_code == 0 and "training/ alone" in found.output
    assert {path.name for path in (tmp_path / "deep").iterdir()} == {"training", "conversion.json"}


WORDS, NORM = "bert.embeddings.word_embeddings.weight", "bert.embeddings.LayerNorm.weight"


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("run",))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            lambda s: s | {"tagger.weight": torch.ones(1)},
            [],
            "has 1 unknown keys: tagger.weight; --allow_unknown",
        ),
        (
            lambda s: {k: v for k, v in s.items() if "layer.1.output.dense.bias" not in k},
            [],
            "lacks 1 weights of BertM",
        ),
        (lambda s: {k.replace("bert.", "roberta."): v for k, v in s.items()}, [], "unknown keys: roberta."),
        (lambda s: {k: v[:-1] if "word_emb" in k else v for k, v in s.items()}, [], ", got (96, 16)"),
        (lambda s: s, ["--set", "projector=batchnorm"], "projector must be 'tanh', as in"),
        (lambda s: s, ["--set", "warmth=1"], "--set must be NAME=VALUE with a field of 'simcse', got 'warmth=1'"),
        (lambda s: s, ["--method", "tsdae"], "method must be one of 'simcse'"),
        (lambda s: {k: v for k, v in s.items() if "mlp" not in k}, ["--projector_at_inference"], "needs a head, and"),
        (lambda s: s | {"x": Evil()}, [], "must hold a state dict of tensors: "),
        (lambda s: [1, 2], [], "must hold a state dict of tensors, got list"),
        (lambda s: s | {3: torch.ones(1)}, [], "pytorch_model.bin must hold tensors by their names, got the name 3"),
        (lambda s: s | {WORDS: s[WORDS] * float("nan")}, [], f"{WORDS} of "),
        (lambda s: s | {WORDS: s[WORDS].double() * 1e300}, [], "must hold finite numbers, got NaN or infinite ones"),
        (lambda s: s | {WORDS: s[WORDS].long()}, [], "(such as torch.float32), got torch.int64"),
        (lambda s: s | {WORDS: s[WORDS].cfloat()}, [], "(such as torch.float32), got torch.complex64"),
        (
            lambda s: s | {f"module.{WORDS}": s[WORDS]},
            [],
            f"must hold each weight once, got {WORDS} and module.{WORDS}",
        ),
        (
            lambda s: s | {NORM.replace("weight", "gamma"): s[NORM]},
            [],
            f"must hold each weight once, got {NORM} and {NORM.replace('weight', 'gamma')}, which are one weight",
        ),
        (
            lambda s: s,
            ["--set", "temperature=0.05", "--set", "temperature=1"],
            "--set temperature must be given once, got 0.05 and 1.0",
        ),
        (
            lambda s: s,
            ["--set", "pooling=mean", "--pooling", "cls"],
            "--pooling must be 'mean', as --set pooling says, or left out, got 'cls'",
        ),
    ],
)
def test_what_cannot_be_is_one_line(source, checkpoint, tmp_path, change, options, message):
    torch.save(change(source()[2]), tmp_path / "pytorch_model.bin")
    found = run(tmp_path, "-o", tmp_path / "out", "--backbone", checkpoint("bert"), *options)
    assert found.exit_code == 2, found.output
    assert message in found.output, found.output
    assert found.output.count("\n") == 1, found.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"hello", None], ids=["empty", "text", "cut"])
def test_a_damaged_file_is_told_by_its_own_name(source, checkpoint, tmp_path, content):
    """Regression: the message named the backbone."""
    file = tmp_path / "weights.bin"
    torch.save(source()[2], file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2] if content is None else content)
    found = run(file, "-o", tmp_path / "out", "--backbone", checkpoint("bert"))
    assert found.exit_code == 2
    assert f"error: {file} must hold a state dict of tensors: " in found.output


def test_a_place_that_cannot_be_written_is_told_without_the_backbone(source, checkpoint, tmp_path, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", "out")

    torch.save(source()[2], tmp_path / "pytorch_model.bin")
    monkeypatch.setattr("csekit.encoding.deploy.whole_folder", refuse)
    found = run(tmp_path, "-o", tmp_path / "out", "--backbone", checkpoint("bert"))
    assert found.exit_code == 2
    assert "Permission denied" in found.output
    assert "the model cannot be used" not in found.output


def test_unknown_keys_can_be_left_behind(source, checkpoint, tmp_path):
    torch.save(source()[2] | {"tagger.weight": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    found = run(tmp_path, "-o", tmp_path / "out", "--backbone", checkpoint("bert"), "--allow_unknown")
    assert found.exit_code == 0 and "1 left behind, of unknown purpose: tagger.weight" in found.output
    assert json.loads((tmp_path / "out/conversion.json").read_text())["unknown"] == ["tagger.weight"]


def test_no_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match="must be a weights file or a folder with"):
        read_state(tmp_path)
