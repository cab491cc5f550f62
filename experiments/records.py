"""The records of a plan's trials on disk.

A plan has two folders. ``output_dir/<experiment>/<trial>/`` is the working folder of a run, with ``trial.json`` (its
arguments, how often it was started, how it ended, ``killed`` if its driver was) and ``log.txt``.
``results_dir/<plan>/<experiment>/<trial>.json`` is the record: the run's ``results.json`` with one more key,
``trial``. A record is never replaced by a run with other arguments. Paths of the machine are cut to their last part
before anything is recorded.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csekit.encoding.provenance import write_json
from csekit.evaluation.results import similarities_path
from experiments.plan import Plan
from experiments.processes import still_runs
from experiments.trial import PlanError, Trial

#: What Transformers reads as True.
TRUE = ("true", "t", "yes", "y", "1")


@dataclass(frozen=True)
class TrialRecords:
    """The two folders of a plan, and what they say of each trial."""

    plan: Plan
    output_dir: Path
    results_dir: Path

    def folder(self, trial: Trial) -> Path:
        return self.output_dir / trial.experiment / trial.name

    def path(self, trial: Trial) -> Path:
        plan = self._measured_in(trial) or self.plan.name
        return self.results_dir / plan / trial.experiment / f"{trial.name}.json"

    def result(self, trial: Trial) -> dict[str, Any] | None:
        """Return the record of a finished trial, None before that. Record a run that finished after its driver ended.

        Raises:
            PlanError: a record or a working folder of this name belongs to other arguments.
        """
        recorded = load(self.path(trial))
        if recorded is not None:
            self._must_match(trial, recorded.get("trial", {}), self.path(trial))
            return recorded
        if self._measured_in(trial):
            return None
        state = self.state(trial)
        if state is None:
            folder = self.folder(trial)
            # a driver that was killed while it noted the start leaves a draft
            if folder.exists() and any(not path.name.startswith(".trial.json.") for path in folder.iterdir()):
                raise PlanError(f"{folder} holds files but no trial.json: move it away, or run elsewhere")
            return None
        self._must_match(trial, state, self.folder(trial))
        if still_runs(self.folder(trial)):  # an evaluation of several suites writes its file after each
            return None
        result = load(self.folder(trial) / "results.json")
        return None if result is None else self._record(trial, result, state)

    def state(self, trial: Trial) -> dict[str, Any] | None:
        """Return what ``trial.json`` says, None before the first start."""
        return load(self.folder(trial) / "trial.json")

    def waits_for(self, trial: Trial) -> str | None:
        """Return why a trial cannot start: another one, whose folder it reads, has not finished or lost its folder."""
        for label in trial.needs:
            other = self.plan.trial(label)
            if self.result(other) is None:
                return f"{label}, which has no result"
            if not (self.folder(other) / "results.json").is_file():
                return (
                    f"the folder of {label}, which is not there: bring it back to {self.folder(other)}, or move "
                    f"{self.path(other)} away to run it again"
                )
        return None

    def begin(self, trial: Trial) -> bool:
        """Note that a trial starts. Return True where it was started before and goes on from its last checkpoint.

        With ``save_only_model`` there is no such checkpoint: the trial starts anew in an empty folder.
        """
        starts = int((self.state(trial) or {}).get("starts", 0)) + 1
        resumes = starts > 1 and trial.setting("save_only_model", "False").lower() not in TRUE
        if starts > 1 and not resumes:
            shutil.rmtree(self.folder(trial))
        self._note(trial, {"status": "running", "starts": starts})
        return resumes

    def end(self, trial: Trial, status: str, returncode: int, tail: list[str] | None = None) -> None:
        """Note how a trial ended: ``finished``, ``failed`` or ``interrupted``."""
        starts = (self.state(trial) or {}).get("starts", 1)
        ending: dict[str, Any] = {"status": status, "starts": starts, "returncode": returncode}
        if tail is not None:
            ending["tail"] = self._public(trial, tail)
        self._note(trial, ending)

    def note_killed(self, trial: Trial) -> None:
        """Note as ``killed`` what ``trial.json`` calls running: the driver that would have noted the end is gone."""
        state = self.state(trial)
        if state is not None and state.get("status") == "running":
            write_json(self.folder(trial) / "trial.json", {**state, "status": "killed"})

    def drop_checkpoints(self, trial: Trial) -> None:
        """Delete the checkpoints of a finished trial."""
        shutil.rmtree(self.folder(trial) / "training", ignore_errors=True)

    def drop_models(self, trial: Trial) -> None:
        """Delete the checkpoints and the weights of a finished trial. Its results stay."""
        self.drop_checkpoints(trial)
        for path in self.folder(trial).rglob("*.safetensors"):
            path.unlink()

    def _measured_in(self, trial: Trial) -> str | None:
        return self.plan.experiments[trial.experiment].measured_in

    def _note(self, trial: Trial, state: Mapping[str, Any]) -> None:
        self.folder(trial).mkdir(parents=True, exist_ok=True)
        write_json(self.folder(trial) / "trial.json", {**self._identity(trial), **state})

    def _identity(self, trial: Trial) -> dict[str, Any]:
        arguments: dict[str, Any] = {"command": list(trial.command), **trial.arguments}
        if trial.preset is not None:
            arguments["config_sha256"] = hashlib.sha256(trial.preset.read_bytes()).hexdigest()
        if trial.needs:  # the same words over another earlier run are another run
            arguments["needs"] = {label: self._identity(self.plan.trial(label))["hash"] for label in trial.needs}
        arguments = self._public(trial, arguments)
        digest = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()
        return {"kind": trial.kind, "hash": digest, "arguments": arguments}

    def _must_match(self, trial: Trial, found: Mapping[str, Any], where: Path) -> None:
        wanted = self._identity(trial)
        if found.get("hash") == wanted["hash"]:
            return
        old, new = found.get("arguments", {}), wanted["arguments"]
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        changes = "; ".join(f"{name}: {old.get(name)!r} there, {new.get(name)!r} now" for name in names)
        raise PlanError(
            f"{where} belongs to other arguments ({changes or 'unknown ones'}). Nothing was overwritten: "
            "move it away, or choose another --name and another --output_dir"
        )

    def _record(self, trial: Trial, result: dict[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
        own = {**self._identity(trial), "starts": state.get("starts", 1)}
        record: dict[str, Any] = {**self._public(trial, result), "trial": own}
        path = self.path(trial)
        path.parent.mkdir(parents=True, exist_ok=True)
        entry = record.pop("similarities", None) or {}
        source = self.folder(trial) / entry.get("file", "none")
        if trial.kind in ("final", "command") and source.is_file():
            record["similarities"] = {**entry, "file": similarities_path(path).name}
            draft = path.with_name(f".{path.name}.{os.getpid()}.npz")
            shutil.copyfile(source, draft)
            os.replace(draft, similarities_path(path))
        write_json(path, record)
        return record

    def _public(self, trial: Trial, value: Any) -> Any:
        """Return a copy in which paths of this machine are cut to their last part."""
        words = [*trial.command, *trial.arguments.values(), str(self.folder(trial).absolute()), str(Path.cwd())]
        flat = [inner for word in words for inner in ([word] if isinstance(word, str) else word)]
        outside = [word for word in flat if os.path.isabs(word) or word.startswith("..")]
        outside += [str((self.output_dir / label).absolute()) for label in trial.needs]
        found = {word.rstrip("/") for word in outside} | {str(Path(word).resolve()) for word in outside}
        return _cut(value, sorted(found - {"", "/"}, key=len, reverse=True))


def _cut(value: Any, paths: Sequence[str]) -> Any:
    """Cut each of ``paths``, the longest first, to its last part wherever it occurs in ``value``."""
    if isinstance(value, dict):
        return {key: _cut(inner, paths) for key, inner in value.items()}
    if isinstance(value, list):
        return [_cut(inner, paths) for inner in value]
    if isinstance(value, str):
        for path in paths:
            value = re.sub(re.escape(path) + r"(?![\w.-])", Path(path).name, value)
    return value


def load(path: Path) -> dict[str, Any] | None:
    """Read a JSON object. Return None where the file is absent or was cut off while being written."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None
