"""Read the files of a training run for a report."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from csekit.encoding.json_files import read_json
from csekit.encoding.load import folder_tokenizer_digest
from csekit.encoding.provenance import weights_of
from csekit.encoding.schema import check_schema
from csekit.evaluation.results import FORMAT, read_results
from csekit.evaluation.results_schema import TrainerState, check_results

#: Term to its points: (step, value).
Curves = dict[str, list[tuple[float, float]]]

#: Sections that other commands write: their results files may lie beside the run's own.
_SECTIONS = ("test", "transfer", "retrieval", "geometry", "clustering", "classification")
#: Kind in a key ``KIND:NAME`` to the section of a report. ``classification`` holds scores by mteb's protocol, these
#: are by SentEval's.
_OWN = {"retrieval": "retrieval", "pairs": "pairs", "classification": "own classification", "mteb": "mteb"}
#: Sections that hold the scores of several data by name, which several files may add to.
BY_NAME = tuple(_OWN.values())
#: The end of the name of accuracies of dev mode, which are of training rows.
DEV_MODE = ", dev mode"


@dataclass(frozen=True)
class ReportRun:
    """A run in a report; all fields but the label may be missing.

    Arguments:
        label: name of the run in the report.
        folder: folder of its encoder, None for a results file alone.
        content: the results file, with sections of other files beside it; empty if the run has none yet.
        losses: ``loss`` and ``loss/TERM`` over steps.
        dev: dev scores over steps; step 0 is before training.
        diagnostics: all other numbers of the log over steps.
        missing: one sentence for each missing part.
    """

    label: str
    folder: Path | None
    content: Mapping[str, Any] = field(default_factory=dict)
    losses: Curves = field(default_factory=dict)
    dev: Curves = field(default_factory=dict)
    diagnostics: Curves = field(default_factory=dict)
    missing: tuple[str, ...] = ()


def read_run(path: str | Path, label: str) -> ReportRun:
    """Read a run's folder, or a results file.

    A folder without ``results.json`` (the run continues, or was interrupted) gives the log of its last checkpoint. A
    folder with an encoder alone gives neither scores nor curves.

    Raises:
        FileNotFoundError: no such file, or a folder without results, log and encoder.
        ValueError: a results file that cannot be read.
    """
    path = Path(path)
    if path.is_file():
        content = read_results(path)
        return _gathered(label, None, with_shown(content), [])
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such run folder or results file")
    has_encoder = any((path / name).is_file() for name in ("modules.json", "config.json", "training/config.json"))
    others, left_out = _with_others(path)
    if (path / "results.json").is_file():
        return _gathered(label, path if has_encoder else None, others, left_out)
    log = _last_log(path)
    if not (log or others or has_encoder):
        raise FileNotFoundError(f"{path}: holds neither results.json, nor training/trainer_state.json, nor an encoder")
    missing = ["no results.json: the run is not finished" if log else "no results.json: not a run of csekit"]
    return _gathered(label, path if has_encoder else None, {**log, **others}, missing + left_out)


def _with_others(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Read ``results.json`` and take missing sections from the folder's other results files, ordered by name.

    Returns:
        the content, and a sentence for each file that is left out: it cannot be read, or its scores are those of other
        weights or settings.
    """
    main = folder / "results.json"
    content = with_shown(read_results(main)) if main.is_file() else {}
    origins = dict.fromkeys(content, main.name)
    weights, left_out = None, []
    for path in sorted(folder.glob("*.json")):
        if path != main:
            try:
                other = read_json(path)
            except (OSError, ValueError) as error:
                reason = str(error).removeprefix(f"{path}: ")
                left_out.append(f"{path.name} is left out, which may hold scores: {reason}")
                continue
            if isinstance(other, dict) and other.get("format", FORMAT) != FORMAT:
                left_out.append(f"{path.name} is left out: format must be {FORMAT}, got {other['format']!r:.80}")
            elif isinstance(other, dict) and "format" in other:
                check_results(other, path)
                theirs = (other.get("run") or {}).get("weights")
                weights = weights_of(folder) if theirs and weights is None else weights
                if theirs and weights and theirs != weights:
                    left_out.append(f"{path.name} is left out: its scores are those of other weights")
                    continue
                if added := differing_part(other, folder):
                    left_out.append(f"{path.name} is left out: its scores are those of another {added}")
                    continue
                for name, section in shown_sections(other).items():
                    if name in BY_NAME:
                        content[name] = {**section, **(content.get(name) or {})}
                    elif lost := _take(content, origins, name, section, path.name):
                        left_out.append(lost)
    return content, left_out


def _take(
    content: dict[str, Any], origins: dict[str, str], name: str, section: Mapping[str, Any], file: str
) -> str | None:
    """Take a section unless another file gave one; scores of transfer in test mode win over those in dev mode.

    Arguments:
        origins: section to the file that gave it.

    Returns:
        a sentence about scores that are left out.
    """
    held, origin = content.get(name) or {}, origins.get(name, file)
    replaced = name == "transfer" and held.get("mode") == "dev" and section.get("mode") != "dev"
    kept, left, lost = (section, held, origin) if replaced or not held else (held, section, file)
    if not held or replaced:
        content[name], origins[name] = section, file
    if not held or _holds(kept, left):
        return None
    return f"the {name} scores of {lost} are left out: those of {origins[name]} are shown"


