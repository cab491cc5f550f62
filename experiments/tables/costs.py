"""Tables of what methods and encoding cost: parameters and checkpoint sizes, time and memory of a training step, of
large batches and of large corpora.

They read the files that the scripts of ``benchmarks/`` write.
"""

from collections.abc import Mapping
from typing import Any

from experiments.tables.cells import compact

_MISSING = "–"


def parameters_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: parameters in training and at inference, checkpoint bytes (DiffCSE, Table 14).

    Arguments:
        results: content of ``experiments/results/parameters/NAME.json``.
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


def costs_table(
    results: Mapping[str, Any], parameters: Mapping[str, Any] | None = None
) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: step time, peak memory and parameters, relative to the first row.

    Arguments:
        results: content of ``experiments/results/costs/NAME.json``.
        parameters: content of ``experiments/results/parameters/BACKBONE.json``, whose rows have the same
            names; without it the table has no columns for them.
    """
    run, rows = results["run"], results["methods"]
    first = rows[0]
    counts = {row["name"]: row for row in (parameters or {}).get("methods", ())}
    head = ["", "ms a step", "time", "peak memory, MiB", "memory"]
    head += ["parameters in training", "parameters"] if counts else []
    body = []
    for row in rows:
        cells = [row["title"], _milliseconds(row["seconds"]), f"{row['time_ratio']:.2f} ×"]
        cells += [f"{row['memory'] / 2**20:,.0f}", f"{row['memory'] / first['memory']:.2f} ×"]
        if counts:
            count = counts.get(row["name"], {})
            cells += [_count(count.get("training")), _ratio(count, counts.get(first["name"], {}), "training")]
        body.append(cells)
    where = results["environment"]["device"] if run["device"] == "cuda" else f"CPU threads: {run['threads']}"
    memory = "as the device's allocator counts it" if run["device"] == "cuda" else "above that before the model"
    caption = (
        f"An optimiser step over {run['batch_size']} sentences of at most {run['max_seq_length']} tokens of "
        f"{run['corpus']}, backbone {run['backbone']}, {run['precision']}, {where}: median of {run['repetitions']} "
        f"steps, taken in turn; time relative to {first['title']}: median within the turns; peak memory {memory}, "
        f"each method in a process of its own{gap_steps(run, '; ')}"
    )
    caption += "; parameters without a generator, which is in no checkpoint." if counts else "."
    return caption, head, body


def peers_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: the time of an optimiser step of csekit and of its peers.

    Arguments:
        results: content of ``experiments/results/peers/NAME.json``.
    """
    run, rows = results["run"], results["methods"]
    titles = {row["name"]: row["title"] for row in rows}
    related = {row["against"] for row in rows if row["against"] != row["name"]}
    body = []
    for row in rows:
        alone = row["name"] in related
        ratio = "" if alone else f"{row['time_ratio']:.2f} × {titles[row['against']]}"
        body.append([row["title"], _milliseconds(row["seconds"]), ratio])
    where = results["environment"]["device"] if run["device"] == "cuda" else f"CPU threads: {run['threads']}"
    caption = (
        f"An optimiser step over {run['batch_size']} sentences of at most {run['max_seq_length']} tokens of "
        f"{run['corpus']}, backbone {run['backbone']}, {run['precision']} unless the row says otherwise, {where}: "
        f"median of {run['repetitions']} steps, taken in turn; ratios: median within the turns.{gap_steps(run, ' ')}"
    )
    return caption, ["", "ms a step", "time"], body


def gap_steps(run: Mapping[str, Any], before: str) -> str:
    """Return what a caption says of the steps that measure gap diagnostics, nothing of a run where all do."""
    often = run.get("gap_steps")
    if not often:
        return ""
    told = f"the steps that measure gap diagnostics, one in {often} as in training, have a median of their own"
    return before + (told if before.startswith(";") else told[0].upper() + told[1:] + ".")


