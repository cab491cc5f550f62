"""The parts of the contrastive training scripts: data, trainer, results file, card, table."""

import logging
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import set_seed

from csekit.encoding.encoder import vectors
from csekit.encoding.pretrained import broken_model_told, check_backbone, check_files, load_tokenizer
from csekit.encoding.provenance import environment
from csekit.encoding.text_files import CorpusError
from csekit.evaluation.pairs import Pairs, read_pairs
from csekit.evaluation.results import write_results
from csekit.evaluation.sts import STSScores, evaluate_sts
from csekit.evaluation.sts_data import STSTask, load_sts, load_stsb_dev
from csekit.evaluation.transfer_data import TransferTask, load_transfer
from csekit.modeling import METHODS
from csekit.modeling.objectives import further_columns
from csekit.trainers.arguments import CSETrainingArguments, RunTrainingArguments
from csekit.trainers.base_trainer import NonFiniteLossError
from csekit.trainers.data.corpora import Corpus, load_corpus
from csekit.trainers.data.subsets import Overlap, draw_fraction, find_overlap, without_rows
from csekit.trainers.export_check import ExportMismatchError
from csekit.trainers.hub.card import write_model_card
from csekit.trainers.main_process import quiet_unless_main
from csekit.trainers.run_lock import FolderInUseError, held
from csekit.trainers.run_record import trainer_results
from csekit.trainers.scripts.launch import tell_error
from csekit.trainers.scripts.output_folder import check_output_dir, clear_output_dir
from csekit.trainers.scripts.run_arguments import CorpusArguments, RunArguments
from csekit.trainers.trainer import CSETrainer, steps_of

logger = logging.getLogger(__name__)

#: Defaults of supervised training: SimCSE's for base models (Gao et al. 2021, Appendix A).
SUPERVISED: dict[str, Any] = {
    "per_device_train_batch_size": 512,
    "learning_rate": 5e-5,
    "num_train_epochs": 3,
    "projector_at_inference": True,
}


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Report errors of the user in one line on stderr with exit code 2, without a traceback: wrong values and files, a
    loss that is not finite, too little memory or disk, a data loader's worker that was killed."""
    try:
        yield
    except (ValueError, OSError, ImportError, NonFiniteLossError, MemoryError) as error:
        tell_error(error)
        raise SystemExit(2) from None
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        tell_error(error)
        raise SystemExit(2) from None


#: The fields of a method's config that say how texts are read. The others may need the encoder's size.
TEXT_FIELDS = ("pooling", "prompt_template")

#: Errors of a training that is under way. They are told in one line, with exit code 1: what was written is whole.
RUN_ERRORS = (NonFiniteLossError, ExportMismatchError, FolderInUseError, CorpusError, OSError, MemoryError)


@contextmanager
def run_folder(run: CorpusArguments, args: RunTrainingArguments) -> Iterator[None]:
    """Hold ``output_dir`` for this process inside the context. Report errors of the training in one line on stderr.

    It ends the process with code 2 if another process works in ``output_dir`` or :func:`check_output_dir` refuses that
    folder, and with code 1 for one of ``RUN_ERRORS`` inside, or a data loader's worker that was killed.
    Of several processes only the first prints and warns inside the context.
    """
    with ExitStack() as stack:
        stack.enter_context(quiet_unless_main(args.process_index))
        with one_line_errors():
            if args.process_index == 0:
                stack.enter_context(held(str(args.output_dir)))
            check_output_dir(run, args)
        try:
            yield
        except RUN_ERRORS as error:
            tell_error(error)
            raise SystemExit(1) from None
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            tell_error(error)
            raise SystemExit(1) from None


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
    """Return the pairs that select the checkpoint: ``dev_file``, else STS-B dev of ``data_dir``, else None.

    Raises:
        ValueError: a file is not valid; the message names file and line.
    """
    if run.dev_file is not None:
        return _scored_pairs(run.dev_file, run.dev_columns, "dev")
    if run.data_dir is not None:
        pairs = load_stsb_dev(run.data_dir, run.text_form)
        return Pairs("stsb", pairs.sentences1, pairs.sentences2, pairs.scores, pairs.path)
    return None


