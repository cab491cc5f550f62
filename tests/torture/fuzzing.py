"""What the fuzz tests share: calls in this process, the judgement of how a call ended, and strategies of nonsense.

A call may end in two ways: exit code 0, or exit code 2 with one line (or typer's own box for an option). Anything else
is a traceback. ``CSEKIT_TORTURE_LOG`` names a file that gets a line of JSON for each call.
"""

import copy
import json
import os
import random
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

SEED = int(os.environ.get("TORTURE_SEED", "0"))
LONGEST = 60  # seconds of one call
MEMORY = 6 << 30  # bytes that a call may take on top of what the process has


@dataclass
class Ended:
    """How a call ended: its exit code, what it printed, and the exception that was no exit."""

    code: int
    text: str
    error: BaseException | None = None

    def outcome(self) -> str:
        """Return ``held``, ``told`` or ``traceback``."""
        if self.error is not None or "Traceback (most recent call last)" in self.text:
            return "traceback"
        if self.code == 0:
            return "held"
        lines = [line for line in self.text.splitlines() if "error: " in line]
        usage = "─ Error ─" in self.text or "Usage" in self.text  # typer's own box for an option
        return "told" if self.code == 2 and (len(lines) == 1 or usage) else "traceback"


def minutes() -> float:
    """Return the minutes of each fuzz test; ``make torture`` shares its own among them."""
    return float(os.environ.get("CSEKIT_FUZZ_MINUTES", "0.2"))


class Stuck(BaseException):
    """A call took longer than ``LONGEST`` seconds."""


@contextmanager
def bounded() -> Iterator[None]:
    """Raise Stuck or MemoryError inside the context for a call without end."""

    def stop(number: int, frame: Any) -> None:
        raise Stuck(f"over {LONGEST} seconds")

    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LONGEST)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
        resource.setrlimit(resource.RLIMIT_AS, before)


def csekit(*words: object, typed: str | None = None) -> Ended:
    """Run the command ``csekit`` in this process."""
    from csekit.cli import main

    with bounded():
        try:
            found = CliRunner().invoke(main, [str(word) for word in words], input=typed, env={"CSEKIT_DATA": None})
        except Stuck as stuck:
            return Ended(1, "", stuck)
    error = None if isinstance(found.exception, SystemExit) else found.exception
    return Ended(found.exit_code, found.output, error)


def in_process(call: Callable[[], Any], capture: Any) -> Ended:
    """Call a script's function; ``capture`` is pytest's capfd."""
    capture.readouterr()
    code, error = 0, None
    with bounded():
        try:
            code = call()
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException as other:
            error = other
    printed = capture.readouterr()
    return Ended(code if isinstance(code, int) else 0, printed.out + printed.err, error)


def log(what: str, outcome: str, detail: str) -> None:
    """Append the outcome of one call to the file that ``CSEKIT_TORTURE_LOG`` names."""
    if path := os.environ.get("CSEKIT_TORTURE_LOG"):
        public = re.sub(r"(/[\w.+=-]+)+/", "", detail)[-2000:]
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"part": "fuzz", "what": what, "outcome": outcome, "detail": public}) + "\n")


class Wrong(AssertionError):
    """A call went on with an answer that is not the input's."""


@dataclass
class Fuzz:
    """Draws inputs for a test until its minutes are over, and collects the calls that ended badly.

    Arguments:
        what: the kind of input, for the log.
    """

    what: str
    tried: dict[str, int] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def judge(self, ended: Ended, given: object, wrong: str = "") -> None:
        """Count a call.

        Arguments:
            given: the input, to repeat it.
            wrong: what is silently wrong with its answer, if anything.
        """
        outcome = "silently wrong" if wrong else ended.outcome()
        self.tried[outcome] = self.tried.get(outcome, 0) + 1
        detail = ""
        if outcome in ("traceback", "silently wrong"):
            place = _place(ended.error)
            told = "".join(traceback.format_exception(ended.error)) if ended.error else ended.text
            detail = f"{given!r:.600}\n{wrong}\n{told[-1200:]}"
            self.broken.setdefault(f"{outcome}: {place or wrong or ended.text[-80:]}", detail)
        log(self.what, outcome, detail)

    def run(self, strategy: st.SearchStrategy[Any], body: Callable[[Any], None]) -> None:
        """Call the body with inputs of the strategy, and fail with all kinds of calls that ended badly."""
        stop = time.monotonic() + 60 * minutes()
        checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
        options = settings(
            max_examples=20,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=[*checks, HealthCheck.filter_too_much, HealthCheck.large_base_example],
        )
        for number in range(10**9):
            seed(f"{SEED} {self.what} {number}")(options(given(strategy)(body)))()
            if time.monotonic() > stop:
                break
        print(f"{self.what}: {self.tried}", file=sys.__stdout__)
        assert not self.broken, f"{len(self.broken)} kinds of failures\n" + "\n\n".join(
            f"== {name}\n{detail}" for name, detail in self.broken.items()
        )


