"""What a training script does around the trainer: its dev and test sets, its results file, its card, its table."""

import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from csekit.evaluation.pairs import Pairs, read_pairs
from csekit.evaluation.results import environment, write_results
from csekit.evaluation.sts import STSScores, evaluate_sts
from csekit.evaluation.sts_data import STSTask, load_sts, load_stsb_dev

from .arguments import RunTrainingArguments
from .base_trainer import TermsTrainer
from .card import write_model_card
from .run_arguments import CorpusArguments, RunArguments
from .trainer import CSETrainer

logger = logging.getLogger(__name__)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What the user can put right is one line on stderr and exit code 2, not a traceback."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        print(f"{Path(sys.argv[0]).name}: error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None


def check_output_dir(run: CorpusArguments, args: RunTrainingArguments) -> None:
    """Refuse to train over another run; with ``overwrite`` delete its checkpoints and its results first.

    Raises:
        ValueError: ``output_dir`` holds a run, finished or not, that is neither continued nor given up.
    """
    folder = Path(str(args.output_dir))
    held = [*folder.glob("training/checkpoint-*"), *folder.glob("results.json")]
    if not held or args.resume_from_checkpoint:
        return
    if not run.overwrite:
        raise ValueError(
            f"{folder} holds a run already ({held[0].relative_to(folder)}): choose another --output_dir, continue it "
            "with --resume_from_checkpoint True, or replace it with --overwrite"
        )
    if args.process_index == 0:
        for path in held:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _scored_pairs(path: str, columns: list[str] | None, name: str) -> Pairs:
    if columns is None:
        pairs = read_pairs(path)
    elif len(columns) == 3:
        numbers = [int(column) if column.isdecimal() else column for column in columns]
        pairs = read_pairs(path, *numbers)
    else:
        raise ValueError(f"dev_columns must name 3 columns (sentence1 sentence2 score), got {columns}")
    return Pairs(name, pairs.sentences1, pairs.sentences2, pairs.scores, pairs.path)


def load_dev(run: RunArguments) -> Pairs | None:
    """The pairs that select the checkpoint: ``dev_file``, else STS-B dev of ``data_dir``, else none.

    Raises:
        ValueError: what is wrong with the file, by file and line.
    """
    if run.dev_file is not None:
        return _scored_pairs(run.dev_file, run.dev_columns, "dev")
    if run.data_dir is not None:
        pairs = load_stsb_dev(run.data_dir, run.text_form)
        return Pairs("stsb", pairs.sentences1, pairs.sentences2, pairs.scores, pairs.path)
    logger.warning("no dev set (--data_dir or --dev_file): the last checkpoint is kept")
    return None


def load_tests(run: RunArguments) -> list[STSTask]:
    """The test sets: ``test_file`` as a set of its own and the seven STS sets of ``data_dir``."""
    if run.test_file is not None:
        return [STSTask("test", (_scored_pairs(run.test_file, run.dev_columns, "test"),), "raw")]
    return load_sts(run.data_dir, "sts", run.text_form) if run.data_dir is not None else []


def score_run(trainer: CSETrainer, tests: Sequence[STSTask]) -> tuple[dict[str, float], STSScores | None]:
    """Dev scores and test scores of the model as it is."""
    return trainer.dev_scores(), evaluate_sts(trainer.embed, tests, progress=True) if tests else None


def changed_arguments(args: RunTrainingArguments) -> dict[str, Any]:
    """The training arguments that differ from their defaults; paths and access tokens left out."""
    default = type(args)(output_dir=args.output_dir)
    skipped = {"output_dir", "logging_dir", "run_name", "resume_from_checkpoint", "accelerator_config", "use_cpu"}
    changed = {}
    for field in fields(args):
        name, value = field.name, getattr(args, field.name)
        told = name not in skipped and not name.endswith("_token")
        if told and value != getattr(default, name) and _is_plain(value):
            changed[name] = value
    return changed


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | type(None)) and not os.path.isabs(str(value))


