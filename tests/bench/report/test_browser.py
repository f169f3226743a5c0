"""report.html in a browser, as its reader sees it: headless Chromium, two widths, two schemes.

The screenshots lie in build/screenshots afterwards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import synthetic
from browsing import SCREENSHOTS, SIZES, Watched
from foretoken.bench.record import Results
from foretoken.bench.report.page import write_report

PIECE = 5000
PLAIN = ".wide { background: var(--card) !important }"
"""Tables without their shadow, before which axe-core can't tell contrast."""


def few(record: Results, *methods: str) -> Results:
    """Less of a record: axe-core takes its time for every element of a page."""
    record["runs"] = [run for run in record["runs"] if run["method"] in methods]
    for run in record["runs"]:
        run["by_task"] = {task: run["by_task"][task] for task in ("qa", "rag")}
    return record


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of made-up numbers with every section."""
    first = synthetic.results(temperatures=(0.0, 1.0), sizes=(1, 4))
    second = synthetic.results("bfloat16", temperatures=(0.0,), sizes=(1,), inflated="135m")
    folder = synthetic.write(
        tmp_path_factory.mktemp("report"),
        few(first, "autoregressive", "medusa_typical", "lookahead", "token_recycling"),
        few(second, "autoregressive", "lookahead"),
    )
    return write_report(folder, reference=True)[1]


def opened(browser: Any, file: Path, size: str, scheme: str) -> Watched:
    return Watched(browser, file.as_uri(), size, scheme)


def keep_screenshots(page: Any, name: str) -> None:
    """Of the whole page, in pieces: Chromium can't paint all of so long a page at once."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    width = page.viewport_size["width"]
    height = page.evaluate("document.documentElement.scrollHeight")
    for at, top in enumerate(range(0, height, PIECE), 1):
        clip = {"x": 0, "y": top, "width": width, "height": min(PIECE, height - top)}
        path = SCREENSHOTS / f"report-{name}-{at:02}.png"
        page.screenshot(path=path, full_page=True, clip=clip)


def open_all(page: Any) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")


def background(page: Any) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
def test_report_in_a_browser(browser: Any, page_file: Path, size: str, scheme: str) -> None:
    """No console message, no request, and nothing scrolls sideways but the tables themselves."""
    watched = opened(browser, page_file, size, scheme)
    keep_screenshots(watched.page, f"{size}-{scheme}")
    open_all(watched.page)
    assert watched.page.evaluate("document.documentElement.scrollWidth") == SIZES[size][0]
    assert not watched.said
    assert watched.asked == [page_file.as_uri()]
    watched.page.close()


@pytest.mark.parametrize(("size", "scheme"), [("wide", "light"), ("narrow", "dark")])
def test_report_is_accessible(browser: Any, page_file: Path, size: str, scheme: str) -> None:
    """axe-core finds nothing serious, contrast of all colours in both schemes included."""
    watched = opened(browser, page_file, size, scheme)
    open_all(watched.page)
    watched.page.add_style_tag(content=PLAIN)
    assert not watched.violations("serious", "critical")
    watched.page.close()


def test_the_colours_can_be_chosen(browser: Any, page_file: Path) -> None:
    """The reader's choice wins over the system's, both ways."""
    watched = opened(browser, page_file, "wide", "light")
    page = watched.page
    light = background(page)
    page.locator("label:has(#theme-dark)").click()
    dark = background(page)
    assert dark != light
    page.emulate_media(color_scheme="dark")
    assert background(page) == dark
    page.locator("label:has(#theme-light)").click()
    assert background(page) == light
    page.close()


def test_answers_can_be_chosen(browser: Any, page_file: Path) -> None:
    """A method's answers come and go with its box, by keyboard too."""
    watched = opened(browser, page_file, "wide", "light")
    open_all(watched.page)
    page = watched.page
    answers = page.locator(".answer:visible")
    before = answers.count()
    assert before == 2 * len(synthetic.TASKS)
    box = page.locator("#show-3")
    assert not box.is_checked()
    box.focus()
    page.keyboard.press("Space")
    assert answers.count() == 3 * len(synthetic.TASKS)
    for place in (1, 2, 3):
        page.locator(f"label:has(#show-{place})").click()
    assert answers.count() == 0
    page.close()


def hidden(page: Any) -> int:
    """Cells of tables that the reader doesn't see."""
    seen = "e => !e.checkVisibility({contentVisibilityAuto: true})"
    return int(page.evaluate(f"[...document.querySelectorAll('.data td')].filter({seen}).length"))


def test_folds_lose_nothing_in_print(browser: Any, page_file: Path) -> None:
    """Closed on the screen, they are printed."""
    page = opened(browser, page_file, "wide", "light").page
    assert hidden(page) > 100
    page.emulate_media(media="print")
    assert hidden(page) == 0
    page.close()


def test_folds_open_without_scripts(browser: Any, page_file: Path) -> None:
    """By their heads, and by links to what is inside."""
    page = browser.new_page(java_script_enabled=False)
    page.goto(page_file.as_uri())
    inside = page.locator("#part-1-tasks")
    assert not inside.is_visible()
    page.locator("summary:has(#part-1-tasks-title)").click()
    assert inside.is_visible()
    assert not page.locator("#published").is_visible()
    page.locator("nav a[href='#published']").click()
    assert page.locator("#published").is_visible()
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_shadow_shows_that_a_table_goes_on(browser: Any, page_file: Path, scheme: str) -> None:
    """At its right edge, until it is scrolled to its end."""
    page = opened(browser, page_file, "narrow", scheme).page

    def edge() -> bytes:
        box = page.locator(".wide").first.bounding_box()
        x, y = box["x"] + box["width"] - 12, box["y"] + 20  # within its border and corners
        clip = {"x": x, "y": y, "width": 10, "height": 40}
        return bytes(page.screenshot(clip=clip, full_page=True))

    start = edge()
    page.evaluate("document.querySelector('.wide').scrollLeft = 9999")
    end = edge()
    page.add_style_tag(content=PLAIN)
    assert edge() == end
    page.evaluate("document.querySelector('.wide').scrollLeft = 0")
    assert edge() != start
    page.close()


def test_wide_tables_scroll_by_keyboard(browser: Any, page_file: Path) -> None:
    """What does not fit scrolls inside its own region, which the keyboard reaches."""
    page = opened(browser, page_file, "narrow", "light").page
    region = page.locator(".wide").first
    region.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelector('.wide').scrollLeft > 0", timeout=60_000)
    page.close()
