"""The documentation builds without a warning, and asks no other server for anything."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import csekit

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("mkdocs", "material", "mkdocstrings_handlers"):
        if importlib.util.find_spec(module) is None:
            pytest.skip("needs the extra docs")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert run.returncode == 0, run.stderr
    assert "WARNING" not in run.stderr
    return out


def test_every_page_is_there_and_the_readme_is_the_first(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / page.stem / "index.html").exists()
    first = (site / "index.html").read_text(encoding="utf-8")
    assert "Two commands" in first
    assert 'href="evaluation/"' in first  # its links lead to pages of the site
    for page in ("quickstart", "architecture", "results"):
        assert first.index(f'href="{page}/"') < first.index('class="md-content"'), f"{page} is not in the menu"
    assert (site / "files/examples/configs/diffcse-bert-base.yaml/index.html").exists()


def test_the_reference_comes_from_the_docstrings(site: Path) -> None:
    pages = [site / f"api-{room}" / "index.html" for room in ("modeling", "trainers", "encoding", "evaluation")]
    api = "".join(page.read_text(encoding="utf-8") for page in pages)
    for name in (*csekit.__all__, "info_nce"):
        found = name == "__version__" or re.search(rf'id="csekit\.[\w.]+\.{name}"', api)
        assert found, f"{name} is not in docs/api-*.md"
    assert "hard_negative_weight" in api and "MSSE Eq. 4" in api
    assert not re.search(r":(class|func|meth):", api)  # roles are written out


def test_each_room_has_a_page_of_its_api(site: Path) -> None:
    for room in ("modeling", "trainers", "encoding", "evaluation"):
        page = (site / f"api-{room}" / "index.html").read_text(encoding="utf-8")
        found = set(re.findall(r'id="csekit\.(\w+)\.', page))
        assert found == {room}


def test_the_first_screen_leads_on(site: Path) -> None:
    first = (site / "index.html").read_text(encoding="utf-8")
    content = first[first.index('class="md-content"') :]
    for page in ("quickstart", "methods", "results"):
        assert content.index(f'href="{page}/"') < content.index("pip install")


def test_an_option_is_not_broken_at_its_hyphens(site: Path) -> None:
    page = (site / "methods" / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<code>[^<]*--\w", page.replace("<pre>", ""))


BROKEN = """() => [...document.querySelectorAll('.md-content code .word')].filter(word => {
    const line = parseFloat(getComputedStyle(word).fontSize) * 2, box = word.getBoundingClientRect();
    return box.height > line && box.width < innerWidth / 2; }).map(word => word.textContent)"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["commands", "train"])
def test_no_option_stands_on_two_lines_in_a_browser(site: Path, browser: Any, name: str, width: int) -> None:
    """On a phone --method was broken behind its hyphens."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto((site / name / "index.html").as_uri())
    assert page.locator(".md-content code .word").count() > 3
    assert page.evaluate(BROKEN) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(
            r'(?:<script[^>]+src|<link[^>]+rel="stylesheet"[^>]+href|<img[^>]+src)="https?:', text
        ), page
