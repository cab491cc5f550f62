"""The suites of ``csekit eval``: a literal table, a line each.

A suite loads its data first, so that a broken file is found before anything is encoded, then scores an encoder. What
``score`` returns has ``to_dict()`` for the results file and ``table()`` (head, rows) for the terminal; where it has
``similarities()`` as well, they are stored beside the file.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from csekit.encoding.encoder import Encoder
from csekit.evaluation.clustering import cluster_titles, load_stackoverflow
from csekit.evaluation.geometry_scores import GeometryOptions, measure_geometry
from csekit.evaluation.retrieval import RetrievalData, load_retrieval, retrieval_suite
from csekit.evaluation.sts import evaluate_sts
from csekit.evaluation.sts_data import DEV_TASKS, HUB_DATASETS, STS_TASKS, TEXT_FORMS, STSTask, load_sts, load_sts_hub
from csekit.evaluation.transfer import MODES, evaluate_transfer
from csekit.evaluation.transfer_data import TRANSFER_TASKS, TransferTask, load_transfer

_HUB_ONLY = tuple(name for name in HUB_DATASETS if name not in (*STS_TASKS, *DEV_TASKS))


class Scores(Protocol):
    """What a suite returns."""

    def to_dict(self) -> dict[str, Any]: ...

    def table(self) -> tuple[list[str], list[list[str]]]: ...


@dataclass(frozen=True)
class SuiteOptions:
    """What a command line can set for the suites; a suite reads what concerns it.

    Arguments:
        text_form: ``tokenized`` or ``raw``, of the STS sets.
        mode: of transfer, ``test`` or ``dev``.
        seed: of transfer's folds.
        progress: show bars.
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
        key: of its scores in a results file.
        tasks: names that a command line may give in the place of the suite's; the first ``whole`` of them are the
            suite. Empty: it has no parts.
        load: (data_dir, tasks, options) to data; everything that can be wrong with files is an error here.
        score: (encoder, data, options) to scores.
        options: names in ``SuiteOptions`` that its scores depend on.
        takes_fitted: takes encoders that are fitted on the texts they are given (``fits_texts``) or are sparse.
    """

    key: str
    load: Callable[[str, Sequence[str], SuiteOptions], Any]
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


#: Name on the command line to suite. ``all`` is all of them, in this order.
SUITES: dict[str, Suite] = {
    "sts": Suite("test", _load_sts, _score_sts, (*STS_TASKS, *_HUB_ONLY), len(STS_TASKS), ("text_form",), True),
    "dev": Suite("dev", _load_sts, _score_sts, DEV_TASKS, None, ("text_form",), True),
    "transfer": Suite("transfer", _load_transfer, _score_transfer, TRANSFER_TASKS, None, ("mode", "seed"), True),
    "retrieval": Suite("retrieval", _load_retrieval, _score_retrieval, options=("text_form",)),
    "geometry": Suite("geometry", _load_geometry, _score_geometry, options=("text_form",)),
    "clustering": Suite("clustering", _load_clustering, _score_clustering),
}


def resolve_suites(words: str | Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Suite to its tasks, from ``all``, suites and names of tasks, in a list or with commas.

    Raises:
        ValueError: an unknown or repeated name.
    """
    names = [name.strip() for name in words.split(",")] if isinstance(words, str) else list(words)
    names = [member for name in names for member in (SUITES if name == "all" else (name,))]
    homes = {task: name for name, suite in SUITES.items() for task in suite.tasks}
    chosen: dict[str, tuple[str, ...]] = {}
    for name in names:
        if name not in SUITES and name not in homes:
            raise ValueError(
                f"tasks must be 'all', {', '.join(map(repr, SUITES))} or names among {list(homes)}, got {name!r}"
            )
        suite = homes.get(name, name)
        added = SUITES[name].tasks[: SUITES[name].whole] if name in SUITES else (name,)
        if suite in chosen and (not added or set(added) & set(chosen[suite])):
            raise ValueError(f"tasks must name each set once, got {names}")
        chosen[suite] = chosen.get(suite, ()) + added
    if not chosen:
        raise ValueError("tasks must name a suite or a task, got none")
    return chosen


def suite_settings(name: str, tasks: Sequence[str], options: SuiteOptions) -> dict[str, Any]:
    """What a suite's scores depend on beside encoder and data, known before any work."""
    return {"tasks": list(tasks), **{option: getattr(options, option) for option in SUITES[name].options}}


def load_suites(
    chosen: Mapping[str, Sequence[str]], data_dir: str, options: SuiteOptions | None = None
) -> dict[str, Any]:
    """Suite to its data, for ``score_suites``.

    Arguments:
        chosen: from ``resolve_suites``.

    Raises:
        FileNotFoundError, ValueError: what is wrong with a file.
    """
    options = options or SuiteOptions()
    return {name: SUITES[name].load(data_dir, tasks, options) for name, tasks in chosen.items()}


def check_encoder(encoder: Encoder, chosen: Mapping[str, Any]) -> None:
    """Raise ValueError where a suite cannot take an encoder that is fitted on the texts it is given."""
    refused = [name for name in chosen if not SUITES[name].takes_fitted]
    if refused and getattr(encoder, "fits_texts", False):
        raise ValueError(f"tasks must not hold {refused[0]!r} for an encoder that is fitted on each task's sentences")


def score_suites(
    encoder: Encoder, data: Mapping[str, Any], options: SuiteOptions | None = None
) -> Iterator[tuple[str, Scores, float]]:
    """(suite, scores, seconds) as each one finishes.

    Arguments:
        data: from ``load_suites``.
    """
    check_encoder(encoder, data)
    options = options or SuiteOptions()
    for name, loaded in data.items():
        started = perf_counter()
        scores = SUITES[name].score(encoder, loaded, options)
        yield name, scores, perf_counter() - started
