"""Compare whole runs: csekit's training script and its peer's, each in a process of its own.

    python benchmarks/end_to_end.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --dev_file stsb-dev.tsv --output experiments/results/benchmarks/runs-bert-base-uncased-cpu.json

Both sides train SimCSE from the same weights on the same sentences, evaluate the dev pairs at the same steps, keep the
best checkpoint and write the encoder (`st_training.py` is sentence-transformers' script). With `--task mlm` both sides
continue the masked LM over blocks of tokens, and `--dev_file` has held-out sentences, one a line (`mlm_training.py` is
Transformers' script). `--also_with NAME=VALUE` runs both sides a second time in each round, with that environment
variable. `--alone` leaves the peer out. `--vocabulary 250002` adds rows to the word embeddings that no text reads, as
a multilingual encoder has them (XLM-R) for a corpus of one language. Sides take turns for `--rounds` rounds; ratios
are medians within the rounds. Wall time goes from the start of the process to its end, so imports and reading count.
CPU time is that of the process and its children. Memory is resident memory, sampled five times a second, and on a GPU
the peak of torch's allocator (`peak_memory.py`). Growth is that of resident memory: the median of the last quarter of
a run over that of the second. `python -m experiments.tables` makes a table of each file `benchmarks/runs-NAME.json`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from transformers import AutoModelForMaskedLM, AutoTokenizer

from csekit.encoding.provenance import checksum, environment
from csekit.evaluation.results import write_results

OURS = "csekit"
#: The peer of each task, and its script.
PEERS = {"simcse": ("sentence-transformers", "st_training.py"), "mlm": ("Transformers", "mlm_training.py")}
SAMPLE_SECONDS = 0.2


def sides(args: argparse.Namespace) -> list[str]:
    both = [OURS] if args.alone else [OURS, PEERS[args.task][0]]
    return both + [f"{side}, {setting}" for setting in args.also_with for side in both]


def words(side: str, args: argparse.Namespace, output: Path) -> list[str]:
    """Return the command of a side."""
    common = ["--model_name_or_path", args.model_name_or_path, "--train_file", args.train_file]
    common += ["--output_dir", str(output), "--max_steps", str(args.max_steps), "--eval_steps", str(args.eval_steps)]
    common += ["--learning_rate", "3e-5"]
    peer, script = PEERS[args.task]
    if side.partition(", ")[0] == peer:
        own = ["--dev_file", args.dev_file, "--max_seq_length", str(args.max_seq_length)]
        own += ["--batch_size", str(args.batch_size), *(["--bf16"] if args.precision == "bf16" else [])]
        own += ["--use_cpu"] if args.device == "cpu" else []
        return [sys.executable, str(Path(__file__).with_name(script)), *common, *own]
    common += ["--per_device_train_batch_size", str(args.batch_size), "--use_cpu", str(args.device == "cpu")]
    common += ["--bf16", str(args.precision == "bf16"), "--report_to", "none"]
    if args.task == "mlm":
        own = ["--objective", "mlm", "--heldout_file", args.dev_file, "--block_length", str(args.max_seq_length)]
        return [sys.executable, "-m", "csekit", "pretrain", *common, *own]
    own = ["--method", "simcse", "--projector", "none", "--dev_file", args.dev_file]
    own += ["--max_seq_length", str(args.max_seq_length)]
    return [sys.executable, "-m", "csekit", "train", *common, *own]


def widened(args: argparse.Namespace, folder: Path) -> argparse.Namespace:
    """Return the arguments with a copy of the encoder in ``folder`` whose vocabulary has ``--vocabulary`` words."""
    model = AutoModelForMaskedLM.from_pretrained(args.model_name_or_path)
    size = model.config.vocab_size
    if args.vocabulary < size:
        raise SystemExit(f"error: --vocabulary must be at least {size}, got {args.vocabulary}")
    model.resize_token_embeddings(args.vocabulary, mean_resizing=False)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(args.model_name_or_path).save_pretrained(folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content["model"].get("vocab"), dict):
        kind = content["model"].get("type")
        raise SystemExit(f"error: --vocabulary needs a tokenizer whose vocabulary is a dictionary, got {kind}")
    content["model"]["vocab"] |= {f"[further word {row}]": row for row in range(size, args.vocabulary)}
    path.write_text(json.dumps(content), encoding="utf-8")
    return argparse.Namespace(**{**vars(args), "model_name_or_path": str(folder)})


def run(command: list[str], log: Path, threads: int, more: str = "", gpu: bool = False) -> dict[str, Any]:
    """Run a command and measure it; ``more``, NAME=VALUE, goes into its environment. ``gpu``: memory is the GPU's.

    Raises:
        RuntimeError: it failed.
    """
    peak = log.with_suffix(".peak")
    if gpu:
        command = [command[0], str(Path(__file__).with_name("peak_memory.py")), str(peak), *command[1:]]
    started = time.perf_counter()
    with log.open("w") as file:
        variables = {**os.environ, "OMP_NUM_THREADS": str(threads), **dict([more.split("=", 1)] if more else [])}
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=variables)
        samples: list[int] = []
        watcher = threading.Thread(target=watch, args=(process.pid, samples), daemon=True)
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    watcher.join()
    if process.returncode:
        tail = log.read_text(errors="replace").splitlines()[-3:]
        raise RuntimeError(f"{' '.join(command[:4])} … ended with {process.returncode}: {' '.join(tail)}")
    found = {"seconds": seconds, "cpu_seconds": usage.ru_utime + usage.ru_stime, **of_samples(samples)}
    return found | ({"memory": int(peak.read_text(encoding="ascii"))} if gpu else {})


def watch(pid: int, samples: list[int]) -> None:
    """Append the resident bytes of a process and its children to ``samples`` until it ends."""
    while True:
        try:
            process = psutil.Process(pid)
            family = [process, *process.children(recursive=True)]
            resident = sum(each.memory_info().rss for each in family)
        except psutil.Error:
            return
        if resident == 0:  # it has ended and waits to be asked for its status
            return
        samples.append(resident)
        time.sleep(SAMPLE_SECONDS)


def of_samples(samples: list[int]) -> dict[str, Any]:
    """Return the peak and the growth: the median of the last quarter over that of the second."""
    quarter = max(1, len(samples) // 4)
    late, early = statistics.median(samples[-quarter:]), statistics.median(samples[quarter : 2 * quarter] or samples)
    return {"memory": max(samples), "growth": late / early}


def summary(rounds: list[dict[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return a row for each side: medians, and medians of the ratios to csekit within a round."""
    rows = []
    for side in rounds[0]:
        row: dict[str, Any] = {"name": side}
        for field in ("seconds", "cpu_seconds", "memory", "growth"):
            row[field] = statistics.median(each[side][field] for each in rounds)
        for field in ("seconds", "cpu_seconds", "memory"):
            row[f"{field}_ratio"] = statistics.median(each[side][field] / each[OURS][field] for each in rounds)
        rows.append(row)
    return rows


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="encoder checkpoint, a masked LM")
    parser.add_argument("--train_file", required=True, help="sentences, one a line")
    parser.add_argument(
        "--dev_file",
        required=True,
        help="tsv file with the columns sentence1, sentence2, score; of --task mlm held-out sentences",
    )
    parser.add_argument("--task", choices=tuple(PEERS), default="simcse")
    parser.add_argument("--output", type=Path, required=True, help="results file")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    for name, default, text in (
        ("rounds", 5, "number of turns"),
        ("max_steps", 250, "steps of a run"),
        ("eval_steps", 125, "steps between evaluations"),
        ("batch_size", 64, "sentences a step, or blocks"),
        ("max_seq_length", 32, "tokens of a sentence, or of a block"),
        ("threads", os.cpu_count() or 1, "CPU threads of each side"),
        ("vocabulary", 0, "rows of the word embeddings; 0: the encoder's"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
    parser.add_argument("--alone", action="store_true", help="csekit without its peer, for the growth of a long run")
    parser.add_argument("--also_with", nargs="+", default=[], metavar="NAME=VALUE", help="environment of further runs")
    args = parser.parse_args(argv)
    for setting in args.also_with:
        if "=" not in setting:
            parser.error(f"--also_with must be NAME=VALUE, got {setting}")
    for name in ("rounds", "max_steps", "eval_steps", "batch_size", "max_seq_length", "threads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(args, name)}")
    for name in ("train_file", "dev_file"):
        if not Path(getattr(args, name)).is_file():
            parser.error(f"--{name} must be a file, got {getattr(args, name)}")
    return args


def main(argv: list[str] | None = None) -> None:
    args = read_arguments(argv)
    rounds: list[dict[str, dict[str, Any]]] = []
    try:
        for number in range(args.rounds):
            with tempfile.TemporaryDirectory() as folder:
                given, found = widened(args, Path(folder) / "encoder") if args.vocabulary else args, {}
                for place, side in enumerate(sides(args)):
                    command = words(side, given, Path(folder) / str(place))
                    more, gpu = side.partition(", ")[2], args.device == "cuda"
                    found[side] = run(command, Path(folder) / f"{place}.log", args.threads, more, gpu)
            rounds.append(found)
            values = ", ".join(f"{n} {v['seconds']:.1f} s, {v['memory'] / 2**20:.0f} MiB" for n, v in found.items())
            print(f"[{number + 1}/{args.rounds}] {values}", flush=True)
    except RuntimeError as error:
        raise SystemExit(f"error: {error}") from None
    settings = {name: value for name, value in vars(args).items() if name != "output"}
    settings["model_name_or_path"] = Path(args.model_name_or_path).name
    settings |= {name: Path(getattr(args, name)).name for name in ("train_file", "dev_file")}
    settings |= {"benchmark": "end_to_end", "checksum": checksum(Path(args.train_file)), "cores": os.cpu_count()}
    results = {"run": settings, "rows": summary(rounds), "rounds": rounds, "environment": environment()}
    write_results(args.output, results, overwrite=True)


if __name__ == "__main__":
    main()
