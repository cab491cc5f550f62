"""The gradient of each term in the encoder: that of a backward pass of the term alone, and what Adam makes of it."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from csekit.evaluation.pairs import Pairs
from csekit.evaluation.results import read_results
from csekit.modeling import DiffCSEModel, InforMinModel
from csekit.trainers import CSECollator, CSETrainer, CSETrainingArguments, load_corpus
from experiments.tables.render import update

TEXTS = [f"the {animal} {verb} in the house" for animal in ("dog", "cat") for verb in ("runs", "sings", "plays")]
BETA2, EPSILON = 0.9, 1e-8


@pytest.fixture
def module(script: Callable[[str], ModuleType]) -> ModuleType:
    script("train_step")
    return script("term_gradients")


def batches_of(model: Any, masked_lm: Path, count: int = 1, size: int = 6) -> list[dict[str, Any]]:
    collator, found = CSECollator(AutoTokenizer.from_pretrained(masked_lm), 16, model.batch_specs), []
    for number in range(count):
        texts = [TEXTS[(number + i) % len(TEXTS)] for i in range(size)]
        batch = collator([{"texts": [text], "index": i, "epoch": number} for i, text in enumerate(texts)])
        found.append({name: value for name, value in batch.items() if name not in ("index", "return_loss")})
    return found


def parameters_of(model: Any) -> list[Any]:
    return [parameter for group in model.parameter_groups() for parameter in group["params"]]


def moment_of(module: ModuleType, model: Any, value: float = 0.0, step: int = 0) -> Any:
    size = sum(parameter.numel() for parameter in model.backbone.parameters())
    return module.SecondMoment(torch.full((size,), value), step, BETA2, EPSILON)


def backward(model: Any, batch: dict[str, Any], term: str | None) -> tuple[torch.Tensor, float]:
    """The encoder's gradient of one term, or of the whole loss, and the norm in all weights that train."""
    model.zero_grad()
    terms = model.terms(**batch)[1]
    (sum(terms.values()) if term is None else terms[term]).backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.backbone.parameters()]
    whole = torch.cat([p.grad.flatten() for p in parameters_of(model) if p.grad is not None])
    model.zero_grad()
    return torch.cat([gradient.flatten() for gradient in gradients]), whole.norm().item()


def test_one_batch_gives_the_norms_of_a_backward_pass_of_one_term(module: ModuleType, masked_lm: Path) -> None:
    model = DiffCSEModel.from_backbone(masked_lm, rtd_weight=0.3).train()
    (batch,) = batches_of(model, masked_lm)
    torch.manual_seed(3)
    found = module.measure(model, parameters_of(model), moment_of(module, model), [batch], 1e9)["terms"]
    assert list(found) == ["contrastive", "rtd"]
    assert all(parameter.grad is None for parameter in model.parameters())
    norms = {}
    for term, row in found.items():
        torch.manual_seed(3)
        gradient, _ = backward(model, batch, term)
        norms[term] = gradient.norm().item()
        assert norms[term] > 0
        assert row["norm"] == pytest.approx(norms[term], rel=1e-4)
        assert row["mean_norm"] == pytest.approx(norms[term], rel=1e-4)
        assert row["mean_error"] is None
    assert found["rtd"]["share"] == pytest.approx(norms["rtd"] / norms["contrastive"], rel=1e-4)
    assert found["contrastive"]["cosine"] == pytest.approx(1)


