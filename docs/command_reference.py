"""Write ``docs/commands.md`` from the commands themselves: ``python docs/command_reference.py``."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from csekit.cli import main
from csekit.modeling import METHODS, OBJECTIVES, CSEConfig
from csekit.trainers.scripts.distill import DISTILLATION
from csekit.trainers.scripts.help_text import Section
from csekit.trainers.scripts.pretraining_runs import pretrain_sections
from csekit.trainers.scripts.run_arguments import run_sections
from csekit.trainers.scripts.runs import SUPERVISED

PAGE = Path(__file__).with_name("commands.md")

HEAD = """# Commands

Every command with its options and their defaults. `csekit COMMAND --help` prints the same in a terminal, and
`csekit train --method NAME --help` the options of one method. `[BOOL]` may be left out: `--overwrite` is
`--overwrite True`. `python docs/command_reference.py` writes this page.
"""

TRAIN = """Several processes: `torchrun --nproc_per_node N -m csekit train …` ([distributed](distributed.md)).
`--help_all` lists the other arguments of Transformers' `TrainingArguments`, which work as well."""

PAIRS = """It has the options of `csekit train`. These defaults differ:"""

OBJECTIVE = """A method has its own objectives. `--<objective>_weight w` adds one to any method, and
`--method joint --objectives …` takes a list ([combine](combine.md)). Where only one objective of a run has a field,
the objective's name may be left out: `--probability` for `--aux_mlm_probability`."""


def cell(text: str) -> str:
    """A text for a table, with options as code."""
    return re.sub(r"--\w+", r"`\g<0>`", " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;"))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def section(part: Section, level: str = "###") -> Iterator[str]:
    yield f"\n{level} {part.title}\n\n{part.text}"
    rows = [
        (f"`{option.name}`", cell(option.text), f"`{option.default}`" if option.default else "")
        for option in part.options
    ]
    yield from table(("option", "meaning", "default"), rows)


def methods() -> Iterator[str]:
    """Objectives and defaults of each method, then the options of each objective."""
    plain = CSEConfig()
    fields = [name for name in CSEConfig.__annotations__ if name not in ("model_type", "objectives")]
    rows = []
    for name, model in METHODS.items():
        config = model.config_class()
        own = ", ".join(f"`{objective.name}`" for objective in config.objectives)
        other = [
            f"`--{field} {getattr(config, field)}`"
            for field in fields
            if getattr(config, field) != getattr(plain, field)
        ]
        rows.append((f"`{name}`", own or ("your list" if name == "joint" else "none"), ", ".join(other)))
    yield f"\n### Methods and their objectives\n\n{OBJECTIVE}"
    yield from table(("method", "objectives", "defaults that differ"), rows)
    for name in OBJECTIVES:
        parts = run_sections("--method", "joint", "--objectives", name)
        yield from section(next(part for part in parts if part.title == f"Objective {name}"), "####")


def command(name: str, found: Any) -> Iterator[str]:
    """A command of typer."""
    arguments = [p for p in found.params if p.param_type_name == "argument"]
    options = [p for p in found.params if p.param_type_name == "option" and p.name != "help"]
    words = " ".join(p.name.upper() if p.required else f"[{p.name.upper()}]" for p in arguments)
    yield f"\n## csekit {name}\n\n{' '.join((found.help or '').split())}\n\n`csekit {name} {words} [options]`"
    rows = [(f"`{p.name.upper()}`", cell(p.help or ""), "") for p in arguments]
    for p in options:
        default = "" if p.default in (None, "", ()) or callable(p.default) else f"`{p.default}`"
        rows.append((f"`{', '.join(p.opts)}`", cell(p.help or ""), "required" if p.required else default))
    yield from table(("option", "meaning", "default"), rows)


def page() -> str:
    lines = [HEAD.rstrip()]
    commands: Any = typer.main.get_command(main)
    for name, found in commands.commands.items():
        about = " ".join((found.help or "").split())
        if name == "train":
            lines += [f"\n## csekit train\n\n{about}\n\n{TRAIN}"]
            for part in run_sections():
                if part.title != "Further objectives":
                    lines += section(
                        part if part.title != "Method simcse" else Section("Method", part.text, part.options)
                    )
            lines += methods()
        elif name in ("train-pairs", "distill"):
            differing = SUPERVISED if name == "train-pairs" else DISTILLATION
            rows = [(f"`--{field}`", f"`{value}`") for field, value in differing.items()]
            lines += [f"\n## csekit {name}\n\n{about} {PAIRS}", *table(("option", "default"), rows)]
        elif name == "pretrain":
            lines += [
                f"\n## csekit pretrain\n\n{about}",
                *(line for part in pretrain_sections() for line in section(part)),
            ]
        else:
            lines += command(name, found)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
