"""Nonsense in every option of every command and script: told in one line, or done."""

import json
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

pytestmark = pytest.mark.torture
f = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("fuzzing.py"))))
ROOT = Path(__file__).parents[2]
VALUES = f.NUMBERS | f.WORDS | f.TEXTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny model and inputs of every command, in the working directory."""
    from csekit.encoding import encode_file, load_encoder
    from csekit.evaluation.results import write_results

    folder = tmp_path_factory.mktemp("options")
    f.tiny(folder / "tiny-bert")
    (folder / "texts.txt").write_text("\n".join(f.sentences(30)) + "\n")
    rows = [f"{a}\t{b}\t{i % 6}" for i, (a, b) in enumerate(zip(f.sentences(9, 1), f.sentences(9, 2), strict=True))]
    (folder / "pairs.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    documents = [
        {"title": a, "text": f"{b}. {a}. {b}."} for a, b in zip(f.sentences(9, 3), f.sentences(9, 4), strict=True)
    ]
    (folder / "documents.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    gold = np.arange(9) % 4.0
    run = {"method": "simcse", "backbone": "b", "seed": 1, "corpus": {"name": "c"}, "config": {"pooling": "cls"}}
    run |= {"arguments": {}, "name": "n", "test": {"tasks": {"STS12": {"all": 5.0}}}}
    write_results(folder / "run.json", run, {"STS12": (np.linspace(0, 1, 9), gold)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", folder / "cache")
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_TOKEN", "none")
        patch.chdir(folder)
        encoder = load_encoder("tiny-bert", pooling="mean", device="cpu")
        encode_file(encoder, "texts.txt", "stored.npy", progress=False)
        yield folder


TINY = ("tiny-bert", "--pooling", "mean", "--device", "cpu")
#: Words with which each command ends well, and how much it may take of the run's working directory.
WHOLE: dict[str, tuple[str, ...]] = {
    "check": ("texts.txt", "--model", "tiny-bert"),
    "encode": ("texts.txt", "--model", *TINY, "--no_progress", "--overwrite", "-o", "out.npy"),
    "merge": ("out.npy",),
    "search": ("stored.npy", "--query", "a", "--device", "cpu", "--no_progress"),
    "eval": (*TINY, "--pairs", "pairs.tsv", "--no_progress"),
    "compare": ("run.json", "run.json", "--resamples", "5"),
    "neighbors": ("tiny-bert", "tiny-bert", "--pooling_a", "mean", "--pooling_b", "cls", "--corpus", "texts.txt"),
    "label": ("texts.txt", "--model", *TINY, "--no_progress", "-o", "labels.tsv", "--pairs", "4"),
    "report": ("run.json", "-o", "page.html", "--no_progress"),
    "geometry": (*TINY, "--no_clustering", "--data_dir", "."),
    "figures": ("--results", ".", "--output", "pictures"),
    "card": ("run.json", "-o", "card.md"),
    "push": (".", "me/model"),
    "export": ("tiny-bert", "--pooling", "mean", "--format", "sentence-transformers", "--overwrite", "-o", "exported"),
    "mine": (
        "pairs.tsv",
        "--columns",
        "sentence1",
        "sentence2",
        "--model",
        *TINY,
        "--no_progress",
        "-o",
        "hard.jsonl",
    ),
    "pairs": ("documents.jsonl", "--unit", "sentence", "-o", "neighbours.jsonl"),
    "distill-static": (*TINY, "--dims", "4", "--no_progress", "-o", "static"),
    "convert": ("tiny-bert", "--backbone", "tiny-bert", "-o", "converted", "--allow_unknown"),
}


#: What a command refuses to write over, with its records, and without an option that allows it.
REFUSED = {
    "mine": ("hard.jsonl", "hard.jsonl.parts", "hard.jsonl.json"),
    "pairs": ("neighbours.jsonl",),
    "distill-static": ("static", "static.parts"),
}


def options_of(command: str) -> list[str]:
    """Return the long names of a command's options."""
    import typer.main

    from csekit.cli import main

    group: Any = typer.main.get_command(main)
    found = [
        name for parameter in group.commands[command].params for name in (*parameter.opts, *parameter.secondary_opts)
    ]
    return sorted(name for name in found if name.startswith("--") and name not in ("--help", "--import"))


@pytest.mark.parametrize("command", WHOLE)
def test_options_of_commands(folder: Path, command: str) -> None:
    fuzz, names = f.Fuzz(f"options of {command}"), options_of(command)
    more = st.lists(st.tuples(st.sampled_from(names), st.none() | VALUES), min_size=1, max_size=2)
    heads = st.sampled_from([WHOLE[command]] * 12) | st.lists(VALUES, max_size=3).map(tuple)

    def body(drawn: tuple[tuple[str, ...], list[tuple[str, str | None]]]) -> None:
        for old in REFUSED.get(command, ()):
            shutil.rmtree(old, ignore_errors=True) if Path(old).is_dir() else Path(old).unlink(missing_ok=True)
        words = [*drawn[0]]
        for name, value in drawn[1]:
            words += [name] if value is None else [f"{name}={value}"]
        fuzz.judge(f.csekit(command, *words, typed="1\nb\nx\nq\n"), words)

    fuzz.run(st.tuples(heads, more), body)