def gaps_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: the time of an optimiser step with a gap diagnostic and without it.

    Arguments:
        results: content of ``experiments/results/costs/gaps-NAME.json``.
    """
    run, rows = results["run"], {row["name"]: row for row in results["methods"]}
    body = [
        [
            row["title"],
            _milliseconds(rows[row["against"]]["seconds"]),
            _milliseconds(row["seconds"]),
            f"{row['time_ratio']:.3f} ×",
        ]
        for row in rows.values()
        if row["against"] == f"{row['name']}-without"
    ]
    where = results["environment"]["device"] if run["device"] == "cuda" else f"CPU threads: {run['threads']}"
    caption = (
        f"An optimiser step with a gap diagnostic and without it, over {run['batch_size']} sentences of at most "
        f"{run['max_seq_length']} tokens of {run['corpus']}, backbone {run['backbone']}, {run['precision']}, {where}: "
        f"median of {run['repetitions']} steps, taken in turn; ratios: median within the turns."
    )
    return caption, ["", "without, ms", "with, ms", "time"], body


def roofline_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: the share of a step that its matrix products alone take.

    Arguments:
        results: content of ``experiments/results/roofline/NAME.json``.
    """
    run = results["run"]
    where = results["environment"]["device"] if run["device"] == "cuda" else f"CPU threads: {run['threads']}"
    body = [
        [
            row["title"],
            _milliseconds(row["seconds"]),
            _milliseconds(row["products_seconds"]),
            f"{100 * row['share']:.0f} %",
            f"{row['operations'] / row['seconds'] / 1e9:,.0f}",
        ]
        for row in results["rows"]
    ]
    encoded = " Encoding: other texts of the same corpus, whole, [CLS] pooling." if run.get("texts") else ""
    caption = (
        f"{run['batch_size']} sentences of at most {run['max_seq_length']} tokens of {run['corpus']}, each encoded "
        f"twice, backbone {run['backbone']}, {run['precision']}, {where}: median of {run['repetitions']} rounds, in "
        f"each the step and then its matrix products alone.{encoded}"
    )
    return caption, ["", "ms", "products alone, ms", "share", "GFLOP/s"], body


def encoding_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: sentences a second of csekit, of sentence-transformers and of onnxruntime.

    Arguments:
        results: content of ``experiments/results/benchmarks/encode-NAME.json``.
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
    with_onnx = any(row.get("speedup_over_onnxruntime") for row in results["rows"])
    if with_onnx:
        head.insert(6, "over onnxruntime")
        for cells, row in zip(body, results["rows"], strict=True):
            over = row.get("speedup_over_onnxruntime")
            cells.insert(6, f"{over:.2f} ×" if over else "")
    where = results["environment"]["device"] if run["device"] == "cuda" else f"CPU threads: {run['threads']}"
    caption = (
        f"Encoding, backbone {run['backbone']}, {where}, at most {run['max_length']} tokens, "
        f"{run['st_batch_size']} rows a batch in sentence-transformers: median of {run['repetitions']} runs in turn. "
        "Speedup over sentence-transformers at the same precision (int8: at fp32), on the clock and in time of the "
        "processor; least cosine of an embedding to that of sentence-transformers in fp32."
    )
    if with_onnx:
        caption += " Over onnxruntime: over its graph of the same precision, which reads csekit's batches."
    if results["stsb_dev"]:
        said = ", ".join(f"{row['precision']} {row['spearman']:.2f}" for row in results["stsb_dev"])
        caption += f" STS-B dev of a SimCSE encoder on this backbone, Spearman × 100: {said}."
    return caption, head, body


def encode_memory_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: resident memory at several points while a file is encoded.

    Arguments:
        results: content of ``experiments/results/encode-memory/NAME.json``.
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


