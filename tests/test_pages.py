"""benchmarks/pages.py: every number of a page is its record's, or is said to have none."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foretoken.errors import ForetokenError

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import page_claims  # noqa: E402
import page_tables  # noqa: E402
import pages  # noqa: E402
import passes  # noqa: E402

PAGES = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in pages.pages()}
CLAIMING = [
    name for name, page in PAGES.items() if "<!-- table " in page or pages.MARK.search(page)
]
NOTED = "*Noted in May 2026 on 2 cores of a laptop.*"


@pytest.mark.parametrize("name", PAGES)
def test_pages_say_what_their_records_say(name: str) -> None:
    """Tables and marked numbers are as the records make them; every other measured number is
    declared. `python benchmarks/pages.py` writes them again."""
    assert not list(pages.faults(PAGES[name]))


@pytest.mark.parametrize("name", CLAIMING)
def test_a_changed_digit_is_found(name: str) -> None:
    """Each digit of a table or of a number with a mark, changed, is a difference."""
    page = PAGES[name]
    for at in claimed_digits(page):
        other = page[:at] + str((int(page[at]) + 5) % 10) + page[at + 1 :]
        assert pages.made(other) != other, page[max(0, at - 40) : at + 20]


def claimed_digits(page: str) -> Iterator[int]:
    """Where the digits stand that a record makes: of numbers, and of three cells of each table."""
    spelled = iter(re.split(r"\x00(\S+?)\x01", pages.numbered(page, pages.recorded, framed)))
    at = 0
    for text in spelled:
        at += len(text)
        number = next(spelled, "")
        yield from (at + i for i, letter in enumerate(number) if letter.isdigit())
        at += len(number)
    for table in pages.TABLE.finditer(page):
        cells = [m.start() for m in re.finditer(r"(?<=[ .])\d", table[3])]
        yield from (table.start(3) + cells[i] for i in (0, len(cells) // 2, -1) if cells)


def framed(printed: str, value: float, percent: bool) -> str:
    return f"\x00{printed}\x01"


@pytest.mark.parametrize("name", CLAIMING)
def test_a_field_that_is_gone_is_named(name: str) -> None:
    """A mark whose field its record no longer has is an error that names both."""
    for mark in pages.MARK.finditer(PAGES[name]):
        for path in mark[2].split("; "):
            record = without(pages.recorded(mark[1]), path)
            with pytest.raises(
                ForetokenError, match=re.escape(f"{mark[1]} has no number {path!r}")
            ):
                pages.made(f"1 2 3<!-- {mark[1]}: {path} -->", lambda name: record)  # noqa: B023


def without(record: dict[str, Any], path: str) -> dict[str, Any]:
    """The record without the field, whether the path leads to it or something is made of it."""
    keys = path.split(": ")
    if keys[0] not in record:
        return {}
    record = copy.deepcopy(record)
    inside: Any = record
    for key in keys[:-1]:
        inside = inside[int(key) if isinstance(inside, list) else key]
    inside.pop(keys[-1], None)
    return record


def test_a_pass_over_more_tokens_costs_no_less() -> None:
    """By the record, 5 % allowed; one that does is named."""
    record = json.loads((BENCHMARKS / "results" / "passes.json").read_text())
    for part in record["backends"].values():
        for name in ("ms", "ratios"):
            part[name] = {int(width): value for width, value in part[name].items()}
    assert not [said for said in passes.missed(record) if "times pass(" in said]
    ms = record["backends"]["int8"]["ms"]
    ms[8] = 0.9 * ms[4]
    assert "int8: pass(8) takes 0.90 times pass(4)" in passes.missed(record)


@pytest.mark.parametrize("name", sorted(page_tables.TABLES))
def test_every_table_stands_on_a_page(name: str) -> None:
    """And one whose record is empty is an error, but for the one that says so itself."""
    assert any(f"<!-- table {name} -->" in page for page in PAGES.values())
    page = f"<!-- table {name} -->\n\nx\n\n<!-- end -->"
    assert pages.made(page) != page
    with pytest.raises(ForetokenError, match=f"Table '{name}' lacks"):
        pages.made(page, lambda name: {})


def test_a_table_that_cannot_be_made_is_named() -> None:
    """A mark without blank lines, text and end around it would never be filled."""
    for body in ("", "\n", "\n\n", "\nx\n"):
        page = f"<!-- table ladder -->{body}<!-- end -->\n"
        assert any("table ladder" in line for line in pages.faults(page)), repr(body)


def test_every_prompt_that_was_left_out_has_a_column() -> None:
    """Prompts of the pair's acceptance: those that count, that loop and that are too long."""
    part = {"mean_acceptance_length": 1.5, "prompts": 10, "looping": 11, "skipped": 3}
    made = page_tables.acceptance(lambda name: {"by_task": {"qa": part}})
    assert made.splitlines()[-1] == "| qa | 1.50 | 10 | 11 | 3 |"


