"""The suites of ``csekit eval``, in a table with one line per suite.

A suite loads its data first, so that a broken file is found before anything is encoded, then scores an encoder. The
scores have ``to_dict()`` for the results file and ``table()`` (head, rows) for the terminal; if they also have
``similarities()``, these are stored beside the file.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from csekit.encoding.encoder import Encoder
from csekit.evaluation.clustering import cluster_titles, load_stackoverflow
from csekit.evaluation.geometry_scores import SPLITS, GeometryOptions, measure_geometry
from csekit.evaluation.mteb_adapter import evaluate_mteb, load_mteb_task
from csekit.evaluation.own_data import classification_name, load_classification, score_pair_file
from csekit.evaluation.pairs import Pairs, read_pairs
from csekit.evaluation.retrieval import (
    RetrievalData,
    RetrievalSuiteScores,
    evaluate_retrieval,
    load_retrieval,
    require_pytrec_eval,
    retrieval_suite,
)
from csekit.evaluation.retrieval_data import Collection, CollectionGroup, load_beir
from csekit.evaluation.sts import evaluate_sts
from csekit.evaluation.sts_data import DEV_TASKS, HUB_DATASETS, STS_TASKS, TEXT_FORMS, STSTask, load_sts, load_sts_hub
from csekit.evaluation.transfer import MODES, evaluate_transfer
from csekit.evaluation.transfer_data import TRANSFER_TASKS, TransferTask, load_transfer

_HUB_ONLY = tuple(name for name in HUB_DATASETS if name not in (*STS_TASKS, *DEV_TASKS))


class Scores(Protocol):
    """The scores that a suite returns."""

    def to_dict(self) -> dict[str, Any]: ...

    def table(self) -> tuple[list[str], list[list[str]]]: ...


@dataclass(frozen=True)
class SuiteOptions:
    """Options of a command line; a suite reads those that concern it.

    Arguments:
        text_form: text form of the STS sets, ``tokenized`` or ``raw``.
        mode: mode of transfer, ``test`` or ``dev``.
        seed: seed of transfer's folds.
        progress: show progress bars.
    """

    text_form: str = "tokenized"
    mode: str = "test"
    seed: int = 1111
    progress: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (("text_form", TEXT_FORMS), ("mode", MODES)):
            if getattr(self, name) not in allowed:
                words = " or ".join(map(repr, allowed))
                raise ValueError(f"{name} must be {words}, got {getattr(self, name)!r}")


@dataclass(frozen=True)
class Suite:
    """One entry of the table.

    Arguments:
        key: key of its scores in a results file.
        load: function of (data_dir, tasks, options) that returns data and raises all errors about files.
        score: function of (encoder, data, options) that returns scores.
        tasks: names of its tasks, which a command line may give instead of the suite's; the first ``whole`` of them
            are the suite. Empty: it has no parts.
        options: names in ``SuiteOptions`` that its scores depend on.
        takes_fitted: accepts encoders that are sparse or fitted on the texts they get (``fits_texts``).
    """

    key: str
    load: Callable[[Any, Sequence[str], SuiteOptions], Any]
    score: Callable[[Encoder, Any, SuiteOptions], Scores]
    tasks: tuple[str, ...] = ()
    whole: int | None = None
    options: tuple[str, ...] = ()
    takes_fitted: bool = False


def _load_sts(data_dir: str, tasks: Sequence[str], options: SuiteOptions) -> list[STSTask]:
    return load_sts_hub(tasks) if data_dir == "hub" else load_sts(data_dir, tasks, options.text_form)


def _score_sts(encoder: Encoder, sets: list[STSTask], options: SuiteOptions) -> Scores:
    return evaluate_sts(encoder, sets, options.progress)


def _load_transfer(data_dir: str, tasks: Sequence[str], options: SuiteOptions) -> list[TransferTask]:
    return load_transfer(data_dir, tasks)


def _score_transfer(encoder: Encoder, tasks: list[TransferTask], options: SuiteOptions) -> Scores:
    return evaluate_transfer(encoder, tasks, options.mode, options.seed, options.progress)


def _load_retrieval(data_dir: str, tasks: Sequence[str], options: SuiteOptions) -> RetrievalData:
    return load_retrieval(data_dir, options.text_form)


def _score_retrieval(encoder: Encoder, data: RetrievalData, options: SuiteOptions) -> Scores:
    return retrieval_suite(encoder, data, options.progress)


def _load_geometry(data_dir: str, tasks: Sequence[str], options: SuiteOptions) -> STSTask:
    return load_sts(data_dir, "STS-B", options.text_form)[0]


def _score_geometry(encoder: Encoder, task: STSTask, options: SuiteOptions) -> Scores:
    return measure_geometry(encoder, task, GeometryOptions(text_form=options.text_form), options.progress)


def _load_clustering(data_dir: str, tasks: Sequence[str], options: SuiteOptions) -> tuple[list[str], np.ndarray]:
    return load_stackoverflow(data_dir)


def _score_clustering(encoder: Encoder, data: tuple[list[str], np.ndarray], options: SuiteOptions) -> Scores:
    return cluster_titles(encoder, *data, progress=options.progress)


def _load_pairs(data_dir: str | None, files: Sequence[str], options: SuiteOptions) -> Pairs:
    return read_pairs(files[0])


def _score_pairs(encoder: Encoder, pairs: Pairs, options: SuiteOptions) -> Scores:
    return score_pair_file(encoder, pairs, options.progress)


def _load_collection(
    data_dir: str | None, files: Sequence[str], options: SuiteOptions
) -> Collection | CollectionGroup:
    require_pytrec_eval()
    return load_beir(files[0])


def _score_collection(encoder: Encoder, data: Collection | CollectionGroup, options: SuiteOptions) -> Scores:
    return RetrievalSuiteScores({data.name: evaluate_retrieval(encoder, data, progress=options.progress)})


def _load_classification(data_dir: str | None, files: Sequence[str], options: SuiteOptions) -> list[TransferTask]:
    return [load_classification(*files)]


def _load_mteb(data_dir: str | None, tasks: Sequence[str], options: SuiteOptions) -> Any:
    return load_mteb_task(tasks[0], data_dir)


def _score_mteb(encoder: Encoder, task: Any, options: SuiteOptions) -> Scores:
    return evaluate_mteb(encoder, task, options.progress)


#: Name on the command line to suite. ``all`` is all of them, in this order.
SUITES: dict[str, Suite] = {
    "sts": Suite("test", _load_sts, _score_sts, (*STS_TASKS, *_HUB_ONLY), len(STS_TASKS), ("text_form",), True),
    "dev": Suite("dev", _load_sts, _score_sts, DEV_TASKS, None, ("text_form",), True),
    "transfer": Suite("transfer", _load_transfer, _score_transfer, TRANSFER_TASKS, None, ("mode", "seed"), True),
    "retrieval": Suite("retrieval", _load_retrieval, _score_retrieval, options=("text_form",), takes_fitted=True),
    "geometry": Suite("geometry", _load_geometry, _score_geometry, options=("text_form",)),
    "clustering": Suite("clustering", _load_clustering, _score_clustering),
}

#: Suites of a user's own data and of mteb. One is chosen as ``KIND:NAME``, which is also its key in a results file.
#: Its tasks are files, or the name of a task of mteb.
OWN_SUITES: dict[str, Suite] = {
    "pairs": Suite("pairs", _load_pairs, _score_pairs, takes_fitted=True),
    "retrieval": Suite("retrieval", _load_collection, _score_collection, takes_fitted=True),
    "classification": Suite(
        "classification", _load_classification, _score_transfer, options=("mode", "seed"), takes_fitted=True
    ),
    "mteb": Suite("mteb", _load_mteb, _score_mteb),
}


def suite_of(name: str) -> Suite:
    """Return the suite that a chosen name means."""
    kind, _, own = name.partition(":")
    return OWN_SUITES[kind] if own else SUITES[name]


def suite_key(name: str) -> str:
    """Return the key of a suite's scores in a results file."""
    return name if ":" in name else SUITES[name].key


