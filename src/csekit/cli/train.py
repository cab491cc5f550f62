"""``csekit train``, ``train-pairs``, ``distill`` and ``pretrain``: their options are those of the trainers."""

from typing import Any

import typer
from typer.core import TyperCommand

_NO_BAR = ["--disable_tqdm", "True"]


class PassThrough(TyperCommand):
    """A command that leaves all words, ``--help`` as well, to its function. ``--no_progress`` is the trainers'
    ``--disable_tqdm True``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = [new for word in args for new in (_NO_BAR if word == "--no_progress" else [word])]
        return []


def train(ctx: typer.Context) -> None:
    """Train a sentence encoder on plain text; without arguments, the demo."""
    from csekit.trainers.scripts.launch import called
    from csekit.trainers.scripts.train import main

    with called("csekit train"):
        raise typer.Exit(main(ctx.args))


def train_pairs(ctx: typer.Context) -> None:
    """Train a sentence encoder on pairs or triplets."""
    from csekit.trainers.scripts.launch import called
    from csekit.trainers.scripts.train_pairs import main

    with called("csekit train-pairs"):
        raise typer.Exit(main(ctx.args))


def distill(ctx: typer.Context) -> None:
    """Train an encoder on the vectors of a larger one, or on those of another language's sentences."""
    from csekit.trainers.scripts.distill import main
    from csekit.trainers.scripts.launch import called

    with called("csekit distill"):
        raise typer.Exit(main(ctx.args))


def pretrain(ctx: typer.Context) -> None:
    """Pre-train an encoder on plain text, new or from a checkpoint."""
    from csekit.trainers.scripts.launch import called
    from csekit.trainers.scripts.pretrain import main

    with called("csekit pretrain"):
        raise typer.Exit(main(ctx.args))
