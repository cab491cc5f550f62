"""``csekit train``, ``train-pairs`` and ``pretrain``: alone, in a folder without a clone, and under a launcher."""

import json
import os
import re
import runpy
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForMaskedLM
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding import load_encoder
from csekit.modeling import CSEModel, InformationCompensation
from csekit.trainers.scripts import launch

ROOT = Path(__file__).parents[1]
small = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "trainers" / "small_runs.py")))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--cpu"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("data")
    small.write_backbone(folder / "tiny-bert")
    small.write_texts(folder / "texts.txt", 60)
    small.write_texts(folder / "pairs.tsv", 60, 2)
    small.write_pairs(folder / "dev.tsv")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
        patch.setattr("datasets.config.HF_DATASETS_CACHE", folder / "cache")
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.chdir(folder)  # there is no clone here
        yield folder


SIZES = ["--max_steps", "2", "--eval_steps", "2", "--per_device_train_batch_size", "8", "--report_to", "none"]
SCORED = ["--dev_file", "dev.tsv", "--label_free_samples", "0"]
START = ["--model_name_or_path", "tiny-bert", "--use_cpu", *SIZES]


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(main, [str(word) for word in words])


def results(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def test_train(data: Path, tmp_path: Path) -> None:
    done = run("train", *START, *SCORED, "--train_file", "texts.txt", "--output_dir", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert results(tmp_path / "run")["method"] == "simcse"
    assert load_encoder(tmp_path / "run").encode(["a dog runs"]).shape == (1, 32)


OLD_VALUES: list[tuple[list[str], dict[str, Any], dict[str, Any]]] = [
    (["smoothing", "--smoothing_size", "9", "--smoothing_neighbors", "8"], {"neighbors": 9}, {"neighbors": 8}),
    (["smoothing", "--smoothing_size", "9", "--smoothing_neighbors", "8"], {"neighbors": 16}, {"neighbors": 8}),
    (["rank"], {"loss": "mse", "low": 0.9, "high": 0.1}, {"loss": "mse", "weight": 0.0}),
    (["rank"], {"low": 0.9, "high": 0.1}, {"low": 0.9, "high": 0.1, "weight": 1.0}),
    (["attention", "--attention_first_layer", "0", "--attention_last_layer", "1"], {"samples": 2}, {"weight": 0.0}),
]


@pytest.mark.parametrize(("words", "old", "loaded"), OLD_VALUES, ids=lambda value: None)
def test_a_checkpoint_with_values_that_are_refused_by_now(
    data: Path, tmp_path: Path, words: list[str], old: dict[str, Any], loaded: dict[str, Any]
) -> None:
    """Regression: earlier versions trained with them, and their checkpoints did not load. The effect is the same."""
    teacher = ["--teachers", "tiny-bert:mean"] if words[0] == "rank" else []
    start = ["train", *START, *SCORED, "--train_file", "texts.txt", "--method", "joint", "--output_dir"]
    done = run(*start, tmp_path / "run", "--objectives", *words, *teacher)
    assert done.exit_code == 0, done.output
    folder = tmp_path / "run" / "training"
    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    content["objectives"][0] |= old
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    done = run("encode", data / "texts.txt", "--model", folder, "--output", tmp_path / "emb.npy")
    assert done.exit_code == 0, done.output
    model = CSEModel.from_pretrained(folder)
    config = model.objectives[words[0]].config.to_dict()
    assert {name: config[name] for name in loaded} == loaded


@pytest.mark.parametrize("loss", ["listmle", "listnet", "mse"])
def test_bounds_without_a_pair_are_refused_where_they_are_read(data: Path, tmp_path: Path, loss: str) -> None:
    """Regression: the losses that read no bounds refused them."""
    start = ["train", *START, *SCORED, "--train_file", "texts.txt", "--method", "joint", "--objectives", "rank"]
    bounds = ["--teachers", "tiny-bert:mean", "--rank_loss", loss, "--rank_low", "0.9", "--rank_high", "0.5"]
    done = run(*start, *bounds, "--output_dir", tmp_path / "run")
    if loss != "mse":
        assert done.exit_code == 0, done.output
        return
    assert done.exit_code == 2
    assert "rank_low must be at most rank_high, 0.5, got 0.9: the term would be 0 for every pair" in done.stderr


def write_decoder(folder: Path, family: str) -> Path:
    """A tiny model with a decoder, and the tokenizer of the tiny BERT."""
    import transformers

    sizes = {"vocab_size": 30, "d_model": 16, "max_position_embeddings": 40}
    if "T5" in family:
        sizes |= {"d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    else:
        sizes |= {f"{side}_layers": 1 for side in ("encoder", "decoder")}
        sizes |= {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("attention_heads", "ffn_dim")}
    whole = family.removesuffix("Encoder")
    kind = f"{family}Model"
    getattr(transformers, kind)(getattr(transformers, f"{whole}Config")(**sizes)).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained("tiny-bert").save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", ["LongT5", "LongT5Encoder", "T5", "Pegasus"])
def test_a_model_whose_decoder_needs_inputs_is_refused(data: Path, tmp_path: Path, family: str) -> None:
    """Regression: the error was a sentence of Transformers about its inputs."""
    backbone = write_decoder(tmp_path / "backbone", family)
    given = ["--model_name_or_path", backbone, "--train_file", "texts.txt", "--output_dir", tmp_path / "run"]
    done = run("train", *START, *SCORED, *given)
    assert done.exit_code == 2, done.output
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    kind = family.removesuffix("Encoder").lower()
    assert "must be an encoder such as bert, roberta or modernbert, or a decoder language model" in line
    assert f"got a {kind!r}, whose decoder needs inputs of its own" in line
    assert ("trains none of them" in line) is ("t5" in kind)


@pytest.mark.parametrize("command", ["train", "encode"])
def test_a_model_that_gives_scores_of_words_is_refused(data: Path, tmp_path: Path, command: str) -> None:
    """Regression: FSMT's scores of the target's words were taken for the states of its tokens."""
    from transformers import AutoTokenizer, FSMTConfig, FSMTModel

    sizes = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in
             {"layers": 1, "attention_heads": 2, "ffn_dim": 32}.items()}  # fmt: skip
    config = FSMTConfig(langs=["en", "de"], src_vocab_size=30, tgt_vocab_size=30, d_model=16, **sizes)
    FSMTModel(config).save_pretrained(tmp_path / "backbone")
    AutoTokenizer.from_pretrained("tiny-bert").save_pretrained(tmp_path / "backbone")
    if command == "train":
        given = [*START, *SCORED, "--model_name_or_path", tmp_path / "backbone", "--train_file", "texts.txt"]
        done = run("train", *given, "--output_dir", tmp_path / "run")
    else:
        given = ["texts.txt", "--model", tmp_path / "backbone", "--pooling", "mean"]
        done = run("encode", *given, "--output", tmp_path / "out.npy")
    assert done.exit_code == 2, done.output
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert "backbone" in line and "its output has 30 numbers a token, not its hidden size of 16" in line


def test_a_decoder_that_reads_the_text_trains(data: Path, tmp_path: Path) -> None:
    backbone = write_decoder(tmp_path / "backbone", "Bart")
    given = ["--model_name_or_path", backbone, "--train_file", "texts.txt", "--output_dir", tmp_path / "run"]
    done = run("train", *START, *SCORED, *given, "--max_seq_length", "32")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("pooling", ["first_last_mean", "top2_mean"])
def test_a_pooling_over_layers_is_refused_for_an_encoder_with_a_decoder(
    data: Path, tmp_path: Path, pooling: str
) -> None:
    """Regression: the first batch ended in an AttributeError. T5's encoder, alone, has these poolings."""
    backbone = write_decoder(tmp_path / "backbone", "Bart")
    given = ["--model_name_or_path", backbone, "--train_file", "texts.txt", "--output_dir", tmp_path / "run"]
    train = run("train", *START, *SCORED, *given, "--max_seq_length", "32", "--pooling", pooling)
    output = ["--output", tmp_path / "emb.npy", "--pooling", pooling]
    encode = run("encode", data / "texts.txt", "--model", backbone, *output)
    for done in (train, encode):
        assert done.exit_code == 2, done.output
        assert "pooling must be one of 'cls', 'mean', 'last', 'mask' for a 'bart', which has an encoder" in done.stderr
        assert f"got {pooling!r}" in done.stderr
    alone = write_decoder(tmp_path / "alone", "T5Encoder")
    done = run("encode", data / "texts.txt", "--model", alone, *output)
    assert done.exit_code == 0, done.output


def test_the_first_contrast_is_the_same_with_a_further_term(data: Path, tmp_path: Path) -> None:
    """One seed, one draw: batch, dropout and the projector's first weights."""
    contrasts = []
    for method in (["simcse"], ["simcse", "--mlm_weight", "0.5"], ["diffcse", "--rtd_weight", "0.5"]):
        folder = tmp_path / str(len(contrasts))
        words = ["--projector", "tanh", "--logging_steps", "1", "--output_dir", folder]
        done = run("train", "--method", *method, "--train_file", "texts.txt", *START, *SCORED, *words)
        assert done.exit_code == 0, done.output
        contrasts.append(results(folder)["log"][0]["loss/contrastive"])
    assert contrasts[0] > 0
    assert contrasts[1:] == contrasts[:1] * 2


def test_a_term_of_weight_0_is_left_out(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MSSE computed its decoder all the same, and took as long as with it."""
    monkeypatch.setattr(InformationCompensation, "forward", lambda *_: pytest.fail("its loss was computed"))
    words = ["--icm_weight", "0", "--max_seq_length", "16", "--logging_steps", "1"]
    done = run("train", "--method", "msse", *words, "--train_file", "texts.txt", *START, *SCORED,
               "--output_dir", tmp_path / "run")  # fmt: skip
    assert done.exit_code == 0, done.output
    found = results(tmp_path / "run")["log"][0]
    assert {name for name in found if name.startswith("loss/")} == {"loss/contrastive", "loss/dcm"}
    assert not [name for name in found if "icm" in name]


def test_a_run_without_a_better_score_stops_early(data: Path, tmp_path: Path) -> None:
    """With a learning rate of 0 every score is that of step 1."""
    words = ["--max_steps", "40", "--eval_steps", "1", "--learning_rate", "0", "--early_stopping_patience", "3"]
    done = run("train", "--method", "simcse", "--train_file", "texts.txt", *START, *SCORED, *words,
               "--output_dir", tmp_path / "run")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "the weights of step 1 are kept; training stopped early, at step 4 of 40" in done.output
    assert len(results(tmp_path / "run")["dev"]["history"]) == 4


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--early_stopping_patience", "2", "--label_free_samples", "0"], "must be 0 without scores to stop by"),
        (
            ["--early_stopping_patience", "2", *SCORED, "--eval_strategy", "no", "--load_best_model_at_end", "False"],
            "must be 0 without scores to stop by",
        ),
        (["--early_stopping_patience", "-1", *SCORED], "must be at least 0, got -1"),
    ],
)
def test_early_stopping_that_cannot_be_is_refused(data: Path, tmp_path: Path, words: list[str], told: str) -> None:
    start = ["train", "--method", "simcse", "--train_file", "texts.txt", *START, "--output_dir", tmp_path / "run"]
    done = run(*start, *words)
    assert done.exit_code == 2, done.output
    assert f"early_stopping_patience {told}" in " ".join(done.stderr.split())


def test_weights_that_leave_no_term_are_refused(data: Path, tmp_path: Path) -> None:
    """A run trained nothing, in silence."""
    words = ["--dcm_weight", "0", "--icm_weight", "0", "--contrastive_weight", "0"]
    done = run("train", "--method", "msse", *words, "--train_file", "texts.txt", *START, *SCORED,
               "--output_dir", tmp_path / "run")  # fmt: skip
    assert done.exit_code == 2, done.output
    assert (
        "contrastive_weight 0 needs an objective with a weight above 0: nothing else would train, got dcm_weight 0.0, "
        "icm_weight 0.0" in " ".join(done.stderr.split())
    )


def test_train_pairs(data: Path, tmp_path: Path) -> None:
    done = run("train-pairs", *START, *SCORED, "--train_file", "pairs.tsv", "--output_dir", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert results(tmp_path / "run")["config"]["projector_at_inference"] is True


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train", ["--objectives", "mlm", "--projector_at_inference", "True"]),
        ("train", ["--objectives", "tsdae", "mlm", "--projector_at_inference", "True"]),
        ("train-pairs", ["--objectives", "towers"]),  # which keeps the projector by default
        (
            "train",
            [
                "--objectives",
                "reconstruction",
                "mlm",
                "--reconstruction_weight",
                "0",
                "--projector_at_inference",
                "True",
            ],
        ),
    ],
)
def test_a_kept_projector_that_nothing_trains_is_refused(
    data: Path, tmp_path: Path, command: str, words: list[str]
) -> None:
    """Regression: the exported encoder put its embeddings through random weights."""
    file = ["--train_file", "texts.txt" if command == "train" else "pairs.tsv", "--output_dir", tmp_path / "run"]
    start = [command, *START, *SCORED, *file, "--method", "joint", "--contrastive_weight", "0"]
    done = run(*start, *words)
    assert done.exit_code == 2, done.output
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert "projector_at_inference must be False, or projector 'none', with contrastive_weight 0 and" in line
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").glob("training/*"))


def test_pretrain(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    words = [*START, "--objective", "mlm", "--block_length", "16", "--output_dir", folder]
    done = run("pretrain", *words, "--train_file", "texts.txt")
    assert done.exit_code == 0, done.output
    assert results(folder)["method"] == "pretraining"
    assert AutoModelForMaskedLM.from_pretrained(folder).config.hidden_size == 32
    assert done.stdout.endswith(f": csekit train --model_name_or_path '{folder}'\n")  # the blank was not quoted


def test_without_encoder_and_text_it_is_the_demo(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's pairs are found from any folder; its encoder is a tiny one here."""
    encoder = small.write_backbone(tmp_path / "demo-encoder")
    small.write_texts(encoder / "sentences.txt", 60)
    monkeypatch.setattr("csekit.trainers.scripts.demo.demo_encoder", lambda cache: encoder)
    monkeypatch.chdir(tmp_path)
    done = run("train", *SIZES, "--use_cpu", "--label_free_samples", "0")
    assert done.exit_code == 0, done.output
    assert "csekit train --model_name_or_path" in done.stdout
    assert results(tmp_path / "runs" / "demo")["test"]["tasks"]["test"]["n"] == 150


@pytest.mark.parametrize("command", ["train", "train-pairs", "pretrain"])
@pytest.mark.parametrize(
    "words",
    [["--max_steps", "-7"], ["--train_file", "nowhere.txt"], ["--method"], ["--confg", "a"], ["--", "--method"]],
)
def test_a_mistake_is_one_line(data: Path, tmp_path: Path, command: str, words: list[str]) -> None:
    done = run(command, "--model_name_or_path", "tiny-bert", "--output_dir", tmp_path / "run", *words)
    assert done.exit_code == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith(f"csekit {command}: error: ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--lora", "100000"], r"lora must have a rank of at most 32, the largest that a weight can have, got 100000"),
        (["--icm_weight", "1", "--icm_decoder_layers"], "icm_decoder_layers"),
        (["--tsdae_weight", "1", "--tsdae_decoder", "small", "--tsdae_decoder_layers"], "tsdae_decoder_layers"),
        (["--aux_mlm_weight", "1", "--aux_mlm_head_init", "random", "--aux_mlm_head_layers"], "aux_mlm_head_layers"),
        (["pretrain", "--objective", "condenser", "--block_length", "16", "--head_layers"], "head_layers"),
        (["--projector", "linear", "--projector_size"], "projector_size"),
        (["--queue_weight", "1", "--queue_size"], "queue_size"),
        (["--smoothing_weight", "1", "--smoothing_size"], "smoothing_size"),
        (["--token_information_weight", "1", "--token_information_channels"], "token_information_channels"),
    ],
)
def test_sizes_that_no_memory_holds_are_refused_before_it_is_taken(
    data: Path, tmp_path: Path, words: list[str], told: str
) -> None:
    """The adapters or layers were made until the system ended the process, and other sizes were said to be the
    encoder's fault."""
    command, words = ("pretrain", words[1:]) if words[0] == "pretrain" else ("train", words)
    if words[0] == "--lora":
        pytest.importorskip("peft", reason="needs the extra 'lora'")
    else:
        words, told = (
            [*words, "100000000000"],
            rf"{told} must be at most [\d,]+, whose (weights|vectors) alone fill .* got 100000000000",
        )
    scored = SCORED if command == "train" else []
    folder = tmp_path / "run"
    done = run(command, *START, *scored, "--train_file", "texts.txt", "--output_dir", folder, *words)
    assert done.exit_code == 2
    assert re.search(f"error: {told}\n$", done.stderr), done.stderr
    assert not list(folder.glob("training/*"))