def own_data(
    pairs: Sequence[str | Path] = (),
    retrieval: Sequence[str | Path] = (),
    classification: Sequence[str | Path] = (),
) -> dict[str, tuple[str, ...]]:
    """Choose suites for a user's own files, for ``load_suites``.

    Arguments:
        pairs: files of scored pairs (``read_pairs``).
        retrieval: folders in BEIR's format (``load_beir``).
        classification: train, test and, if wanted, dev file (``load_classification``).

    Raises:
        ValueError: two files or folders of one kind with the same name, or pairs named as an STS set of ``SUITES``,
            beside whose similarities a results file holds theirs.
    """
    taken = {*SUITES["sts"].tasks, *SUITES["dev"].tasks, *(f"STS-B {split}" for split in SPLITS)}  # of geometry
    for file in pairs:
        if Path(file).stem in taken:
            raise ValueError(f"{file}: pairs must not be named as one of the sets {sorted(taken)}; rename the file")
    found: list[tuple[str, tuple[str, ...]]] = [(f"pairs:{Path(file).stem}", (str(file),)) for file in pairs]
    found += [(f"retrieval:{Path(folder).resolve().name}", (str(folder),)) for folder in retrieval]
    if classification:
        files = tuple(map(str, classification))
        found.append((f"classification:{classification_name(files[0])}", files))
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        raise ValueError(f"files and folders of one kind must have different names, got {names}")
    return dict(found)


