"""``csekit distill-static``."""

from pathlib import Path
from typing import Annotated

import typer

from .common import Imports, check_output, one_line_errors, quiet_transformers


def distill_static(
    model: Annotated[str, typer.Argument(help="The teacher: a folder, or a name on the Hub.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder of the static encoder.")],
    dims: Annotated[int, typer.Option("--dims", help="Principal components to keep; 0: the teacher's vectors.")] = 256,
    sif: Annotated[
        float, typer.Option("--sif", help="a of the weight a/(a + p) of a token of probability p; 0: no weights.")
    ] = 1e-4,
    pooling: Annotated[
        str | None, typer.Option("--pooling", help="cls, mean, last, first_last_mean, top2_mean; for a plain encoder.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch_size", help="Largest number of rows in a batch.")] = 256,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda; the GPU where there is one.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier static encoder.")] = False,
    progress: Annotated[bool, typer.Option("--progress/--no_progress", help="Show a progress bar.")] = True,
    imports: Imports = None,
) -> None:
    """Distil an encoder into a static one, a vector for each token. After a kill, the same command continues."""
    with one_line_errors():
        quiet_transformers()
        from csekit.encoding import load_encoder
        from csekit.trainers import static_distillation

        settings = static_distillation.StaticDistillation(dims, sif)
        check_output(output, folder=True)
        static_distillation.check_folder(output, overwrite)
        encoder = load_encoder(model, pooling, device=device, batch_size=batch_size)
        made = static_distillation.distill_static(encoder, output, settings, progress, overwrite)
        typer.echo(f"written: {output}: {made['tokens']:,} tokens in {made['dimensions']} dimensions")