def test_what_a_mark_compares() -> None:
    """The numbers before it, the last one nearest, rounded as printed; a % is a hundredth."""
    record = {"rate": 0.18403, "pair": {"low": 1.0, "ends": [0.954, 1.25]}, "many": 12345}

    def made(page: str) -> str:
        return pages.made(page, lambda name: record)

    assert made("of 3: 0.2<!-- a.json: rate -->") == "of 3: 0.2<!-- a.json: rate -->"
    assert made("9.999<!-- a.json: rate -->").startswith("0.184<")
    assert made("99 % of `5`<!-- a.json: rate -->").startswith("18 % of `5`<")
    mark = "<!-- a.json: pair: low; pair: ends; many -->"
    assert made(f"2 of EAGLE-2, 7.0 (7.00–7.00), 7{mark}") == (
        f"2 of EAGLE-2, 1.0 (0.95–1.25), 12,345{mark}"
    )
    with pytest.raises(ForetokenError, match="names 1 values after 0 numbers"):
        made("3 before\n\nnone here<!-- a.json: rate -->")
    with pytest.raises(ForetokenError, match=r"a\.json has no number 'pair: high'"):
        made("1<!-- a.json: pair: high -->")
    with pytest.raises(ForetokenError, match=r"gone\.json has no number 'rate'"):
        pages.made("1<!-- gone.json: rate -->")
    with pytest.raises(ForetokenError, match="No table is called 'gone'"):
        pages.made("<!-- table gone -->\n\nx\n\n<!-- end -->")


@pytest.mark.parametrize(
    "text",
    [
        "It is 2 times as fast.",
        "This makes it 3× faster.",
        "It reaches 120 tokens/s.",
        "A pass takes 12 ms, a step 15.",
        "It drafts in 30 µs.",
        "It accepts 80 % of them.",
        "It gains 10–20 % here.",
        "It writes 3 tokens a pass.",
        "Its mean acceptance length is 3.4 on all prompts.",
        "It reads 54 GB/s.",
        "It took 20 minutes.",
        "It is four times slower, and learns twice as fast.",
        "- two, in 7 ms",
        "| | speed |\n|---|--:|\n| `pld` | 2 |",
        "| | a | b |\n|---|---|---|\n| `pld` | 1.5 | 2.5 |",
        "| | a |\n|---|---|\n| `pld` | 5 ms a step |",
    ],
)
def test_a_measured_number_needs_a_record_or_a_remark(text: str) -> None:
    """Speeds, times, shares and lengths are found; a remark with date and machine covers them."""
    assert len(pages.without_record(f"# Page\n\n{text}")) == 1
    assert not pages.without_record(f"# Page\n\n{text} <!-- not measured -->")
    before = f"{NOTED}\n\n" if text.startswith("|") else f"{NOTED} "
    assert not pages.without_record(f"# Page\n\n{before}{text}")
    for vague in (NOTED.replace("May ", ""), NOTED.replace(" on 2 cores of a laptop", "")):
        assert pages.without_record(f"# Page\n\n{before.replace(NOTED, vague)}{text}")


