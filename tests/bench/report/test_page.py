"""The report: the same tables on three surfaces, whole or half records, hostile text."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import synthetic
from foretoken import ForetokenError
from foretoken.bench.record import Answer, Results, read_results
from foretoken.bench.report import charts, tables, terminal, wording
from foretoken.bench.report.layout import NONE, Cell, Table
from foretoken.bench.report.page import cell, fence, read_folder, write_report
from foretoken.bench.report.samples import each_answer, example, samples, shown
from foretoken.cli.commands import app
from foretoken.files import write_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two precisions of made-up numbers, and their pages."""
    found = tmp_path_factory.mktemp("report")
    first = synthetic.results(temperatures=(0.0, 1.0), sizes=(1, 4))
    second = synthetic.results("bfloat16", temperatures=(0.0,), sizes=(1,), inflated="135m")
    write_report(synthetic.write(found, first, second), reference=True)
    return found


def page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def markdown(folder: Path) -> str:
    return (folder / "report.md").read_text(encoding="utf-8")


def printed(results: list[Results], width: int = 200) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        terminal.show(console, results, None)
    return capture.get()


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


# --- the same on all surfaces --------------------------------------------------------------------


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


def test_the_terminal_says_the_same(folder: Path) -> None:
    results = read_folder(folder)
    text = printed(results)
    for run in results[0]["runs"]:
        numbers = [cell for cell in wording.cells(run) if cell != NONE]
        assert any(all(n in line for n in numbers) for line in text.splitlines()), run["method"]
    assert "Speedup on each target" in text and "What the text is worth" in text


def test_a_narrow_terminal_goes_without_some_columns(folder: Path) -> None:
    """Nothing is cut: at 80 columns the split of a step's time is left out."""
    results = synthetic.results(temperatures=(0.0,), sizes=(1,))
    narrow, wide = printed([results], 80), printed([results], 120)
    assert "verify" in wide and "verify" not in narrow
    assert "…" not in narrow and "yes, but 1 near tie" in narrow


# --- what is said --------------------------------------------------------------------------------


def test_the_best_is_bold_and_never_an_approximate_method() -> None:
    """The fastest is approximate and marked; the fastest lossless one is in bold."""
    found = tables.headline([synthetic.results(temperatures=(0.0,), sizes=(1,))])
    assert found is not None
    strong = [r.name for g in found.groups for r in g.rows if any(c.strong for c in r.cells)]
    assert strong == ["sps"]
    names = [row.name for row in found.groups[0].rows]
    assert names[:3] == ["autoregressive", "medusa_typical ≈", "sps"]


def test_headline_names_the_fastest_with_its_interval() -> None:
    text = wording.headline(synthetic.results(sizes=(1,)))
    assert text.startswith("At temperature 0, sps is the fastest: 1.52 times")
    assert "interval 1.38–1.68" in text and "27 of 28 prompts" in text
    assert "Approximate methods are left aside" in text


def test_two_precisions_stand_in_one_table(folder: Path) -> None:
    found = tables.headline(read_folder(folder))
    assert found is not None
    assert found.spans == [("synthetic, float32", 4), ("synthetic, bfloat16, inflated", 4)]
    hot = found.groups[1].rows[2].cells  # the second was measured at temperature 0 only
    assert [c.text for c in hot[4:]] == [NONE] * 4 and hot[0].text != NONE


def test_what_is_not_counted_is_counted(folder: Path) -> None:
    """Loops, skipped prompts, failures with their reasons, methods that could not be run."""
    for text in (page(folder), markdown(folder)):
        assert "sum-12" in text and "rag-2" in text
        assert "the server hung up &lt;now&gt;" in text
        assert "it needs a trained head" in text
    assert "3 answers failed" not in markdown(folder)  # 2 settings at batch size 4, one each
    assert "2 answers failed" in markdown(folder)


def test_inflated_is_never_left_unsaid(folder: Path) -> None:
    assert 'class="badge">inflated' in page(folder)
    assert "inflated to the 135m shape" in markdown(folder)
    assert "inflated" in printed(read_folder(folder))