def test_the_memory_of_a_container_counts(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that the machine holds and its container does not were made until the system ended the process."""
    (tmp_path / "memory.max").write_text("300000\n")  # a layer of 32 takes 51 kB
    monkeypatch.setattr("csekit.modeling.layer_memory.CONTROL_GROUP", tmp_path)
    words = ["--icm_weight", "1", "--icm_decoder_layers", "64", "--output_dir", tmp_path / "run"]
    done = run("train", *START, *SCORED, "--train_file", "texts.txt", *words)
    assert done.exit_code == 2
    assert re.search(r"icm_decoder_layers must be at most \d, whose weights .* memory, 0.0 GB, got 64\n$", done.stderr)


def test_a_preset_is_known_by_its_name(data: Path, tmp_path: Path) -> None:
    words = ["--train_file", "texts.txt", "--output_dir", tmp_path / "run", *START, *SCORED]
    done = run("train", "--config", "informin-roberta-base", *words)
    assert done.exit_code == 0, done.output
    assert results(tmp_path / "run")["config"]["objectives"][0]["weight"] == 4  # RoBERTa's
    wrong = run("train", "--config", "informin-bert-bass", *words)
    assert wrong.exit_code == 2
    assert "did you mean the preset informin-bert-base" in wrong.stderr


@pytest.mark.parametrize("command", ["train", "pretrain"])
def test_gradient_checkpointing_works_without_a_warning(data: Path, tmp_path: Path, command: str) -> None:
    """Later versions of Transformers have another name, and give a FutureWarning for this one."""
    more = ["--objective", "mlm", "--block_length", "16"] if command == "pretrain" else SCORED
    words = [*START, "--train_file", "texts.txt", "--output_dir", tmp_path / "run", "--gradient_checkpointing", *more]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        done = run(command, *words)
    assert done.exit_code == 0, done.output
    assert [str(warning.message) for warning in found if issubclass(warning.category, FutureWarning)] == []
    assert results(tmp_path / "run")["arguments"]["gradient_checkpointing"] is True


@pytest.mark.parametrize("scored", [[], SCORED])
def test_a_run_is_scored_where_it_is_saved(data: Path, tmp_path: Path, scored: list[str]) -> None:
    """``--save_steps`` alone was refused, with a dev set and without one: "--load_best_model_at_end requires the
    saving steps to be a round multiple of the evaluation steps"."""
    words = [*START, *scored, "--train_file", "texts.txt", "--output_dir", tmp_path / "run", "--max_steps", "4"]
    done = run("train", *words, "--save_steps", "2")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run/training/checkpoint-2").is_dir()
    found = results(tmp_path / "run")
    assert found["arguments"]["save_steps"] == 2
    if scored:
        assert [row["step"] for row in found["dev"]["history"]] == [2, 4]


def test_a_longer_run_is_told_the_interval_to_give(data: Path, tmp_path: Path) -> None:
    """The default of ``--eval_steps`` follows the length. The message asked for old values that nobody had given."""
    words = ["train", "--model_name_or_path", "tiny-bert", "--use_cpu", "--train_file", "texts.txt", *SCORED]
    words += [
        "--per_device_train_batch_size",
        "8",
        "--lr_scheduler_type",
        "constant",
        "--output_dir",
        tmp_path / "run",
    ]
    assert run(*words, "--max_steps", "16").exit_code == 0
    longer = [*words, "--max_steps", "24", "--resume_from_checkpoint", "True"]
    refused = run(*longer)
    assert refused.exit_code == 2
    told = (
        "eval_steps was 2 and is 3 now; save_steps was 2 and is 3 now: continue with the old values (--eval_steps 2)"
    )
    assert told in refused.stderr
    done = run(*longer, "--eval_steps", "2")
    assert done.exit_code == 0, done.output
    assert [entry["step"] for entry in results(tmp_path / "run")["dev"]["history"]] == list(range(2, 25, 2))
    other = run(
        *words, "--max_steps", "24", "--resume_from_checkpoint", "True", "--eval_steps", "3", "--save_steps", "6"
    )
    assert other.exit_code == 2 and "old values (--eval_steps 2), or" in other.stderr


def test_the_list_of_commands_needs_no_torch() -> None:
    script = "import sys; from csekit.cli import main; main(['--help'], standalone_mode=False)"
    script += "; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0
    assert re.findall(r"^\W*(train|check|encode) ", done.stdout, re.MULTILINE) == ["train", "check", "encode"]


def test_training_imports_what_it_needs() -> None:
    """The imports are half of a small training's memory; these two are 40 MB. Transformers imports them up to 5.15."""
    script = (
        "import sys; from transformers import Trainer; theirs = set(sys.modules); "
        "import csekit.trainers.scripts.train; assert not {'sklearn', 'scipy.stats'} & (sys.modules.keys() - theirs)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Without a clone


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files."""
    folder = tmp_path_factory.mktemp("wheel")
    layout = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "test_layout.py")))
    wheel = layout.build("wheel", layout.copy_tree(folder / "source"), folder)
    zipfile.ZipFile(wheel).extractall(folder / "installed")
    return folder / "installed"


def start(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user would: no setting of the tests' own."""
    known = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return subprocess.run(
        command, cwd=folder, env={**known, **environment}, capture_output=True, text=True, timeout=600
    )


@pytest.mark.slow
def test_the_wheel_holds_the_presets(installed: Path, data: Path) -> None:
    words = ["train", "--config", "diffcse-bert-base", "--train_file", "nowhere.txt", "--output_dir", "never"]
    done = start([sys.executable, "-m", "csekit", *words], data, PYTHONPATH=str(installed))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "csekit train: error: train_file nowhere.txt does not exist"


@pytest.mark.slow
def test_the_wheel_runs_the_demo(installed: Path, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(installed), "CSEKIT_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = start([sys.executable, "-m", "csekit", "train", "--max_steps", "4"], tmp_path, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "csekit train --model_name_or_path" in done.stdout
    assert (tmp_path / "runs" / "demo" / "modules.json").is_file()


# Under a launcher


def test_an_error_of_another_process_alone_is_told_with_its_number(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(launch.time, "sleep", waited.append)
    monkeypatch.setenv("LOCAL_RANK", "1")
    done = run("train", "--method", "nothing")
    assert done.stderr.startswith("csekit train: process 1: error: method must be one of")
    assert waited == [launch._WAIT]


@pytest.mark.slow
def test_two_processes_train_one_run(data: Path, tmp_path: Path) -> None:
    words = [*START, *SCORED, "--train_file", "texts.txt", "--output_dir", str(tmp_path / "run"), "--do_predict", "no"]
    done = start([*TORCHRUN, "-m", "csekit", "train", *words], data)
    assert done.returncode == 0, done.stderr[-3000:]
    found = results(tmp_path / "run")
    cores = min(psutil.cpu_count(logical=False), len(os.sched_getaffinity(0)))
    assert found["environment"]["threads"] == max(1, cores // 2)
    state = json.loads((tmp_path / "run/training/trainer_state.json").read_text(encoding="utf-8"))
    assert state["global_step"] == 2
    assert len(list((tmp_path / "run/training/checkpoint-2").glob("rng_state_*.pth"))) == 2


@pytest.mark.slow
def test_a_mistake_under_torchrun_is_told_once(data: Path) -> None:
    """Each process told it, and its traceback stood beside it."""
    done = start([*TORCHRUN, "-m", "csekit", "train", "--method", "nothing"], data)
    assert done.returncode != 0
    assert len(re.findall("^csekit train: .*error: ", done.stderr, re.MULTILINE)) == 1, done.stderr[-3000:]
    assert "csekit/trainers" not in done.stderr  # no frame of ours
    assert set(re.findall(r"exitcode *: (-?\d+)", done.stderr)) <= {"2", "-15"}
    assert re.search(r"exitcode *: 2", done.stderr)


@pytest.mark.slow
def test_a_mistake_under_accelerate_is_one_line(data: Path, tmp_path: Path) -> None:
    words = ["--model_name_or_path", "tiny-bert", "--train_file", "nowhere.txt", "--output_dir", str(tmp_path)]
    told = ["--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    done = start([*ACCELERATE, "--quiet", *told, "-m", "csekit", "train", *words], data)
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if "num_cpu_threads" not in line][-1:] == [
        "csekit train: error: train_file nowhere.txt does not exist"
    ]
    assert "Traceback" not in done.stderr


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """``launched(before, own, *words)``: threads of a process, from the launcher's environment, its own, and the
    launcher's words."""

    def call(before: dict[str, str], own: dict[str, str], *words: str) -> int:
        parent = SimpleNamespace(environ=lambda: before, cmdline=lambda: list(words))
        monkeypatch.setattr(psutil, "Process", lambda pid: parent)
        monkeypatch.setattr(psutil, "cpu_count", lambda logical: 6)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
        threads = [1]
        monkeypatch.setattr(torch, "set_num_threads", threads.append)
        for name in ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in own.items():
            monkeypatch.setenv(name, value)
        launch.use_all_cores()
        return threads[-1]

    return call


TORCH = {"TORCHELASTIC_RUN_ID": "a", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("before", "own", "words", "threads"),
    [
        ({}, {"OMP_NUM_THREADS": "1", "ACCELERATE_MIXED_PRECISION": "no"}, [], 6),
        ({}, {"OMP_NUM_THREADS": "1", **TORCH}, [], 3),
        ({}, {"OMP_NUM_THREADS": "1", **TORCH, "LOCAL_WORLD_SIZE": "16"}, [], 1),
        ({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "1", **TORCH}, [], 1),  # the user's
        ({}, {"OMP_NUM_THREADS": "4", **TORCH}, [], 1),
        ({}, {"OMP_NUM_THREADS": "1"}, [], 1),  # a shell with OMP_NUM_THREADS=1 in front of the command
        (TORCH, {"OMP_NUM_THREADS": "1", **TORCH}, [], 1),  # a script under the launcher that set it
        ({}, {"OMP_NUM_THREADS": "1", **TORCH}, ["accelerate", "--num_cpu_threads_per_process=1"], 1),
        ({}, {"OMP_NUM_THREADS": "1", **TORCH}, ["accelerate", "--num-cpu-threads-per-process", "1"], 1),
    ],
)
def test_threads_that_a_launcher_set_are_shared_out(
    launched: Callable[..., int], before: dict[str, str], own: dict[str, str], words: list[str], threads: int
) -> None:
    assert launched(before, own, *words) == threads
