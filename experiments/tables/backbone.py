"""The tables of the plans ``backbone`` and ``backbone-gpu``: what a better masked LM gives each method."""

from pathlib import Path

from experiments.starts import METHODS, PLANS, POOLINGS, read_starts
from experiments.tables.cells import spread


def starts_table(results_dir: Path, plan: str = PLANS[0]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: one row for each start.

    Raises:
        FileNotFoundError: nothing has been measured yet.
    """
    starts = read_starts(results_dir, plan)
    tested = any(start.untrained_test for start in starts)
    head = ["masked LM, steps more", "loss", "accuracy"]
    for name in POOLINGS.values():
        head += [f"untrained {name}, dev", *([f"untrained {name}, Avg"] if tested else [])]
    head += [f"{name}, {kind}" for name in METHODS.values() for kind in ("dev", "Avg")]
    body = []
    for start in starts:
        cells = [f"{start.steps:,}", f"{start.loss:.2f}", f"{100 * start.accuracy:.1f} %"]
        for name in POOLINGS:
            for scores in (start.untrained, *([start.untrained_test] if tested else [])):
                cells.append(f"{scores[name]:.2f}" if name in scores else "–")
        for name in METHODS:
            cells += [spread(start.dev.get(name)), spread(start.test.get(name))]
        body.append(cells)
    counts = sorted({row["n"] for start in starts for row in start.test.values()})
    seeds = (
        "one seed" if counts in ([], [1]) else f"mean ± standard deviation over {' or '.join(map(str, counts))} seeds"
    )
    caption = (
        f"The masked LM {starts[0].backbone}, trained on, stand-in Wikipedia corpus. Loss: nats a masked token of "
        "held-out sentences; accuracy: share of these tokens that are predicted; dev: STS-B dev; Avg: of the seven "
        f"STS test sets; Spearman × 100, {seeds}."
    )
    return caption, head, body
