"""A real Chromium that looks at a server's pages, and remembers everything that a person should never see."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()


def chromium() -> str:
    """Where a browser is; without one the test says so, and fails where SWAMP_REQUIRE names it."""
    named = os.environ.get("SWAMP_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        said = "there is no Chromium on this machine (apt install chromium, or SWAMP_CHROMIUM=/path/to/it)"
        pytest.fail(said) if "browser" in os.environ.get("SWAMP_REQUIRE", "").split(",") else pytest.skip(said)
    return found


@dataclass
class Visit:
    """One tab."""

    page: Any
    url: str
    pictures: Path
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        answer = self.page.goto(self.url + path)
        assert answer is not None and answer.status == 200, (path, answer and answer.status)

    def see(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for(timeout=30_000)

    def wait(self, selector: str, seconds: float = 60) -> Any:
        return self.page.wait_for_selector(selector, timeout=seconds * 1000)

    def picture(self, name: str) -> Path:
        self.pictures.mkdir(parents=True, exist_ok=True)
        file = self.pictures / f"{name}.png"
        self.page.screenshot(path=str(file), full_page=True)
        return file

    def mark(self) -> None:
        """What a reload of the page would take away."""
        self.page.evaluate("window.untouched = true")

    def check_not_reloaded(self) -> None:
        assert self.page.evaluate("window.untouched === true")

    def check_clean(self) -> None:
        """No error in the console, no request to another host."""
        assert self.complaints == []
        assert {urlsplit(url).netloc for url in self.asked} == {urlsplit(self.url).netloc}


@contextmanager
def browsing() -> Iterator[Any]:
    """A browser for many tabs: to start one takes four seconds of processor time. While it is there, this thread cannot
    run an event loop of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visiting(browser: Any, login: str, url: str, pictures: Path, **context: Any) -> Iterator[Visit]:
    """A person who has never been here: nothing is left of whoever came before."""
    person = browser.new_context(viewport={"width": 1200, "height": 900}, **context)
    try:
        tab = person.new_page()
        visit = Visit(tab, url, pictures)
        tab.on("console", lambda said: visit.complaints.append(said.text) if said.type == "error" else None)
        tab.on("pageerror", lambda error: visit.complaints.append(str(error)))
        tab.on("request", lambda request: visit.asked.append(request.url))
        tab.on("dialog", lambda dialog: dialog.accept())
        tab.goto(login)
        yield visit
    finally:
        person.close()