def test_words() -> None:
    base: Any = {"prompts": 4, "identical": 4, "near_tie": 0, "different": 0}
    assert wording.sameness("pld", base) == "yes"
    assert wording.sameness("pld", {**base, "near_tie": 1}) == "yes, but 1 near tie"
    assert wording.sameness("pld", {**base, "near_tie": 2}) == "yes, but 2 near ties"
    assert wording.sameness("pld", {**base, "different": 1}) == "1 of 4 differ"
    assert wording.sameness("sps", None) == "same distribution"
    assert wording.sameness("outsider", None) == "not claimed"
    assert wording.sameness("autoregressive", base) == NONE


def test_where_speculation_stops_paying() -> None:
    """Between sizes, beyond the largest, at none, and predicted."""
    part = synthetic.results(temperatures=(0.0,))
    part["crossover"][1]["predicted"] = True
    slow = next(run for run in part["runs"] if run["method"] == "lookahead")
    slow["speedup"] = 0.9
    found = tables.sweep(part)
    assert found is not None
    ends = {row.method: row.cells[-1].text for row in found.groups[0].rows}
    assert ends["pld"] == "5.2" and ends["sps"] == "5, predicted"
    assert ends["medusa_typical"] == "over 8" and ends["lookahead"] == "never"


# --- half a record -------------------------------------------------------------------------------


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
    record = bare()
    record["runs"] = []
    write_json(tmp_path / "results.json", record)
    write_report(tmp_path, reference=True)
    assert "Nothing was measured that can be compared" in page(tmp_path)


def test_a_folder_without_results_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ForetokenError, match=r"no results\.json"):
        write_report(tmp_path)


# --- text of strangers ---------------------------------------------------------------------------


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
    assert cell("a|b\n<c> `d` [e](f) & it's") == r"a\|b &lt;c&gt; \`d\` \[e\](f) &amp; it's"
    assert cell("medusa_typical") == "medusa_typical"
    assert fence("x") == "```" and fence("a ````` b") == "``````"


# --- samples -------------------------------------------------------------------------------------


def test_samples_prefer_prompts_that_do_not_loop() -> None:
    """One prompt a task: the first that counts, or the first of all where none does."""
    record = synthetic.results(sizes=(1,))
    record["suite"]["left_out"] = ["a-1", "b-1"]
    answers = [
        synthetic.answer(method, task, id=f"{task}-{number}")
        for task, numbers in (("a", (1, 2, 3)), ("b", (1,)))
        for number in numbers
        for method in ("autoregressive", "pld", "sps")
    ]
    found = samples(record, iter(answers))
    assert [(s.first.id, [a.method for a in s.answers]) for s in found] == [
        ("a-2", ["sps", "pld"]),  # the fastest first
        ("b-1", ["sps", "pld"]),
    ]
    seen = example(record, answers, "pld")
    assert seen is not None and (seen.id, seen.method) == ("a-2", "pld")


def test_samples_are_of_one_target_and_of_first_turns() -> None:
    record = synthetic.results("bfloat16")
    answers = [
        synthetic.answer("pld", "a", dtype="float32"),
        synthetic.answer("pld", "a", dtype="bfloat16", turn=1),
        synthetic.answer("pld", "a", dtype="bfloat16", batch_size=4),
        synthetic.answer("pld", "a", dtype="bfloat16", id="the-one"),
    ]
    assert [s.first.id for s in samples(record, answers)] == ["the-one"]
    [found] = shown([record], [synthetic.answer("pld", "a", dtype="bfloat16", error="gone")])
    assert not found.samples and [a.error for a in found.failures] == ["gone"]


def test_a_server_that_tells_no_tokens_is_shown_by_its_text(tmp_path: Path) -> None:
    """Its answer has a text and a count, and neither tokens nor passes."""
    synthetic.write(tmp_path, synthetic.results(temperatures=(0.0,), sizes=(1,)))
    silent = {"token_ids": [], "pieces": [], "accepted": [], "counted": 7, "passes": 0}
    line = synthetic.answer("pld", "qa", text="What it <said>.", **silent).line()
    (tmp_path / "samples.jsonl").write_text(line + "\n")
    write_report(tmp_path)
    assert "What it &lt;said&gt;." in page(tmp_path) and "7 tokens<" in page(tmp_path)
    assert "What it <said>." in markdown(tmp_path) and "7 tokens:" in markdown(tmp_path)


