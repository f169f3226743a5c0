"""The report: the same tables on three surfaces, whole or half records, hostile text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import synthetic
from foretoken import ForetokenError
from foretoken.bench.record import Results, read_results
from foretoken.bench.report import tables
from foretoken.bench.report.folder import read_folder
from foretoken.bench.report.page import bracketed, cell, fence, longest_step, write_report
from foretoken.files import write_json
from report_pages import page, printed


def markdown(folder: Path) -> str:
    return (folder / "report.md").read_text(encoding="utf-8")


class Text(HTMLParser):
    """What a reader sees of a page, and everything that could make a browser ask for something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [v or "" for k, v in attributes if k in {"src", "href", "srcset", "action"}]
        assert not [k for k, _ in attributes if k.startswith("on")]
        if tag not in {"meta", "br", "link", "img", "input"}:
            self.open.append(tag)
        if tag in {"td", "th"}:
            self.cells.append("")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.cells[-1] += data


def test_the_page_is_one_file_without_a_request(folder: Path) -> None:
    """Nothing is loaded or run, every tag is closed, links lead into the page itself."""
    text = page(folder)
    found = Text(text)
    assert not found.open
    assert all(link.startswith("#") for link in found.loads)
    assert all(f'id="{link[1:]}"' in text for link in found.loads)
    assert not found.tags & {"script", "link", "img", "iframe", "object", "form"}
    assert not re.search(r"url\(|@import|https?://", text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_every_table_has_a_caption_and_scoped_heads(folder: Path) -> None:
    """Screen readers need both."""
    text = page(folder)
    assert text.count("<table") == text.count("<caption") > 20
    assert "<th>" not in text and not re.search(r"<th (?!scope|class)", text)


@pytest.mark.parametrize("name", ["results.json", "results-bfloat16.json"])
def test_pages_hold_every_cell_of_every_table(folder: Path, name: str) -> None:
    """What a table says as data stands in report.html and in report.md, word for word."""
    found = tables.all_tables(read_results(folder / name))
    assert len(found) >= 7
    seen = {" ".join(text.split()) for text in Text(page(folder)).cells}
    lines = markdown(folder).splitlines()
    for table in found:
        for group in table.groups:
            for row in group.rows:
                texts = [own.text for own in row.cells]
                assert {f"{own.text} {own.detail}".strip() for own in row.cells} <= seen
                assert any(
                    line.startswith(f"| {row.name} |") and all(text in line for text in texts)
                    for line in lines
                ), (table.title, row)


def test_markdown_tables_are_rectangular(folder: Path) -> None:
    """Every line of a table has as many cells as its head."""
    before = 0
    for line in markdown(folder).splitlines():
        bars = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not bars or line.endswith("|")
        assert not (before and bars) or bars == before, line
        before = bars


def test_what_is_not_counted_is_counted(folder: Path) -> None:
    """Loops, skipped prompts, failures with their reasons, methods that could not be run."""
    for text in (page(folder), markdown(folder)):
        assert "sum-12" in text and "rag-2" in text
        assert "the server hung up &lt;now&gt;" in text
        assert "it needs a trained head" in text
    assert "3 answers failed" not in markdown(folder)  # 2 settings at batch size 4, one each
    assert "2 answers failed" in markdown(folder)


def test_the_text_stands_second(folder: Path) -> None:
    """After the headline; what follows on the page folds, and no second-level head is lost."""
    text = page(folder)
    heads = re.findall(r"<h2[^>]*>([^<]+)", text)
    assert heads[:3] == ["At a glance", "What was written", "synthetic, float32"]
    assert len(re.findall('<details class="fold"', text)) > 15
    assert re.findall("<summary><h2[^>]*>([^<]+)", text) == heads[4:]
    assert markdown(folder).index("## What was written") < markdown(folder).index("## synthetic")


def test_the_target_that_tells_most_leads(tmp_path: Path) -> None:
    """The title, the facts and the order of the page are its own, whatever its file's name."""
    small = synthetic.results("bfloat16", temperatures=(0.0,), sizes=(1,))
    small["runs"] = small["runs"][:2]
    write_report(synthetic.write(tmp_path, small, synthetic.results(sizes=(1,))))
    for text in (page(tmp_path), markdown(tmp_path)):
        assert text.index("synthetic, float32") < text.index("synthetic, bfloat16")


def test_facts_name_no_winner_without_evidence(tmp_path: Path) -> None:
    """Neither do the numbers in large under the headline, nor bold cells."""
    record = synthetic.results(temperatures=(0.0,), sizes=(1,))
    write_report(synthetic.write(tmp_path, record))
    assert "a small draft model (sps), the fastest" in page(tmp_path)
    assert "<strong>1.52×</strong>" in page(tmp_path)
    for run in record["runs"]:
        run["prompts"] = 7
    write_report(synthetic.write(tmp_path, record))
    assert "a small draft model (sps), not beyond doubt" in page(tmp_path)
    assert "<strong>1.52×</strong>" not in page(tmp_path)
    for text in (page(tmp_path), markdown(tmp_path)):
        assert "the fastest" not in text.replace("Bold: the fastest, if", "")


def test_methods_are_spelled_out_where_they_first_stand(folder: Path) -> None:
    """In the first group of the first table and not in every cell."""
    text = page(folder).split("What was written</h2>")[0]
    assert text.count("prompt lookup") == 1 and "| pld (prompt lookup) | 0 |" in markdown(folder)


def test_inflated_is_never_left_unsaid(folder: Path) -> None:
    """Page, Markdown and terminal name the shape."""
    assert 'class="badge">inflated' in page(folder)
    assert "inflated to the 135m shape" in markdown(folder)
    assert "inflated" in printed(read_folder(folder))


def bare() -> Results:
    """One drafting method at one temperature and batch size, and nothing that is optional."""
    record: Any = synthetic.results(temperatures=(0.0,), sizes=(1,))
    record["runs"] = [run for run in record["runs"] if run["method"] in ("autoregressive", "pld")]
    for key in ("not_run", "crossover"):
        del record[key]
    for run in record["runs"]:
        for part in (run, *run["by_task"].values()):
            part |= {
                "ideal": None,
                "scores": {},
                "log_likelihood_per_token": None,
                "speedup_ci95": None,
                "acceptance_rate_per_position": [],
                "identical_to_autoregressive": None,
                "peak_memory_mib": None,
            }
            part["spec_bench"] = dict.fromkeys(part["spec_bench"])
            part["latency_ms"] = dict.fromkeys(part["latency_ms"])
    return record  # type: ignore[no-any-return]


def nothing() -> Results:
    """Every prompt was left out or failed."""
    record: Any = bare()
    for run in record["runs"]:
        run |= {
            "prompts": 0,
            "tokens_per_second": None,
            "speedup": None,
            "tokens": 0,
            "mean_acceptance_length": None,
            "draft_acceptance_rate": None,
            "target_passes": 0,
            "ms_per_step": dict.fromkeys(run["ms_per_step"], 0.0),
            "by_task": {},
        }
    return record  # type: ignore[no-any-return]


@pytest.mark.parametrize("record", [bare, nothing])
def test_half_a_record_makes_whole_pages(tmp_path: Path, record: Any) -> None:
    """Sections without data are left out, with no trace of None, and nothing is raised."""
    write_json(tmp_path / "results.json", record())
    write_report(tmp_path)
    for text in (page(tmp_path), markdown(tmp_path), printed([record()])):
        assert "None" not in text and "nan" not in text
        for title in ("Ideal", "What the text is worth", "Accepted at each", "Spec-Bench's own"):
            assert title not in text
    assert "What was written" not in page(tmp_path)
    assert not Text(page(tmp_path)).open


def test_no_runs_at_all(tmp_path: Path) -> None:
    """The page says so and is written."""
    record = bare()
    record["runs"] = []
    write_json(tmp_path / "results.json", record)
    write_report(tmp_path, reference=True)
    assert "Nothing was measured that can be compared" in page(tmp_path)


def test_a_folder_without_results_is_one_sentence(tmp_path: Path) -> None:
    """It names the missing file."""
    with pytest.raises(ForetokenError, match=r"no results\.json"):
        write_report(tmp_path)


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    """Prompts, answers, errors, names of methods, tasks and prompts: nothing becomes markup."""
    bad = "<img src=x onerror=alert(1)>|`\"'[x](http://localhost)"
    record = json.loads(json.dumps(bare()).replace('"pld"', json.dumps(bad)))
    record["target"]["name"] = record["suite"]["name"] = bad
    record["suite"]["left_out"] = [bad]
    record["environment"]["cpu"] = bad
    for run in record["runs"]:
        run["by_task"] = {bad: run["by_task"]["qa"]}
    write_json(tmp_path / "results.json", record)
    pieces = ["</p>", bad, "```\n", "<script>"]
    whole = {"pieces": pieces, "accepted": [True, False, False, True], "token_ids": [1, 2, 3, 4]}
    given = {"target": bad, "prompt": bad}
    lines = [
        synthetic.answer(bad, bad, **given, **whole),
        synthetic.answer(bad, bad, **given, id=bad, error=bad),
    ]
    (tmp_path / "samples.jsonl").write_text("".join(a.line() + "\n" for a in lines))
    write_report(tmp_path)
    found = Text(page(tmp_path))
    assert not found.open and not found.tags & {"script", "img", "a b"}
    assert all(link.startswith("#") for link in found.loads)
    text = markdown(tmp_path)
    outside = re.sub(r"^(`{3,})\n.*?^\1$", "", text, flags=re.M | re.S)
    assert "````" in text and "<img" not in outside and not re.search(r"[^\\]\]\(", outside)
    test_markdown_tables_are_rectangular(tmp_path)


def test_cell_and_fence() -> None:
    """Markdown's own characters are escaped, and a fence is longer than any in the text."""
    assert cell("a|b\n<c> `d` [e](f) & it's") == r"a\|b &lt;c&gt; \`d\` \[e\](f) &amp; it's"
    assert cell("medusa_typical") == "medusa_typical"
    assert fence("x") == "```" and fence("a ````` b") == "``````"


def test_times_that_nobody_measured_are_not_shown(tmp_path: Path) -> None:
    """A server's steps have no parts; where one method's have, only its are shown."""
    record = synthetic.results(temperatures=(0.0,), sizes=(1,), server="http://127.0.0.1:8000")
    for run in record["runs"]:
        run["ms_per_step"] = {"draft": 0.0, "verify": 0.0, "other": 7.25}
    write_report(synthetic.write(tmp_path, record))
    assert "Where a step's time goes" not in page(tmp_path) and "7.25" not in page(tmp_path)
    record["runs"][0]["ms_per_step"] = {"draft": 0.0, "verify": 3.5, "other": 0.25}
    write_report(synthetic.write(tmp_path, record))
    assert "<td>3.50</td>" in page(tmp_path) and "7.25" not in page(tmp_path)


def test_pages_name_the_machine(tmp_path: Path) -> None:
    """What the target ran on, whatever else is there; of a server what it was asked from."""
    for target, said in (
        ({"device": "cpu"}, "Made-up CPU @ 2.10GHz"),
        ({"server": "http://127.0.0.1:8000"}, "asked from Made-up CPU @ 2.10GHz"),
    ):
        record = synthetic.results(temperatures=(0.0,), sizes=(1,), **target)
        record["environment"]["gpu"] = "Made-up GPU"
        write_report(synthetic.write(tmp_path, record))
        assert f" · {said} · 2026" in page(tmp_path)
        assert f"<dt>machine</dt><dd>{said}</dd>" in page(tmp_path)
        assert f"- machine: {said}\n" in markdown(tmp_path)


def test_a_server_that_tells_no_tokens_is_shown_by_its_text(tmp_path: Path) -> None:
    """Its answer has a text and a count, and neither tokens nor passes."""
    synthetic.write(tmp_path, synthetic.results(temperatures=(0.0,), sizes=(1,)))
    silent = {"token_ids": [], "pieces": [], "accepted": [], "counted": 7, "passes": 0}
    line = synthetic.answer("pld", "qa", text="What it <said>.", **silent).line()
    (tmp_path / "samples.jsonl").write_text(line + "\n")
    write_report(tmp_path)
    assert "What it &lt;said&gt;." in page(tmp_path) and "7 tokens<" in page(tmp_path)
    assert "What it <said>." in markdown(tmp_path) and "7 tokens:" in markdown(tmp_path)


def test_where_long_things_end() -> None:
    """The text of a server that tells no tokens; the bars of steps, whose parts it doesn't tell."""
    silent: Any = {"pieces": [], "accepted": [], "token_ids": [], "text": "abcd" * 200}
    assert bracketed(synthetic.answer("pld", "qa", **silent)) == "abcd" * 120
    record = synthetic.results(temperatures=(0.0,), sizes=(1,))
    for run in record["runs"]:
        run["ms_per_step"] = {"draft": 0.0, "verify": 0.0, "other": 7.0}
    assert longest_step(record) == 1.0
    record["runs"][1]["ms_per_step"] = {"draft": 1.0, "verify": 3.0, "other": 0.5}
    assert longest_step(record) == 4.5