def memory_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: memory and time of a step with large batches, relative to no gradient cache.

    Arguments:
        results: content of ``experiments/results/memory/NAME.json``, of ``benchmarks/memory.py``.
    """
    run, rows = results["run"], results["rows"]
    whole = {(row["method"], row["batch_size"]): row for row in rows if not row["chunk_size"]}
    body = []
    for row in rows:
        base = whole.get((row["method"], row["batch_size"]), {})
        chunk = str(row["chunk_size"] or "whole batch")
        cells = [row["title"], str(row["batch_size"]), chunk]
        if row["memory"] is None:
            cells += ["does not fit", *3 * [_MISSING]]
        else:
            cells += [f"{row['memory'] / 2**20:,.0f}", _ratio(row, base, "memory")]
            cells += [_seconds(row["seconds"], run), _ratio(row, base, "seconds")]
        body.append(cells)
    where = results["environment"]["device"] if run["device"] == "cuda" else f"CPU threads: {run['threads']}"
    memory = "as the device's allocator counts it" if run["device"] == "cuda" else "above that before the model"
    clock = "" if run["device"] == "cuda" else " of CPU time"
    caption = (
        f"An optimiser step over sentences of at most {run['max_seq_length']} tokens of {run['corpus']}, backbone "
        f"{run['backbone']}, {run['precision']}, {where}; peak memory {memory}; seconds{clock}: the fastest of "
        f"{run['steps']}; each row in a process of its own."
    )
    return caption, ["", "batch", "texts a chunk", "peak memory, MiB", "memory", "s a step", "time"], body


def corpus_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: memory and CPU time of reading a corpus, by its size.

    Arguments:
        results: content of ``experiments/results/corpus/NAME.json``, of ``benchmarks/corpus.py``.
    """
    run, rows = results["run"], results["rows"]
    head = ["lines", "file", "first start, MiB", "CPU s", "later start, MiB", "CPU s", "batches, MiB", "mapped, MiB"]
    body = []
    for row in rows:
        cells = [f"{row['lines']:,}", f"{row['bytes'] / 1e6:,.0f} MB"]
        for stage in ("first_start", "later_start"):
            cells += [f"{row[stage]['private'] / 2**20:,.0f}", f"{row[stage]['cpu_seconds']:.1f}"]
        taking = row["batches"]
        body.append([*cells, f"{taking['private'] / 2**20:,.0f}", f"{taking['mapped'] / 2**20:,.0f}"])
    caption = (
        f"Peak memory beyond a process that holds the model ({run['backbone']}); corpus: the lines of {run['corpus']} "
        f"over and over, numbered. Batches: {run['batches']:,} shuffled ones of {run['batch_size']} sentences "
        "from the trainer's loader, tokenised; mapped: pages of files beside that, which the system "
        "takes back when it needs room."
    )
    return caption, head, body


def collator_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: CPU time of making a batch, and its share of the whole step.

    Arguments:
        results: content of ``experiments/results/collator/NAME.json``, of ``benchmarks/collator.py``.
    """
    run = results["run"]
    body = []
    for row in results["rows"]:
        making = row["read"] + row["collate"]
        cells = [f"{1000 * row[part]:.2f}" for part in ("read", "tokenise")]
        cells += [f"{1000 * (row['collate'] - row['tokenise']):.2f}", f"{1000 * row['step']:.0f}"]
        body.append([row["title"], *cells, f"{100 * making / row['step']:.1f} %"])
    caption = (
        f"CPU milliseconds for a batch of {run['batch_size']} sentences of at most {run['max_seq_length']} tokens of "
        f"{run['corpus']}, backbone {run['backbone']}, {run['precision']}, one thread; median of {run['batches'] - 1} "
        f"batches and of {run['steps']} steps."
    )
    return caption, ["", "reading", "tokenising", "the rest", "whole step", "share of the batch's making"], body


def selection_cost_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: the share of a training's time that its evaluations on the dev set take.

    Arguments:
        results: content of ``experiments/results/benchmarks/selection-NAME.json``.
    """
    run, rows = results["run"], results["rows"]
    titles = {
        "dev": f"STS-B dev, {run['pairs']:,} pairs",
        "dev_bf16": f"STS-B dev, {run['pairs']:,} pairs, bf16",
        "label_free": f"label-free criteria, {run['samples']} sentences",
    }
    body = []
    for name, title in titles.items():
        steps = rows[name]["steps"]
        share = 100 * steps / (run["eval_steps"] + steps)
        body.append([title, _seconds(rows[name]["seconds"], run), f"{steps:.1f}", f"{share:.1f} %"])
    where = results["environment"]["device"] if run["device"] == "cuda" else f"CPU threads: {run['threads']}"
    clock = "" if run["device"] == "cuda" else " of CPU time"
    caption = (
        f"An evaluation beside SimCSE's steps over {run['batch_size']} sentences of at most {run['max_seq_length']} "
        f"tokens of {run['corpus']}, backbone {run['backbone']}, {run['precision']} steps, {where}; seconds{clock}: "
        f"median of {run['repetitions']} turns; share of the training with an evaluation every {run['eval_steps']} "
        "steps, each by itself."
    )
    return caption, ["", "s", "in steps", "share"], body


