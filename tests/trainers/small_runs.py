"""Small trainings for the tests: a tiny BERT, a corpus of random words, and a script that runs several of them.

As a script, ``small_runs.py JOBS.json`` imports once and runs each job in a forked process of its own, so that a job
can be killed like any training; under ``torchrun`` it runs them one after the other.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizer, TrainerCallback

from csekit.evaluation.pairs import Pairs, read_pairs
from csekit.modeling import METHODS
from csekit.trainers import CSETrainer, CSETrainingArguments, load_corpus

WORDS = "the a man woman dog cat plays sings runs red blue fast slow guitar ball house tree is was in on .".split()  # noqa: SIM905


def write_backbone(folder: Path) -> Path:
    """A masked LM of two layers with its tokenizer, as a plain Transformers folder."""
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    tokenizer = BertTokenizer(vocab={word: i for i, word in enumerate(vocab)}, model_max_length=32)
    config = BertConfig(
        vocab_size=len(vocab),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=40,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(3, 9)))


def write_texts(path: Path, rows: int, columns: int = 1) -> Path:
    """Random sentences: ``.txt``, or ``.tsv`` with columns s0, s1, …"""
    rng = random.Random(rows + columns)
    lines = ["\t".join(sentence(rng) for _ in range(columns)) for _ in range(rows)]
    head = [] if path.suffix == ".txt" else ["\t".join(f"s{c}" for c in range(columns))]
    path.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    return path


def write_pairs(path: Path, rows: int = 12, seed: int = 1) -> Path:
    """Scored pairs with a header."""
    rng = random.Random(seed)
    lines = [f"{sentence(rng)}\t{sentence(rng)}\t{5 * i / rows:.2f}" for i in range(rows)]
    path.write_text("\n".join(["sentence1\tsentence2\tscore", *lines]) + "\n", encoding="utf-8")
    return path


def make_trainer(
    backbone: Path,
    texts: Path,
    output_dir: Path,
    *,
    dev: Path | None = None,
    method: str = "simcse",
    fields: dict[str, Any] | None = None,
    columns: list[str] | None = None,
    streaming: bool = False,
    kind: type[CSETrainer] = CSETrainer,
    **arguments: Any,
) -> CSETrainer:
    """A trainer of 8 rows a step, log entries every 2 steps; ``arguments`` are training arguments."""
    given = {
        "per_device_train_batch_size": 8,
        "logging_steps": 2,
        "eval_steps": 4,
        "learning_rate": 1e-3,
        "label_free_samples": 8,
        "disable_tqdm": True,
        "use_cpu": True,
        "report_to": "none",
    }
    args = CSETrainingArguments(output_dir=str(output_dir), **(given | arguments))
    torch.manual_seed(7)
    corpus = load_corpus(texts, columns=columns, streaming=streaming, cache_dir=Path(backbone).parent / "cache")
    model = METHODS[method].from_backbone(backbone, **(fields or {}))
    pairs: Pairs | None = None
    if dev is not None:
        read = read_pairs(dev)
        pairs = Pairs("dev", read.sentences1, read.sentences2, read.scores, read.path)
    return kind(model, args, corpus, BertTokenizer.from_pretrained(backbone), pairs)


class SignalAt(TrainerCallback):
    """Sends this process a signal in the middle of a step."""

    def __init__(self, step: int, number: int) -> None:
        self.step, self.number = step, number

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self.step:
            os.kill(os.getpid(), self.number)


class KilledWhileSaving(CSETrainer):
    """Dies between weights and state of its third checkpoint."""

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if output_dir.endswith("-30"):
            os.kill(os.getpid(), signal.SIGKILL)
        super()._save_optimizer_and_scheduler(output_dir)


def run_job(job: dict[str, Any]) -> None:
    """Train; final weights to ``final.pt``, the log to ``log.json``, files by rank."""
    torch.set_num_threads(1)
    stop, resume, last = job.pop("signal", None), job.pop("resume", None), job.pop("killed_at", None)
    written = set()

    def hear(event: str, arguments: Any) -> None:
        if event in ("open", "os.mkdir", "os.rename", "shutil.rmtree"):
            path = os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes | os.PathLike) else ""
            reading = event == "open" and not set(arguments[1] or "r") & set("wax+")
            if path.startswith(job["output_dir"]) and not reading:
                written.add(Path(path).name)
                if last is not None and path.endswith(last):
                    os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hear)
    kind = KilledWhileSaving if job.pop("killed_while_saving", False) else CSETrainer
    trainer = make_trainer(**job, kind=kind)
    if stop:
        trainer.add_callback(SignalAt(*stop))
    result = trainer.train(resume_from_checkpoint=resume)
    assert result.metrics
    folder = Path(job["output_dir"])
    rank = os.environ.get("RANK", "0")
    state = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    torch.save(state, folder / f"final-{rank}.pt")
    report = {
        "log": trainer.state.log_history,
        "step": trainer.state.global_step,
        "best": trainer.state.best_metric,
        "best_step": trainer.state.best_global_step,
        "interrupted": trainer.stop_on_terminate.interrupted,
        "written": sorted(written),
    }
    (folder / f"report-{rank}.json").write_text(json.dumps(report), encoding="utf-8")
    if trainer.stop_on_terminate.interrupted:
        sys.exit(143)


def main() -> None:
    jobs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    statuses = []
    for job in jobs:
        if "RANK" in os.environ:
            run_job(job)
            continue
        sys.stdout.flush()
        sys.stderr.flush()
        if (child := os.fork()) == 0:
            try:
                run_job(job)
            except SystemExit as end:
                os._exit(int(end.code or 0))
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    Path(sys.argv[1]).with_suffix(".statuses").write_text(json.dumps(statuses), encoding="utf-8")


if __name__ == "__main__":
    main()
