"""The outputs and times of the quickstart's steps, as ``experiments.quickstart`` recorded them."""

from collections.abc import Mapping
from typing import Any


def quickstart_table(results: Mapping[str, Any], name: str) -> str:
    """Return the output of a step as a text block, or for ``times`` a table of all steps."""
    if name != "times":
        return "\n".join(["```text", *(line.rstrip() for line in results["steps"][name]["output"]), "```"])
    taken = {step: values["seconds"] for step, values in results["steps"].items()}
    where = results["environment"]
    return "\n".join(
        [
            f"Seconds of each step, from the start of the command to its end; CPU threads: {where['threads']} "
            f"({where['device']}), load {results['load']:.1f} at the start, Python {where['python']}.",
            "",
            f"| {' | '.join(taken)} | all |",
            f"|{'---:|' * (len(taken) + 1)}",
            f"| {' | '.join(f'{seconds:.1f}' for seconds in taken.values())} | {sum(taken.values()):.0f} |",
        ]
    )
