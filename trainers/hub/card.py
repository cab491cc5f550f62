"""The model card of a run, written from its results files with the templates of ``model_cards/``."""

import hashlib
import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from csekit.encoding.provenance import weights_of, write_atomically
from csekit.encoding.schema import Schema, check_schema
from csekit.encoding.yaml_files import read_yaml
from csekit.evaluation.report.runs import BY_NAME, differing_part, shown_sections, with_shown
from csekit.evaluation.results import read_results
from csekit.evaluation.results_schema import CardResults
from csekit.modeling import METHODS
from csekit.modeling.pooling import POOLINGS
from csekit.trainers.hub.card_scores import SUITES, SuiteTable, dev_table, suite_tables, worse_than_untrained

#: In the repository beside the rooms, in a wheel beside the subpackages.
TEMPLATES = Path(__file__).resolve().parents[2] / "model_cards"
#: Marks around the part of a card that shows how to load the model.
USE, END_USE = "<!-- use -->", "<!-- end use -->"
_SEAL = "<!-- sha256 of the card above: "

#: Fields of Transformers' that a card leaves out.
_NO_SETTING = {
    "architectures",
    "dtype",
    "model_type",
    "pad_token_id",
    "prompt_frames",
    "use_cache",
    "greater_is_better",
}
_HOW = {"pairs": "on sentence pairs", "triplets": "on triplets of sentence, positive and hard negative"}


@dataclass(frozen=True)
class CardOptions:
    """Metadata of a card that no results file holds.

    Arguments:
        name: title and name of the model; None: the folder's name.
        path: the path or Hub id in the snippets; None: the name.
        base_model: Hub id of the backbone.
        license: identifier as on the Hub, e.g. ``apache-2.0``.
        language: language codes, e.g. ``en``.
        datasets: Hub ids of the corpus.
    """

    name: str | None = None
    path: str | None = None
    base_model: str | None = None
    license: str | None = None
    language: Sequence[str] = ()
    datasets: Sequence[str] = ()


class _Listed(Schema):
    """An entry of a listing of cards."""

    results: str
    scores: list[str] | None = None
    name: str | None = None
    path: str | None = None
    base_model: str | None = None
    license: str | None = None
    language: list[str] | None = None
    datasets: list[str] | None = None


def _template(name: str) -> Any:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    environment.filters |= {"plain": plain, "code": code, "quoted": quoted}
    return environment.get_template(name)


def plain(value: Any) -> str:
    """Return a value as Markdown that shows it in one line: its HTML, links, code and cells have no effect."""
    text = escape(" ".join(str(value).split()), quote=False)
    for sign in ("`", "*", "|"):
        text = text.replace(sign, f"\\{sign}")
    return text.replace("](", "]\\(")


def code(value: Any) -> str:
    """Return a value for a code span."""
    return " ".join(str(value).split()).replace("`", "'")


def quoted(value: Any) -> str:
    """Return a value as a string literal of Python."""
    return json.dumps(str(value), ensure_ascii=False)


def _embeddings(config: Mapping[str, Any]) -> list[str]:
    """Return the last lines of the snippet for Transformers, which compute the embeddings of a batch."""
    states, mask = "model(**batch).last_hidden_state", 'batch["attention_mask"]'
    offset = config.get("prompt_mask_offset") or 0
    if config["pooling"] == "mean":
        return [
            f"states, mask = {states}, {mask}.unsqueeze(-1)",
            "embeddings = (states * mask).sum(1) / mask.sum(1)",
        ]
    if config["pooling"] == "last":
        place = f"states[range(len(states)), {mask}.sum(1) - 1]  # the last token, padding on the right"
        return [f"states = {states}", f"embeddings = {place}"]
    if config["pooling"] == "mask" and offset < 0:
        place = f"states[range(len(states)), {mask}.sum(1) - {-offset}]  # the mask token"
        return [f"states = {states}", f"embeddings = {place}"]
    return [f"embeddings = {states}[:, {offset if config['pooling'] == 'mask' else 0}]"]


def _overlap(results: Mapping[str, Any]) -> str:
    """Return a sentence about training rows that hold evaluation sentences, or an empty text."""
    found = results.get("overlap")
    if not found or not found["rows"] or found["filtered"]:
        return ""
    sets = ", ".join(name for name, count in found["sets"].items() if count["sentences"])
    return (
        f"{found['rows']:,} of the training rows hold a sentence of an evaluation set ({sets}), which was trained "
        "on: these scores are better than those on unseen sentences."
    )


def _setting(results: Mapping[str, Any]) -> list[tuple[str, Any]]:
    seconds = {f"seconds ({name})": value for name, value in (results.get("seconds") or {}).items()}
    setting = {**results["config"], **results["arguments"], "seed": results["seed"], **seconds}
    return [
        (name, value) for name, value in setting.items() if name not in _NO_SETTING and value not in (None, [], {})
    ]


def render_card(results: Mapping[str, Any], name: str, options: CardOptions = CardOptions()) -> str:
    """Return the text of a model card.

    Arguments:
        results: results of a run, from ``run_results`` or ``results_of``.
        name: name of the model if ``options`` give none.
        options: further metadata.
    """
    config, name = results["config"], options.name or name
    suites = [*dev_table(results), *suite_tables(results)]
    entries = [entry for suite in suites for entry in suite.entries]
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["csekit", "sentence-similarity", "feature-extraction", results["method"]],
        base_model=options.base_model,
        license=options.license,
        language=list(options.language) or None,
        datasets=list(options.datasets) or None,
        model_name=name,
        eval_results=entries or None,
    )
    return str(
        _template("template.md.jinja").render(
            metadata=data.to_yaml(),
            title=name,
            path=options.path or name,
            how=_HOW.get(results.get("positives", ""), "without labels"),
            method=results["method"],
            model_class=METHODS[results["method"]].__name__,
            backbone=results["backbone"],
            corpus=results["corpus"],
            pooling=config["pooling"],
            template=config.get("prompt_template"),
            needs_code=config["pooling"] == "mask" and config.get("prompt_mask_offset") != -1,
            exported=config["pooling"] in ("cls", "mean", "last", "mask"),
            projected=config.get("projector_at_inference", False),
            embeddings="\n".join(_embeddings(config)),
            imports=results.get("imports") or [],
            suites=suites,
            overlap=_overlap(results),
            worse=worse_than_untrained(results),
            languages=", ".join(options.language),
            setting=_setting(results),
        )
    )


def write_model_card(
    folder: str | Path,
    results: Mapping[str, Any],
    base_model: str,
    options: CardOptions = CardOptions(),
) -> Path:
    """Write ``README.md`` into an export.

    Arguments:
        folder: the folder of the export.
        results: results of the run, from ``run_results``.
        base_model: the backbone; a Hub id is named in the metadata, a folder is not.
        options: further metadata.
    """
    folder = Path(folder).resolve()
    if not options.base_model and base_model and not Path(base_model).exists():
        options = CardOptions(**{**vars(options), "base_model": base_model})
    path = folder / "README.md"
    write_card(path, render_card(results, folder.name, options))
    return path


def write_card(path: Path, text: str) -> None:
    """Write a card after checking its metadata. Its last line is a comment with a checksum of the rest.

    Raises:
        ValueError: the Hub could not read the metadata.
    """
    ModelCard(text)
    write_atomically(path, f"{text}{_seal(text)}".encode())


def check_unedited(path: Path) -> None:
    """Raise FileExistsError for an existing card that is not as :func:`write_card` wrote it."""
    if not path.exists():
        return
    if not _is_sealed(path.read_bytes().decode("utf-8", "replace").replace("\r\n", "\n")):
        raise FileExistsError(
            f"{path}: edited since csekit wrote it, or not written by this version: choose another --output, or "
            "replace it with --overwrite"
        )


def resealed(card: str, changed: str) -> str:
    """Return a card that csekit changed for a repository with the checksum of the new text. One that was edited by
    hand before keeps what it has."""
    if not _is_sealed(card):
        return changed
    text = changed[: changed.rfind(_SEAL)]
    return f"{text}{_seal(text)}"


def _is_sealed(card: str) -> bool:
    start = card.rfind(_SEAL)
    return start >= 0 and card[start:] == _seal(card[:start])


def _seal(text: str) -> str:
    return f"{_SEAL}{hashlib.sha256(text.encode()).hexdigest()} -->\n"


def with_code_section(card: str, path: str) -> str:
    """Return the card of a repository that holds the whole model with its code: the part that shows how to load it is
    replaced. A card without the marks around that part, written by hand, does not change."""
    start, end = card.find(USE), card.find(END_USE)
    if start < 0 or end < start:
        return card
    section = _template("custom_code.md.jinja").render(path=path).strip()
    return card[:start] + section + card[end + len(END_USE) :]


# From results files


