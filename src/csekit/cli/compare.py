"""``csekit compare``."""

from typing import Annotated

import typer

from .common import one_line_errors, table


def compare(
    a: Annotated[str, typer.Argument(help="Results file; separate the files of several seeds with commas.")],
    b: Annotated[str, typer.Argument(help="Results file, or files, of the other side.")],
    resamples: Annotated[int, typer.Option("--resamples", help="Number of bootstrap resamples.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the resampling.")] = 0,
) -> None:
    """Test whether A is better than B: paired bootstrap over sentence pairs."""
    with one_line_errors():
        from csekit.evaluation import compare_runs, read_results
        from csekit.evaluation.compare import pooling_of

        side_a, side_b = (side.split(",") for side in (a, b))
        differences = compare_runs(side_a, side_b, resamples=resamples, seed=seed)
        rows = [
            [task, f"{d.a:.2f}", f"{d.b:.2f}", f"{d.difference:+.2f}", f"[{d.low:+.2f}, {d.high:+.2f}]", f"{d.p:.4f}"]
            for task, d in differences.items()
        ]
        typer.echo(table(["Spearman × 100", "A", "B", "A − B", "95 % interval", "p (A ≤ B)"], rows))
        typer.echo(f"A: {a}; B: {b}")
        typer.echo(f"{resamples} resamples of the pairs, seed {seed}; p, one-sided: the share of them with A ≤ B")
        poolings = [pooling_of(read_results(side[0])) for side in (side_a, side_b)]
        if None not in poolings and poolings[0] != poolings[1]:
            typer.echo(f"note: A pools by {poolings[0]!r}, B by {poolings[1]!r}")
