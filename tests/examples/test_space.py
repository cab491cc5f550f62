"""The demo, started as a user starts it and driven in a real headless browser."""

import importlib.util
import os
import runpy
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
APP = ROOT / "examples" / "space" / "app.py"
SENTENCES = ["the man plays guitar", "the dog runs fast", "a red ball", "the house is slow", "a woman sings", "a tree"]


@pytest.mark.slow
def test_it_says_what_is_missing(tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="needs the extra space")
    env = {name: value for name, value in os.environ.items() if not name.startswith("ENCODER")}
    run = subprocess.run([sys.executable, APP], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert run.returncode == 2
    assert "name two encoders, or set ENCODER_A and ENCODER_B" in run.stderr


def test_what_a_visitor_sends_is_bounded() -> None:
    """The page's own limits do not hold for its API."""
    gradio = pytest.importorskip("gradio", reason="needs the extra space")
    app = runpy.run_path(str(APP))
    encoded: list[list[str]] = []

    class Side:
        name = "a"
        corpus_NH = np.eye(30, dtype=np.float32)

        def unit(self, texts: list[str]) -> np.ndarray:
            encoded.append(texts)
            return np.ones((len(texts), 30), dtype=np.float32)

    corpus = [f"sentence {i}" for i in range(30)]
    for call in (
        lambda: app["neighbors"]([Side()], corpus, "x" * 1001, 5),
        lambda: app["heat_map"]([Side()], "x\n" * 501),
    ):
        with pytest.raises(gradio.Error, match="Give at most 1000 characters"):
            call()
    assert encoded == []
    for asked, found in ((10**9, 20), (-5, 1), (3, 3)):
        assert len(app["neighbors"]([Side()], corpus, "a", asked)[0]) == found


@pytest.fixture
def address(tmp_path: Path, tiny_folder: Path) -> Iterator[str]:
    pytest.importorskip("gradio", reason="needs the extra space")
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES) + "\n")
    for name in ("first", "second"):
        shutil.copytree(tiny_folder, tmp_path / name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(APP), "first", "--corpus", "corpus.txt", "--pooling", "mean", "--port", str(port)]
    env = {**os.environ, "GRADIO_ANALYTICS_ENABLED": "False", "ENCODER_B": "second"}
    log = open(tmp_path / "log.txt", "w")  # noqa: SIM115
    app = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            assert app.poll() is None, (tmp_path / "log.txt").read_text()
            try:
                urllib.request.urlopen(url, timeout=5).close()
                break
            except OSError:
                time.sleep(0.2)
        yield url
    finally:
        app.terminate()
        app.wait(60)
        log.close()


@pytest.fixture
def page() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra dev")
    names = (os.environ.get("CSEKIT_CHROMIUM"), "chromium-headless-shell", "chromium", "google-chrome")
    path = next((found for name in names if name and (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("needs a headless Chromium on the path, or the one that CSEKIT_CHROMIUM names")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.set_default_timeout(90_000)  # on a crowded machine the page takes more than 30 s to mount
        yield page
        browser.close()


def until(act: Callable[[], Any], sign: Any, attempts: int = 4) -> None:
    """Repeats `act` until `sign` is seen: a first attempt has once gone unanswered for 30 seconds."""
    from playwright.sync_api import TimeoutError as Late

    for attempt in range(attempts):
        act()
        try:
            return sign.wait_for(timeout=20_000)
        except Late as late:
            if attempt == attempts - 1:
                raise AssertionError(f"{sign} is not on the page:\n{sign.page.inner_text('body')}") from late


def search(page: Any, query: str) -> None:
    page.locator("#query textarea, #query input").first.fill(query)
    page.locator("#search").click()


def compare(page: Any, text: str) -> None:
    page.locator("#sentences textarea").fill(text)
    page.locator("#compare").click()


@pytest.mark.slow
def test_neighbours_and_heat_map_in_a_browser(address: str, page: Any) -> None:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    visible = page.locator(".cell-wrap:visible")
    until(lambda: search(page, SENTENCES[1]), visible.filter(has_text=SENTENCES[0]).nth(1))
    headers = page.locator("th:visible").all_inner_texts()
    assert any("first" in text for text in headers)
    assert any("second" in text for text in headers)
    cells = visible.all_inner_texts()
    assert not any(cell.strip() == SENTENCES[1] for cell in cells)  # the query itself is not its neighbour
    for sentence in (SENTENCES[0], *SENTENCES[2:]):
        assert sum(cell.strip() == sentence for cell in cells) >= 2, sentence  # the corpus has no more, on both sides

    page.get_by_role("tab", name="Similarity").click()
    image = page.locator("#heat_map img")
    until(lambda: compare(page, "the dog runs\nthe cat runs\na red ball"), image)
    assert image.evaluate("i => i.naturalWidth") > 600
    until(lambda: compare(page, "the dog runs"), page.get_by_text("Give 2 to 12 sentences, one a line; got 1.").first)
    assert not errors


def test_a_query_gets_the_nearest_of_the_corpus(tiny_folder: Path) -> None:
    pytest.importorskip("gradio", reason="needs the extra space")
    spec = importlib.util.spec_from_file_location("space_app", APP)
    assert spec is not None
    assert spec.loader is not None
    app = importlib.util.module_from_spec(spec)
    sys.modules["space_app"] = app
    spec.loader.exec_module(app)
    from csekit.encoding import load_encoder

    encoder = load_encoder(str(tiny_folder), pooling="mean")
    side = app.Side("a", encoder, app.unit(app.embed(encoder, SENTENCES)))
    (rows,) = app.neighbors([side], SENTENCES, SENTENCES[0], 3)
    cosines = side.corpus_NH @ side.corpus_NH[0]
    order = [i for i in sorted(range(len(SENTENCES)), key=lambda i: -cosines[i]) if i != 0][:3]
    assert rows == [[f"{cosines[i]:.3f}", SENTENCES[i]] for i in order]