def results_of(path: str | Path, scores: Sequence[str | Path] = ()) -> dict[str, Any]:
    """Read the results of a run from its folder or file, and add the suites of further files of ``csekit eval``.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not the results of a training run, scores of an encoder with another pooling, other weights or
            other settings, or two files with different scores of one suite.
    """
    path = Path(path)
    results = read_results(path / "results.json" if path.is_dir() else path)
    if results.get("method") not in METHODS or "config" not in results:
        raise ValueError(f"{path}: must be the results of a training run, got method {results.get('method')!r}")
    check_schema(CardResults, results, path)
    if results["config"]["pooling"] not in POOLINGS:
        raise ValueError(
            f"{path}: config.pooling must be one of {', '.join(map(repr, POOLINGS))}, got "
            f"{results['config']['pooling']!r:.80}"
        )
    for name in results.get("imports") or []:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"{path}: imports must be names of modules, got {name!r:.80}")
    results = with_shown(results)
    weights = weights_of(path) if path.is_dir() and scores else {}
    held: dict[tuple[str, ...], tuple[SuiteTable, str | Path]] = {}
    for file in scores:
        found = read_results(file)
        run = found.get("run") or {}
        theirs = run.get("weights") or weights
        if weights and theirs != weights:
            raise ValueError(f"{file}: the scores must be those of the run's encoder, but its weights differ")
        weights = theirs
        if added := differing_part(found, path if path.is_dir() else None):
            raise ValueError(f"{file}: the scores must be those of the run's encoder, they are of another {added}")
        encoder = run.get("encoder")
        pooling = (encoder if isinstance(encoder, dict) else {}).get("pooling", results["config"]["pooling"])
        mask_last = results["config"].get("prompt_mask_offset") == -1
        if pooling != results["config"]["pooling"] and not (pooling == "lasttoken" and mask_last):
            raise ValueError(
                f"{file}: the scores must be those of the run's encoder, whose pooling is "
                f"{results['config']['pooling']!r}, got {pooling!r}"
            )
        shown = shown_sections(found)
        for key in SUITES.keys() & shown.keys():
            _check_same(held, key, shown[key], file)
            results[key] = {**(results.get(key) or {}), **shown[key]} if key in BY_NAME else shown[key]
    return results


def _check_same(
    held: dict[tuple[str, ...], tuple[SuiteTable, str | Path]], key: str, section: Mapping[str, Any], file: str | Path
) -> None:
    """Raise ValueError if an earlier file, in ``held``, gives the card other scores of the suite; add this one."""
    parts = {(key, name): {name: entry} for name, entry in section.items()} if key in BY_NAME else {(key,): section}
    for place, part in parts.items():
        table = SUITES[key]({key: part})
        found, first = held.setdefault(place, (table, file))
        if found != table:
            suite = " of ".join(("sts" if key == "test" else key, *place[1:]))
            raise ValueError(f"{file}: must not hold other scores of {suite} than {first}: leave one of the two out")


def write_cards(listing: str | Path) -> list[Path]:
    """Write the cards that a YAML file lists, into its folder: see :func:`listed_cards`."""
    written = []
    for name, text in listed_cards(listing).items():
        path = Path(listing).with_name(f"{name}.md")
        ModelCard(text)
        write_atomically(path, text.encode())
        written.append(path)
    return written


def listed_cards(listing: str | Path) -> dict[str, str]:
    """Return the cards of a YAML file by name. Each entry names ``results``, optionally ``scores`` (a list), both
    relative to the folder above the file's, and fields of :class:`CardOptions`.

    Raises:
        FileNotFoundError: no such listing or results file.
        ValueError: the listing or a file that it names is not valid.
    """
    listing = Path(listing).resolve()
    content = read_yaml(listing)
    if not isinstance(content, dict) or not all(isinstance(entry, dict) for entry in content.values()):
        raise ValueError(f"{listing.name}: must be a mapping of names to mappings, got {reprlib.repr(content)}")
    cards, base = {}, listing.parents[1]
    for name, entry in content.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise ValueError(f"{listing.name}: a card's name must be that of a file, got {name!r:.80}")
        check_schema(_Listed, entry, f"{listing.name}, {name}")
        unknown = sorted(set(map(str, entry)) - {"results", "scores", *CardOptions.__dataclass_fields__})
        if unknown:
            raise ValueError(f"{listing.name}, {name}: {unknown[0]!r} is no field of a card")
        results = results_of(base / entry.pop("results"), [base / file for file in entry.pop("scores", None) or []])
        given = {key: value for key, value in entry.items() if value is not None}
        cards[name] = render_card(results, name, CardOptions(**given))
    return cards
