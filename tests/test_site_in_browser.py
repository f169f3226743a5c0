"""The site that `make docs` builds, in headless Chromium: wide and light, narrow and dark.

The screenshots lie in build/screenshots afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from browsing import SCREENSHOTS, Watched
from test_site import needs_mkdocs, whole_site

pytestmark = needs_mkdocs
PAGES = ("index", "methods", "auto", "drafters/sps")
"""They have code, tables that scroll, links in texts and long names."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the site, served: its search doesn't work from a folder."""
    folder = whole_site(tmp_path_factory)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("size", "scheme"), [("wide", "light"), ("narrow", "dark")])
@pytest.mark.parametrize("name", PAGES)
def test_a_page(browser: Any, address: str, name: str, size: str, scheme: str) -> None:
    """axe-core finds nothing, the page is no wider than the window, nothing is asked of another
    host, and no script fails."""
    watched = Watched(browser, f"{address}{name}.html", size, scheme)
    page = watched.page
    page.wait_for_load_state("networkidle")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"site-{Path(name).name}-{size}-{scheme}.png")
    assert watched.violations() == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [asked for asked in watched.asked if not asked.startswith(address)] == []
    assert watched.said == []
    page.close()


def test_a_table_is_scrolled_by_the_keyboard(browser: Any, address: str) -> None:
    page = Watched(browser, f"{address}auto.html", "narrow", "light").page
    table = page.locator(".md-typeset__scrollwrap").last
    table.focus()
    assert table.evaluate("table => table.scrollWidth > table.clientWidth")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.activeElement.scrollLeft > 0", timeout=60_000)
    page.close()


def test_the_search_finds_a_page(browser: Any, address: str) -> None:
    page = Watched(browser, f"{address}index.html", "wide", "light").page
    page.keyboard.press("/")
    page.keyboard.type("speculative_config")
    page.wait_for_selector(".md-search a[href*='coming-from']", timeout=60_000)
    page.close()
