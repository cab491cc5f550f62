"""Measure time and peak memory of an optimiser step: of every method relative to SimCSE, or of csekit and its peers.

    python benchmarks/train_step.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --precision bf16 --output experiments/results/costs/bert-base-uncased-cpu-bf16.json

A step goes from texts to new weights: tokenising and masking, forward, backward, clipping, AdamW. Every method runs in
a process of its own, whose peak memory is recorded. The methods take turns (A B C A B C …) over the same shuffled
batches, so that a busy moment of the machine slows all of them; a ratio is the median of the ratios within a turn. The
steps that measure gap diagnostics, every fifth one, have a median of their own, which counts as often as they come.
Run it on an idle machine. `python -m experiments.tables` makes the table `costs/NAME` of the file
`experiments/results/costs/NAME.json`.

`methods.yaml` lists the methods. `--rows experiments/plans/field.yaml`, or another plan of `run_seeds.py`, measures
the experiments of the plan instead; teachers then have random vectors, since their pass over the corpus comes before
the first step. `--at_once` keeps that many processes beside the first row's, where the memory is too small for all.
`--rows benchmarks/peers.yaml` compares with sentence-transformers and with naive forms of the steps, for the table
`peers/NAME` of `experiments/results/peers/NAME.json`. `--rows benchmarks/gaps.yaml` times each method with its gap
diagnostic and without, for the table `costs/gaps-NAME`. `--rows benchmarks/compile.yaml` times the plain step beside
compiled layers and CUDA graphs, `--rows benchmarks/packing.yaml` packed batches beside padded ones, on a GPU, and
`--rows benchmarks/weights.yaml`, in bf16, weights that autocast converts beside weights that are converted together.

On a GPU the clock is read after the device has finished, and memory is the peak of torch's allocator.
"""

import argparse
import atexit
import hashlib
import multiprocessing
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import peers
import torch
import yaml
from transformers import AutoTokenizer
from transformers.utils import logging

from csekit.encoding.provenance import environment
from csekit.encoding.text_files import ROWS
from csekit.evaluation.results import write_results
from csekit.modeling import METHODS, fast_packing, fast_weights
from csekit.modeling.fast_adamw import RowSteps
from csekit.modeling.fast_compile import begin_step, compile_layers
from csekit.modeling.fast_embedding import clip_gradients, use_row_gradients
from csekit.modeling.fast_memory import freed_memory_kept
from csekit.trainers import CSECollator, load_corpus
from csekit.trainers.data.augmentation import make_augmentation
from csekit.trainers.data.corpora import Corpus
from csekit.trainers.scripts.run_arguments import method_fields
from csekit.trainers.trainer import GAP_STEPS

METHODS_FILE = Path(__file__).with_name("methods.yaml")
LEARNING_RATE, MAX_GRAD_NORM, SEED = 3e-5, 1.0, 42
TAUGHT = 16_384  # rows of a teacher's vectors
AUGMENTATION = {"augmentation": "kind", "augmentation_rate": "rate", "augmentation_span": "span"}


@dataclass(frozen=True)
class Setting:
    """Settings that all methods share."""

    backbone: str
    device: str
    precision: str
    max_seq_length: int
    threads: int


#: One whole optimiser step over rows of a corpus, ``{"texts": [...], "index": int, "epoch": int}``.
Step = Callable[[list[dict[str, Any]]], None]