@pytest.mark.parametrize(
    "text",
    [
        "A tree of 64 nodes, drafts of 4 tokens, 0.9 million parameters, a vocabulary of 8,192.",
        "torch 2.13 and Python 3.11 (sections 3.2 and 3.3, theorem 3.8), CC BY-SA 4.0.",
        "A 95 % interval; EAGLE-3; Qwen2.5; a layer of 2048×5632; 0.4 KB a token.",
        "`it takes 3 ms`, [a page](a-1.5.md)",
        "    speed 3.5 times",
        "```\n3.5 times\n\n2 ms\n```",
        "| option | default | meaning |\n|---|---|---|\n| `rate` | 0.7 | at first |",
        "## Training data and its licences\n\n| source | MB |\n|---|--:|\n| novels | 14.9 |",
    ],
)
def test_what_is_set_or_named_is_no_measurement(text: str) -> None:
    """Sizes, defaults, versions, references, code and quoted tables."""
    assert not pages.without_record(f"# Page\n\n{text}")


def test_how_far_a_remark_reaches() -> None:
    """Its paragraph and the table after it; its section or page where it says so."""
    page = (
        "# Page\n\n{}\n\n## A\n\n{}\n\nTakes 1 ms.\n\n### B\n\nTakes 2 ms.\n\n## C\n\nTakes 3 ms."
    )

    def found(first: str, second: str) -> list[str]:
        return pages.without_record(page.format(first, second))

    assert len(found("Hello.", f"Takes 0 ms. {NOTED}")) == 3
    assert found("Hello.", NOTED.replace("Noted", "This section was noted")) == ["Takes 3 ms."]
    assert not found(NOTED.replace("Noted", "What this page says was noted"), "Hello.")


def test_what_a_remark_does_not_reach() -> None:
    """A second table, and another item of its list."""
    table = "| | ms |\n|---|--:|\n| `pld` | 2 |"
    assert len(pages.without_record(f"# Page\n\n{NOTED}\n\n{table}\n\n{table}")) == 1
    items = f"- It takes 2 ms.\n- It takes 3 ms. {NOTED}\n- It takes\n  4 ms."
    assert pages.without_record(f"# Page\n\n{items}") == ["- It takes 2 ms.", "4 ms."]


def ours(method: str, ratio: float) -> dict[str, Any]:
    over = {"ratio": ratio, "ci95": [ratio - 0.1, ratio + 0.1]}
    speeds = {"tokens_per_second": 20 * ratio, "mean_acceptance_length": 2 * ratio}
    more = {"whole": {"over_plain": over}, "config": {"method": method}, "without_looping": None}
    return {"engine": "foretoken", "method": method, "over_plain": over, **speeds, **more}


def theirs(engine: str, method: str, speed: float, ratio: float) -> dict[str, Any]:
    over = {"ratio": ratio, "ci95": None}
    decoding = {"tokens_per_second": speed, "over_own_plain": over}
    kind = method.partition(",")[0]
    told = {"engine": engine, "method": method, "rounds": 1, "kind": kind, "options": {}}
    beside = {"over_foretoken_plain": {"ratio": speed / 20, "ci95": None}}
    return {**told, "decoding": {**decoding, **beside}, "whole": {**decoding, **beside}}


def cell(stage: str, temperature: float, rows: list[Any], **others: Any) -> dict[str, Any]:
    settings = {"batch_size": 1, "precision": "as stored", "memory": "cold", "peers": []}
    settings["machines"] = [{"cpu": "AMD EPYC", "cores": 2}]
    asked = {
        "max_tokens": 64,
        "prompts": 24,
        "turns": 24,
        "rounds": 1,
        "complete": True,
        "target": "smollm2-135m",
        "dates": ["2026-11-23T11:05:36+00:00"],
        "looping": [],
    }
    return {"stage": stage, "temperature": temperature, "rows": rows, **settings, **asked, **others}