def load_tests(run: RunArguments) -> list[STSTask]:
    """Return the test sets: ``test_file``, else the seven STS sets of ``data_dir``, else none."""
    if run.test_file is not None:
        return [STSTask("test", (_scored_pairs(run.test_file, run.dev_columns, "test"),), "raw")]
    return load_sts(run.data_dir, "sts", run.text_form) if run.data_dir is not None else []


@dataclass(frozen=True)
class RunData:
    """The training and evaluation data of a run.

    Arguments:
        corpus: the rows to train on.
        dev: the pairs that select the checkpoint.
        tests: the test sets.
        overlap: sentences of the evaluation sets in the training rows or, if ``filtered``, in the corpus before rows
            were left out; None without evaluation sets or for a stream.
        filtered: True if the rows with such a sentence were left out.
        transfer: tasks whose dev scores select the checkpoint.
    """

    corpus: Corpus
    dev: Pairs | None
    tests: list[STSTask]
    overlap: Overlap | None
    filtered: bool
    transfer: list[TransferTask]


def load_data(run: RunArguments, args: CSETrainingArguments) -> RunData:
    """Load the corpus (or the chosen part of it), the dev set and, for ``do_predict``, the test sets.

    A drawn fraction is trained for the steps of the whole corpus (MSSE, Appendix A): this sets ``args.max_steps``. The
    fraction is drawn from the rows that ``filter_overlap`` leaves.

    Raises:
        ValueError: a file is not valid (the message names file and line), or no rows are left.
    """
    corpus = load_corpus(
        run.train_file,
        run.dataset_name,
        columns=run.columns,
        streaming=run.streaming,
        max_samples=run.max_train_samples,
        tell=False,  # printed below
    )
    dev = load_dev(run)
    if dev is None and args.select_last:
        logger.warning("no dev set (--data_dir or --dev_file): the last checkpoint is kept")
    transfer = load_transfer(str(run.data_dir), run.select_on) if run.select_on != "sts" else []
    tests = load_tests(run) if args.do_predict or run.filter_overlap else []
    sets = [*([(_told_dev(dev.name), [dev])] if dev else []), *((task.name, task.subsets) for task in tests)]
    overlap = find_overlap(corpus, sets) if run.filter_overlap else None
    if overlap is not None:
        corpus = without_rows(corpus, overlap.rows)
    if run.train_fraction is not None:
        if args.max_steps <= 0:
            args.max_steps = steps_of(corpus.report.used, args)
        corpus = draw_fraction(corpus, run.train_fraction, args.seed)
        if corpus.report.used < (batch := args.train_batch_size * args.world_size):
            logger.warning("batches hold %d rows, all that were drawn, instead of %d", corpus.report.used, batch)
    if overlap is None and sets and not corpus.streaming:
        overlap = find_overlap(corpus, sets)
    print(f"{corpus.name}: {corpus.report.summary()}")
    if overlap is not None:
        own = [name for name, file in ((_told_dev("dev"), run.dev_file), ("test", run.test_file)) if file]
        print(f"{corpus.name}: {overlap.summary(run.filter_overlap, own if len(corpus.columns) == 1 else [])}")
    return RunData(corpus, dev, tests if args.do_predict else [], overlap, run.filter_overlap, transfer)


def _told_dev(name: str) -> str:
    """Return the name of a dev set that tells it from a test set."""
    return name if name == "dev" else f"{name} (dev)"


def check_positives(corpus: Corpus) -> None:
    """Raise ValueError for a corpus of single sentences."""
    if len(corpus.columns) < 2:
        raise ValueError(
            f"{corpus.name} must have two or three columns (sentence, positive, hard negative), got one, "
            f"{corpus.columns[0]!r}; csekit train trains on single sentences"
        )


