"""The help of the training commands, and the page of the docs that is written from it."""

import re
import runpy
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments
from typer.testing import CliRunner

from csekit.cli import main
from csekit.modeling import METHODS, OBJECTIVES
from csekit.trainers import CSETrainingArguments, PretrainingArguments, RunArguments
from csekit.trainers.scripts.help_text import Option, Section
from csekit.trainers.scripts.pretraining_runs import PretrainRunArguments, pretrain_sections
from csekit.trainers.scripts.run_arguments import parse_run_arguments, run_sections

ROOT = Path(__file__).parents[1]


def shown(*words: str) -> str:
    done = CliRunner().invoke(main, list(words), env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    return done.output


def options(parts: list[Section]) -> dict[str, Option]:
    """Every option by its first name."""
    return {re.split("[, ]", option.name.removeprefix("--"))[0]: option for part in parts for option in part.options}


def test_groups_stand_in_the_order_of_use() -> None:
    titles = re.findall(r"^([A-Z][^:\n]*): ", shown("train", "--method", "msse", "--help"), re.MULTILINE)
    assert [title for title in titles if title != "For example"] == [
        "Encoder and method", "Data", "Method msse", "Objective dcm", "Objective icm", "Further objectives",
        "Objectives", "Training", "Evaluation", "Output",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "kinds"),
    [
        (run_sections(), (RunArguments, CSETrainingArguments)),
        (pretrain_sections(), (PretrainRunArguments, PretrainingArguments)),
    ],
    ids=["train", "pretrain"],
)
def test_csekit_s_own_arguments_are_all_there_with_a_text(parts: list[Section], kinds: tuple[type, ...]) -> None:
    foreign = {field.name for field in fields(TrainingArguments)}
    own = {("import" if f.name == "imports" else f.name) for kind in kinds for f in fields(kind)} - foreign
    found = options(parts)
    assert own - set(found) == set()
    assert [name for name, option in found.items() if not option.text] == []
    assert all(part.text.endswith(".") for part in parts)


@pytest.mark.parametrize("command", ["train", "train-pairs", "pretrain"])
def test_help_all_has_every_argument_of_transformers(command: str) -> None:
    text = shown(command, "--help_all")
    words = set(re.findall(r"--([a-z_0-9]+)", text))
    assert {field.name for field in fields(TrainingArguments) if field.init} - words == set()
    assert "--fsdp_config" not in shown(command, "--help")
    assert len(shown(command, "--help").splitlines()) < 230 < len(text.splitlines())


def shown_name(objective: str, field: str) -> str:
    """A field that begins with its objective's name is shown without a second one."""
    return field if f"{field}_".startswith(f"{objective}_") else f"{objective}_{field}"


@pytest.mark.parametrize(
    ("method", "objective", "option", "value"),
    [("diffcse", "rtd", "rtd_positions", "all"), ("informin", "reconstruction", "reconstruction", "mse")],
)
def test_no_option_is_shown_with_its_objective_s_name_twice(
    method: str, objective: str, option: str, value: str
) -> None:
    """The long name is of csekit 0.1 and still works."""
    words = re.findall(r"--(\w+)", shown("train", "--method", method, "--help"))
    twice = f"{objective}_{option}"
    assert words.count(option) == 1
    assert twice not in words
    for name in (option, twice):
        *_, own = parse_run_arguments(["--method", method, f"--{name}", value, "--output_dir", "unused"])
        assert own == {name: value}


@pytest.mark.parametrize("method", METHODS)
def test_the_help_of_a_method_shows_its_fields_with_their_defaults(method: str) -> None:
    found = options(run_sections("--method", method))
    config = METHODS[method].config_class()
    assert found["projector"].default == config.projector
    for objective in config.objectives:
        for field, kind in objective.field_types().items():
            if kind is not dict:
                option = found[shown_name(objective.name, field)]
                value = getattr(objective, field)
                assert option.text
                assert option.default == ("" if value is None else f"{value:g}" if kind is float else str(value))
    others = {f"{name}_weight" for name in OBJECTIVES} - {f"{o.name}_weight" for o in config.objectives}
    assert others <= set(found)


def choices(objective: Any, field: str) -> list[str]:
    """The values that a field may have, as its error names them."""
    try:
        objective.config_class(**{field: "nonsense"})
    except ValueError as error:
        return re.findall(r"'(\w+)'", str(error).partition(", got ")[0])
    return []


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_text_of_an_option_names_its_choices(name: str) -> None:
    kind = OBJECTIVES[name]
    found = options(run_sections("--method", "joint", "--objectives", name))
    for field, type_ in kind.config_class.field_types().items():
        if type_ is str:
            text = found[shown_name(name, field)].text
            missing = [choice for choice in choices(kind, field) if choice not in text]
            assert missing == [], f"{name}_{field}"


def test_help_shows_the_defaults_of_command_and_preset() -> None:
    pairs = " ".join(shown("train-pairs", "--help").split())
    assert "--per_device_train_batch_size INTEGER Sentences a step and process. Default: 512." in pairs
    preset = " ".join(shown("train", "--config", "informin-roberta-base", "--help").split())
    assert "RoBERTa-base and -large (Table 3). Default: 4." in preset
    assert "--model_name_or_path TEXT Encoder to start from: Hub id or folder. Default: roberta-base." in preset


def test_the_reference_of_the_docs_is_current() -> None:
    """Run: python docs/command_reference.py"""
    page = runpy.run_path(str(ROOT / "docs" / "command_reference.py"))["page"]
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == page()
