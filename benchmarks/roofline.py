"""Measure the share of a training step that its matrix products alone would take on this machine.

    python benchmarks/roofline.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --precision bf16 --output experiments/results/roofline/bert-base-uncased-cpu-bf16.json

The script records every product of a step (forward and backward) with its shapes and precision, then computes the
products again on prepared tensors, in turn with the step itself. There are two rows: forward and backward of the
encoder over both views, and the whole optimiser step of SimCSE from texts to new weights. `--texts 1000` adds a row
for encoding so many texts with [CLS] pooling, as `csekit encode` does: how much faster could it be?
`python -m experiments.tables` makes the table `roofline/NAME`.
"""

import argparse
import os
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from train_step import SEED, Setting, csekit_step, now, parse_setting, read_batches
from transformers import AutoTokenizer
from transformers.utils import logging

from csekit.encoding.fast_cpu import ROWS
from csekit.encoding.load import load_encoder
from csekit.encoding.provenance import environment
from csekit.evaluation.results import write_results
from csekit.modeling import SimCSEModel
from csekit.modeling.fast_counts import note_counts
from csekit.trainers import CSECollator

#: A product: shapes of both factors (batched where of three dimensions), their type, and True if the second one is a
#: weight in oneDNN's own layout.
Product = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, bool]

_PRODUCTS = {
    torch.ops.aten.mm.default: (0, 1),
    torch.ops.aten.bmm.default: (0, 1),
    torch.ops.aten.addmm.default: (1, 2),
    torch.ops.aten.baddbmm.default: (1, 2),
}
_PACKED = "mkldnn._linear_pointwise"