def make_trainer(
    run: RunArguments, args: CSETrainingArguments, method_fields: dict[str, Any], data: RunData
) -> CSETrainer:
    """Print how the tokenizer fits the corpus; return the trainer of a new model from the run's encoder.

    Raises:
        ValueError: a combination of arguments that cannot work.
    """
    name = str(run.model_name_or_path)
    fields = {field: method_fields[field] for field in TEXT_FIELDS if field in method_fields}
    texts = METHODS[run.method].config_class(**fields)  # a method may have a default template
    with broken_model_told(name):
        check_files(name)
        tokenizer = load_tokenizer(name, None, texts.pooling)
        fit = data.corpus.tokenizer_report(tokenizer, args.max_seq_length, prompt_template=texts.prompt_template)
        print(f"{data.corpus.name}: {fit.summary()}")
        if fit.warning and args.process_index == 0:
            print(f"warning: {fit.warning}", file=sys.stderr)
        set_seed(args.seed)
        model = METHODS[run.method].from_backbone(
            name, tokenizer=tokenizer, dropout=run.dropout, layers=run.layers, **method_fields
        )
        check_backbone(name, model.backbone, tokenizer, whole=run.layers is None)
    role = "further positive" if {"column", "parts"} & {*model.config.positive_kinds} else "text of the objectives"
    if told := data.corpus.told_columns(further_columns(model.batch_specs), role):
        print(f"{data.corpus.name}: {told}")
    trainer = CSETrainer(model, args, data.corpus, tokenizer, data.dev, data.transfer)
    with broken_model_told(name):
        vectors(trainer.embed, data.corpus.sample(1)[0][:1])  # a broken model shows here, not while it trains
    return trainer


def train_and_score(trainer: CSETrainer, run: RunArguments, data: RunData, started: float) -> int:
    """Score, train, export, score again; write results and card, print the table.

    Arguments:
        started: ``time.monotonic()`` at the start of the program.

    Returns:
        the exit code: 0, or 143 if SIGTERM stopped the training after a checkpoint.
    """
    args = trainer.args
    with one_line_errors():
        trainer.check_resume(args.resume_from_checkpoint)
        clear_output_dir(run, args)
    before = score_run(trainer, data.tests if run.test_file else [])
    training = time.monotonic()
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    if trainer.stop_on_terminate.interrupted:
        return 143
    seconds = {"train": time.monotonic() - training}
    folder = trainer.save_models()
    if trainer.is_world_process_zero():
        after = score_run(trainer, data.tests, trainer.saved_scores)
        seconds["total"] = time.monotonic() - started
        write_run(trainer, run, data, before, after, seconds)
        print(before_and_after(before, after))
        if worse_than_untrained(trainer, before[0], after[0]):
            print(advice(str(args.metric_for_best_model), before[0], after[0]), file=sys.stderr)
        print(f"\nThe encoder is in {folder}: csekit.load_encoder({str(folder)!r})")
        print(next_commands(folder, run, data))
    if args.push_to_hub:
        with one_line_errors():
            commit = trainer.push_to_hub()
        if commit is not None:
            print(f"Published: {commit.commit_url}")
    return 0


def next_commands(folder: Path, run: RunArguments, data: RunData) -> str:
    """Return two commands to go on with, for a terminal: the page about the run, and the corpus as vectors."""
    corpus = run.train_file or "sentences.txt"
    lines = corpus.endswith(".txt")  # a sentence a line
    place = {"corpus": shlex.quote(corpus), "folder": shlex.quote(str(folder))}
    plain = corpus.removesuffix(".gz").removesuffix(".xz").endswith(".txt")
    column = [] if plain else ["--column", shlex.quote(data.corpus.columns[0])]
    report = ["csekit report", place["folder"], *(["--corpus", place["corpus"]] if lines else []), "-o report.html"]
    encode = ["csekit encode", place["corpus"], *column, "--model", place["folder"], "-o embeddings.npy"]
    return f"Next: {' '.join(report)}\n      {' '.join(encode)}"


def score_run(
    trainer: CSETrainer, tests: Sequence[STSTask], known: Mapping[str, float] | None = None
) -> tuple[dict[str, float], STSScores | None]:
    """Return dev scores and test scores of the current weights in float32, whatever the precision of training.
    ``known`` are dev scores of theirs that need not be computed."""
    return trainer.dev_scores("fp32", known), evaluate_sts(trainer.embed, tests, progress=True) if tests else None


