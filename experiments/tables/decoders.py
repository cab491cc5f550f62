"""The table of the memory that training a decoder language model takes."""

from collections.abc import Mapping
from typing import Any


def decoder_memory_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: a setting each, in GB.

    Arguments:
        results: content of ``experiments/results/decoder-memory/NAME.json``.
    """
    head = ["model", "trains", "trained (M)", "weights", "gradients, moments", "activations, at least", "sum"]
    rows = []
    for found in results["settings"]:
        sizes = [found["bytes"][part] for part in ("weights", "gradients_and_moments", "activations")]
        sizes.append(sum(sizes))
        chunk = f", in chunks of {found['cache_chunk_size']}" if found["cache_chunk_size"] else ""
        cells = [found["model"], f"{found['trains']}{chunk}", f"{found['trained'] / 1e6:,.1f}"]
        rows.append([*cells, *(f"{size / 1e9:,.1f}" for size in sizes)])
    caption = f"GB, counted; {results['rows']} sentences of {results['tokens']} tokens, encoded twice"
    return caption, head, rows
