"""Fixtures that several packages' tests share: the data folder, a browser, and a tiny BERT with its tokenizer."""

import importlib
import os
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # one thread a worker; more of them than cores wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

WORDS = """the a man woman dog cat plays sings runs red blue fast slow guitar ball house tree is was in on .""".split()  # noqa: SIM905


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked ``gpu`` where there is none."""
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


def _package() -> dict[str, Any]:
    return {name: module for name, module in sys.modules.items() if name.split(".")[0] == "csekit"}


def _callables() -> dict[tuple[str, str], Any]:
    found = _package().items()
    return {(name, key): value for name, m in found for key, value in list(vars(m).items()) if callable(value)}


@pytest.fixture(scope="module", autouse=True)
def nothing_stays_patched() -> Iterator[None]:
    """A module's tests leave the package's functions as they found them: a patch that stays changes later tests. So
    does a module that was first imported under a patch, and keeps None for a function."""
    before, loaded = _callables(), set(_package())
    yield
    after = _callables()
    changed = [".".join(key) for key, value in before.items() if after.get(key, value) is not value]
    assert not changed, f"still patched after this module's tests: {', '.join(changed)}"
    own = {key for (name, key), value in after.items() if getattr(value, "__module__", None) == name}
    fresh = [(name, vars(module)) for name, module in _package().items() if name not in loaded]
    empty = [
        f"{name}.{key}"
        for name, held in fresh
        for key, value in held.items()
        if value is None and key in own and key not in held.get("__annotations__", {})  # these are None at first
    ]
    assert not empty, f"first imported under a patch: {', '.join(empty)}"


@pytest.fixture
def no_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where an encoder is loaded, by whatever module; those that hold the function are imported before."""
    for name in (
        "csekit.encoding.deploy",
        "csekit.encoding.stored",
        "csekit.trainers.data.teachers",
        "csekit.trainers.export_check",
    ):
        importlib.import_module(name)
    for module in [*_package().values()]:
        if vars(module).get("load_encoder") is not None:
            monkeypatch.setattr(module, "load_encoder", None)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder named by CSEKIT_DATA; tests that ask for it skip without it."""
    folder = os.environ.get("CSEKIT_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("CSEKIT_DATA must name the folder with senteval/")
    return Path(folder)


@pytest.fixture(scope="session")
def host_waits() -> Any:
    """``with host_waits() as waits``: ``waits.found`` lists what would make the host wait for a GPU."""
    return runpy.run_path(str(Path(__file__).parent / "tests" / "host_waits.py"))["HostWaits"]


BROWSERS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture
def bf16_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in bfloat16 where it is asked for, on any processor."""
    for module in ("csekit.trainers.arguments", "csekit.encoding.fast_cpu"):
        monkeypatch.setattr(f"{module}.computes_bf16", lambda device: True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium: the one that CSEKIT_CHROMIUM names, the system's, or playwright's own."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        named = os.environ.get("CSEKIT_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
        program = named or running.chromium.executable_path
        if not Path(program).exists():
            pytest.skip("no Chromium found: install chromium, or name one in CSEKIT_CHROMIUM")
        started = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    from transformers import BertTokenizer

    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    return BertTokenizer(vocab={word: i for i, word in enumerate(vocab)}, model_max_length=32)


@pytest.fixture
def tiny_bert(tiny_tokenizer: Any) -> Any:
    import torch
    from transformers import BertConfig, BertModel

    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(tiny_tokenizer),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=40,
        )
        return BertModel(config, add_pooling_layer=False)


@pytest.fixture
def tiny_folder(tmp_path: Path, tiny_bert: Any, tiny_tokenizer: Any) -> Path:
    """A plain Transformers folder with the two."""
    folder = tmp_path / "tiny-bert"
    tiny_bert.save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder
