"""The folder of a run before its training: what it holds, and what a new run replaces."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from csekit.modeling.export import MODEL_FILES
from csekit.trainers.arguments import RunTrainingArguments
from csekit.trainers.base_trainer import TRAINING_FOLDER
from csekit.trainers.data.teachers import TEACHERS_FOLDER
from csekit.trainers.objective_warmup import OBJECTIVES_FOLDER
from csekit.trainers.scripts.run_arguments import CorpusArguments

#: Arguments that name an encoder or its weights, and those that name a file.
_ENCODERS = ("model_name_or_path", "tokenizer_name", "generator_name_or_path", "objectives_from", "teachers")
_FILES = ("train_file", "dev_file", "test_file", "heldout_file")


def check_output_dir(run: CorpusArguments, args: RunTrainingArguments) -> None:
    """Check that ``output_dir`` holds no other run, no files of others and no input of this run. Nothing is deleted.

    Raises:
        ValueError: ``output_dir`` holds a run, and it is neither resumed nor to be overwritten; it holds a model or a
            README.md that no run wrote, without ``overwrite``; or the run reads what it would replace.
    """
    folder = Path(str(args.output_dir))
    old, foreign = _old_run(folder), _foreign(folder)
    if not _continues(args):
        _check_inputs(folder, run, args)
    if old and not run.overwrite and not _continues(args):
        raise ValueError(
            f"{folder} already holds a run ({old[0].relative_to(folder)}): choose another --output_dir, continue it "
            "with --resume_from_checkpoint True, or replace it with --overwrite"
        )
    if foreign is not None and not run.overwrite:
        raise ValueError(
            f"{folder} holds {foreign.name}, which no run wrote: choose another --output_dir, or let the run replace "
            "the model and README.md in it with --overwrite"
        )


def clear_output_dir(run: CorpusArguments, args: RunTrainingArguments) -> None:
    """With ``overwrite`` delete the run that ``output_dir`` holds: checkpoints, results, teachers' vectors, and what
    its encoder is loaded by. Call this after all checks of the new run."""
    if not run.overwrite or _continues(args) or args.process_index != 0:
        return
    folder = Path(str(args.output_dir))
    teachers = folder / TEACHERS_FOLDER
    read = any(_within(path, teachers) for _, path in _paths(run, args, ("teachers",)))
    old = [*_old_run(folder), *([teachers] if teachers.is_dir() and not read else [])]
    roots = (folder, folder / TRAINING_FOLDER)
    loaded = [root / name for root in roots for name in ("config.json", "modules.json")]
    for path in [*loaded, *old]:  # first what loads: a killed deletion leaves no encoder without its record
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _old_run(folder: Path) -> list[Path]:
    patterns = (f"{TRAINING_FOLDER}/checkpoint-*", "results.json", OBJECTIVES_FOLDER)
    return [path for pattern in patterns for path in folder.glob(pattern)]


def _foreign(folder: Path) -> Path | None:
    """Return a file of a model, or the README.md, in a folder that no run has written to."""
    if (folder / TRAINING_FOLDER).is_dir() or _old_run(folder):
        return None
    return next((path for pattern in (*MODEL_FILES, "README.md") for path in folder.glob(pattern)), None)


def _continues(args: RunTrainingArguments) -> bool:
    """Return True if the run continues the one in ``output_dir``, not a checkpoint of another folder. The trainer
    refuses a checkpoint that does not exist."""
    wanted = args.resume_from_checkpoint
    if not isinstance(wanted, str) or not Path(wanted).is_dir():
        return bool(wanted)
    return _within(Path(wanted), Path(str(args.output_dir)) / TRAINING_FOLDER)


def _check_inputs(folder: Path, run: CorpusArguments, args: RunTrainingArguments) -> None:
    """Raise ValueError if the run reads what it would replace in ``folder``."""
    replaced = [folder / name for name in (TRAINING_FOLDER, OBJECTIVES_FOLDER, "results.json")]
    for name, path in _paths(run, args, (*_ENCODERS, *_FILES)):
        if path.resolve() == folder.resolve() or any(_within(path, place) for place in replaced):
            raise ValueError(
                f"--{name} {path} lies in --output_dir {folder}, where this run would replace it: choose another "
                "--output_dir"
            )


def _paths(run: CorpusArguments, args: RunTrainingArguments, names: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """Yield the arguments of these names that are existing files or folders; of a teacher without its pooling."""
    for name in names:
        value = getattr(run, name, None) or getattr(args, name, None) or []
        for given in [value] if isinstance(value, str) else value:
            for path in (Path(given), Path(given.rpartition(":")[0] or given)):
                if path.exists():
                    yield name, path
                    break


def _within(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())
