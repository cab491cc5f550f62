"""The settings that decide a run's result, recorded at its start. A resumed run must have the same ones.

``training/settings.json`` holds them flat, under the names of the command line. Settings that change no result are
free: logging, data loader workers, paths of outputs, the Hub.
"""

import hashlib
import json
import logging
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase, TrainingArguments

from csekit.encoding.provenance import write_json
from csekit.encoding.stores import differences

logger = logging.getLogger(__name__)

SETTINGS = "settings.json"
_FREE_PREFIXES = ("_", "logging_", "log_", "hub_", "push_to_hub", "trackio_", "include_", "ddp_", "geometry")
_FREE = {
    "allow_changed",
    "batch_eval_metrics",
    "cache_chunk_size",  # the same loss and gradient in less memory
    "dataloader_in_order",
    "dataloader_multiprocessing_context",
    "dataloader_num_workers",
    "dataloader_persistent_workers",
    "dataloader_pin_memory",
    "dataloader_prefetch_factor",
    "debug",
    "disable_tqdm",
    "do_eval",
    "do_predict",
    "do_train",
    "eval_accumulation_steps",
    "local_rank",
    "output_dir",
    "parallelism_config",
    "per_device_eval_batch_size",
    "project",
    "report_to",
    "restore_callback_states_from_checkpoint",
    "resume_from_checkpoint",
    "run_name",
    "save_on_each_node",
    "save_total_limit",
    "skip_memory_metrics",
    "torch_empty_cache_steps",
    "use_cpu",  # the machine's
}
#: The length of a training may grow where the learning rate does not depend on it.
_LENGTH = ("max_steps", "num_train_epochs")
_CONSTANT = ("constant", "constant_with_warmup")
#: Settings that are None or a mapping whose fields the user names.
_GIVEN = ("lora", "lr_scheduler_kwargs")


class SettingsChangedError(ValueError):
    """A resumed run has other settings than the run that it continues."""


@dataclass
class RunSettings:
    """The content of ``settings.json``.

    Arguments:
        settings: names to plain values.
        run: identity of the run, which its checkpoints' manifests repeat.
        lineage: the runs whose checkpoints count, and the last step of each; None: every step.
        changes: what ``allow_changed`` let pass: name, old and new value.
    """

    settings: dict[str, Any]
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    lineage: dict[str, int | None] = field(default_factory=dict)
    changes: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lineage.setdefault(self.run, None)

    def write(self, training: Path) -> None:
        """Write the file into a run's ``training`` folder, in one step."""
        write_json(training / SETTINGS, vars(self))

    @classmethod
    def read(cls, training: Path) -> "RunSettings | None":
        """Return the record of a run; None if there is none, as in runs of earlier releases.

        Raises:
            ValueError: the file is no such record.
        """
        file = training / SETTINGS
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{file}: not the settings of a run: {error}") from None

    def continued(self, new: Mapping[str, Any], allowed: Sequence[str], file: Path, step: int | None) -> "RunSettings":
        """Return the record of a run that continues this one.

        Arguments:
            new: its settings.
            allowed: names, or their first parts (``corpus``), that may differ.
            file: the record's file, for messages.
            step: the step of the checkpoint that the user named; None for the last one.

        Raises:
            SettingsChangedError: other settings differ; the message names each with its old and new value.
            ValueError: ``allowed`` holds a name that is no setting.
        """
        known = {name for full in {**self.settings, **new} for name in (full, full.split(".")[0])}
        if unknown := sorted(set(allowed) - known):
            raise ValueError(f"allow_changed must name settings, got {unknown[0]!r}: {file} lists them")
        compared = _compared(self.settings, new)
        old, now = ({name: settings.get(name) for name in compared} for settings in (self.settings, new))
        found = [change for change in differences(old, now) if not _is_longer(change, new)]
        refused = [change for change in found if not {change[0], change[0].split(".")[0]} & set(allowed)]
        if refused:
            told = "; ".join(f"{name} was {before!r} and is {after!r} now" for name, before, after in refused)
            names = dict.fromkeys(name.split(".")[0] for name, _, _ in refused)
            raise SettingsChangedError(
                f"{file}: {told}: continue with the old values{_intervals(refused)}, or say that you mean it with "
                f"--allow_changed {' '.join(names)}"
            )
        changes = [{"name": name, "old": before, "new": after} for name, before, after in found]
        if not changes and step is None:
            return RunSettings(dict(new), self.run, self.lineage, self.changes)
        lineage = {run: step if last is None else last for run, last in self.lineage.items()}
        return RunSettings(dict(new), lineage=lineage, changes=[*self.changes, *changes])


