"""Presets and plans in examples/configs: they parse, and every key is known."""

from pathlib import Path

import pytest
import yaml

from csekit.evaluation.plans import Clock, Plan
from csekit.modeling import METHODS, OBJECTIVES
from csekit.trainers import parse_run_arguments
from csekit.trainers.runs import SUPERVISED

CONFIGS = Path(__file__).parents[2] / "examples" / "configs"
PRESETS = sorted(CONFIGS.glob("*.yaml"))
PLANS = sorted((CONFIGS / "plans").glob("*.yaml"))
MSSE_PLANS = {"msse", "few-shot", "supervised", "msse-ablations", "combinations"}

KNOWN = {
    "method": str,
    "model_name_or_path": str,
    "learning_rate": float,
    "per_device_train_batch_size": int,
    "num_train_epochs": int,
    "max_steps": int,
    "eval_steps": int,
    "max_seq_length": int,
    "bf16": bool,
    "train_file": str,
    "data_dir": str,
    "columns": list,
    "train_fraction": float,
    "filter_overlap": bool,
    "augmentation": str,
    "pooling": str,
    "projector": str,
    "projector_at_inference": bool,
    "contrastive_weight": float,
    "temperature": float,
    "dropout": float,
    "reconstruction": str,
    "reconstruction_weight": float,
    "mlm_weight": float,
    "mlm_probability": float,
    "aux_mlm_weight": float,
    "aux_mlm_probability": float,
    "aux_mlm_views": int,
    "aux_mlm_gradient": str,
    "aux_mlm_head_init": str,
    "rtd_weight": float,
    "rtd_probability": float,
    "rtd_generator": str,
    "rtd_edit_scope": str,
    "rtd_edit_sampling": str,
    "rtd_generator_dropout": bool,
    "rtd_positions": str,
    "dcm_weight": float,
    "icm_weight": float,
}


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_names_its_table_and_has_known_keys(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    preset = yaml.safe_load(text)
    assert next(iter(preset)) == "method"
    backbone = preset["model_name_or_path"].removesuffix("-uncased")
    stem = path.stem.removesuffix("-released").removesuffix("-transfer").removesuffix("-supervised")
    stem = stem.removesuffix("-few-shot")
    assert path.stem.startswith(preset["method"]) and stem.endswith(backbone)
    assert "Table" in text[: text.index("method:")]
    for key, value in preset.items():
        assert type(value) is KNOWN[key], f"{key}: {value!r}"  # 3e-5 without a dot is a string in YAML


def test_every_published_setting_has_a_preset() -> None:
    presets = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in PRESETS}
    published = {  # learning rate, batch, λ: SimCSE's Appendix A, InforMin-CL's Table 3
        "simcse-bert-base": (3e-5, 64, None),
        "simcse-bert-large": (1e-5, 64, None),
        "simcse-roberta-base": (1e-5, 512, None),
        "simcse-roberta-large": (3e-5, 512, None),
        "informin-bert-base": (3e-5, 128, 0.4),
        "informin-roberta-base": (1e-5, 128, 4.0),
        "informin-roberta-large": (3e-5, 128, 4.0),
    }
    for name, wanted in published.items():
        got = presets[name]
        assert (got["learning_rate"], got["per_device_train_batch_size"], got.get("reconstruction_weight")) == wanted
    infocse = {  # InfoCSE's §4.2 and Tables 7 and 8; the released script
        "infocse-bert-base": (3e-5, 1, 0.4, "scaled", "pretrained"),
        "infocse-bert-large": (3e-5, 1, 0.4, "scaled", "pretrained"),
        "infocse-bert-large-released": (7e-6, 2, 0.3, "plain", "random"),
    }
    for name, own in infocse.items():
        got = presets[name]
        assert (got["projector"], got["per_device_train_batch_size"]) == ("batchnorm", 64)
        found = [got[f"aux_mlm_{field}"] for field in ("probability", "gradient", "head_init", "weight")]
        assert (got["learning_rate"], got["num_train_epochs"], *found) == (*own, 1e-5)
    published = {  # learning rate, batch, λ, masking ratio: DiffCSE's Tables 12 and 13
        "diffcse-bert-base": (7e-6, 64, 0.005, 0.30),
        "diffcse-bert-base-released": (7e-6, 64, 0.005, 0.30),
        "diffcse-roberta-base": (1e-5, 64, 0.005, 0.20),
        "diffcse-bert-base-transfer": (2e-6, 64, 0.05, 0.15),
        "diffcse-roberta-base-transfer": (3e-6, 128, 0.05, 0.15),
    }
    names = ("learning_rate", "per_device_train_batch_size", "rtd_weight", "rtd_probability")
    for name, wanted in published.items():
        assert tuple(presets[name][key] for key in names) == wanted
        assert presets[name]["num_train_epochs"] == 2 and presets[name]["projector"] == "batchnorm"
    supervised = {  # learning rate: SimCSE's Appendix A; batch 512, three epochs, the projector kept
        "simcse-bert-base-supervised": 5e-5,
        "simcse-bert-large-supervised": 1e-5,
        "simcse-roberta-base-supervised": 5e-5,
        "simcse-roberta-large-supervised": 1e-5,
    }
    for name, rate in supervised.items():
        assert {key: presets[name][key] for key in SUPERVISED} == SUPERVISED | {"learning_rate": rate}
    few = presets["simcse-bert-base-few-shot"] | {"train_fraction": None}
    assert few == presets["simcse-bert-base"] | {"train_fraction": None}
    for name, preset in presets.items():
        assert ("mlm" in name) == ("mlm_weight" in preset)
        assert ("mse" in name) == (preset.get("reconstruction") == "mse")