def test_means_and_adams_scaling_are_those_of_the_plain_formula(module: ModuleType, masked_lm: Path) -> None:
    limit, before, steps = 0.5, 1e-4, 7
    model = DiffCSEModel.from_backbone(masked_lm, rtd_weight=0.3).train()
    for dropout in (layer for layer in model.modules() if isinstance(layer, torch.nn.Dropout)):
        dropout.p = 0.1
    batches = batches_of(model, masked_lm, count=3, size=4)
    torch.manual_seed(3)
    moment = moment_of(module, model, before, steps)
    found = module.measure(model, parameters_of(model), moment, batches, limit)
    gradients: dict[str | None, list[torch.Tensor]] = {}
    norms: list[float] = []
    for term in ("contrastive", "rtd", None):
        torch.manual_seed(3)
        pairs = [backward(model, batch, term) for batch in batches]
        gradients[term], norms = [gradient for gradient, _ in pairs], [whole for _, whole in pairs]
    assert min(norms) > limit
    assert found["grad_norm"]["most"] == pytest.approx(max(norms), rel=1e-4)
    assert found["grad_norm"]["clipped"] == 1
    v = torch.full_like(gradients[None][0], before)
    for contrast, rtd, whole in zip(gradients["contrastive"], gradients["rtd"], norms, strict=True):
        v = BETA2 * v + (1 - BETA2) * (contrast**2 + rtd**2) * (limit / whole) ** 2
    divisor = (v / (1 - BETA2 ** (steps + 3))).sqrt() + EPSILON
    for term, row in found["terms"].items():
        mean = torch.stack(gradients[term]).mean(0)
        clipped = torch.stack([g * limit / whole for g, whole in zip(gradients[term], norms, strict=True)])
        assert row["mean_norm"] == pytest.approx(mean.norm().item(), rel=1e-3)
        assert row["adam_norm"] == pytest.approx((clipped.mean(0) / divisor).norm().item(), rel=1e-3)
        error = (torch.stack(gradients[term]).var(0) / 3).sum().sqrt().item()
        assert row["mean_error"] == pytest.approx(error, rel=1e-3)
        error = ((clipped / divisor).var(0) / 3).sum().sqrt().item()
        assert row["adam_error"] == pytest.approx(error, rel=1e-3)


def test_noise_cancels_in_the_mean(module: ModuleType, masked_lm: Path) -> None:
    class TwoSigns:
        """The term's gradient is the same vector, with the other sign in every second batch."""

        backbone = torch.nn.Linear(3, 1, bias=False)

        def terms(self, sign: float) -> Any:
            return None, {"contrastive": sign * self.backbone.weight.sum()}, {}

    moment = module.SecondMoment(torch.zeros(3))
    parameters = list(TwoSigns.backbone.parameters())
    found = module.measure(TwoSigns(), parameters, moment, [{"sign": 1.0}, {"sign": -1.0}], 1.0)
    assert found["terms"]["contrastive"]["norm"] == pytest.approx(3**0.5)
    assert found["terms"]["contrastive"]["mean_norm"] == 0
    assert found["terms"]["contrastive"]["mean_error"] == pytest.approx(3**0.5)


def test_terms_that_cancel_in_a_weight_do_not_outweigh_the_others(module: ModuleType) -> None:
    class Cancelling:
        """Two terms whose gradients cancel in the first weight."""

        backbone = torch.nn.Linear(3, 1, bias=False)

        def terms(self) -> Any:
            weight = self.backbone.weight
            return None, {"contrastive": weight.sum(), "other": weight.sum() - 2 * weight[0, 0]}, {}

    model = Cancelling()
    found = module.measure(model, list(model.backbone.parameters()), module.SecondMoment(torch.zeros(3)), [{}], 9.0)
    for row in found["terms"].values():
        assert row["adam_norm"] == pytest.approx((3 / 2) ** 0.5, rel=1e-4)


def test_without_contrast_there_is_no_angle(module: ModuleType, masked_lm: Path) -> None:
    model = InforMinModel.from_backbone(masked_lm, contrastive_weight=0.0).train()
    batches = batches_of(model, masked_lm)
    found = module.measure(model, parameters_of(model), moment_of(module, model), batches, 1.0)["terms"]
    assert list(found) == ["reconstruction"]
    for name in ("share", "cosine", "mean_share", "mean_cosine", "adam_share", "adam_cosine"):
        assert found["reconstruction"][name] is None


