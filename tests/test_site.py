"""The site that `make docs` builds of docs/: complete, without a dead link, and without a request
to anywhere; and that the page for those who come from elsewhere has the names that the code has."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import foretoken
from foretoken.errors.vllm_names import CONFIG_NAMES, LLM_NAMES
from foretoken.registry import ALIASES, OPTION_ALIASES
from shared_folder import shared_folder

ROOT = Path(__file__).parents[1]
DOCS, SITE = ROOT / "docs", ROOT / "site"
SETTINGS = yaml.safe_load((SITE / "mkdocs.yaml").read_text(encoding="utf-8"))
# What a browser fetches by itself when it shows a page; links that a reader follows are none.
FETCHED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?([^\"\s>]+)|<link\b[^>]*>")
ELSEWHERE = re.compile(r"^(?:https?:)?//")

needs_mkdocs = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("mkdocs", "material", "mkdocstrings"))),
    reason="needs mkdocs-material and mkdocstrings (pip install -e '.[docs]')",
)


def build(settings: Path, out: Path) -> subprocess.CompletedProcess[str]:
    # Not --quiet, with which warnings aren't counted.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    places = ["--config-file", str(settings), "--site-dir", str(out)]
    return subprocess.run([*command, *places], capture_output=True, text=True, timeout=300)


def whole_site(factory: pytest.TempPathFactory) -> Path:
    """Its folder, built once a session without a warning."""
    with shared_folder(factory, "site") as folder:
        if not folder.exists():
            unfinished = folder.with_name("unfinished-site")
            done = build(SITE / "mkdocs.yaml", unfinished)
            assert done.returncode == 0, done.stderr
            unfinished.rename(folder)
    return folder


def listed(nav: Any) -> list[str]:
    """The pages of a part of the navigation."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, Mapping) else nav
    return [page for part in parts for page in listed(part)]


def fetched(page: str) -> list[str]:
    """The addresses that a browser fetches to show a page, but for pages that others link to."""
    found = []
    for tag in FETCHED.finditer(page):
        href = re.search(r"href=\"?([^\"\s>]+)", tag[0])
        found.append(tag[1] or (href[1] if href else ""))
    return found


def test_every_page_is_in_the_navigation() -> None:
    """Once; but for the page that a package index shows."""
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted([*listed(SETTINGS["nav"]), SETTINGS["exclude_docs"]]) == sorted(pages)


def test_every_public_name_is_in_the_reference() -> None:
    """By the module that defines it."""
    named = re.findall(r"^::: ([\w.]+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.M)
    assert {name.rpartition(".")[2] for name in named} >= {*foretoken.__all__} - {"__version__"}
    for name in named:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


@pytest.mark.parametrize(
    ("link", "folder", "leads"),
    [
        ("../README.md#a", "docs", "repository/README.md#a"),
        (
            "../../benchmarks/results/a.json",
            "docs/drafters",
            "repository/benchmarks/results/a.json",
        ),
        ("../auto.md", "docs/drafters", "../auto.md"),
        ("auto.md#b", "docs", "auto.md#b"),
        ("#b", "docs", "#b"),
        ("https://github.com/a", "docs", "https://github.com/a"),
    ],
)
def test_links_that_leave_the_pages(link: str, folder: str, leads: str) -> None:
    """Lead to the repository; all others stay."""
    spec = importlib.util.spec_from_file_location("links", SITE / "links.py")
    assert spec is not None and spec.loader is not None
    links = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(links)
    assert links.whole(link, folder, "repository/") == leads


@needs_mkdocs
def test_the_site_is_built(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Strictly: without a warning. Every page is there, the reference has its docstrings, and
    nothing is fetched from elsewhere."""
    site = whole_site(tmp_path_factory)
    for page in listed(SETTINGS["nav"]):
        name = page.replace("README.md", "index.md").removesuffix(".md")
        text = (site / f"{name}.html").read_text(encoding="utf-8")
        assert not [address for address in fetched(text) if ELSEWHERE.match(address)], page
    reference = (site / "api.html").read_text(encoding="utf-8")
    assert "sequences served at a time" in reference and ":::" not in reference


@needs_mkdocs
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[a](auto.md#there)", ""),
        ("[a](gone.md)", "gone.md"),
        ("[a](auto.md#gone)", "auto.md#gone"),
        ("::: foretoken.gone", "foretoken.gone"),
    ],
)
def test_a_dead_link_is_found(line: str, said: str, tmp_path: Path) -> None:
    """To a page, a heading or an object that isn't there, by the site's settings; a live one is
    none."""
    shutil.copytree(SITE, tmp_path / "site")
    (tmp_path / "src").symlink_to(ROOT / "src")
    settings = tmp_path / "site" / "mkdocs.yaml"
    settings.write_text(yaml.safe_dump({**SETTINGS, "nav": ["faq.md", "auto.md"]}))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "faq.md").write_text(f"# FAQ\n\n{line}\n")
    (tmp_path / "docs" / "auto.md").write_text("# Auto\n\n## There\n")
    done = build(settings, tmp_path / "out")
    assert (done.returncode != 0) == bool(said) and said in done.stderr + done.stdout


def test_what_a_browser_fetches_is_seen() -> None:
    """Scripts, images and styles; no address that is only a link."""
    style = "https://github.com/b.css"
    page = f'<script src="//a/b.js"></script><link href="{style}" rel=stylesheet>'
    assert fetched(f'{page}<a href="https://github.com">c</a>') == ["//a/b.js", style]


def rows(title: str) -> list[list[str]]:
    """The cells of the first table after this text of the page for those who come from elsewhere,
    without its head."""
    page = (DOCS / "coming-from.md").read_text(encoding="utf-8")
    table = page[page.index(title) :].split("\n\n")[1]
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in table.split("\n")[2:]
    ]


@pytest.mark.parametrize(
    ("title", "names"), [("\nMethods:\n", ALIASES), ("\nOptions of a method:\n", OPTION_ALIASES)]
)
def test_other_names(title: str, names: Mapping[str, str]) -> None:
    """The page's names of other libraries are those that are understood."""
    assert rows(title) == [[f"`{theirs}`", f"`{ours}`"] for theirs, ours in names.items()]


@pytest.mark.parametrize(
    ("title", "names"),
    [("\nKeywords of `LLM`", LLM_NAMES), ("\nKeys of `speculative_config`", CONFIG_NAMES)],
)
def test_names_of_vllm(title: str, names: Mapping[str, tuple[tuple[Any, ...], str]]) -> None:
    """The page says of each the values that are served and the remedy, as the code does."""
    assert rows(title) == [
        [
            ", ".join(f"`{word}`" for word in words.split()),
            ", ".join(f"`{value!r}`" for value in values),
            remedy or "–",
        ]
        for words, (values, remedy) in names.items()
    ]