def _compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> set[str]:
    """Return the names that both records have, since another release has further ones, and all fields of the mappings
    in ``_GIVEN`` that both know: a field that was not given is None."""
    known = [{name.split(".")[0] for name in settings} for settings in (old, new)]
    given = {name for name in _GIVEN if all(name in parents for parents in known)}
    return {*(old.keys() & new.keys()), *(name for name in old.keys() ^ new.keys() if name.split(".")[0] in given)}


def _intervals(refused: Sequence[tuple[str, Any, Any]]) -> str:
    """Return the options that keep the old intervals, in brackets. Their defaults follow the length of the run, so
    that they change without being given. The default of ``save_steps`` is ``eval_steps``."""
    old = {name: before for name, before, _ in refused if name in ("eval_steps", "save_steps") and before is not None}
    if old.get("save_steps") == old.get("eval_steps"):
        old.pop("save_steps", None)
    return f" ({' '.join(f'--{name} {value}' for name, value in old.items())})" if old else ""


def _is_longer(change: tuple[str, Any, Any], new: Mapping[str, Any]) -> bool:
    name, old, now = change
    constant = new.get("lr_scheduler_type") in _CONSTANT
    return name in _LENGTH and constant and isinstance(now, int | float) and isinstance(old, int | float) and now > old


def argument_settings(args: TrainingArguments) -> dict[str, Any]:
    """Return the training arguments that decide the result, and the number of processes."""
    chosen = {
        f.name: getattr(args, f.name)
        for f in fields(args)
        if f.name not in _FREE and not f.name.startswith(_FREE_PREFIXES) and not f.name.endswith("_token")
    }
    return plain({**chosen, "world_size": args.world_size})


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON values: nested ones flat with dotted names, folders as their last part."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        value = getattr(value, "value", value)  # of an enumeration
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": inner for key, inner in plain(value).items()} or {name: None}
        elif isinstance(value, list | tuple | set):
            flat[name] = [_scalar(item) for item in value]
        else:
            flat[name] = _scalar(value)
    return flat


def _scalar(value: Any) -> Any:
    value = getattr(value, "value", value)
    if isinstance(value, str) and Path(value).is_absolute():
        return Path(value).name
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def config_settings(config: Any) -> dict[str, Any]:
    """Return the fields of a model's config under the names of the command line: ``temperature``, ``mlm_weight``, …;
    those of the encoder as ``encoder.…``."""
    values = config.to_dict()
    encoder, objectives = values.pop("encoder_config", None) or {}, values.pop("objectives", None) or []
    skipped = ("transformers_version", "architectures", "_name_or_path", "dtype", "torch_dtype")
    flat = {name: value for name, value in values.items() if name not in skipped and not name.startswith("_")}
    flat["objectives"] = [objective["name"] for objective in objectives]
    for objective in objectives:
        flat |= {f"{objective['name']}_{name}": value for name, value in objective.items() if name != "name"}
    flat["encoder"] = {n: v for n, v in encoder.items() if n not in skipped and not n.startswith("_")}
    return plain(flat)


def digest(texts: Iterable[str]) -> str:
    """Return a checksum of texts in their order."""
    state = hashlib.sha256()
    for text in texts:
        state.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return state.hexdigest()[:16]


def array_digest(*arrays: np.ndarray) -> str:
    """Return a checksum of arrays."""
    state = hashlib.sha256()
    for array in arrays:
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()[:16]


def vocabulary_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a checksum of a tokenizer's vocabulary."""
    return digest(f"{token} {number}" for token, number in sorted(tokenizer.get_vocab().items()))
