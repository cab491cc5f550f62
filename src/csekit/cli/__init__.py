"""The command line, a module for each command. torch and transformers are imported inside the commands, so that
``csekit --help`` is instant."""

import io
import sys
from typing import Annotated

import typer

import csekit

from .card import card
from .check import check
from .common import AnyProgress
from .compare import compare
from .convert import convert
from .distill_static import distill_static
from .encode import encode, merge
from .evaluate import evaluate
from .export import export
from .figures import figures
from .geometry import geometry
from .label import label
from .mine import mine
from .neighbors import neighbors
from .pairs import pairs
from .push import push
from .report import report
from .search import search
from .train import PassThrough, distill, pretrain, train, train_pairs

main = typer.Typer(name="csekit", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
main.command("train", cls=PassThrough)(train)
main.command("train-pairs", cls=PassThrough)(train_pairs)
main.command("distill", cls=PassThrough)(distill)
main.command("pretrain", cls=PassThrough)(pretrain)
main.command("check")(check)
main.command("eval")(evaluate)
main.command("compare")(compare)
main.command("neighbors")(neighbors)
main.command("label")(label)
main.command("report")(report)
main.command("geometry")(geometry)
main.command("figures")(figures)
main.command("encode")(encode)
main.command("merge")(merge)
main.command("search")(search)
main.command("pairs")(pairs)
main.command("mine")(mine)
main.command("distill-static")(distill_static)
main.command("card")(card)
main.command("push")(push)
main.command("export")(export)
main.command("convert")(convert)

for command in main.registered_commands:
    command.cls = command.cls if command.cls is PassThrough else AnyProgress


def _version(value: bool) -> None:
    if value:
        typer.echo(f"csekit {csekit.__version__}")
        raise typer.Exit()


@main.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Sentence embeddings without labels."""
    for stream in (sys.stdout, sys.stderr):
        # a character that the terminal or a redirected file lacks must not cost the results
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