def _place(error: BaseException | None) -> str:
    """Return where an exception was raised: the last line of csekit in its traceback, and its class."""
    if error is None:
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if re.search(r"/(modeling|encoding|evaluation|trainers|cli|experiments)/", f.filename)]
    last = (ours or frames)[-1:] or [None]
    where = f"{Path(last[0].filename).name}:{last[0].name}" if last[0] is not None else ""
    return f"{type(error).__name__} in {where}"


# Strategies

SIGNS = st.sampled_from("ab \"',;\t\n\r\\/{}[]<>&|#*`0159-+.:_%$~()\x00\ufeff٣é日\u2028")
TEXTS = st.text(SIGNS, max_size=12) | st.text(max_size=8)
_NUMBERS = "0 -1 1 2 nan inf -inf 1e999 1e-320 1_0 ٣ 0x1 -0 1.5 10000000000000 1e38 True 3.0 ² 1e"
_WORDS = (
    "none cls mean mask cpu cuda cuda:99 meta raw .. / /dev/null ~ {sentence} {mask} { a,b 1/2 0/1 9/3 %s ../x a/b/c "
    "é <script> -- float16 int8 bf16 all sts mteb: mteb:X : a:b"
)
NUMBERS = st.sampled_from(_NUMBERS.split())
WORDS = st.sampled_from([*_WORDS.split(), "", " ", "{sentence} {mask}", "\udcff", "\n", "x" * 300])
NASTY = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 1, 2**31, 2**63, 10**25, 0.5, -0.5, float("nan"), float("inf"), 1e308]),
    st.sampled_from(
        ["", "x", "1", "none", "../../x", "/etc/passwd", "a\nb", "<b>", "nan", [], {}, [[]], [None], [1], {"a": 1}]
    ),
    st.lists(st.integers(-3, 3), max_size=3),
    st.text(max_size=4),
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the place of every value inside a JSON value, itself included."""
    found = [at]
    members = value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
    for key, inner in members:
        found += paths(inner, (*at, key))
    return found


@st.composite
def changed(draw: Any, base: Any) -> Any:
    """A JSON value with one to three places replaced, removed or wrapped."""
    value = copy.deepcopy(base)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        place = draw(st.sampled_from(paths(value)))
        how = draw(st.sampled_from(["replace", "replace", "replace", "remove", "wrap", "deep", "rename"]))
        if not place:
            value = copy.deepcopy(draw(NASTY)) if how == "replace" and draw(st.integers(0, 9)) == 0 else value
            continue
        holder = value
        for key in place[:-1]:
            holder = holder[key]
        key = place[-1]
        if how == "remove":
            del holder[key]
        elif how == "wrap":
            holder[key] = [holder[key]]
        elif how == "deep":
            deep: Any = []
            for _ in range(draw(st.sampled_from([5, 150]))):
                deep = [deep]
            holder[key] = deep
        elif how == "rename" and isinstance(holder, dict):
            holder[draw(TEXTS)] = holder.pop(key)
        else:
            holder[key] = copy.deepcopy(draw(NASTY))  # a later place may be inside it
    return value


@st.composite
def damaged(draw: Any, base: bytes) -> bytes:
    """Bytes with some places cut, doubled or replaced."""
    data = bytearray(base)
    pieces = st.sampled_from(
        [b'"', b'"" ', b",", b"\t", b"\n", b"\r", b"\x00", b"\xff", b"\xef\xbb\xbf", b"{", b"]", b"[" * 3000]
    )
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        length = draw(st.sampled_from([0, 1, 1, 2, 9, 60, 4000]))
        how = draw(st.sampled_from(["cut", "double", "insert", "insert", "insert", "random"]))
        if how == "cut":
            del data[place : place + length]
        elif how == "double":
            data[place:place] = data[place : place + length]
        elif how == "insert":
            data[place:place] = draw(pieces)
        else:
            data[place : place + length] = draw(st.binary(max_size=4))
    return bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Write JSON that other writers would refuse: NaN, halves of surrogate pairs."""
    path.write_text(json.dumps(value), encoding="utf-8")


def tiny(folder: Path) -> Path:
    """Write a tiny BERT with its tokenizer."""
    import runpy

    small = runpy.run_path(str(Path(__file__).parents[1] / "trainers" / "small_runs.py"))
    return Path(small["write_backbone"](folder))


def sentences(rows: int, number: int = 0) -> list[str]:
    words = "the a man woman dog cat plays sings runs red blue".split()  # noqa: SIM905
    chance = random.Random(number)
    return [" ".join(chance.choices(words, k=chance.randint(2, 6))) for _ in range(rows)]
