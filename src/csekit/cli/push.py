"""``csekit push``."""

from pathlib import Path
from typing import Annotated

import typer

from .common import one_line_errors, quiet_transformers, refuse_given


def push(
    ctx: typer.Context,
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    repo: Annotated[str, typer.Argument(help="On the Hub: NAME, or NAMESPACE/NAME.")],
    private: Annotated[
        bool | None, typer.Option("--private/--public", help="Visibility of a new repository; default: the account's.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option("--revision", help="A branch, which is created if it does not exist.")
    ] = None,
    commit_message: Annotated[
        str | None, typer.Option("--commit_message", help="First line of the commit's message.")
    ] = None,
    no_training: Annotated[
        bool, typer.Option("--no_training", help="Leave out training/, the model for further training.")
    ] = False,
    custom_code: Annotated[
        bool,
        typer.Option(
            "--custom_code",
            help="Publish the whole model with its code, for trust_remote_code, instead of the export.",
        ),
    ] = False,
    create_pr: Annotated[
        bool, typer.Option("--create_pr", help="Open a pull request in another user's repository.")
    ] = False,
) -> None:
    """Publish a run on the Hub, in one commit. It uses the token of `hf auth login` or of HF_TOKEN."""
    with one_line_errors():
        quiet_transformers()
        from csekit.trainers.hub.publishing import push_run

        if custom_code:
            refuse_given(ctx, ["no_training"], "has no effect with --custom_code, which publishes the whole model")
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