def real(cells: list[dict[str, Any]]) -> list[str]:
    """The README's table of these cells, in paragraphs."""
    record = {"environment": {"date": "2026-11-23T11:05:36+00:00"}, "cells": cells}
    return page_tables.TABLES["real"](lambda name: record).split("\n\n")


def test_the_table_of_real_models() -> None:
    """Ours first and the fastest first, each over its own engine's plain decoding; of other engines
    plain decoding and the fastest; the grid's where there is one, else the screen's."""
    plain, drafts = ours("autoregressive", 1.0), ours("pld|sps", 1.8)
    peers = [
        plain | theirs("foretoken", "autoregressive", 20.0, 1.0),
        theirs("llama.cpp", "plain", 10.0, 1.0),
        theirs("llama.cpp", "lookup", 7.0, 0.7),
        theirs("llama.cpp", "draft model", 8.0, 0.8),
    ]
    screens = [
        cell("screen", 0.0, [plain, ours("pld", 1.1), drafts]),
        cell("screen", 0.0, [plain], peers=peers),
        cell("screen", 0.0, [plain, drafts], target="qwen2.5-coder-1.5b"),
    ]
    grids = [
        cell("grid", 0.0, [plain, ours("pld", 1.2), drafts], rounds=3, prompts=80, max_tokens=128),
        cell("grid", 1.0, [plain, ours("pld", 1.3)]),
        cell("grid", 0.0, [plain, ours("pld", 9.0)], batch_size=4),
        cell("grid", 0.0, [plain, ours("pld", 9.0)], memory="warm"),
    ]
    size = cell("precision", 0.0, [plain, drafts], target="qwen2.5-coder-0.5b")  # stands elsewhere
    intro, title, table, beside, other, _ = real([*screens, size])
    assert intro.startswith("One sequence at a time; in brackets 95 % intervals.")
    where = "2 cores of AMD EPYC, 2026-11-23"
    assert title == f"**SmolLM2-135M-Instruct, Q4_1** (24 prompts, 64 tokens at most; {where})"
    assert table.splitlines()[2:] == [
        "| foretoken | `pld\\|sps` | 3.60 | 36.0 | 1.80 (1.70–1.90) | 1.80 (1.70–1.90) | – |",
        "| foretoken | `pld` | 2.20 | 22.0 | 1.10 (1.00–1.20) | 1.10 (1.00–1.20) | – |",
        "| foretoken | plain | 2.00 | 20.0 | – | – | – |",
        "| llama.cpp | plain | – | 10.0 | – | – | – |",
        "| llama.cpp | draft model | – | 8.0 | 0.80 | 0.80 | – |",
    ]
    assert beside == (
        "Over our plain decoding: llama.cpp, plain 0.50; llama.cpp, draft model 0.40."
    )
    assert other.startswith("**Qwen2.5-Coder-1.5B-Instruct, Q4_K; draft model its 0.5B, Q4_K,")
    assert "runs with `--draft-backend q4`** (24 prompts" in other
    _, title, table, column, *_ = real([*screens, *grids])
    assert column == f"The last column: 1 round, on {where}."
    assert title.endswith(f"(80 prompts, 128 tokens at most, 3 rounds; {where})")
    assert table.splitlines()[3] == (
        "| foretoken | `pld` | 2.40 | 24.0 | 1.20 (1.10–1.30) | 1.20 (1.10–1.30) "
        "| 1.30 (1.20–1.40) |"
    )
    made = page_tables.TABLES["real-screen"](lambda name: {"cells": screens})
    lines = made.split("\n\n")[0].splitlines()
    assert lines[-1] == "| `pld\\|sps` | 3.60 | 1.80 (1.70–1.90) | 3.60 | 1.80 (1.70–1.90) |"
    assert lines[-2] == "| `pld` | 2.20 | 1.10 (1.00–1.20) | – | – |"
    screens[1]["machines"] = [{"cpu": "Xeon", "cores": 4}]
    assert real(screens)[0] == intro and real(screens)[3] == (
        "llama.cpp: on 4 cores of Xeon; in the same minutes our plain decoding wrote 20.0 tokens/s."
    )