@pytest.fixture
def trained(masked_lm: Path, tmp_path: Path) -> Path:
    """The checkpoint of a training of four steps, scored before it and after every second one."""
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS) + "\n")
    args = CSETrainingArguments(
        str(tmp_path / "run"),
        max_steps=4,
        per_device_train_batch_size=3,
        max_seq_length=16,
        eval_steps=2,
        eval_on_start=True,
        logging_steps=1,
        label_free_samples=0,
        report_to="none",
    )
    others = [TEXTS[0], "a woman sings", "the ball is red", "a cat is on the tree"]
    dev = Pairs("stsb", TEXTS[:1] * 4, others, np.array([5.0, 1.0, 0.0, 2.0]), None)
    model = InforMinModel.from_backbone(masked_lm)
    CSETrainer(model, args, load_corpus(texts), AutoTokenizer.from_pretrained(masked_lm), dev).train()
    return tmp_path / "run" / "training" / "checkpoint-4"


def test_the_optimisers_second_moment_is_read_in_the_encoders_order(
    module: ModuleType, trained: Path, tmp_path: Path
) -> None:
    args = CSETrainingArguments(str(tmp_path / "other"), max_seq_length=16, label_free_samples=0, report_to="none")
    subject = module.checkpoint(trained, load_corpus(tmp_path / "texts.txt"), args)
    trainer, moment = subject.load()
    assert (moment.step, moment.beta2, moment.epsilon) == (4, 0.999, 1e-8)
    state = torch.load(trained / "optimizer.pt", weights_only=True)
    names = {id(p): name for name, p in trainer.model.named_parameters()}
    order = [names[id(p)] for group in trainer.optimizer.param_groups for p in group["params"]]
    saved = {name: state["state"][i]["exp_avg_sq"] for i, name in enumerate(order)}
    parts = moment.value.split([p.numel() for p in trainer.model.backbone.parameters()])
    for (name, _), part in zip(trainer.model.backbone.named_parameters(), parts, strict=True):
        torch.testing.assert_close(part, saved[f"backbone.{name}"].flatten())
    assert moment.value.max() > 0


def test_the_script(module: ModuleType, masked_lm: Path, trained: Path, tmp_path: Path) -> None:
    argv = ["--train_file", str(tmp_path / "texts.txt"), "--batch_size", "3", "--max_seq_length", "16"]
    argv += ["--repetitions", "2", "--threads", "1", "--output", str(tmp_path / "gradients" / "tiny.json")]
    starts = [f"diffcse {masked_lm} --rtd_weight 1", f"informin {masked_lm}"]
    module.main([*argv, "--device", "cpu", "--start", *starts, "--checkpoints", str(trained)])
    results = read_results(tmp_path / "gradients" / "tiny.json")
    diffcse, informin, later = results["rows"]
    assert (diffcse["title"], diffcse["step"]) == ("diffcse", 0)
    assert diffcse["weights"] == {"contrastive": 1.0, "rtd": 1.0}
    assert (later["title"], later["step"]) == ("informin", 4)
    assert diffcse["settings"] == {"encoder": masked_lm.name, "seed": 42, "dropout": None, "rtd_weight": 1.0}
    assert later["settings"]["max_steps"] == 4
    assert later["settings"]["peak_learning_rate"] == pytest.approx(3e-5)
    assert results["run"]["corpus_sha256"] == load_corpus(tmp_path / "texts.txt").checksum

    history = json.loads((trained / "trainer_state.json").read_text())["log_history"]
    norms = [entry["grad_norm"] for entry in history if "grad_norm" in entry]
    assert later["logged_grad_norm"]["entries"] == 4
    assert later["logged_grad_norm"]["most"] == pytest.approx(max(norms), rel=1e-4)
    assert informin["logged_grad_norm"]["last_step"] == 5
    scores = {entry["step"]: entry["eval_stsb_spearman"] for entry in history if "eval_stsb_spearman" in entry}
    assert informin["dev"] == pytest.approx(scores[0], rel=1e-4)
    assert later["dev"] == pytest.approx(scores[4], rel=1e-4)
    assert diffcse["logged_grad_norm"] is None
    assert diffcse["dev"] is None

    with pytest.raises(SystemExit, match=r"batch_size must be 3 as in .*, got 2"):
        module.main([*argv, "--batch_size", "2", "--add", "--start", starts[1]])
    module.main([*argv, "--device", "cpu", "--add", "--start", starts[1]])
    again = read_results(tmp_path / "gradients" / "tiny.json")["rows"]
    assert again[:3] == results["rows"]
    assert again[3]["terms"] == informin["terms"]

    table = update("<!-- table:gradients/tiny -->\n<!-- end table -->\n", tmp_path)
    assert "| diffcse | 0 | rtd | 1 |" in table
    assert "| informin | 4 | reconstruction | 0.4 |" in table


