"""The types of the fields that csekit reads from results files: runs, ``csekit eval``, ``csekit geometry``.

Further fields are allowed, and every field may be missing or null unless another command could not go on without it.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, RootModel, StringConstraints

from csekit.encoding.schema import Count, Number, Schema, check_schema

#: A file beside the results, without a folder.
BareName = Annotated[str, StringConstraints(pattern=r"^[^/\\\x00]+$")]
#: ``map`` or ``recall@10``.
Metric = Annotated[str, StringConstraints(pattern=r"^[^@]+(@[0-9]{1,9})?$")]
Scores = dict[str, Number | None]


class _STSTask(Schema):
    all: Number | None = None


class _STS(Schema):
    tasks: dict[str, _STSTask]
    avg: Number | None = None
    text_form: str | None = None


class _AccuracyTask(Schema):
    accuracy: Number | None


class _Transfer(Schema):
    tasks: dict[str, _AccuracyTask]
    avg: Number | None = None
    mode: str | None = None


class _Collection(Schema):
    metrics: dict[Metric, Number | None]
    queries: Count | None = None
    documents: Count | None = None


class _PairTask(Schema):
    spearman: Number | None
    pearson: Number | None
    n: Count


class _Pairs(Schema):
    tasks: dict[str, _PairTask]


class _MTEB(Schema):
    metric: str
    main_score: Number | None


class _Collections(RootModel[dict[str, _Collection]]):
    pass


class _Point(Schema):
    step: Count


class _Dev(Schema):
    metric: str | None = None
    best: Number | None = None
    step: Count | None = None
    before: Scores | None = None
    after: Scores | None = None
    history: list[_Point] | None = None


class _Corpus(Schema):
    name: str | None = None
    used: Count | None = None
    rows: Count | None = None
    columns: list[str] | None = None


class _OverlapSet(Schema):
    sentences: Count


class _Overlap(Schema):
    rows: Count
    filtered: bool
    sets: dict[str, _OverlapSet]


class _Config(Schema):
    pooling: str | None = None
    prompt_template: str | None = None
    prompt_mask_offset: int | None = None
    projector_at_inference: bool | None = None


class _Clustering(Schema):
    set: str
    titles: Count
    clusters: Count
    v_measure: Number
    accuracy: Number
    map: dict[str, Any] | None = None


class _Geometry(Schema):
    set: str
    alignment: Number
    uniformity: Number
    mean_cosine: Number
    effective_rank: Number
    spearman: Number | None


class _Suite(Schema):
    settings: dict[str, Any] | None = None


class _Similarities(Schema):
    file: BareName
    sha256: str
    digests: dict[str, str] | None = None


def _encoder(value: Any) -> Any:
    """Return an encoder's description. Raises ValueError: its pooling is no name."""
    if isinstance(value, dict) and not isinstance(value.get("pooling"), str | None):
        raise ValueError("must have the name of a pooling, or null")
    return value


class _Run(Schema):
    encoder: Annotated[Any, AfterValidator(_encoder)] = None
    weights: Any = None


class Results(Schema):
    """The content of a results file."""

    name: str | None = None
    title: str | None = None
    method: str | None = None
    backbone: str | None = None
    positives: str | None = None
    imports: list[str] | None = None
    seed: int | None = None
    corpus: _Corpus | None = None
    config: _Config | None = None
    arguments: dict[str, Any] | None = None
    environment: dict[str, Any] | None = None
    run: _Run | None = None
    seconds: dict[str, Any] | None = None
    trial: dict[str, Any] | None = None
    overlap: _Overlap | None = None
    log: list[_Point] | None = None
    dev: _Dev | None = None
    heldout: _Dev | None = None
    test: _STS | None = None
    transfer: _Transfer | None = None
    retrieval: dict[str, _Collection] | None = None
    classification: dict[str, _AccuracyTask] | None = None
    clustering: _Clustering | None = None
    geometry: _Geometry | None = None
    suites: dict[str, _Suite] | None = None
    similarities: _Similarities | None = None


class RunResults(Results):
    """The content of a training run's results file."""

    seconds: dict[str, Number | None] | None = None
    before: _STS | None = None


class _CardConfig(_Config):
    pooling: str


class _CardCorpus(_Corpus):
    name: str


class CardResults(RunResults):
    """A training run's results with all that its model card needs."""

    method: str
    backbone: str
    seed: int
    corpus: _CardCorpus
    config: _CardConfig
    arguments: dict[str, Any]


class GeometryResults(Results):
    """The results of ``csekit geometry``."""

    title: str
    geometry: _Geometry


class TrainerState(Schema):
    """The parts of Transformers' ``trainer_state.json`` that a report reads."""

    global_step: Count = 0
    log_history: list[_Point]


#: The scores of own data, by the kind in their key ``KIND:NAME``.
_OWN: dict[str, type[BaseModel]] = {
    "pairs": _Pairs,
    "retrieval": _Collections,
    "classification": _Transfer,
    "mteb": _MTEB,
}


def check_results(content: Any, where: object) -> None:
    """Check the fields of a results file. Raises ValueError that names file and field."""
    of_a_run = isinstance(content, dict) and content.get("method") is not None
    check_schema(RunResults if of_a_run else Results, content, where)
    for name, section in content.items():
        kind, _, own = name.partition(":")
        if own and kind in _OWN:
            check_schema(_OWN[kind], section, f"{where}, {name}")
