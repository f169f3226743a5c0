"""Pages in headless Chromium, as their readers see them. Screenshots lie in build/screenshots."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SCREENSHOTS = Path(__file__).parents[1] / "build" / "screenshots"
SIZES = {"wide": (1280, 900), "narrow": (390, 844)}


def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    return pytest.fail("Pages have to be looked at: install Chromium (apt-get install chromium).")


@contextmanager
def started() -> Iterator[Any]:
    """A browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium())
        yield browser
        browser.close()


class Watched:
    """A page, and what it said and asked for."""

    def __init__(self, browser: Any, url: str, size: str, scheme: str) -> None:
        width, height = SIZES[size]
        self.page = browser.new_page(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)

    def violations(self, *impacts: str) -> list[Any]:
        """What axe-core finds, contrast of all colours included; impacts: only these."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page, options={"resultTypes": ["violations"]}).response
        return [
            (problem["id"], [node["html"][:200] for node in problem["nodes"][:3]])
            for problem in found["violations"]
            if not impacts or problem["impact"] in impacts
        ]
