"""Grow a results file by suites: keep what it holds, and write the scores of each suite when it finishes."""

import logging
from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from filelock import FileLock

from csekit.encoding.provenance import environment
from csekit.evaluation.results import plain, read_results, read_similarities, same_run, write_results

logger = logging.getLogger(__name__)

_WAIT = 60.0  # seconds; another command holds the file for as long as it takes to read and write it


class SuiteResults:
    """The results file ``NAME.json`` of one encoder.

    Layout: ``run`` (encoder and weights), ``name``, ``title``, ``suites`` (key to settings, environment), one entry of
    scores per suite, ``seconds``; similarities beside it.

    Arguments:
        path: path that ends in .json.
        run: description of the encoder; a file of another encoder is never changed.
        name: name of the encoder.
        title: title of its row in tables. None: the file's, or the name.
        settings: key to settings of the suites to come.
        overwrite: start the file anew.
        data: key to the checksums of the suites' data (``suites.data_checksums``).

    Raises:
        FileExistsError: the file is of another encoder, or holds one of these suites with other settings or of other
            data.
        ValueError: not a results file.
    """

    def __init__(
        self,
        path: str | Path,
        run: Mapping[str, Any],
        name: str,
        title: str | None,
        settings: Mapping[str, Mapping[str, Any]],
        overwrite: bool = False,
        data: Mapping[str, Set[str]] = MappingProxyType({}),
    ) -> None:
        self.path, self.settings, self.data = Path(path), settings, data
        if self.path.suffix != ".json":
            raise ValueError(f"--output must end in .json, got {self.path.name!r}")
        self._content: dict[str, Any] = {"title": name, "suites": {}, "seconds": {}}
        self._similarities: dict[str, Any] = {}
        self._anew = overwrite
        if self.path.exists() and not overwrite:
            self._resume(run)
        self._content |= {"run": run, "name": name, "backbone": name, "title": title or self._content["title"]}

    def _resume(self, run: Mapping[str, Any]) -> None:
        old = self._read(run)
        for key, settings in self.settings.items():
            held = ((old.get("suites") or {}).get(key) or {}).get("settings")
            if held is not None and held != settings:
                raise FileExistsError(
                    f"{self.path}: holds {key} with {held}, now it is {dict(settings)}; choose another name or "
                    "--overwrite"
                )
        for key, checksums in self.data.items():
            if checksums and not _checksums(old.get(key)) <= checksums:
                raise FileExistsError(
                    f"{self.path}: holds {key} of other data, whose checksum differs; choose another name or "
                    "--overwrite"
                )
        if old.pop("similarities", None):
            self._similarities = read_similarities(self.path)
        self._content |= {name: value for name, value in old.items() if value is not None}

    def _read(self, run: Any) -> dict[str, Any]:
        """Read the file. Raises FileExistsError: it is of another encoder."""
        old = read_results(self.path)
        if not same_run(old.get("run"), plain(run)):
            raise FileExistsError(f"{self.path}: holds the results of another run; choose another name or --overwrite")
        return old

    def _take_added(self) -> None:
        """Take the suites that another command has added to the file meanwhile."""
        old = self._read(self._content["run"])
        added = [key for key in old.get("suites") or {} if key not in self._content["suites"]]
        for key in added:
            self._content[key], self._content["suites"][key] = old.get(key), old["suites"][key]
            self._content["seconds"][key] = (old.get("seconds") or {}).get(key)
        if added and old.get("similarities"):
            self._similarities = read_similarities(self.path) | self._similarities

    def add(self, key: str, scores: Any, seconds: float) -> Path:
        """Write the scores of a suite: an object with ``to_dict`` and optionally ``similarities``. Suites that another
        command has added to the file since it was read stay in it.

        Raises:
            FileExistsError: another command has written the results of another encoder there.
        """
        found = environment()
        with _alone(self.path):
            return self._write(key, scores, seconds, found)

    def _write(self, key: str, scores: Any, seconds: float, found: Mapping[str, Any]) -> Path:
        if self.path.exists() and not self._anew:
            self._take_added()
        self._anew = False
        self._content[key] = scores.to_dict()
        self._content["suites"][key] = {"settings": self.settings[key], "environment": found}
        self._content["environment"] = found
        parts = {**self._content["seconds"], key: round(seconds, 1)}
        self._content["seconds"] = {**parts, "total": round(sum(v or 0 for k, v in parts.items() if k != "total"), 1)}
        if hasattr(scores, "similarities"):
            self._similarities |= scores.similarities()
        return write_results(self.path, self._content, self._similarities or None, overwrite=True)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one process at a time read and write a results file inside the context, by a lock ``.NAME.json.lock``.

    Where it cannot be locked, the scores are written nevertheless, with a warning.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(path.with_name(f".{path.name}.lock"), timeout=_WAIT))
        except (OSError, NotImplementedError) as error:
            logger.warning("%s is written without a lock (%s): let no other command add to it now", path, error)
        yield


def _checksums(section: Any) -> set[str]:
    """Return the checksums of data in a section of a results file, at any depth."""
    if not isinstance(section, Mapping):
        return set()
    own = {section["checksum"]} if isinstance(section.get("checksum"), str) else set()
    return own.union(*(_checksums(value) for value in section.values()))