def test_samples_are_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text(synthetic.answer("pld", "a").line() + "\n\n")
    [found] = each_answer(path)
    assert isinstance(found, Answer)
    assert list(each_answer(tmp_path / "missing.jsonl")) == []


# --- charts --------------------------------------------------------------------------------------


def test_methods_are_told_apart_by_more_than_colour() -> None:
    names = [f"m{i}" for i in range(32)]
    found = charts.looks(["autoregressive", *names])
    assert len({found[name] for name in names}) == 32
    assert found["autoregressive"].colour == 0 not in {found[name].colour for name in names}


def test_marks_lie_where_their_numbers_are() -> None:
    """A mark, its interval and the line of plain decoding against the axis they are drawn on."""
    part = synthetic.results(temperatures=(0.0, 1.0), sizes=(1,))
    [chart] = charts.sweeps(part)
    assert [label for _, label in chart.x_ticks] == ["0", "1"]
    (floor, zero), (top, end) = chart.y_ticks[0], chart.y_ticks[-1]
    assert zero == "0" and chart.one is not None

    def value(place: float) -> float:
        return (floor - place) / (floor - top) * float(end)

    line = next(line for line in chart.lines if line.method == "sps")
    runs = [run for run in part["runs"] if run["method"] == "sps"]
    assert [value(mark.y) for mark in line.marks] == pytest.approx([r["speedup"] for r in runs])
    ends = runs[0]["speedup_ci95"]
    assert [value(y) for y in (line.marks[0].low, line.marks[0].high) if y] == pytest.approx(ends)
    assert value(chart.one) == pytest.approx(1)
    assert abs(line.marks[0].x - chart.x_ticks[0][0]) < 15


@pytest.mark.parametrize("end", [0.3, 1.0, 1.98, 2.0, 7.3, 100.0])
def test_axes_end_just_beyond_what_they_show(end: float) -> None:
    found = charts.steps(end)
    assert found[0] == 0 and end <= found[-1] * 1.0001 < end + found[1] * 1.0001
    assert 3 <= len(found) <= 8


def test_shares_stay_on_the_axis() -> None:
    assert charts.share(1, 2) == "50.00%" and charts.share(1.5, 2, 1) == "50.00%"
    assert charts.share(9, 2) == "100.00%" and charts.share(-1, 2) == "0.00%"


def test_a_column_that_says_nothing_is_left_out() -> None:
    part = synthetic.results(sizes=(1,))
    found = tables.resources(part)
    assert found is not None
    assert "joules a token" not in [head.text for head in found.heads]
    part["runs"][0]["energy_j_per_token"] = 0.25
    again = tables.resources(part)
    assert again is not None and "joules a token" in [head.text for head in again.heads]
    assert all(isinstance(c, Cell) for g in again.groups for r in g.rows for c in r.cells)
    assert isinstance(again, Table)


# --- command line --------------------------------------------------------------------------------


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_report_of_a_folder(tmp_path: Path) -> None:
    synthetic.write(tmp_path, synthetic.results(temperatures=(0.0,), sizes=(1,)))
    found = run(tmp_path)
    assert found.exit_code == 0, found.output
    assert "1.52×" in found.stdout and "report.html" in found.stdout
    assert "leaderboard" not in found.stdout
    assert (tmp_path / "report.md").is_file() and "Table 5" not in page(tmp_path)
    assert "leaderboard" in run(tmp_path, "--reference").stdout
    assert "published: survey, Table 5" in page(tmp_path)


def test_report_as_json(tmp_path: Path) -> None:
    synthetic.write(tmp_path, synthetic.results(temperatures=(0.0,), sizes=(1,)))
    [found] = json.loads(run(tmp_path, "--json").stdout)
    assert found == read_results(tmp_path / "results.json")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a", "b", "c"], "3 folders"),
        (["a", "--fail-on-regression"], "two to compare"),
        (["a", "b", "--reference"], "one folder"),
        (["nowhere"], "no results.json"),
    ],
)
def test_wrong_use_is_one_sentence(tmp_path: Path, arguments: list[str], words: str) -> None:
    found = run(*arguments)
    assert found.exit_code == 1 and words in found.output
    assert len(found.output.strip().splitlines()) == 1


def test_help_has_an_example() -> None:
    assert "Example" in run("--help").output