def read_plan(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan, from a folder with the scripts' names and 100,000 lines of text."""
    monkeypatch.chdir(folder)
    (folder / "examples").mkdir()
    for name in ("run_unsup.py", "run_sup.py"):
        (folder / "examples" / name).touch()
    (folder / "wiki.txt").write_text("a sentence\n" * 100_000)
    return Plan.read(path, {"BACKBONE": "mini", "WIKI": str(folder / "wiki.txt"), "CSEKIT_DATA": "data"})


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_plan_is_complete_and_within_its_minutes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = read_plan(path, tmp_path, monkeypatch)
    clock = Clock(plan)
    seconds = [clock.seconds(trial) for trial in plan.trials()]
    assert plan.max_minutes is not None and all(seconds)
    assert sum(value or 0 for value in seconds) / 60 < plan.max_minutes
    allowed = KNOWN.keys() | {"seed", "do_predict"}
    assert {name for trial in plan.trials() for name in trial.arguments} <= allowed


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_the_command_lines_of_a_plan_parse(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = [trial for trial in read_plan(path, tmp_path, monkeypatch).trials() if trial.kind != "command"]
    if "dcm" not in OBJECTIVES and any({"dcm_weight", "icm_weight"} & trial.arguments.keys() for trial in trials):
        pytest.skip("the objectives of MSSE are not there")
    if "msse" not in METHODS and any(trial.arguments["method"] == "msse" for trial in trials):
        pytest.skip("MSSE is not there")
    distinct = {(trial.experiment, trial.name if trial.kind == "listed" else ""): trial for trial in trials}
    for trial in distinct.values():
        run, args, fields = parse_run_arguments(trial.argv(Path("run"), resume=False)[1:])
        METHODS[run.method].config_class(**fields)
        assert (args.output_dir, args.seed) == ("run", int(str(trial.arguments["seed"])))


def test_the_plans_fit_into_their_hours() -> None:
    minutes = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))["max_minutes"] for path in PLANS}
    assert sum(minutes[name] for name in ("equal-terms", "informin-ablations")) <= 180
    assert sum(minutes[name] for name in MSSE_PLANS) <= 390


def test_few_shot_runs_are_equal_but_for_method_and_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = read_plan(CONFIGS / "plans" / "few-shot.yaml", tmp_path, monkeypatch)
    own = {"method", "pooling", "projector", "train_fraction"}
    shared = [
        [{key: value for key, value in trial.arguments.items() if key not in own} for trial in each.first_trials()]
        for each in plan.experiments.values()
    ]
    assert len(shared) == 6 and all(each == shared[0] for each in shared) and len(shared[0]) == 5
    assert {trial.steps for trial in plan.trials()} == {300}
    shares = [(trial.arguments["method"], float(str(trial.arguments["train_fraction"]))) for trial in plan.trials()]
    assert {share for _, share in shares} == {0.001, 0.01, 0.1} and len(shares) == 30


def test_equal_terms_are_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "run_unsup.py").touch()
    environment = {"BACKBONE": "mini", "WIKI": "wiki.txt", "CSEKIT_DATA": "data"}
    plan = Plan.read(CONFIGS / "plans" / "equal-terms.yaml", environment)
    own = {"method", "projector", "reconstruction", "reconstruction_weight"}
    shared = [
        [{key: value for key, value in trial.arguments.items() if key not in own} for trial in trials]
        for experiment in plan.experiments.values()
        if experiment.kind == "selected" and (trials := experiment.first_trials() + experiment.final_trials({}))
    ]
    assert len(shared) == 3 and shared[0] == shared[1] == shared[2] and len(shared[0]) == 9
