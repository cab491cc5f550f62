"""Tables of what methods cost: parameters and checkpoint sizes, time and memory of a training step.

They are made of the files that ``benchmarks/parameters.py`` and ``benchmarks/train_step.py`` write.
"""

from collections.abc import Mapping
from typing import Any

_MISSING = "–"


def parameters_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Caption, head and rows: parameters in training and at inference, bytes of the checkpoints (DiffCSE, Table 14).

    Arguments:
        results: content of ``results/parameters/NAME.json``.
    """
    rows = results["methods"]
    with_bytes = any(row["training_bytes"] is not None for row in rows)
    with_generator = any(row["generator"] is not None for row in rows)
    head = [
        "",
        "in training",
        "of these trained",
        *(["generator, not saved"] if with_generator else []),
        "at inference",
    ]
    head += ["training checkpoint", "export"] if with_bytes else []
    body = []
    for row in rows:
        cells = [row["title"], *(_count(row[name]) for name in ("training", "trainable"))]
        cells += [_count(row["generator"])] if with_generator else []
        cells += [_count(row["inference"])]
        cells += [_megabytes(row["training_bytes"]), _megabytes(row["export_bytes"])] if with_bytes else []
        body.append(cells)
    what = f"Parameters, backbone {results['run']['backbone']}"
    caption = f"{what}; bytes of the weights files, in fp32." if with_bytes else f"{what}: its default sizes."
    return caption, head, body


def costs_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Caption, head and rows: time and peak memory of an optimiser step, relative to the first row.

    Arguments:
        results: content of ``results/costs/NAME.json``.
    """
    run, rows = results["run"], results["methods"]
    first = rows[0]
    head = ["", "ms a step", "time", "peak memory, MiB", "memory"]
    body = [
        [
            row["title"],
            f"{1000 * row['seconds']:.0f}",
            f"{row['time_ratio']:.2f} ×",
            f"{row['memory'] / 2**20:,.0f}",
            f"{row['memory'] / first['memory']:.2f} ×",
        ]
        for row in rows
    ]
    where = results["environment"]["device"] if run["device"] == "cuda" else f"CPU threads: {run['threads']}"
    memory = "as the device's allocator counts it" if run["device"] == "cuda" else "above that before the model"
    caption = (
        f"An optimiser step over {run['batch_size']} sentences of at most {run['max_seq_length']} tokens of "
        f"{run['corpus']}, backbone {run['backbone']}, {run['precision']}, {where}: median of {run['repetitions']} "
        f"steps, taken in turn; time relative to {first['title']}: median within the turns; peak memory {memory}, "
        "each method in a process of its own."
    )
    return caption, head, body


def peers_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Caption, head and rows: the time of an optimiser step of csekit and of its peers.

    Arguments:
        results: content of ``results/peers/NAME.json``.
    """
    run, rows = results["run"], results["methods"]
    titles = {row["name"]: row["title"] for row in rows}
    related = {row["against"] for row in rows if row["against"] != row["name"]}
    body = []
    for row in rows:
        alone = row["name"] in related
        ratio = "" if alone else f"{row['time_ratio']:.2f} × {titles[row['against']]}"
        body.append([row["title"], f"{1000 * row['seconds']:.0f}", ratio])
    where = results["environment"]["device"] if run["device"] == "cuda" else f"CPU threads: {run['threads']}"
    caption = (
        f"An optimiser step over {run['batch_size']} sentences of at most {run['max_seq_length']} tokens of "
        f"{run['corpus']}, backbone {run['backbone']}, {run['precision']} unless the row says otherwise, {where}: "
        f"median of {run['repetitions']} steps, taken in turn; ratios: median within the turns."
    )
    return caption, ["", "ms a step", "time"], body


def roofline_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Caption, head and rows: the share of a step that its matrix products alone take.

    Arguments:
        results: content of ``results/roofline/NAME.json``.
    """
    run = results["run"]
    where = results["environment"]["device"] if run["device"] == "cuda" else f"CPU threads: {run['threads']}"
    body = [
        [
            row["title"],
            f"{1000 * row['seconds']:.0f}",
            f"{1000 * row['products_seconds']:.0f}",
            f"{100 * row['share']:.0f} %",
            f"{row['operations'] / row['seconds'] / 1e9:,.0f}",
        ]
        for row in results["rows"]
    ]
    caption = (
        f"{run['batch_size']} sentences of at most {run['max_seq_length']} tokens of {run['corpus']}, each encoded "
        f"twice, backbone {run['backbone']}, {run['precision']}, {where}: median of {run['repetitions']} rounds, in "
        "each the step and then its matrix products alone."
    )
    return caption, ["", "ms", "products alone, ms", "share", "GFLOP/s"], body


def encoding_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Caption, head and rows: sentences a second of csekit and of sentence-transformers.

    Arguments:
        results: content of ``results/benchmarks/encode-NAME.json``.
    """
    run = results["run"]
    head = ["", "texts", "pooling", "precision", "sentences/s", "speedup", "CPU time", "least cosine"]
    body = [
        [
            row["side"],
            f"{row['texts']} ({row['sentences']:,})",
            row["pooling"],
            row["precision"],
            f"{row['sentences_per_second']:,.0f}",
            f"{row['speedup']:.2f} ×",
            f"{row['cpu_speedup']:.2f} ×",
            f"{row['least_cosine']:.4f}",
        ]
        for row in results["rows"]
    ]
    where = results["environment"]["device"] if run["device"] == "cuda" else f"CPU threads: {run['threads']}"
    caption = (
        f"Encoding, backbone {run['backbone']}, {where}, at most {run['max_length']} tokens, "
        f"{run['st_batch_size']} rows a batch in sentence-transformers: median of {run['repetitions']} runs in turn. "
        "Speedup over sentence-transformers at the same precision (int8: at fp32), on the clock and in time of the "
        "processor; least cosine of an embedding to that of sentence-transformers in fp32."
    )
    if results["stsb_dev"]:
        said = ", ".join(f"{row['precision']} {row['spearman']:.2f}" for row in results["stsb_dev"])
        caption += f" STS-B dev of a SimCSE encoder on this backbone, Spearman × 100: {said}."
    return caption, head, body


def encode_memory_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Caption, head and rows: resident memory while a file is encoded, after some of its rows.

    Arguments:
        results: content of ``results/encode-memory/NAME.json``.
    """
    run, points = results["run"], [point for point in results["points"] if point["rows"]]
    wanted = [points[round(k * (len(points) - 1) / 5)] for k in range(6)] if len(points) > 6 else points
    body = [[f"{point['rows']:,}", f"{point['resident'] / 2**20:,.0f}"] for point in wanted]
    caption = (
        f"Resident memory while {run['rows']:,} sentences ({run['input_bytes'] / 1e6:,.0f} MB) become a .npy of "
        f"{run['output_bytes'] / 1e6:,.0f} MB, {run['chunk_rows']:,} rows a chunk; before: "
        f"{results['before'] / 2**20:,.0f} MiB. The encoder is the embeddings of {run['backbone']} without its layers."
    )
    return caption, ["rows done", "resident, MiB"], body


def _count(value: int | None) -> str:
    return _MISSING if value is None else f"{value / 1e6:.2f} M" if value else "0"


def _megabytes(value: int | None) -> str:
    return _MISSING if value is None else f"{value / 1e6:.1f} MB"