def csekit_step(
    setting: Setting,
    method: str,
    fields: dict[str, Any],
    cache_chunk_size: int = 0,
    wrap: Callable[[Any], Any] = lambda model: model,
    augmentation: Mapping[str, Any] | None = None,
    compiled: Mapping[str, Any] | None = None,
    gaps: str = "usual",
    padding: int | None = None,
    converted: bool = False,
) -> Step:
    """Build a method's step as ``CSETrainer`` takes it; ``wrap`` may put a wrapper around the model.

    ``augmentation`` holds arguments of ``make_augmentation``, ``compiled`` of ``compile_layers``. Teachers have random
    vectors. The diagnostics that compare with another sentence's vector are measured as often as in training
    (``usual``), in each step (``always``) or ``never``. ``padding`` is the ``PADDING`` of ``fast_packing.py``.
    ``converted`` lets ``fast_weights.py`` convert weights on a CPU as well.
    """
    if converted:
        fast_weights.converts = lambda device: True
    if padding is not None:
        fast_packing.PADDING = padding
    model = METHODS[method].from_backbone(setting.backbone, **fields).to(setting.device).train()
    model.cache_gradients(cache_chunk_size)
    tokenizer = AutoTokenizer.from_pretrained(setting.backbone)
    collator = CSECollator(
        tokenizer,
        setting.max_seq_length,
        model.batch_specs,
        SEED,
        model.config.prompt_template,
        augmentation=make_augmentation(**(augmentation or {"kind": "none"})),
        second_template=model.config.second_prompt_template,
    )
    collator.teachers = random_teachers(model)
    clipped: dict[str, list[Any]] = {}
    for group in model.parameter_groups():
        clipped.setdefault(group.get("clip_group", "encoder"), []).extend(group["params"])
    network = wrap(model)
    if compiled is not None:
        compile_layers(model, **compiled)
    optimizer = torch.optim.AdamW([p for group in clipped.values() for p in group], lr=LEARNING_RATE, fused=True)
    if use_row_gradients(model):
        RowSteps(optimizer)
    until_exit = ExitStack()
    until_exit.enter_context(freed_memory_kept())
    atexit.register(until_exit.close)
    number = count(1)

    def step(rows: list[dict[str, Any]]) -> None:
        rows = [{**row, "index": row["index"] % TAUGHT} for row in rows] if collator.teachers else rows
        batch = {name: v.to(setting.device) if torch.is_tensor(v) else v for name, v in collator(rows).items()}
        batch.pop("index")
        begin_step((compiled or {}).get("mode"))
        model.measure_gaps(gaps == "always" or (gaps == "usual" and next(number) % GAP_STEPS == 0))
        with torch.autocast(setting.device, torch.bfloat16, enabled=setting.precision == "bf16"):
            loss = network(**batch).loss
        loss.backward()
        for group in clipped.values():
            clip_gradients(group, MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()

    return step


def random_teachers(model: Any) -> list[np.ndarray]:
    """Return unit vectors for as many teachers as the objectives read, (TAUGHT, H) each, and set the references."""
    count = max((objective.teachers for objective in model.auxiliaries()), default=0)
    drawn = np.random.default_rng(SEED).standard_normal((count, TAUGHT, model.config.hidden_size), dtype=np.float32)
    vectors = list(drawn / np.linalg.norm(drawn, axis=-1, keepdims=True))
    for objective in model.auxiliaries():
        if objective.references:
            objective.set_references([torch.from_numpy(each[: objective.references]) for each in vectors])
    return vectors


@dataclass(frozen=True)
class Row:
    """A step to measure.

    Arguments:
        build: builds the step; it is sent to another process.
        against: name of the row that its time is compared with; None: the first.
        precision: its own precision, if any.
    """

    title: str
    build: Callable[[Setting], Step]
    against: str | None = None
    precision: str | None = None


def read_rows(path: Path, names: list[str] | None) -> dict[str, Row]:
    """Read the rows of a YAML file, by name; of a plan, its experiments.

    Raises:
        ValueError: an unknown name.
    """
    found: dict[str, Row] = {}
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if "experiments" in content:
        return chosen_rows(plan_rows(content), names)
    for name, given in content.items():
        fields = dict(given)
        own = {key: fields.pop(key, None) for key in ("title", "step", "against", "precision")}
        more = {"compiled": fields.pop("compile")} if "compile" in fields else {}
        more |= {key: fields.pop(key) for key in ("gaps", "padding", "converted") if key in fields}
        method = {"method": fields.pop("method"), "fields": fields, **more} if "method" in fields else {}
        step = csekit_step if own["step"] is None else getattr(peers, own["step"])
        found[name] = Row(own["title"], partial(step, **method), own["against"], own["precision"])
    return chosen_rows(found, names)


def plan_rows(plan: Mapping[str, Any]) -> dict[str, Row]:
    """Return a row for each experiment of a plan, made of those arguments that its step reads; commands have none."""
    found = {}
    trained = {name: each for name, each in plan["experiments"].items() if "command" not in each}
    for name, experiment in trained.items():
        given = {**plan["arguments"], **experiment.get("arguments", {})}
        method, objectives = given["method"], given.get("objectives")
        fields = {key: given[key] for key in method_fields(method, objectives) if key in given and key != "teachers"}
        fields |= {} if objectives is None else {"objectives": objectives}
        changed = {own: given[key] for key, own in AUGMENTATION.items() if key in given}
        build = partial(csekit_step, method=method, fields=fields, augmentation=changed)
        found[name] = Row(experiment["title"], build)
    return found


def chosen_rows(found: dict[str, Row], names: list[str] | None) -> dict[str, Row]:
    if unknown := sorted(set(names or []) - set(found)):
        raise ValueError(f"methods must be among {', '.join(found)}, got {unknown[0]!r}")
    return {name: found[name] for name in names or found}


def serve(pipe: Connection, setting: Setting, build: Callable[[Setting], Step]) -> None:
    """Run in a method's process: build its step, take the steps that the pipe asks for, then send the peak memory."""
    logging.disable_progress_bar()
    torch.set_num_threads(setting.threads)
    torch.manual_seed(SEED)
    before = peak_memory(setting.device)
    step = build(setting)
    pipe.send(None)
    while (rows := pipe.recv()) is not None:
        started = now(setting.device)
        step(rows)
        pipe.send(now(setting.device) - started)
    pipe.send(peak_memory(setting.device) - before)


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def peak_memory(device: str) -> int:
    """Peak bytes in use so far: allocated on the device, or resident."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Worker:
    """A method that runs in its own process. Call :meth:`receive` once before :meth:`ask`: the step is built."""

    def __init__(self, title: str, setting: Setting, build: Callable[[Setting], Step]) -> None:
        self.title = title
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, setting, build), daemon=True)
        self.process.start()
        other.close()

    def ask(self, rows: list[dict[str, Any]] | None) -> Any:
        """Return the seconds of a step over ``rows``; for None, the peak memory, after which the process ends."""
        self.pipe.send(rows)
        return self.receive()

    def receive(self) -> Any:
        try:
            return self.pipe.recv()
        except EOFError:
            raise SystemExit(f"error: {self.title} failed, see above") from None


def measure(
    workers: dict[str, Worker], batches: list[list[dict[str, Any]]], warmup: int, against: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """Run every method over the batches in turn, without counting the first ``warmup`` rounds; ratios are relative to
    the first row, or to the one that ``against`` names."""
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for number, rows in enumerate(batches):
        taken = {name: worker.ask(rows) for name, worker in workers.items()}
        for name, value in taken.items() if number >= warmup else ():
            seconds[name].append(value)
    numbers = range(warmup + 1, len(batches) + 1)
    first = next(iter(seconds))
    bases = {name: (against or {}).get(name, first) for name in workers}
    return [
        {
            "name": name,
            "title": worker.title,
            "seconds": usual(seconds[name], numbers),
            "against": bases[name],
            "time_ratio": usual(
                [own / base for own, base in zip(seconds[name], seconds[bases[name]], strict=True)], numbers
            ),
            "memory": worker.ask(None),
            "all_seconds": seconds[name],
        }
        for name, worker in workers.items()
    ]


def usual(values: list[float], numbers: Sequence[int]) -> float:
    """Return the mean of two medians, that of the steps which measure the gaps and that of the others, each weighted
    by how often such steps come in training.

    Arguments:
        numbers: the number of each step, from 1.
    """
    measuring = [value for value, number in zip(values, numbers, strict=True) if number % GAP_STEPS == 0]
    others = [value for value, number in zip(values, numbers, strict=True) if number % GAP_STEPS]
    if not measuring or not others:
        return statistics.median(values)
    return (statistics.median(measuring) + (GAP_STEPS - 1) * statistics.median(others)) / GAP_STEPS


def draw_batches(corpus: Corpus, size: int, count: int, seed: int = SEED) -> list[list[dict[str, Any]]]:
    """Draw shuffled batches from the whole corpus, as training does.

    A corpus in the order of its articles would give batches of neighbours, whose sentences are harder to tell apart.
    The rows are drawn by a seeded hash of their texts, so the same sentences in another order give the same batches.
    Where the corpus is too small, the batches repeat.

    Raises:
        ValueError: the corpus has fewer rows than one batch.
    """
    dataset: Any = corpus.dataset
    if len(dataset) < size:
        raise ValueError(f"{corpus.name} must hold at least batch_size sentences, {size}, got {len(dataset)}")
    key = seed.to_bytes(8, "big", signed=True)
    hashes = []
    for first in range(0, len(dataset), ROWS):
        rows = dataset.__getitems__(range(first, min(first + ROWS, len(dataset))))
        texts = ("\0".join(row["texts"]).encode() for row in rows)
        hashes += [hashlib.blake2b(text, key=key, digest_size=16).digest() for text in texts]
    whole = min(len(dataset) // size, count)
    drawn = sorted(range(len(hashes)), key=hashes.__getitem__)[: whole * size]
    random.Random(seed).shuffle(drawn)  # equal texts have equal hashes and would share a batch
    return [dataset.__getitems__(drawn[i % whole * size : (i % whole + 1) * size]) for i in range(count)]


def read_batches(path: str, size: int, count: int, seed: int = SEED) -> tuple[str, list[list[dict[str, Any]]]]:
    """Return the corpus's name and batches from ``draw_batches``.

    Raises:
        ValueError: the corpus has fewer rows than one batch.
    """
    corpus = load_corpus(path)
    return corpus.name, draw_batches(corpus, size, count, seed)


def parse_setting(
    parser: argparse.ArgumentParser, argv: list[str] | None, repetitions: int = 20, warmup: int = 3
) -> argparse.Namespace:
    """Parse the arguments, with those of a :class:`Setting` and the number of repetitions."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--batch_size", type=int, default=64, help="sentences a step")
    parser.add_argument("--max_seq_length", type=int, default=32, help="tokens of a sentence")
    parser.add_argument("--repetitions", type=int, default=repetitions, help="number of measured rounds")
    parser.add_argument("--warmup", type=int, default=warmup, help="number of rounds before them")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads of each process")
    args = parser.parse_args(argv)
    for name in ("batch_size", "repetitions", "threads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(args, name)}")
    return args


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="encoder checkpoint, a masked LM")
    parser.add_argument("--train_file", required=True, help="sentences, one a line")
    parser.add_argument("--output", type=Path, required=True, help="results file, experiments/results/costs/NAME.json")
    parser.add_argument("--rows", type=Path, default=METHODS_FILE, help="YAML file of the rows to measure")
    parser.add_argument(
        "--methods", nargs="+", help="names of some of its rows; the others are compared with the first"
    )
    parser.add_argument("--at_once", type=int, help="processes beside the first row's; default: all rows")
    return parse_setting(parser, argv)