def run_results(
    trainer: CSETrainer,
    run: RunArguments,
    data: RunData,
    before: tuple[dict[str, float], STSScores | None],
    after: tuple[dict[str, float], STSScores | None],
    seconds: dict[str, float],
) -> dict[str, Any]:
    """Return the results of a run as plain values: setting, scores before and after, versions, time."""
    known = trainer_results(trainer) | ({"imports": run.imports} if run.imports else {})
    return known | {
        "method": run.method,
        "backbone": Path(str(run.model_name_or_path)).name,
        "overlap": data.overlap.describe(data.filtered) if data.overlap is not None else None,
        "config": known["config"] | {"dropout": run.dropout},
        "dev": known["dev"]
        | {"before": before[0], "after": after[0]}
        | (
            {"worse_than_untrained": True, "compared_by": trainer.args.metric_for_best_model}
            if worse_than_untrained(trainer, before[0], after[0])
            else {}
        ),
        "before": before[1].to_dict() if before[1] else None,
        "test": after[1].to_dict() if after[1] else None,
        "environment": environment(),
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
    }


def write_run(
    trainer: CSETrainer,
    run: RunArguments,
    data: RunData,
    before: tuple[dict[str, float], STSScores | None],
    after: tuple[dict[str, float], STSScores | None],
    seconds: dict[str, float],
) -> Path:
    """Write ``results.json`` (with similarities beside it) and the model card into the run's folder."""
    results = run_results(trainer, run, data, before, after, seconds)
    folder = Path(str(trainer.args.output_dir))
    similarities = after[1].similarities() if after[1] else None
    path = write_results(folder / "results.json", results, similarities=similarities, overwrite=True)
    write_model_card(folder, results, base_model=str(run.model_name_or_path))
    return path


def worse_than_untrained(trainer: CSETrainer, before: dict[str, float], after: dict[str, float]) -> bool:
    """Return True if the score that chooses checkpoints is worse than that of the untrained encoder."""
    metric, better = trainer.args.metric_for_best_model, trainer.args.greater_is_better
    if metric is None or metric not in before or metric not in after:
        return False
    return before[metric] > after[metric] if better else before[metric] < after[metric]


def advice(metric: str, before: dict[str, float], after: dict[str, float]) -> str:
    """Return a warning with both scores, and what to try."""
    return (
        f"warning: the trained encoder is worse than the untrained one: {metric} {before[metric]:.2f} before, "
        f"{after[metric]:.2f} after. Try a third of the --learning_rate, a smaller --eval_steps, another --pooling, "
        "or texts that are more like those of your dev set."
    )


#: The better direction of the criteria without labels, which are of a sample of the corpus.
_MEANING = {
    "alignment": "lower: two views of a text are closer",
    "uniformity": "lower: texts spread more evenly",
    "effective_rank": "higher: more dimensions are in use",
}


def before_and_after(
    before: tuple[dict[str, float], STSScores | None], after: tuple[dict[str, float], STSScores | None]
) -> str:
    """Return a table of the scores before and after training with the better direction of each, for a terminal."""
    words = {name: name.replace("_spearman", " Spearman").replace("_accuracy", " accuracy") for name in after[0]}
    higher = "× 100; higher is better"
    rows = [(words[name], before[0].get(name), value, _MEANING.get(name, higher)) for name, value in after[0].items()]
    if after[1] is not None:
        untrained = before[1].tasks if before[1] is not None else {}
        for name, scores in after[1].tasks.items():
            rows.append((f"{name} Spearman", untrained[name].all if name in untrained else None, scores.all, higher))
        if after[1].avg is not None:
            rows.append(("Avg of the seven", None, after[1].avg, higher))
    lines = [f"{'':24}{'before':>10}{'after':>10}"]
    for name, first, second, meaning in rows:
        lines.append(f"{name:24}{'' if first is None else f'{first:.2f}':>10}{second:>10.2f}  {meaning}")
    return "\n".join(lines)
