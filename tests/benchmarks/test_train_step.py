"""The step that is timed is a whole one; methods take turns; ratios are taken within a turn."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from csekit.evaluation.results import read_results, write_results
from csekit.modeling import METHODS, InfoCSEModel
from csekit.trainers import CSECollator
from experiments.tables.render import update

ROOT = Path(__file__).parents[2]
TEXTS = [
    "the man plays guitar",
    "a woman sings",
    "the dog runs in the house",
    "a cat is on the tree",
    "the ball is red",
]


def rows(count: int) -> list[dict[str, Any]]:
    return [{"texts": [text], "index": i, "epoch": 0} for i, text in enumerate(TEXTS[:count])]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_trains_everything_that_trains(
    script: Callable[[str], ModuleType], masked_lm: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    module, built = script("train_step"), []
    build = InfoCSEModel.from_backbone

    def remember(*args: Any, **kwargs: Any) -> Any:
        built.append(build(*args, **kwargs))
        return built[-1]

    monkeypatch.setattr(InfoCSEModel, "from_backbone", remember)
    setting = module.Setting(str(masked_lm), "cpu", precision, 16, 1)
    step = module.csekit_step(setting, method="infocse", fields={"aux_mlm_head_init": "random"})
    (model,) = built
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    step(rows(4))
    step(rows(4))
    moved = {name for name, parameter in model.named_parameters() if not parameter.equal(before[name])}
    unused = {"backbone.embeddings.token_type_embeddings.weight"}  # its second row, at least
    assert moved | unused >= {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert not any(name.startswith("objectives.aux_mlm.lower.") for name in moved)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_experiments_of_a_plan_are_rows(
    script: Callable[[str], ModuleType], masked_lm: Path, tmp_path: Path
) -> None:
    """A teacher, references, an augmentation: what a step reads beside the model is there."""
    module = script("train_step")
    path = tmp_path / "plan.yaml"
    path.write_text(
        """
        arguments: {learning_rate: 1, pooling: mean, projector: none}
        experiments:
          simcse: {title: SimCSE, arguments: {method: simcse}}
          rank:
            title: ranked
            arguments: {method: joint, objectives: [rank], teachers: [x], rank_teachers: 1, rank_loss: mse,
                        rank_references: 4}
          words: {title: words, arguments: {method: joint, objectives: [queue], queue_size: 4, augmentation: repeat}}
          tfidf: {title: a command has no step, command: [-c, pass]}
        """
    )
    assert list(module.read_rows(path, None)) == ["simcse", "rank", "words"]
    found = module.read_rows(path, ["rank", "words"])
    assert [row.title for row in found.values()] == ["ranked", "words"]
    for row in found.values():
        step = row.build(module.Setting(str(masked_lm), "cpu", "fp32", 16, 1))
        step(rows(4))
    assert module.groups(["a", "b", "c", "d"], 2) == [["a", "b", "c"], ["a", "d"]]
    assert module.groups(["a", "b"], None) == [["a", "b"]]
    assert module.groups(["a"], 2) == [["a"]]


class Fake:
    """A worker whose machine gets slower from turn to turn."""

    def __init__(self, name: str, factor: float, calls: list[str]) -> None:
        self.title, self.name, self.factor, self.calls, self.turn = name.upper(), name, factor, calls, 0

    def ask(self, given: Any) -> float:
        self.calls.append(f"{self.name}{'' if given is None else given[0]['index']}")
        self.turn += 1
        return 1000 if given is None else self.factor * 3.0**self.turn


def test_methods_take_turns_and_ratios_are_within_a_turn(script: Callable[[str], ModuleType]) -> None:
    calls: list[str] = []
    workers = {"a": Fake("a", 1.0, calls), "b": Fake("b", 2.5, calls)}
    batches = [[{"index": number}] for number in range(4)]
    found = script("train_step").measure(workers, batches, warmup=1)
    assert calls == ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3", "a", "b"]
    first, second = found
    assert first["all_seconds"] == [9.0, 27.0, 81.0] and second["seconds"] == 67.5
    assert first["time_ratio"] == 1 and second["time_ratio"] == pytest.approx(2.5)
    assert (second["name"], second["title"], second["memory"]) == ("b", "B", 1000)


def test_a_worker_that_fails_ends_the_run(script: Callable[[str], ModuleType]) -> None:
    module = script("train_step")

    def gone() -> None:
        raise EOFError

    with pytest.raises(SystemExit, match="DiffCSE failed"):
        module.Worker.receive(SimpleNamespace(pipe=SimpleNamespace(recv=gone), title="DiffCSE"))


def texts_of(batches: list[list[dict[str, Any]]]) -> list[list[str]]:
    return [[row["texts"][0] for row in batch] for batch in batches]


def test_batches_go_round(script: Callable[[str], ModuleType], tmp_path: Path) -> None:
    module = script("train_step")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    name, batches = module.read_batches(str(tmp_path / "texts.txt"), 2, 3)
    first, second, third = texts_of(batches)
    assert name == "texts.txt"
    assert len({*first, *second}) == 4
    assert third == first
    with pytest.raises(ValueError, match="at least batch_size sentences, 6, got 5"):
        module.read_batches(str(tmp_path / "texts.txt"), 6, 1)


def test_batches_are_shuffled_over_the_whole_corpus(script: Callable[[str], ModuleType], tmp_path: Path) -> None:
    """Neighbours of one article in a batch gave the contrast a gradient 5 to 10 times that of training."""
    module, path = script("train_step"), tmp_path / "texts.txt"
    path.write_text("\n".join(f"sentence {i} of article {i // 50}" for i in range(1000)))
    batches = module.read_batches(str(path), 20, 5)[1]
    places = [[row["index"] for row in batch] for batch in batches]
    assert len({place for batch in places for place in batch}) == 100
    for batch in places:
        assert max(batch) - min(batch) > 500
        assert len({place // 50 for place in batch}) >= 8
    assert texts_of(module.read_batches(str(path), 20, 5)[1]) == texts_of(batches)
    assert texts_of(module.read_batches(str(path), 20, 5, seed=7)[1]) != texts_of(batches)


def test_batches_do_not_depend_on_the_order_of_the_corpus(script: Callable[[str], ModuleType], tmp_path: Path) -> None:
    module, texts = script("train_step"), [f"sentence {i}" for i in range(500)]
    drawn = []
    for name, ordered in (("a.txt", texts), ("b.txt", texts[::-1])):
        (tmp_path / name).write_text("\n".join(ordered))
        drawn.append(texts_of(module.read_batches(str(tmp_path / name), 10, 4)[1]))
    assert drawn[0] == drawn[1]


def test_equal_texts_do_not_gather_in_one_batch(script: Callable[[str], ModuleType], tmp_path: Path) -> None:
    module, path = script("train_step"), tmp_path / "texts.txt"
    path.write_text("\n".join(f"sentence {i // 10}" for i in range(500)))
    batches = texts_of(module.read_batches(str(path), 10, 50)[1])
    assert max(batch.count(text) for batch in batches for text in batch) < 6


@pytest.mark.slow
def test_the_script(script: Callable[[str], ModuleType], masked_lm: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    output = tmp_path / "costs" / "tiny-cpu.json"
    argv = [
        "--model_name_or_path",
        str(masked_lm),
        "--train_file",
        str(tmp_path / "texts.txt"),
        "--output",
        str(output),
    ]
    argv += ["--device", "cpu", "--threads", "1", "--batch_size", "2", "--max_seq_length", "16", "--repetitions", "2"]
    command = [sys.executable, str(ROOT / "benchmarks" / "train_step.py"), *argv, "--warmup", "1"]
    done = subprocess.run([*command, "--methods", "simcse-tanh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = read_results(output)
    (row,) = results["methods"]
    assert len(row["all_seconds"]) == 2
    assert min(row["all_seconds"]) > 0
    assert row["memory"] >= 0
    assert (results["run"]["precision"], results["run"]["corpus"], results["run"]["threads"]) == (
        "fp32",
        "texts.txt",
        1,
    )
    page = update("<!-- table:costs/tiny-cpu -->\n<!-- end table -->\n", tmp_path)
    assert "| SimCSE, tanh projector |" in page and "median of 2 steps" in page
    with pytest.raises(SystemExit, match="methods must be among simcse-tanh"):
        script("train_step").main([*argv, "--methods", "simcse"])


class InProcess:
    """A worker without a process of its own."""

    def __init__(self, module: ModuleType, setting: Any, row: Any) -> None:
        self.title, self.now, self.step = row.title, module.now, row.build(setting)

    def ask(self, given: list[dict[str, Any]] | None) -> float:
        if given is None:
            return 1000
        started = self.now("cpu")
        self.step(given)
        return float(self.now("cpu") - started)


def test_gaps_are_timed_beside_the_same_step_without_them(
    script: Callable[[str], ModuleType], masked_lm: Path, tmp_path: Path
) -> None:
    module = script("train_step")
    chosen = module.read_rows(ROOT / "benchmarks/gaps.yaml", None)
    setting = module.Setting(str(masked_lm), "cpu", "fp32", 16, 1)
    workers = {name: InProcess(module, setting, row) for name, row in chosen.items()}
    against = {name: row.against for name, row in chosen.items() if row.against}
    methods = module.measure(workers, [rows(4)] * 2, 0, against)
    run = {"benchmark": "train_step", "backbone": "tiny", "device": "cpu", "precision": "fp32", "threads": 1}
    run |= {"batch_size": 4, "max_seq_length": 16, "corpus": "texts.txt", "repetitions": 2}
    output = tmp_path / "costs" / "gaps-tiny.json"
    write_results(output, {"run": run, "methods": methods, "environment": {"device": "cpu"}})
    page = update("<!-- table:costs/gaps-tiny -->\n<!-- end table -->\n", tmp_path)
    found = {row["name"]: 1000 * row["seconds"] for row in read_results(output)["methods"]}
    times = {name: f"{value:.{0 if value >= 100 else 1}f}" for name, value in found.items()}
    for name, title in (
        ("msse", "MSSE, icm_gap"),
        ("diffcse", "DiffCSE, rtd_gap"),
        ("infocse", "InfoCSE, aux_mlm_gap"),
    ):
        assert f"| {title} | {times[f'{name}-without']} | {times[name]} | " in page


@pytest.mark.parametrize(
    ("method", "fields", "gap"),
    [
        ("msse", {}, "icm_gap"),
        ("diffcse", {}, "rtd_gap"),
        ("infocse", {"aux_mlm_head_init": "random"}, "aux_mlm_gap"),
    ],
)
def test_a_step_without_gaps_has_the_same_loss_and_no_gap(
    masked_lm: Path, method: str, fields: dict[str, Any], gap: str
) -> None:
    torch.manual_seed(1)
    model = METHODS[method].from_backbone(masked_lm, dropout=0.0, **fields).train()
    for weight in model.objectives.parameters():
        weight.data.mul_(10.0 if weight.dim() > 1 else 1.0)  # small ones could give a gap that rounds to 0
    collator = CSECollator(AutoTokenizer.from_pretrained(masked_lm), 16, model.batch_specs)
    batch = {name: value for name, value in collator(rows(4)).items() if name != "index"}
    torch.manual_seed(0)
    whole = model(**batch)
    torch.manual_seed(0)
    model.measure_gaps(False)
    bare = model(**batch)
    assert whole.metrics[gap] != 0
    assert set(whole.metrics) - set(bare.metrics) == {gap}
    assert torch.equal(bare.loss, whole.loss)


@pytest.mark.parametrize(("gaps", "expected"), [("usual", [5, 10]), ("always", [*range(1, 13)]), ("never", [])])
def test_a_step_measures_gaps_as_often_as_it_is_told(
    script: Callable[[str], ModuleType], masked_lm: Path, gaps: str, expected: list[int]
) -> None:
    module = script("train_step")
    setting, measured = module.Setting(str(masked_lm), "cpu", "fp32", 16, 1), []

    def noted(model: Any) -> Any:
        def network(**batch: Any) -> Any:
            output = model(**batch)
            measured.append("rtd_gap" in output.metrics)
            return output

        return network

    step = module.csekit_step(setting, "diffcse", {}, wrap=noted, gaps=gaps)
    for _ in range(12):
        step(rows(4))
    assert [number for number, found in enumerate(measured, 1) if found] == expected


def test_packing_rows_choose_what_is_packed(
    script: Callable[[str], ModuleType], masked_lm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("train_step")
    usual = module.fast_packing.PADDING
    monkeypatch.setattr(module.fast_packing, "PADDING", usual)
    seen = []
    for row in module.read_rows(ROOT / "benchmarks/packing.yaml", None).values():
        row.build(module.Setting(str(masked_lm), "cpu", "fp32", 16, 1))(rows(4))
        seen.append(module.fast_packing.PADDING)
    assert seen[0] == usual and seen[1] == 0 and seen[2] > 1 << 32


def test_weights_rows_convert_together_where_they_say_so(
    script: Callable[[str], ModuleType], masked_lm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("train_step")
    converted, convert = [], module.fast_weights._copies
    monkeypatch.setattr(
        module.fast_weights, "_copies", lambda weights, dtype: converted.append(dtype) or convert(weights, dtype)
    )
    setting = module.Setting(str(masked_lm), "cpu", "bf16", 16, 1)
    for name, row in module.read_rows(ROOT / "benchmarks/weights.yaml", None).items():
        monkeypatch.setattr(module.fast_weights, "converts", lambda device: device.type != "cpu")
        row.build(setting)(rows(4))
        both_ways = {module.torch.bfloat16, module.torch.float32}
        assert set(converted) == (both_ways if name.endswith("-converted") else set()), name
        assert row.against == (name.removesuffix("-converted") if converted else None)
        converted.clear()


def test_the_usual_time_counts_measuring_steps_as_often_as_they_come(script: Callable[[str], ModuleType]) -> None:
    usual = script("train_step").usual
    assert usual([1.0, 9.0, 1.0, 1.0, 6.0], range(1, 6)) == (4 * 1.0 + 6.0) / 5
    assert usual([1.0, 9.0, 2.0], range(1, 4)) == 2.0


def test_compiled_rows(script: Callable[[str], ModuleType], masked_lm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They compile as the file says, begin each step, and are compared with the plain step."""
    module, compiled, begun = script("train_step"), [], []
    monkeypatch.setattr(module, "compile_layers", lambda model, **given: compiled.append(given))
    monkeypatch.setattr(module, "begin_step", begun.append)
    found = module.read_rows(ROOT / "benchmarks/compile.yaml", None)
    methods = [name for name, row in found.items() if row.against is None]
    assert [row.against for row in found.values()] == [None, "simcse", "simcse", None, "infocse", None, "diffcse"]
    for row in found.values():
        row.build(module.Setting(str(masked_lm), "cpu", "fp32", 16, 1))(rows(4))
    graphs = {"mode": "reduce-overhead", "bucket": 512}
    assert compiled == [{}, *[graphs] * len(methods)]
    assert begun == [None, None, *["reduce-overhead", None] * 2, "reduce-overhead"]