# Scripts


def script_options(script: str) -> list[str]:
    from csekit.trainers.arguments import CSETrainingArguments, PretrainingArguments
    from csekit.trainers.scripts.pretraining_runs import PretrainRunArguments
    from csekit.trainers.scripts.run_arguments import RunArguments, build_parser, method_fields

    pretraining = script == "run_pretrain.py"
    kinds = (PretrainRunArguments, PretrainingArguments) if pretraining else (RunArguments, CSETrainingArguments)
    names = [name for action in build_parser(kinds)._actions for name in action.option_strings]
    every = (
        []
        if pretraining
        else [f"--{name}" for name in method_fields("joint", ["mlm", "reconstruction", "rtd", "dcm"])]
    )
    left_out = {
        "--help",
        "--help_all",
        "-h",
        "--import",
        "--imports",
        "--push_to_hub",
        "--fsdp",
        "--deepspeed",
        "--torch_compile",
    }
    started = ("--torch_compile", "--dataloader_num", "--full_det")

    def is_left_out(name: str) -> bool:
        name = name[:2] + name[2:].replace("-", "_")  # argparse takes --torch-compile as well
        return name in left_out or name.startswith(started)

    return sorted(name for name in {*names, *every} if not is_left_out(name))


@pytest.mark.parametrize("script", ["run_unsup.py", "run_sup.py", "run_pretrain.py"])
def test_words_of_scripts(folder: Path, script: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The command line alone: nothing is loaded."""
    from csekit.trainers.scripts.pretraining_runs import parse_pretrain_arguments
    from csekit.trainers.scripts.run_arguments import parse_run_arguments
    from csekit.trainers.scripts.runs import one_line_errors

    fuzz, names = f.Fuzz(f"words of {script}"), script_options(script)
    parse: Callable[..., Any] = parse_pretrain_arguments if script == "run_pretrain.py" else parse_run_arguments

    def body(drawn: list[tuple[str, str | None]]) -> None:
        words = [word for name, value in drawn for word in ([name] if value is None else [f"{name}={value}"])]

        def call() -> int:
            with one_line_errors():
                parse(["--model_name_or_path", "x", "--train_file", "y", "--use_cpu", "True", *words])[0].check()
            return 0

        fuzz.judge(f.in_process(call, capfd), words)

    fuzz.run(st.lists(st.tuples(st.sampled_from(names), st.none() | VALUES), min_size=1, max_size=4), body)


@pytest.mark.parametrize("script", ["run_unsup.py", "run_pretrain.py"])
def test_trainings(
    folder: Path, script: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training of two steps with one nonsense value."""
    fuzz, numbers = f.Fuzz(f"training by {script}"), iter(range(10**9))
    main = runpy.run_path(str(ROOT / "examples" / script))["main"]
    base = ["--model_name_or_path", "tiny-bert", "--train_file", "texts.txt", "--use_cpu", "True", "--max_steps", "2"]
    base += ["--per_device_train_batch_size", "8", "--report_to", "none", "--disable_tqdm", "True"]
    base += ["--objective", "mlm", "--block_length", "16"] if script == "run_pretrain.py" else []
    base += [] if script == "run_pretrain.py" else ["--dev_file", "pairs.tsv", "--label_free_samples", "4"]
    names = [name for name in script_options(script) if name not in ("--output_dir", "--max_steps", "--hub_token")]

    def body(drawn: tuple[str, str | None]) -> None:
        name, value = drawn
        words = [*base, "--output_dir", f"run{next(numbers)}", name if value is None else f"{name}={value}"]
        monkeypatch.setattr(sys, "argv", [script, *words])
        fuzz.judge(f.in_process(main, capfd), words[len(base) :])

    fuzz.run(st.tuples(st.sampled_from(names), st.none() | VALUES), body)


def test_words_of_run_seeds(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from experiments.run_seeds import main

    (folder / "script.py").write_text("")
    fuzz = f.Fuzz("words of run_seeds")
    names = st.sampled_from(["--grid", "--seeds", "--grid_steps", "--name", "--max_minutes", "--engine", "--num_gpus"])
    after = st.lists(st.tuples(st.sampled_from(["--learning_rate", "--seed", "x"]), VALUES), max_size=2)

    def body(drawn: tuple[list[tuple[str, str]], list[tuple[str, str]]]) -> None:
        words = ["--script", "script.py", "--output_dir", "runs", "--results_dir", "results", "--dry_run"]
        words += [f"{name}={value}" for name, value in drawn[0]]
        words += ["--", *(word for pair in drawn[1] for word in pair)] if drawn[1] else []
        fuzz.judge(f.in_process(lambda: main(words), capfd), json.dumps(words))

    fuzz.run(st.tuples(st.lists(st.tuples(names, VALUES), min_size=1, max_size=3), after), body)
