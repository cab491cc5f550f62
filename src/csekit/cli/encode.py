"""``csekit encode`` and ``csekit merge``."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from .common import Imports, check_output, one_line_errors, quiet_transformers, refuse_given

Model = Annotated[str, typer.Option("--model", "-m", help="A model folder, or a name on the Hub.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="OUT.npy, or OUT.parquet, a folder.")]


def encode(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(help="txt, csv, tsv, json, jsonl (also .gz, .xz), or parquet.")],
    model: Model,
    output: Output,
    column: Annotated[
        str | None, typer.Option("--column", help="The column to encode; needed where several hold text.")
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option("--pooling", help="cls, mean, last, first_last_mean, top2_mean, mask; for plain encoders."),
    ] = None,
    prompt_template: Annotated[
        str | None, typer.Option("--prompt_template", help="With {sentence} and {mask}; for --pooling mask.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option("--max_length", help="Tokens; the model's limit if left out.")
    ] = None,
    truncate_dim: Annotated[
        int | None, typer.Option("--truncate_dim", help="Keep the first dimensions; the folder's number if left out.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch_size", help="Largest number of rows in a batch.")] = 64,
    precision: Annotated[str, typer.Option("--precision", help="fp32, bf16, or on CPU int8.")] = "fp32",
    dtype: Annotated[str, typer.Option("--dtype", help="Type of the output: float32 or float16.")] = "float32",
    num_workers: Annotated[
        int, typer.Option("--num_workers", help="Number of processes; with GPUs each has its own.")
    ] = 1,
    shard: Annotated[
        str, typer.Option("--shard", help="i/n encodes only the i-th of n parts; see csekit merge.")
    ] = "1/1",
    chunk_rows: Annotated[
        int, typer.Option("--chunk_rows", help="Rows written at a time; a kill loses at most these.")
    ] = 16_384,
    engine: Annotated[str, typer.Option("--engine", help="local, or ray (parquet in and out).")] = "local",
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda or cuda:1; by default the GPU where there is one.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start anew even if an output exists.")] = False,
    progress: Annotated[bool, typer.Option("--progress/--no_progress", help="Show a progress bar.")] = True,
    imports: Imports = None,
) -> None:
    """Encode every row of a file. After a kill, the same command continues."""
    loading: dict[str, Any] = {"pooling": pooling, "max_length": max_length, "device": device}
    loading |= {"prompt_template": prompt_template, "batch_size": batch_size, "truncate_dim": truncate_dim}
    common: dict[str, Any] = {"column": column, "num_workers": num_workers, "overwrite": overwrite}
    with one_line_errors():
        if engine not in ("local", "ray"):
            raise ValueError(f"--engine must be local or ray, got {engine!r}")
        check_output(output, folder=output.suffix == ".parquet")
        if engine == "ray" and imports:
            raise ValueError("--import is not for --engine ray: name the run's export, which needs no module")
        if engine == "ray":
            reason = "is not for --engine ray, which distributes the rows itself and writes float32"
            refuse_given(ctx, ["shard", "dtype", "chunk_rows"], reason)
        here: dict[str, Any] = {"dtype": dtype, "shard": shard, "chunk_rows": chunk_rows, "progress": progress}
        run = partial(_with_ray, **common) if engine == "ray" else partial(_locally, **common, **here)
        typer.echo(run(file, output, model, precision, loading))


def _with_ray(file: str, output: Path, model: str, precision: str, loading: dict[str, Any], **more: Any) -> str:
    from csekit.encoding import encode_with_ray

    rows = encode_with_ray(model, file, output, precision=precision, loading=loading, **more)
    return f"written: {output}, {rows:,} rows"


def _locally(file: str, output: Path, model: str, precision: str, loading: dict[str, Any], **more: Any) -> str:
    quiet_transformers()
    from csekit.encoding import encode_file, load_encoder

    encoder = load_encoder(model, **loading)
    encoder.precision = precision
    record = encode_file(encoder, file, output, **more)
    part = "" if more["shard"] == "1/1" else f", shard {more['shard']}"
    return f"written: {output}{part}, {record['done']:,} rows, {record['truncated']:,} texts truncated"


def merge(
    ctx: typer.Context,
    output: Annotated[Path, typer.Argument(help="The --output of the shards.")],
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete the shards of an array.")] = False,
) -> None:
    """Join the shards of csekit encode, after a check that none is missing or unfinished."""
    with one_line_errors():
        from csekit.encoding import merge_shards

        if output.suffix == ".parquet":
            refuse_given(ctx, ["keep"], "is for the shards of an array: those of a parquet folder stay")
        merge_shards(output, keep, typer.echo)
        typer.echo(f"written: {output}")