def groups(names: list[str], size: int | None) -> list[list[str]]:
    """Return the names in groups of at most ``size`` beside the first, which is in every group."""
    size = size or len(names)
    first, others = names[0], names[1:]
    return [[first, *others[start : start + size]] for start in range(0, max(len(others), 1), size)]


def main(argv: list[str] | None = None) -> None:
    args = read_arguments(argv)
    setting = Setting(args.model_name_or_path, args.device, args.precision, args.max_seq_length, args.threads)
    try:
        chosen = read_rows(args.rows, args.methods)
        corpus, batches = read_batches(args.train_file, args.batch_size, args.warmup + args.repetitions)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    rows: list[dict[str, Any]] = []
    for group in groups(list(chosen), args.at_once):
        workers = {
            name: Worker(row.title, replace(setting, precision=row.precision or setting.precision), row.build)
            for name, row in chosen.items()
            if name in group
        }
        for worker in workers.values():
            worker.receive()
        against = {name: row.against for name, row in chosen.items() if row.against in group}
        rows += measure(workers, batches, args.warmup, against)[1 if rows else 0 :]
    print(f"{'':32}{'ms a step':>10}{'ratio':>8}{'MiB':>9}{'ratio':>8}")
    for row in rows:
        memory = f"{row['memory'] / 2**20:>9.0f}{row['memory'] / max(rows[0]['memory'], 1):>8.2f}"
        print(f"{row['title']:32}{1000 * row['seconds']:>10.1f}{row['time_ratio']:>8.2f}{memory}")
    run = {"benchmark": "train_step", **asdict(setting), "backbone": Path(setting.backbone).name, "corpus": corpus}
    run |= {name: getattr(args, name) for name in ("batch_size", "repetitions", "warmup")}
    run |= {"cores": os.cpu_count(), "gap_steps": GAP_STEPS}
    write_results(args.output, {"run": run, "methods": rows, "environment": environment()}, overwrite=True)


if __name__ == "__main__":
    main()
