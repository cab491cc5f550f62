"""Say what a table's encoders are: the files of their weights, and the run that trained them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from csekit.encoding.json_files import read_json
from csekit.encoding.provenance import checksum
from csekit.evaluation.sts import STSScores
from csekit.evaluation.sts_data import STS_TASKS
from csekit.trainers import CSETrainingArguments

BATCH = "per_device_train_batch_size"


def origin(path: str | Path) -> dict[str, Any]:
    """Return the checksums of an encoder's weights, by file, and what its run's ``results.json`` says.

    Arguments:
        path: an encoder's folder; for one that no run left, ``run`` is None.
    """
    folder = Path(path)
    found = {file.relative_to(folder).as_posix(): checksum(file) for file in weights_of(folder)}
    return {"weights": found, "run": _run(folder / "results.json")}


def sts_columns(scores: STSScores) -> dict[str, float | None]:
    """Return the mean of the seven STS test sets as ``STS Avg.``, of other choices of sets each set's own score; None
    where a set has no correlation."""
    if set(scores.tasks) == set(STS_TASKS):
        found: dict[str, float | None] = {"STS Avg.": scores.avg}
    else:
        found = {name: task.to_dict()["all"] for name, task in scores.tasks.items()}
    return {name: None if value is None else round(value, 4) for name, value in found.items()}


def weights_of(folder: Path) -> list[Path]:
    """Return the files of an encoder's weights; those of its training are not its own."""
    files = sorted(folder.glob("**/*.safetensors"))
    return [file for file in files if "training" not in file.relative_to(folder).parts]


def _run(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    results: Mapping[str, Any] = read_json(path)
    run = {name: results[name] for name in ("method", "backbone", "arguments", "config", "seed", "seconds")}
    run["corpus"] = {name: results["corpus"][name] for name in ("name", "checksum", "used")}
    run["dev"] = {name: results["dev"][name] for name in ("metric", "best", "step")} if results["dev"] else None
    run["steps"] = max((entry["step"] for entry in results["log"]), default=0)
    run["batch"] = results["arguments"].get(BATCH, CSETrainingArguments.__dataclass_fields__[BATCH].default)
    return {**run, "commit": results["environment"]["commit"]}
