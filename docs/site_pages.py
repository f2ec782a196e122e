"""Makes a site of docs/ with mkdocs (`make site`): what lies outside, brought in; what is new, in the menu.

Pages are written for who reads them in the repository. Here README becomes the first page, other documents of the
repository become pages of their own, and links follow; a link to source code becomes its path.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPO = Path(__file__).resolve().parent.parent
OUTSIDE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "plugins/swamp-postgres/README.md": "plugins/swamp-postgres.md",
    "plugins/swamp-mongodb/README.md": "plugins/swamp-mongodb.md",
}
"""Documents outside docs/ and their place in the site."""
FOLDERS = {"Guides": "guides", "Recipes": "recipes", "Reference": "reference", "Explanation": "design"}
"""Sections of the menu that hold every page of a folder, in the order of mkdocs.yml and then of their names."""
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """A page that nobody has put into the menu comes at the end of its section."""
    listed = set(_pages(config.nav))
    for section in config.nav:
        (title, entries), *_ = section.items()
        if title in FOLDERS:
            here = sorted(f"{FOLDERS[title]}/{p.name}" for p in (REPO / "docs" / FOLDERS[title]).glob("*.md"))
            entries += [page for page in here if page not in listed]
    return config


def _pages(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    return [page for item in (entry.values() if isinstance(entry, dict) else entry) for page in _pages(item)]


def on_files(files: Files, config: Any) -> Files:
    for source, place in OUTSIDE.items():
        files.append(File.generated(config, place, content=(REPO / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    return followed(markdown, page.file.src_uri)


def followed(markdown: str, place: str) -> str:
    """The text of the page at `place` with its links as the site needs them; blocks of code are left alone."""
    source = next((s for s, to in OUTSIDE.items() if to == place), f"docs/{place}")
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    prose = [part if part.startswith("```") else LINK.sub(lambda m: _link(m, source, place), part) for part in parts]
    return "".join(prose)


def _link(match: re.Match[str], source: str, place: str) -> str:
    target = match["target"]
    if not target or ":" in target:
        return match[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    to = OUTSIDE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    if to is None:
        # Code and tests are not part of the site. What does not exist stays a link, so that the build fails.
        return f"{match['text']} (`{path}`)" if (REPO / path).exists() else match[0]
    there = posixpath.relpath(to, posixpath.dirname(place) or ".")
    return f"{match['image']}[{match['text']}]({there}{match['anchor'] or ''})"