def test_a_start_takes_the_weights_of_an_earlier_warm_up(module: ModuleType, masked_lm: Path, tmp_path: Path) -> None:
    """``--objectives_from`` was read and left out: the row was that of new objectives."""
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS) + "\n")
    common = {"per_device_train_batch_size": 3, "max_seq_length": 16, "label_free_samples": 0, "report_to": "none"}
    warm = CSETrainingArguments(str(tmp_path / "run"), max_steps=1, save_steps=1, objective_warmup_steps=3, **common)
    tokenizer, corpus = AutoTokenizer.from_pretrained(masked_lm), load_corpus(texts)
    CSETrainer(DiffCSEModel.from_backbone(masked_lm), warm, corpus, tokenizer).train()
    argv = ["--train_file", str(texts), "--batch_size", "3", "--max_seq_length", "16", "--repetitions", "2"]
    argv += ["--threads", "1", "--device", "cpu", "--output", str(tmp_path / "gradients.json")]
    starts = [f"diffcse {masked_lm}", f"diffcse {masked_lm} --objectives_from {tmp_path / 'run'}"]
    checkpoint = tmp_path / "run" / "training" / "checkpoint-1"
    module.main([*argv, "--start", *starts, "--checkpoints", str(checkpoint)])
    new, warmed, later = read_results(tmp_path / "gradients.json")["rows"]
    assert "objective_warmup_steps" not in new["settings"]
    assert warmed["settings"]["objective_warmup_steps"] == 3
    assert later["settings"]["objective_warmup_steps"] == 3
    assert warmed["terms"]["rtd"]["value"] != new["terms"]["rtd"]["value"]
    assert warmed["terms"]["contrastive"]["norm"] == pytest.approx(new["terms"]["contrastive"]["norm"], rel=1e-4)
    assert {"rtd_gap", "rtd_accuracy_kept"} < set(warmed["metrics"])
    (tmp_path / "run" / "objectives" / "objectives.json").unlink()
    module.main([*argv, "--start", starts[1]])
    (unknown,) = read_results(tmp_path / "gradients.json")["rows"]
    assert unknown["settings"]["objective_warmup_steps"] is None
    assert unknown["terms"] == warmed["terms"]
    with pytest.raises(SystemExit, match=r"objectives_from must be a folder with objectives.safetensors"):
        module.main([*argv, "--start", f"diffcse {masked_lm} --objectives_from {masked_lm}"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--start", "best x"], "'METHOD ENCODER …'"),
        (["--start", "diffcse"], "'METHOD ENCODER …'"),
        (["--checkpoints", "nothing-here"], "must be a training checkpoint"),
        ([], "must name a model"),
    ],
)
def test_what_is_no_model_is_refused(module: ModuleType, tmp_path: Path, wrong: list[str], message: str) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS) + "\n")
    argv = ["--train_file", str(texts), "--batch_size", "3", "--threads", "1", "--output", str(tmp_path / "a.json")]
    with pytest.raises(SystemExit, match=message):
        module.main([*argv, *wrong])
