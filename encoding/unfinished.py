"""Tell a run that was interrupted from a folder that is no model at all."""

from pathlib import Path

#: The folder of a run's checkpoints, and the names of these.
_TRAINING, _CHECKPOINT = "training", "checkpoint-"
#: Files of which a model has at least one.
_MODEL = ("config.json", "modules.json", "training/config.json")


def interrupted_run(path: str | Path) -> str | None:
    """Return what to do with the folder of a run that was stopped before its end; None for any other folder."""
    folder = Path(path).expanduser()
    training = folder / _TRAINING
    if not training.is_dir() or any((folder / name).is_file() for name in _MODEL):
        return None
    steps = [
        int(number)
        for checkpoint in training.glob(f"{_CHECKPOINT}*")
        if (number := checkpoint.name.removeprefix(_CHECKPOINT)).isdecimal() and (checkpoint / "config.json").is_file()
    ]
    if not steps:
        return (
            f"{folder}: a run that was stopped before its first checkpoint, so it has no encoder: start it again with "
            "--overwrite"
        )
    return (
        f"{folder}: a run that was stopped before its end: run its command again with --resume_from_checkpoint True, "
        f"or name its last checkpoint, {training / f'{_CHECKPOINT}{max(steps)}'}"
    )
