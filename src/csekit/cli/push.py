"""``csekit push``."""

from pathlib import Path
from typing import Annotated

import typer

from .common import one_line_errors, quiet_transformers


def push(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    repo: Annotated[str, typer.Argument(help="On the Hub: NAME, or NAMESPACE/NAME.")],
    private: Annotated[
        bool | None, typer.Option("--private/--public", help="A new repository; as the account is set if left out.")
    ] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="A branch, made where there is none.")] = None,
    commit_message: Annotated[str | None, typer.Option("--commit_message", help="Its first line.")] = None,
    no_training: Annotated[
        bool, typer.Option("--no_training", help="Leave out training/, the model that training goes on from.")
    ] = False,
    custom_code: Annotated[
        bool,
        typer.Option("--custom_code", help="The whole model with its code, for trust_remote_code; no plain encoder."),
    ] = False,
    create_pr: Annotated[bool, typer.Option("--create_pr", help="Propose it, to somebody else's repository.")] = False,
) -> None:
    """Publish a run on the Hub, in one commit. The token is that of `hf auth login`, or of HF_TOKEN."""
    with one_line_errors():
        quiet_transformers()
        from csekit.trainers.hub.publishing import push_run

        commit = push_run(
            run,
            repo,
            private=private,
            revision=revision,
            commit_message=commit_message,
            training=not no_training,
            custom_code=custom_code,
            create_pr=create_pr,
        )
        typer.echo(f"published: {commit.pr_url or commit.commit_url}")