def scaling_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: the time of a step and the time to the first step, as sizes grow.

    Arguments:
        results: content of ``experiments/results/benchmarks/scaling-NAME.json``.
    """
    run, rows = results["run"], results["rows"]
    started = any("first_start" in row for row in rows)
    body = []
    for row in rows:
        cells = [row["title"], _milliseconds(row["seconds"]), f"{row['ratio']:.2f} ×"]
        cells.append(f"{row['sentences'] / row['seconds']:,.0f}")
        for stage in ("first_start", "later_start") if started else ():
            cells.append(f"{row[stage]:.1f}" if stage in row else "")
        body.append(cells)
    head = ["", "ms a step", "time", "sentences/s", *(["first start, s", "later start, s"] if started else [])]
    where = results["environment"]["device"] if run["device"] == "cuda" else f"CPU threads: {run['threads']}"
    caption = (
        f"SimCSE's step, backbone {run['backbone']}, {run['precision']}, {where}; {run['batch_size']} sentences of at "
        f"most {run['max_seq_length']} tokens of {run['corpus']} unless the row says otherwise: median of "
        f"{run['repetitions']} steps, taken in turn within a part; time: beside the part's first row, median within "
        "the turns."
    )
    if started:
        caption += (
            " Start: from nothing read to the end of the first step, with an empty cache and with a filled one; the "
            "corpus's steps are the three after it, not in turn."
        )
    if found := results.get("exponents"):
        names = {"corpus": "lines of the corpus", "corpus, first_start": "first start by lines"}
        names |= {"corpus, later_start": "later start by lines", "batch": "batch", "cached": "batch in chunks"}
        names |= {"length": "length"}
        listed = ", ".join(f"{name} {found[key]:.2f}" for key, name in names.items() if key in found)
        caption += f" Exponents of the growth, fitted to the logarithms of size and time: {listed}."
    return caption, head, body


def end_to_end_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: time and memory of whole training runs of csekit and of its peer.

    Arguments:
        results: content of ``experiments/results/benchmarks/runs-NAME.json``.
    """
    run, body = results["run"], []
    for row in results["rows"]:
        cells = [row["name"]]
        for name, value in (
            ("seconds", f"{row['seconds']:.0f}"),
            ("cpu_seconds", f"{row['cpu_seconds']:.0f}"),
            ("memory", f"{row['memory'] / 2**20:,.0f}"),
        ):
            cells += [value, f"{row[f'{name}_ratio']:.2f} ×"]
        body.append([*cells, f"{row['growth']:.2f} ×"])
    where = results["environment"]["device"] if run["device"] == "cuda" else f"CPU threads: {run['threads']}"
    memory, grown = "resident, at its peak", "the run's last quarter"
    if run["device"] == "cuda":
        memory, grown = "the peak of the device's allocator", "resident memory, the run's last quarter"
    what, texts = "Training SimCSE", f"sentences of at most {run['max_seq_length']} tokens of"
    if run.get("task") == "mlm":
        what, texts = "Continuing the masked LM", f"blocks of {run['max_seq_length']} tokens of"
    turns = f"median of {run['rounds']} runs, taken in turn; ratios: median within the turns."
    if run.get("alone"):
        turns = "one run without a peer." if run["rounds"] == 1 else f"median of {run['rounds']} runs without a peer."
    backbone = run["model_name_or_path"]
    if run.get("vocabulary"):
        backbone += f" with {run['vocabulary']:,} rows of word embeddings, most of which no text reads"
    caption = (
        f"{what} from the start of the process to its end, {run['max_steps']} steps over {run['batch_size']} "
        f"{texts} {run['train_file']}, {run['dev_file']} scored every {run['eval_steps']}, backbone "
        f"{backbone}, {run['precision']}, {where}: {turns} Memory: {memory}; growth: of {grown} beside its second."
    )
    return caption, ["", "s", "time", "CPU s", "CPU time", "MiB", "memory", "growth"], body


