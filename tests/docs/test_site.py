"""The documentation as a site: it builds without a warning, holds every page, and asks no other host for anything."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
from reading import REPO

PICTURES = REPO / "docs" / "guides" / "pictures"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make site` builds it: strict, so that a link or an anchor that leads nowhere ends it."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-d", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=REPO, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_document_is_a_page(site: Path) -> None:
    documents = {p.relative_to(REPO / "docs").with_suffix("") for p in (REPO / "docs").rglob("*.md")}
    pages = {p.relative_to(site).with_suffix("") for p in site.rglob("*.html")}
    assert sorted(str(d) for d in documents if d.name != "README" and d not in pages) == []
    assert {Path("index"), Path("recipes/index"), Path("project/changelog"), Path("plugins/swamp-postgres")} <= pages


def test_every_page_is_in_the_menu(site: Path) -> None:
    menu = (site / "index.html").read_text()
    folders = ("guides", "recipes", "reference", "design", "plugins", "project")
    pages = [str(p.relative_to(site)) for folder in folders for p in (site / folder).glob("*.html")]
    assert [page for page in pages if f'href="{page}"' not in menu] == [] and len(pages) > 25


def test_links_lead_to_files_of_the_site(site: Path) -> None:
    lost = []
    for page in site.rglob("*.html"):
        if page.name != "404.html":  # whose links begin at the root of a server
            for link in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text()):
                if not re.match(r"[a-z]+:|//", link) and not (page.parent / html.unescape(link)).exists():
                    lost.append(f"{page.relative_to(site)}: {link}")
    assert lost == []


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    fetched = re.compile(r"""<(?:script|img|iframe|source)[^>]+src=["']?(?:https?:)?//|<link[^>]+stylesheet[^>]+//""")
    assert [str(p) for p in site.rglob("*.html") if fetched.search(p.read_text())] == []
    sheets = [*site.rglob("*.css"), *site.rglob("*.svg")]
    assert [str(p) for p in sheets if re.search(r"url\([\"']?(?:https?:)?//", p.read_text())] == []
    assert "fonts.g" not in (site / "index.html").read_text()


def test_links_out_of_the_documents_follow() -> None:
    sys.path.insert(0, str(REPO / "docs"))
    try:
        from site_pages import followed
    finally:
        sys.path.pop(0)
    assert followed("[a](../../README.md#install)", "guides/spark.md") == "[a](../index.md#install)"
    assert followed("[a](docs/guides/spark.md)", "index.md") == "[a](guides/spark.md)"
    assert followed("[a](../../Makefile)", "guides/spark.md") == "a (`Makefile`)"
    assert followed("[a](../../gone.md)", "guides/spark.md") == "[a](../../gone.md)"
    assert followed("```\n[a](../../Makefile)\n```", "guides/spark.md") == "```\n[a](../../Makefile)\n```"


def test_the_pictures_of_the_terminal_show_what_the_commands_print() -> None:
    sys.path.insert(0, str(REPO / "docs"))
    try:
        import pictures
    finally:
        sys.path.pop(0)
    for name, drawn in pictures.draw().items():
        kept = (PICTURES / f"{name}.svg").read_text()
        xml.fromstring(kept)
        assert headings(kept) == headings(drawn), f"python docs/pictures.py draws {name} again"
        assert not re.search(r"url\(.?http", kept)


def headings(svg: str) -> list[str]:
    """The commands and the names of columns: what does not change with the time and the machine."""
    texts = [html.unescape(t).replace("\xa0", " ") for t in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]
    return [t for t in texts if t.startswith("swamp ")] + [w for t in texts for w in re.findall(r"\b[A-Z]{4,}\b", t)]