def without_folders(fields: dict[str, Any]) -> dict[str, Any]:
    """Names of networks without the folders of this machine, and without their whole configurations."""
    return {
        name: Path(value).name if isinstance(value, str) and os.path.exists(value) else value
        for name, value in fields.items()
        if not isinstance(value, dict)
    }


def history(trainer: TermsTrainer) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """(evaluations, training log) of a run, from the trainer's state, without prefixes, to 6 significant digits."""
    evaluations, log = [], []
    for entry in trainer.state.log_history:
        scores = {name.removeprefix("eval_"): value for name, value in entry.items() if name.startswith("eval_")}
        if scores:
            evaluations.append({"step": entry["step"], **scores})
        elif "loss" in entry:
            log.append({name: float(f"{v:.6g}") if isinstance(v, float) else v for name, v in entry.items()})
    return evaluations, log


def run_results(
    trainer: CSETrainer,
    run: RunArguments,
    before: tuple[dict[str, float], STSScores | None],
    after: tuple[dict[str, float], STSScores | None],
    seconds: dict[str, float],
) -> dict[str, Any]:
    """The results of a run as plain values: setting, scores before and after, versions, time."""
    evaluations, log = history(trainer)
    metric = trainer.args.metric_for_best_model if trainer.args.load_best_model_at_end else None
    config = trainer.model.config.to_diff_dict()
    kept = {name: value for name, value in config.items() if name not in ("encoder_config", "transformers_version")}
    kept["objectives"] = [without_folders(objective) for objective in kept.get("objectives", [])]
    encoder = trainer.model.config.encoder_config
    return {
        "name": Path(str(trainer.args.output_dir)).resolve().name,
        "method": run.method,
        "backbone": Path(str(run.model_name_or_path)).name,
        "corpus": trainer.corpus.describe(),
        "config": kept | {"encoder": encoder.model_type, "dropout": run.dropout},
        "arguments": changed_arguments(trainer.args),
        "seed": trainer.args.seed,
        "dev": {
            "metric": metric,
            "best": trainer.state.best_metric if metric else None,
            "step": trainer.state.best_global_step if metric else trainer.state.global_step,
            "before": before[0],
            "after": after[0],
            "history": [{**entry, "value": entry.get(str(metric))} for entry in evaluations],
        },
        "before": before[1].to_dict() if before[1] else None,
        "test": after[1].to_dict() if after[1] else None,
        "log": log,
        "environment": environment(),
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
    }


def write_run(
    trainer: CSETrainer,
    run: RunArguments,
    before: tuple[dict[str, float], STSScores | None],
    after: tuple[dict[str, float], STSScores | None],
    seconds: dict[str, float],
) -> Path:
    """Write ``results.json`` (with similarities beside it) and the model card into the run's folder."""
    results = run_results(trainer, run, before, after, seconds)
    folder = Path(str(trainer.args.output_dir))
    similarities = after[1].similarities() if after[1] else None
    path = write_results(folder / "results.json", results, similarities=similarities, overwrite=True)
    write_model_card(folder, results, base_model=str(run.model_name_or_path))
    return path


def before_and_after(
    before: tuple[dict[str, float], STSScores | None], after: tuple[dict[str, float], STSScores | None]
) -> str:
    """A table of the scores before and after training, for a terminal."""
    rows = [(name.replace("_spearman", " Spearman"), before[0].get(name), value) for name, value in after[0].items()]
    if after[1] is not None:
        untrained = before[1].tasks if before[1] is not None else {}
        for name, scores in after[1].tasks.items():
            rows.append((f"{name} Spearman", untrained[name].all if name in untrained else None, scores.all))
        if after[1].avg is not None:
            rows.append(("Avg of the seven", None, after[1].avg))
    lines = [f"{'':28}{'before':>10}{'after':>10}"]
    for name, first, second in rows:
        lines.append(f"{name:28}{'' if first is None else f'{first:.2f}':>10}{second:>10.2f}")
    return "\n".join(lines)