def filled_rows_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: oneDNN's kernels and memory of a long training, with rows filled up and not.

    Arguments:
        results: content of ``experiments/results/benchmarks/kernels-NAME.json``.
    """
    run, body = results["run"], []
    for row in results["rows"]:
        cells = [row["title"], f"{row['kernels']:,}", f"{row['late_kernels_a_step']:.2f}"]
        body.append([*cells, f"{row['memory'] / 2**20:,.0f}", f"{row['growth']:.3f} ×"])
    caption = (
        f"{run['steps']:,} steps of SimCSE over {run['batch_size']} sentences of at most {run['max_seq_length']} "
        f"tokens of {run['corpus']}, backbone {run['backbone']}, {run['precision']}, CPU threads: {run['threads']}: "
        "kernels that oneDNN made, those of a step in the last quarter, resident memory at its peak, and that of the "
        "last quarter beside the second."
    )
    return caption, ["", "kernels", "a step, at the end", "MiB", "growth"], body


def term_gradients_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: how strongly each loss term pulls at the encoder, and in which direction.

    Arguments:
        results: content of ``experiments/results/gradients/NAME.json``.
    """
    run, body = results["run"], []
    for row in results["rows"]:
        for term, found in row["terms"].items():
            own = term == "contrastive"
            cells = [row["title"], f"{row['step']:,}", term, compact(row["weights"].get(term))]
            for norm, share in (("norm", "share"), ("mean_norm", "mean_share"), ("adam_norm", "adam_share")):
                cells += [compact(found[norm]), _MISSING if own else compact(found[share])]
            cosine = _MISSING if own or found["mean_cosine"] is None else f"{found['mean_cosine']:.2f}"
            dev = f"{row['dev']:.2f}" if own and row["dev"] is not None else ""
            body.append([*cells, cosine, dev])
    caption = (
        f"Gradient of each weighted term in the encoder's weights, over {run['repetitions']} shuffled batches of "
        f"{run['batch_size']} sentences of at most {run['max_seq_length']} tokens of {run['corpus']}, with dropout, "
        "fp32. Norm: median over the batches. Mean: norm of the mean gradient. Adam: norm of the mean of gradients "
        f"clipped at {run['max_grad_norm']:g} as in training, divided by sqrt(v̂) + ε; v is the optimiser's at this "
        "step (zero at step 0), updated on every measured batch with the terms' squared gradients. × contrast: "
        "relative to the contrastive term; cosine: between the mean gradients of the term and of the contrast; dev: "
        "STS-B dev of the training at this step, Spearman × 100."
    )
    shares = [head for name in ("norm", "mean", "Adam") for head in (name, "× contrast")]
    return caption, ["", "step", "term", "weight", *shares, "cosine", "dev"], body


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.{0 if seconds >= 0.1 else 1}f}"


def _seconds(value: float, run: Mapping[str, Any]) -> str:
    """Return seconds with more digits on a GPU, where they are few."""
    return f"{value:.{3 if run['device'] == 'cuda' else 1}f}"


def _ratio(row: Mapping[str, Any], base: Mapping[str, Any], name: str) -> str:
    return f"{row[name] / base[name]:.2f} ×" if row.get(name) is not None and base.get(name) else _MISSING


def _count(value: int | None) -> str:
    return _MISSING if value is None else f"{value / 1e6:.2f} M" if value else "0"


def _megabytes(value: int | None) -> str:
    return _MISSING if value is None else f"{value / 1e6:.1f} MB"
