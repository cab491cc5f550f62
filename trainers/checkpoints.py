"""The checkpoints of a run: a manifest with the size and checksum of each file, and the choice of one to resume from.

The manifest is written last. A checkpoint is whole if every file is as its manifest says.
"""

import json
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
from transformers.trainer import OPTIMIZER_NAME

from csekit.encoding.provenance import write_json

logger = logging.getLogger(__name__)

MANIFEST, STATE = "manifest.json", "trainer_state.json"
_NAME = re.compile(r"checkpoint-(\d+)")
_CHUNK = 1 << 20

#: The runs whose checkpoints a folder may continue from, and the last step that counts of each; None: every step.
Lineage = Mapping[str, int | None]


class CheckpointError(ValueError):
    """No checkpoint can be continued from."""


@dataclass(frozen=True)
class Checkpoint:
    """A folder ``checkpoint-<step>``."""

    path: Path
    step: int

    def manifest(self) -> dict[str, Any]:
        """Return the manifest; {} if it is missing or not readable."""
        return _read_object(self.path / MANIFEST)

    def damage(self) -> str | None:
        """Return what is wrong with the checkpoint, None if it is whole. Without a manifest only the trainer's state
        is read."""
        if not (self.path / STATE).is_file():
            return "it was not finished"
        files = self.manifest().get("files")
        if isinstance(files, dict):
            for name, entry in files.items():
                if found := _difference(self.path / name, entry):
                    return f"{name} {found}"
        elif (self.path / MANIFEST).exists():
            return f"{MANIFEST} is not readable"
        return None if _read_object(self.path / STATE) else f"{STATE} is not readable"

    def damage_of_best(self) -> str | None:
        """Return what is wrong with the best checkpoint that the trainer's state names, None if there is nothing."""
        best = self.best()
        if best is None or best.path == self.path or not (harm := best.damage()):
            return None
        return f"the best checkpoint so far, {best.path.name}, is broken: {harm}"

    def best(self) -> "Checkpoint | None":
        """Return the best checkpoint that the trainer's state names; None if it names none."""
        recorded = _read_object(self.path / STATE).get("best_model_checkpoint")
        if not isinstance(recorded, str):
            return None
        beside = self.path.parent / Path(recorded).name  # the run's folder may have moved
        return as_checkpoint(beside if beside.is_dir() else Path(recorded))


def as_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint of a folder."""
    match = _NAME.fullmatch(path.resolve().name)
    return Checkpoint(path, int(match[1]) if match else -1)


def checkpoints(training: Path) -> list[Checkpoint]:
    """Return the checkpoints of a run's ``training`` folder, the last one first."""
    found = [as_checkpoint(path) for path in training.glob("checkpoint-*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda checkpoint: -checkpoint.step)


def finish_checkpoint(path: Path, run: str, keep: int | None, best: str | None) -> None:
    """Write the manifest of a checkpoint, then delete the older ones.

    Arguments:
        path: a complete ``checkpoint-<step>``.
        run: the run's identity, see :class:`trainers.run_settings.RunSettings`.
        keep: number of checkpoints to keep; None: all.
        best: the best checkpoint, which is always kept.
    """
    files = {file.relative_to(path).as_posix(): file for file in sorted(path.rglob("*")) if file.is_file()}
    entries = {name: {"bytes": file.stat().st_size, "xxh3": _digest(file)} for name, file in files.items()}
    write_json(path / MANIFEST, {"run": run, "files": entries})
    protected = {Path(each).resolve() for each in (path, best) if each is not None}
    found = checkpoints(path.parent)[::-1]
    old = [each for each in found if each.path.resolve() not in protected]
    old.sort(key=lambda each: each.manifest().get("run") == run)  # first those of other runs, then by step
    surplus = len(found) - keep if keep else 0
    for checkpoint in old[: max(surplus, 0)]:
        shutil.rmtree(checkpoint.path, ignore_errors=True)


def resumable(training: Path, lineage: Lineage, needs_best: bool) -> Path | None:
    """Return the last whole checkpoint, None if there is no checkpoint. Broken ones are passed over with a warning.

    Arguments:
        training: the run's ``training`` folder.
        lineage: the runs whose checkpoints count; {}: any.
        needs_best: True if the run restores its best checkpoint at the end, which must then be whole as well.
    """
    found = [checkpoint for checkpoint in checkpoints(training) if _counts(checkpoint, lineage)]
    for checkpoint in found:
        damage = checkpoint.damage()
        if damage is None and not checkpoint.manifest() and any(other.manifest() for other in found):
            damage = "it was not finished"
        if damage is None and needs_best:
            damage = checkpoint.damage_of_best()
        if damage is None:
            return checkpoint.path
        logger.warning("%s cannot be continued: %s", checkpoint.path, damage)
    if found:
        logger.warning("%s holds no whole checkpoint: training starts from the beginning", training)
    return None


def checked(path: Path, needs_best: bool) -> Path:
    """Return the folder of a checkpoint that the user names; ``needs_best`` as for :func:`resumable`.

    Raises:
        CheckpointError: there is no such folder, or the checkpoint or the best one is broken.
    """
    if not path.is_dir():
        raise CheckpointError(f"resume_from_checkpoint must be True or a checkpoint's folder, got {path}: no such one")
    checkpoint = as_checkpoint(path)
    if damage := checkpoint.damage() or (checkpoint.damage_of_best() if needs_best else None):
        raise CheckpointError(f"{path} cannot be continued: {damage}; True takes the last whole checkpoint of the run")
    return path


def check_optimizer(checkpoint: Path) -> None:
    """Raise CheckpointError for a checkpoint without the optimiser's state: Transformers would start a new one."""
    if not (checkpoint / OPTIMIZER_NAME).is_file():
        raise CheckpointError(
            f"{checkpoint} cannot be continued: it holds the model alone, without the optimiser (save_only_model)"
        )


def _counts(checkpoint: Checkpoint, lineage: Lineage) -> bool:
    run = checkpoint.manifest().get("run")
    if not lineage or run is None:
        return True
    if run not in lineage:
        return False
    last = lineage[run]
    return last is None or checkpoint.step <= last


def _difference(file: Path, entry: Any) -> str | None:
    if not file.is_file():
        return "is missing"
    if not isinstance(entry, dict) or file.stat().st_size != entry.get("bytes"):
        return f"has {file.stat().st_size:,} bytes, not the {entry.get('bytes', 0):,} that were written"
    return None if _digest(file) == entry.get("xxh3") else "was changed after it was written"


def _digest(file: Path) -> str:
    state = xxhash.xxh3_128()
    with file.open("rb") as stream:
        while block := stream.read(_CHUNK):
            state.update(block)
    return state.hexdigest()


def _read_object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