def _holds(section: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether a section has all scores of another one."""
    if "tasks" not in other:
        return section == other
    return section.get("mode") == other.get("mode") and other["tasks"].items() <= section.get("tasks", {}).items()


def shown_sections(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a results file that a report shows: ``retrieval:NAME`` is a part of ``retrieval``,
    ``pairs:NAME`` of ``pairs``, ``classification:NAME`` of ``own classification``, ``mteb:NAME`` of ``mteb``."""
    found = {name: content[name] for name in _SECTIONS if content.get(name)}
    for name, section in content.items():
        kind, _, own = name.partition(":")
        if own and kind in _OWN:
            found[_OWN[kind]] = {**found.get(_OWN[kind], {}), **_by_name(kind, own, section)}
    return found


def _by_name(kind: str, name: str, section: Mapping[str, Any]) -> Mapping[str, Any]:
    """Map name to scores of one's own data; accuracies of dev mode are of training rows and have their own name."""
    if kind == "retrieval":
        return section
    if kind == "mteb":
        return {name: section}
    suffix = DEV_MODE if section.get("mode") == "dev" else ""
    return {f"{name}{suffix}": entry for name, entry in section["tasks"].items()}


def compared_by(dev: Mapping[str, Any]) -> str | None:
    """Return the dev score by which an encoder that training made worse was compared with the untrained one; None
    where a file does not name it (the last checkpoint was kept, not the best) or holds no number for it."""
    name: str | None = dev.get("compared_by") or dev.get("metric")
    sides = (dev.get("before") or {}), (dev.get("after") or {})
    return name if all(side.get(name) is not None for side in sides) else None


def with_shown(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a results file with its sections as a report shows them."""
    return {name: value for name, value in content.items() if name not in BY_NAME} | shown_sections(content)


def _json(path: Path) -> Any:
    """Return the content of a JSON file, None if it cannot be read."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return None


def _last_log(folder: Path) -> dict[str, Any]:
    """Read ``log`` and ``dev`` from the trainer's state with the most steps, in the form of a results file."""
    states = []
    for path in [folder / "training/trainer_state.json", *folder.glob("training/checkpoint-*/trainer_state.json")]:
        if isinstance(state := _json(path), dict) and "log_history" in state:
            check_schema(TrainerState, state, path)
            states.append(state)
    if not states:
        return {}
    history = max(states, key=lambda state: int(state.get("global_step", 0)))["log_history"]
    evaluations = [entry for entry in history if any(name.startswith("eval_") for name in entry)]
    return {
        "log": [entry for entry in history if "loss" in entry],
        "dev": {
            "history": [
                {name.removeprefix("eval_"): value for name, value in entry.items() if name not in ("epoch",)}
                for entry in evaluations
            ]
        },
    }


def _gathered(label: str, folder: Path | None, content: Mapping[str, Any], missing: list[str]) -> ReportRun:
    log = content.get("log") or []
    curves = _curves(log)
    losses = {name: points for name, points in curves.items() if name == "loss" or name.startswith("loss/")}
    held = content.get("dev") or content.get("heldout") or {}
    before = {"step": 0, **(held.get("before") or {})}
    dev = _curves([before, *(held.get("history") or [])], without=("value", "runtime"))
    if not log:
        missing.append("no training log, so no curves")
    if not (content.get("test") or held.get("after") or any(content.get(name) for name in (*_SECTIONS, *BY_NAME))):
        missing.append("no scores")
    if folder is None:
        missing.append("no encoder, so no nearest neighbours")
    other = {name: points for name, points in curves.items() if name not in losses}
    return ReportRun(label, folder, content, losses, dev, other, tuple(missing))


def _curves(entries: Sequence[Mapping[str, Any]], without: Sequence[str] = ()) -> Curves:
    """Map name to the numbers of log entries over steps; of equal steps the last is kept."""
    curves: dict[str, dict[float, float]] = {}
    for entry in entries:
        for name, value in entry.items():
            number = (
                isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
            )
            if number and name not in ("step", "epoch", *without) and "step" in entry:
                curves.setdefault(name, {})[float(entry["step"])] = float(value)
    return {name: sorted(points.items()) for name, points in sorted(curves.items())}


def differing_part(content: Mapping[str, Any], folder: Path | None) -> str | None:
    """Return what the encoder whose scores a results file holds has different from the one in a folder, beside its
    weights: a setting that ``csekit eval`` added, ``whitening``, ``ranks`` or ``truncate_dim``, or the ``tokenizer``;
    None where the scores are those of the encoder as it lies there.

    Arguments:
        content: from ``read_results``.
        folder: the encoder's folder, which may itself cut embeddings. None: ``truncate_dim`` and the tokenizer are not
            compared.
    """
    run = content.get("run") or {}
    encoder = run.get("encoder")
    if not isinstance(encoder, Mapping):
        return None
    if folder is not None:
        file = folder / "config_sentence_transformers.json"
        settings = read_json(file) if file.is_file() else {}
        if encoder.get("truncate_dim") != (settings.get("truncate_dim") if isinstance(settings, dict) else None):
            return "truncate_dim"
        if run.get("tokenizer") is not None:
            own = folder_tokenizer_digest(folder, encoder.get("prompt_template"))
            if own is not None and own != run["tokenizer"]:
                return "tokenizer"
    return next((name for name in ("whitening", "ranks") if encoder.get(name)), None)