def resolve_suites(words: str | Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Map suite to its tasks, from ``all``, suites, tasks and ``mteb:NAME``, in a list or separated by commas.

    Raises:
        ValueError: an unknown or repeated name.
    """
    names = [name.strip() for name in words.split(",")] if isinstance(words, str) else list(words)
    names = [member for name in names for member in (SUITES if name == "all" else (name,))]
    homes = {task: name for name, suite in SUITES.items() for task in suite.tasks}
    chosen: dict[str, tuple[str, ...]] = {}
    for name in names:
        if name.startswith("mteb:") and name not in chosen and len(name) > len("mteb:"):
            chosen[name] = (name.removeprefix("mteb:"),)
            continue
        if name not in SUITES and name not in homes:
            if name in chosen:
                raise ValueError(f"tasks must name each set once, got {names}")
            raise ValueError(
                f"tasks must be 'all', {', '.join(map(repr, SUITES))}, mteb:NAME or names among {list(homes)}, "
                f"got {name!r}"
            )
        suite = homes.get(name, name)
        added = SUITES[name].tasks[: SUITES[name].whole] if name in SUITES else (name,)
        if suite in chosen and (not added or set(added) & set(chosen[suite])):
            raise ValueError(f"tasks must name each set once, got {names}")
        chosen[suite] = chosen.get(suite, ()) + added
    if not chosen:
        raise ValueError("tasks must name a suite or a task, got none")
    return chosen


def on_hub(words: str) -> tuple[str, tuple[str, ...]]:
    """Return the words of ``resolve_suites`` with ``sts`` and ``dev`` as those of their sets that the Hub has, and the
    names of the others."""
    found, missing = [], []
    for name in (word.strip() for word in words.split(",")):
        suite = SUITES[name] if name in ("sts", "dev") else None
        tasks = suite.tasks[: suite.whole] if suite else (name,)
        found += [task for task in tasks if suite is None or task in HUB_DATASETS]
        missing += [task for task in tasks if suite is not None and task not in HUB_DATASETS]
    return ",".join(found), tuple(missing)


def options_of(data_dir: str | None, options: SuiteOptions) -> SuiteOptions:
    """Return the options as they hold for the data: the Hub's STS sets are raw text, whatever ``text_form`` says."""
    return replace(options, text_form="raw") if data_dir == "hub" else options


def suite_settings(name: str, tasks: Sequence[str], options: SuiteOptions) -> dict[str, Any]:
    """Return the settings that a suite's scores depend on, apart from the encoder; files are given by name."""
    suite, files = suite_of(name), ":" in name and not name.startswith("mteb:")
    named = [Path(task).name for task in tasks] if files else list(tasks)
    return {"tasks": named, **{option: getattr(options, option) for option in suite.options}}


def load_suites(
    chosen: Mapping[str, Sequence[str]], data_dir: str | None = None, options: SuiteOptions | None = None
) -> dict[str, Any]:
    """Load the data of suites, for ``score_suites``.

    Arguments:
        chosen: from ``resolve_suites`` and ``own_data``.
        data_dir: folder of the sets; only ``SUITES`` need it.

    Raises:
        FileNotFoundError, ValueError: a file is missing or malformed.
    """
    options = options or SuiteOptions()
    return {name: suite_of(name).load(data_dir, tasks, options) for name, tasks in chosen.items()}


def data_checksums(data: Any) -> set[str]:
    """Return the checksums of a suite's loaded data, as its scores record them; none of mteb's tasks."""
    parts: Sequence[Any] = ()
    if isinstance(data, list):
        parts = data
    elif isinstance(data, CollectionGroup):
        parts = data.parts
    elif isinstance(data, RetrievalData):
        parts = [data.pairs, *data.collections]
    own = isinstance(data, Pairs | STSTask | TransferTask | Collection | CollectionGroup)
    return ({data.checksum()} if own else set()).union(*map(data_checksums, parts))


def check_encoder(encoder: Encoder, chosen: Iterable[str]) -> None:
    """Raise ValueError if a suite cannot take an encoder that is fitted on the texts it gets."""
    refused = [name for name in chosen if not suite_of(name).takes_fitted]
    if refused and getattr(encoder, "fits_texts", False):
        raise ValueError(f"tasks must not hold {refused[0]!r} for an encoder that is fitted on each task's sentences")


def score_suites(
    encoder: Encoder, data: Mapping[str, Any], options: SuiteOptions | None = None
) -> Iterator[tuple[str, Scores, float]]:
    """Yield (suite, scores, seconds) as each one finishes.

    Arguments:
        data: from ``load_suites``.
    """
    check_encoder(encoder, data)
    options = options or SuiteOptions()
    for name, loaded in data.items():
        started = perf_counter()
        scores = suite_of(name).score(encoder, loaded, options)
        yield name, scores, perf_counter() - started
