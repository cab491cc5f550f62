"""What MkDocs needs beside the pages: the README as the first page, links to files of the repository as pages with the
file's text, cross-reference roles of the docstrings as code, and the repository's address."""

import os
import re
import subprocess
from pathlib import Path
from posixpath import normpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
_ROLE = re.compile(r":(?:class|func|meth|attr|mod|data):<code>~?([^<]*)</code>")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".md": "markdown"}


#: The first page has no table of contents, so that its code fits, and leads on to the guides.
_FRONT = """---
hide: [toc]
---
"""
_DOORS = """
[Quickstart](quickstart.md){ .md-button .md-button--primary } [Choose a method](methods.md){ .md-button }
[Results](results.md){ .md-button } [API](api.md){ .md-button }
"""
_LONGEST = 36  # characters of inline code that fit on a phone's line
_INLINE = re.compile(r"(?<!<pre>)<code>([^<]*)</code>")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Link the repository: the variable CSEKIT_REPOSITORY, else the address that the clone came from."""
    address = os.environ.get("CSEKIT_REPOSITORY") or _origin()
    if address:
        config.repo_url = address
        config.repo_name = "/".join(address.rstrip("/").split("/")[-2:])
    return config


def _origin() -> str | None:
    command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return None
    address = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", found).removesuffix(".git")
    return address if re.fullmatch(r"https://[\w.-]+/[\w./-]+", address) else None


def _moved(target: str, base: str) -> str:
    """Where a link of a page in ``base`` (a folder of the repository) leads on the site."""
    path = normpath(f"{base}/{target}")
    if path == "README.md":
        return "index.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}.md"


def _with_moved_links(text: str, base: str) -> tuple[str, set[str]]:
    """The text with the site's links, and the files of the repository that it needs pages for."""
    needed = {normpath(f"{base}/{target}") for target, _ in _LINK.findall(text)}
    text = _LINK.sub(lambda link: f"]({_moved(link[1], base)}{link[2] or ''})", text)
    return text, {path for path in needed if not path.startswith("docs/") and path != "README.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    readme, needed = _with_moved_links((ROOT / "README.md").read_text(encoding="utf-8"), ".")
    head, tagline, rest = readme.split("\n\n", 2)
    files.append(File.generated(config, "index.md", content=f"{_FRONT}{head}\n\n{tagline}\n{_DOORS}\n{rest}"))
    for page in Path(config.docs_dir).glob("*.md"):
        needed |= _with_moved_links(page.read_text(encoding="utf-8"), "docs")[1]
    for path in sorted(needed):
        files.append(_listing(config, path))
    return files


def _listing(config: MkDocsConfig, path: str) -> File:
    """A file or a folder of the repository as a page that stands in no menu."""
    file = ROOT / path
    if file.is_dir():
        text = "\n".join(
            f"- `{child.name}`" for child in sorted(file.iterdir()) if not child.name.startswith(("_", "."))
        )
    else:
        text = f"~~~~{_LANGUAGES.get(file.suffix, 'text')}\n{file.read_text(encoding='utf-8')}\n~~~~"
    page = File.generated(config, f"files/{path}.md", content=f"# {path}\n\n{text}\n")
    page.inclusion = page.inclusion.NOT_IN_NAV
    return page


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri in ("index.md",) or page.file.src_uri.startswith("files/"):
        return markdown
    return _with_moved_links(markdown, "docs")[0]


def on_page_content(html: str, **_: Any) -> str:
    return _INLINE.sub(_unbroken, _ROLE.sub(r"<code>\1</code>", html))


def _unbroken(code: re.Match[str]) -> str:
    """Keep the words of inline code whole: browsers break lines behind hyphens, as in ``--method``. Longer ones may
    break, so that no page is wider than a phone."""

    def marked(word: re.Match[str]) -> str:
        return f'<span class="word">{word[0]}</span>' if len(word[0]) <= _LONGEST else word[0]

    words = re.sub(r"\S*-\S*", marked, code[1])
    return f"<code>{words}</code>"