def test_ours_and_theirs_are_seen_alike() -> None:
    """Beside other engines our speeds are those from outside too, with what a draft model reads;
    the machine, the day and the options are those of the cell that is shown."""
    named = ours("sps-8-sure", 1.7) | {
        "config": {"method": "sps", "model": "a.gguf", "num_assistant_tokens_schedule": "x"}
    }
    rows = [ours("autoregressive", 1.0), named, ours("sps-2", 1.4)]
    slower = [("autoregressive", 19.0, 1.0), ("sps-8-sure", 26.0, 1.37), ("sps-2", 22.0, 1.16)]
    peers = [theirs("foretoken", *each) for each in slower]
    rows[1]["without_looping"] = {"ratio": 1.66, "ci95": None}
    more = {"machines": [{"cpu": "Xeon", "cores": 4}], "dates": ["2026-11-24T00:00:00"]}
    grid = cell("grid", 0.0, rows, peers=peers, looping=["7"], **more)
    screen = cell("screen", 0.0, rows)
    _, title, table, looping, options = real([screen, grid])
    assert title.endswith("(24 prompts, 64 tokens at most; 4 cores of Xeon, 2026-11-24)")
    assert table.splitlines()[2:4] == [
        "| foretoken | `sps-8-sure` | 3.40 | 26.0 | 1.37 | 1.37 | – |",
        "| foretoken | `sps-2` | 2.80 | 22.0 | 1.16 | 1.16 | – |",
    ]
    assert looping.startswith("The answers to 1 of the 24 prompts [loop]")
    assert looping.endswith("over plain decoding are: `sps-8-sure` 1.66.")
    assert options.startswith('As `-sc`, `sps-8-sure` is `{"method": "sps", "model": "DRAFT"')
    assert "docs/real-models.md#the-rows" in options


def test_the_table_of_real_models_fits_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many methods the fastest and `auto`; before the record is there, one sentence."""
    rows = [ours(f"m{i}", 1 + i / 10) for i in range(1, 10)]
    rows += [ours("autoregressive", 1.0), ours("auto", 0.9)]
    _, _, table = real([cell("screen", 0.0, rows)])
    methods = [line.split(" | ")[1].strip("`") for line in table.splitlines()[2:]]
    assert methods == ["m9", "m8", "m7", "m6", "m5", "plain", "auto"]
    monkeypatch.setattr(pages, "RECORDS", ())
    said = page_tables.TABLES["real"](pages.recorded.__wrapped__)
    assert said == "*No table of real models is recorded yet.*"


def test_the_command_writes_and_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--check changes nothing and fails; without it numbers are written, and what has neither a
    record nor a remark is still a failure."""
    page = tmp_path / "page.md"
    page.write_text("9 ms<!-- draft.json: context -->", encoding="utf-8")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "pages", lambda: [page])
    monkeypatch.setattr(sys, "argv", ["pages.py", "--check"])
    assert pages.main() == 1 and page.read_text("utf-8").startswith("9 ms")
    assert "+2,000 ms" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["pages.py"])
    assert pages.main() == 0 and page.read_text("utf-8").startswith("2,000 ms")
    page.write_text("It takes 9 ms.", encoding="utf-8")
    assert pages.main() == 1
    assert capsys.readouterr().out == "page.md: without a record: It takes 9 ms.\n"


def test_hidden_text_keeps_its_length() -> None:
    """Places found in what is left are places in the page."""
    text = "a `b` [c](d) <!-- e\nf --> [x](http) section 3.2 h"
    assert len(page_claims.hidden(text)) == len(text)