class RecordProducts(TorchDispatchMode):
    """Count the matrix products inside the context; fused attention counts as two (forward) or five (backward)."""

    def __init__(self) -> None:
        super().__init__()
        self.products: Counter[Product] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), kwargs: Any = None) -> Any:
        if function in _PRODUCTS:
            a, b = (arguments[i] for i in _PRODUCTS[function])
            self.products[(tuple(a.shape), tuple(b.shape), a.dtype, False)] += 1
        elif _PACKED in str(function):
            states, weight = arguments[:2]
            width = states.shape[-1]
            self.products[((states.numel() // width, width), (width, weight.shape[0]), states.dtype, True)] += 1
        elif "scaled_dot_product" in str(function):
            backward = "backward" in str(function)
            query, key, value = arguments[1:4] if backward else arguments[:3]
            rows, length, width = query.shape[0] * query.shape[1], query.shape[2], query.shape[3]
            keys = key.shape[2]
            scores = ((rows, length, width), (rows, width, keys), query.dtype, False)
            mixed = ((rows, length, keys), (rows, keys, value.shape[3]), query.dtype, False)
            self.products[scores] += 2 if backward else 1
            self.products[mixed] += 3 if backward else 1
        return function(*arguments, **(kwargs or {}))


def record(step: Callable[[], None]) -> Counter[Product]:
    """Count the products of one step."""
    with RecordProducts() as mode:
        step()
    return mode.products


def operations(products: Counter[Product]) -> int:
    """Count floating-point operations: two for each multiplication with its addition."""
    return sum(2 * torch.Size(a).numel() * b[-1] * count for (a, b, *_), count in products.items())


def replay(products: Counter[Product], device: str) -> Callable[[], None]:
    """Return a function that computes the products and nothing else."""
    found: list[tuple[Callable[[], Tensor], int]] = []
    for (a, b, dtype, packed), count in products.items():
        first, second = (torch.randn(shape, device=device).to(dtype) for shape in (a, b))
        if packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(second.T.contiguous(), ROWS)
            found.append((partial(torch.ops.mkldnn._linear_pointwise, first, weight, None, "none", [], ""), count))
        else:
            found.append((partial(torch.matmul, first, second), count))

    def compute() -> None:
        with torch.no_grad():
            for product, count in found:
                for _ in range(count):
                    product()

    return compute


def encoder_step(setting: Setting) -> Callable[[list[dict[str, Any]]], Callable[[], None]]:
    """Build forward and backward of both views of a collated batch, as training computes them."""
    model = SimCSEModel.from_backbone(setting.backbone, projector="none").to(setting.device).train()
    collator = CSECollator(AutoTokenizer.from_pretrained(setting.backbone), setting.max_seq_length, seed=SEED)

    def prepare(rows: list[dict[str, Any]]) -> Callable[[], None]:
        batch = collator(rows)
        ids, mask = (
            batch[name].squeeze(1).repeat(2, 1).to(setting.device) for name in ("input_ids", "attention_mask")
        )
        note_counts(mask, [*batch["token_counts"].squeeze(1)] * 2)

        def step() -> None:
            with torch.autocast(setting.device, torch.bfloat16, enabled=setting.precision == "bf16"):
                h = model.pooled(ids, mask)
            h.float().sum().backward()
            model.zero_grad()

        return step

    return prepare


def encoding(setting: Setting) -> Callable[[list[dict[str, Any]]], Callable[[], None]]:
    """Build the encoding of a batch's texts, from texts to vectors in main memory."""
    encoder = load_encoder(setting.backbone, pooling="cls", device=setting.device)
    encoder.precision = setting.precision

    def prepare(rows: list[dict[str, Any]]) -> Callable[[], None]:
        texts = [row["texts"][0] for row in rows]

        def step() -> None:
            encoder.encode(texts)

        return step

    return prepare


def measure(
    prepare: Callable[[list[dict[str, Any]]], Callable[[], None]],
    batches: list[list[dict[str, Any]]],
    warmup: int,
    device: str,
) -> dict[str, Any]:
    """Measure the step and its products in turn over the batches."""

    def timed(function: Callable[[], None]) -> float:
        started = now(device)
        function()
        return now(device) - started

    steps, products, flops = [], [], []
    for number, rows in enumerate(batches):
        step = prepare(rows)
        found = record(step)
        again = replay(found, device)
        again()
        taken = timed(step), timed(again)
        if number >= warmup:
            steps.append(taken[0])
            products.append(taken[1])
            flops.append(operations(found))
    return {
        "seconds": statistics.median(steps),
        "products_seconds": statistics.median(products),
        "share": statistics.median(own / whole for own, whole in zip(products, steps, strict=True)),
        "operations": statistics.median(flops),
        "all_seconds": steps,
        "all_products_seconds": products,
    }


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="encoder checkpoint")
    parser.add_argument("--train_file", required=True, help="sentences, one a line")
    parser.add_argument(
        "--output", type=Path, required=True, help="results file, experiments/results/roofline/NAME.json"
    )
    parser.add_argument("--texts", type=int, default=0, help="texts of a round of encoding; 0: no such row")
    return parse_setting(parser, argv)


def main(argv: list[str] | None = None) -> None:
    args = read_arguments(argv)
    logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    setting = Setting(args.model_name_or_path, args.device, args.precision, args.max_seq_length, args.threads)
    try:
        corpus, batches = read_batches(args.train_file, args.batch_size, args.warmup + args.repetitions)
        encoded = read_batches(args.train_file, args.texts, len(batches))[1] if args.texts else []
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    whole = csekit_step(setting, method="simcse", fields={"projector": "none"})
    sides: list[tuple[str, Any, list[list[dict[str, Any]]]]] = [
        ("encoder, forward and backward", encoder_step(setting), batches),
        ("SimCSE, whole step", lambda rows: lambda: whole(rows), batches),
    ]
    if encoded:
        sides.append((f"encoding {args.texts:,} texts", encoding(setting), encoded))
    rows = [{"title": title, **measure(prepare, given, args.warmup, args.device)} for title, prepare, given in sides]
    print(f"{'':32}{'ms':>8}{'products, ms':>14}{'share':>8}{'GFLOP/s':>10}")
    for row in rows:
        rate = row["operations"] / row["seconds"] / 1e9
        print(
            f"{row['title']:32}{1000 * row['seconds']:>8.1f}{1000 * row['products_seconds']:>14.1f}"
            f"{row['share']:>8.2f}{rate:>10.0f}"
        )
    run = {"benchmark": "roofline", **asdict(setting), "backbone": Path(setting.backbone).name, "corpus": corpus}
    run |= {name: getattr(args, name) for name in ("batch_size", "repetitions", "warmup", "texts")} | {
        "cores": os.cpu_count()
    }
    write_results(args.output, {"run": run, "rows": rows, "environment": environment()}, overwrite=True)


if __name__ == "__main__":
    main()
