"""benchmarks/real_table: what the pages say of the record of real models."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from foretoken.zoo.fetch import KNOWN

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path[:0] = [str(BENCHMARKS / "peers"), str(BENCHMARKS)]

import lineup as peers_lineup  # noqa: E402
import real  # noqa: E402
from real_table import beside, conditions, lineup, page, stages, words  # noqa: E402

RECORD = json.loads((BENCHMARKS / "results" / "real.json").read_text(encoding="utf-8"))
PAGES = {
    "real": page.best,
    "screen": stages.screen,
    "precisions": stages.precisions,
    "trained": stages.trained,
    "batches": conditions.batches,
    "warm": conditions.warm,
    "tasks": conditions.tasks,
    "peers": beside.everywhere,
}


def theirs(engine: str, method: str, speed: float, over_ours: float) -> dict[str, Any]:
    decoding = {
        "tokens_per_second": speed,
        "over_own_plain": None,
        "over_foretoken_plain": {"ratio": over_ours, "ci95": None},
    }
    return {"engine": engine, "method": method, "rounds": 1, "decoding": decoding}


def plain(speed: float, *peers: dict[str, Any]) -> dict[str, Any]:
    """A cell's rows: our plain decoding, and other engines' beside it."""
    ours = theirs("foretoken", "autoregressive", speed, 1.0)
    return {"rows": [{"method": "autoregressive"}], "peers": [ours, *peers]}


def changed(change: Any) -> dict[str, Any]:
    """The record with each cell changed."""
    record = copy.deepcopy(RECORD)
    record["cells"] = [{**cell, **change(cell)} for cell in record["cells"]]
    return record


def test_the_page_says_which_engines_had_other_minutes() -> None:
    """Or another machine; plain decoding's speed tells how the two compare."""

    def cell(speed: float, *peers: str, cpu: str = "one") -> dict[str, Any]:
        theirs = [{"engine": p, "decoding": {"tokens_per_second": 9.0}} for p in peers]
        plain = {"method": "autoregressive", "tokens_per_second": speed}
        machine = {"cpu": cpu, "cores": 2}
        return {"rows": [plain], "peers": theirs, "machines": [machine]}

    own = cell(20.0)
    assert beside.elsewhere(own, [own, cell(21.5, "a")], "a") == ""
    cells = [own, cell(30.0, "a"), cell(15.0, "b"), cell(21.0, "c")]
    said = beside.elsewhere(own, cells, "abc")
    assert "a, b: at other times; in the same minutes our plain decoding wrote 15.0 to 30.0" in said
    assert "c" not in said.split(":")[0]
    said = beside.elsewhere(own, [own, cell(21.0, "c", cpu="two")], "abc")
    assert "c: on 2 cores of two; in" in said
    said = beside.elsewhere(own, cells, "ac")
    assert "a: at other times; in the same minutes our plain decoding wrote 30.0 tokens" in said
    assert beside.elsewhere(own, cells, "c") == ""


def test_the_page_says_in_how_many_rounds_engines_were_asked() -> None:
    """On which machine, and how fast our plain decoding was there; where rounds may be of several
    and the record doesn't tell which, no machine is named."""
    machines = [{"cpu": "Xeon", "cores": 2}, {"cpu": "EPYC", "cores": 2}]
    own = {"rounds": 2, "machines": machines, **plain(28.0)}
    said = beside.fewer_rounds(own, [theirs("llama.cpp", "plain", 14.0, 0.5)])
    assert said == (
        "Other engines stood beside ours in 1 of the 2 rounds, on 2 cores of Xeon, where our plain "
        "decoding wrote 28.0 tokens/s."
    )
    more = {**theirs("llama.cpp", "plain", 14.0, 0.5), "rounds": 2}
    assert "in 2 of the 3 rounds, where our" in beside.fewer_rounds({**own, "rounds": 3}, [more])
    assert beside.fewer_rounds(own, [more]) == beside.fewer_rounds(own, []) == ""


def test_the_page_says_how_engines_compare_on_another_machine() -> None:
    """By the screen, if that was on a machine which the table's rounds don't have."""
    xeon, epyc = ({"cpu": name, "cores": 2} for name in ("Xeon", "EPYC"))
    own = {"stage": "grid", "rounds": 2, "machines": [xeon, epyc], **plain(25.0)}
    shown = [theirs("llama.cpp", "plain", 14.4, 0.58)]
    screened = {
        **{"stage": "screen", "prompts": 24, "max_tokens": 64, "rounds": 1, "machines": [epyc]},
        "dates": ["2026-11-26T01:00:00", "2026-11-25T21:00:00"],
        **plain(40.0, theirs("llama.cpp", "plain", 36.0, 0.9), theirs("llama.cpp", "x", 9.0, 0.2)),
    }
    said = beside.on_other_machines(own, [screened], shown)
    assert "(24 prompts, 64 tokens at most), on 2 cores of EPYC, 2026-11-25 to 2026-11-26" in said
    assert said.endswith(
        "our plain decoding wrote 40.0 tokens/s. Over our plain decoding: llama.cpp, plain 0.90."
    )
    both = [{**shown[0], "rounds": 2}]
    assert beside.on_other_machines(own, [screened], both) == ""
    assert beside.on_other_machines({**own, "stage": "screen"}, [screened], shown) == ""
    assert beside.on_other_machines(own, [{**screened, "machines": [xeon]}], shown) == ""


def test_the_page_says_which_lookup_is_at_its_defaults() -> None:
    """And that one keeps its n-grams from prompt to prompt."""

    def said(**options: str) -> str:
        row = {"engine": "llama.cpp", "kind": "prompt lookup", "options": options}
        return beside.defaults([row, {**row, "engine": "openvino int4"}])

    assert said(**{"--spec-type": "ngram-map-k"}) == (
        "llama.cpp's prompt lookup is at its defaults for `--spec-type ngram-map-k`."
    )
    assert "keeps its n-grams from prompt to prompt" in said(**{"--spec-type": "ngram-mod"})
    assert said(**{"--spec-type": "ngram-simple", "--spec-ngram-simple-size-n": "3"}) == ""


def test_the_page_shows_an_engine_in_its_fastest_precision() -> None:
    """That of its fastest row, whichever method's."""

    def rows(*speeds: float) -> list[dict[str, Any]]:
        return [{"decoding": {"tokens_per_second": speed}} for speed in speeds]

    peers = {
        "llama.cpp": rows(5.0),
        "transformers float32": rows(8.0, 9.0),
        "transformers bfloat16": rows(7.0, 12.0),
        "openvino int8": rows(20.0),
        "openvino int4": rows(19.0, 3.0),
    }
    shown = beside.fastest_precisions(peers)
    assert list(shown) == ["llama.cpp", "transformers bfloat16", "openvino int8"]
    assert all(shown[name] is peers[name] for name in shown)


@pytest.mark.parametrize(
    ("complete", "rounds", "shown"), [(True, 1, 80), (False, 1, 24), (False, 2, 80)]
)
def test_the_page_shows_what_all_prompts_answered(complete: bool, rounds: int, shown: int) -> None:
    """Of the grid once its first round is whole, and until then of the screen."""
    known = copy.deepcopy(RECORD)
    known["cells"] = [
        {**cell, "complete": complete, "rounds": rounds} if cell["stage"] == "grid" else cell
        for cell in known["cells"]
        if cell["target"] == "smollm2-135m"
    ]
    assert f"({shown} prompts, " in page.best(known)


def test_a_precision_is_shown_once_all_prompts_answered() -> None:
    """With each row's ideal and speed without loops, and where and how much was asked below."""
    known = copy.deepcopy(RECORD)
    cell = next(c for c in known["cells"] if c["stage"] == "grid" and c["batch_size"] == 1)
    known["cells"] = [
        {**cell, "stage": "precision", "precision": name, "complete": name == "float16"}
        for name in ("float16", "float32")
    ]
    table, below = stages.precisions(known).split("\n\n")
    assert len(table.splitlines()) == 2 + len(cell["rows"]) and "float32" not in table + below
    assert f"in float16: {cell['prompts']} prompts, " in below
    assert f"the answers to {len(cell['looping'])} loop" in below
    straight = [f"{row['without_looping']['ratio']:.2f}" for row in cell["rows"][1:]]
    assert [line.split(" | ")[6] for line in table.splitlines()[3:]] == straight


def test_the_whole_file_is_shown_once_it_is_answered() -> None:
    """With what the others alone gain, as many of its answers loop."""
    known = copy.deepcopy(RECORD)
    [whole] = (cell for cell in known["cells"] if cell["stage"] == "whole")
    for complete in (True, False):
        whole["complete"] = complete
        said = page.best(known)
        assert (f"Over all {whole['prompts']} questions" in said) == complete
        assert ("Over all" in said.partition("**Qwen")[0]) == complete
        loops = f"The answers to {len(whole['looping'])} of them loop; over the others alone:"
        assert (loops in said) == complete
        straight = f"`suffix` {whole['rows'][1]['without_looping']['ratio']:.2f}"
        assert (straight in said.partition(loops)[2]) == complete


@pytest.mark.parametrize("name", PAGES)
def test_what_a_stall_leaves_out_is_said(name: str) -> None:
    """Under each table that shows a cell with such answers, and nowhere else."""
    once = {"stalled": [{"turn": 0, "round": 1}], "rounds": 2, "speed_rounds": [1, 2]}
    made = PAGES[name](changed(lambda cell: once))
    count = {"screen": 48, "trained": 120}.get(name, 180)
    assert f"eft out of every method's speed, as the machine stood still: 1 of {count} ans" in made
    assert ("stood still: 1 of the batches' turns" in made) == (name == "batches")
    assert "stood still" not in PAGES[name](changed(lambda cell: {"stalled": []}))


def test_other_engines_stalls_are_of_their_rounds() -> None:
    """What stalled in a round without them left nothing out of their speeds."""
    found = [{"turn": 0, "round": number} for number in (1, 2, 2)]
    once = {"stalled": found, "rounds": 2, "speed_rounds": [1]}
    made = beside.everywhere(changed(lambda cell: once))
    assert "stood still: 1 of 90 answers" in made and "of 180 answers" not in made


def test_why_there_are_no_ideals() -> None:
    why = {"rows": ["pld"], "round": 1, "timed_ms": 3.0, "plain_ms": 4.0}
    made = stages.trained(changed(lambda cell: {"not_judged": [why]}))
    assert "took 3.00 ms in round 1, where plain decoding's took 4.00." in made
    assert "no ideals" not in stages.trained(changed(lambda cell: {"not_judged": []}))


@pytest.mark.parametrize("name", [name for name in PAGES if name != "peers"])
def test_answers_that_loop_are_counted(name: str) -> None:
    """In every table, with what the others alone gain but by task; and where none loops, neither
    stands there."""
    loops = PAGES[name](changed(lambda cell: {"looping": ["a", "b", "c", "d", "e"]}))
    assert "answers to 5" in loops
    said = ("ithout loops", "prompts alone", "others alone")
    assert name == "tasks" or any(text in loops for text in said)
    assert "answers to" not in PAGES[name](changed(lambda cell: {"looping": []}))


def test_days_and_machines() -> None:
    """From the first day to the last one, whatever their order; two processors of one name that
    differ are said to."""
    epyc = {"cpu": "EPYC", "cores": 2}
    cell = {
        "dates": ["2026-11-27T09:00:00", "2026-11-26T19:00:00"],
        "machines": [epyc, {"cpu": "Xeon", "cores": 2}, {**epyc, "cpu_features": ["fma"]}],
    }
    assert words.where(cell) == (
        "2 cores of EPYC (2 kinds) and 2 cores of Xeon, 2026-11-26 to 2026-11-27"
    )
    assert words.days({"dates": cell["dates"][:1]}) == "2026-11-27"


def test_rounds_that_lack_a_row() -> None:
    """Tokens/s are of those that have every row, which is said."""
    cell = {"prompts": 80, "max_tokens": 128, "rounds": 2, "speed_rounds": [1, 2]}
    assert words.asked(cell) == "80 prompts, 128 tokens at most, 2 rounds"
    said = words.asked({**cell, "speed_rounds": [1]})
    assert said.endswith(", 2 rounds, tokens/s of the 1 that has every row")


def test_what_differs_in_the_last_column_is_said() -> None:
    """Other machines, another number of rounds, and rows that have fewer of them."""
    [pair] = (
        cell
        for cell in RECORD["cells"]
        if (cell["stage"], cell["target"], cell["batch_size"], cell["temperature"])
        == ("grid", lineup.PAIR, 1, 1.0)
    )
    few = sorted({row["method"] for row in pair["peers"] if row["engine"] == "foretoken"})[:2]

    def said(machines: list[Any], rounds: int, of_few: int) -> str:
        def change(cell: dict[str, Any]) -> dict[str, Any]:
            here = cell["stage"] == "grid" and cell["target"] == lineup.PAIR
            if not (here and cell["batch_size"] == 1):
                return {}
            now = machines if cell["temperature"] else [{"cpu": "Xeon", "cores": 2}]
            count = rounds if cell["temperature"] else 2
            peers = [
                {**row, "rounds": of_few if row["method"] in few else count}
                for row in cell["peers"]
            ]
            return {"machines": now, "rounds": count, "peers": peers, "stalled": []}

        return page.best(changed(change)).partition("**Qwen")[2]

    xeon, epyc = ({"cpu": name, "cores": 2} for name in ("Xeon", "EPYC"))
    assert "The last column" not in said([xeon], 2, 2)
    assert "The last column: 2 rounds, on 2 cores of EPYC, " in said([epyc], 2, 2)
    assert "The last column: 1 round, on 2 cores of Xeon, " in said([xeon], 1, 1)
    assert f"The last column: 2 rounds; `{few[0]}`" in said([xeon], 2, 1)
    assert "only in 1 of them." in said([xeon], 2, 1)


def cell(size: int, temperature: float = 0.0, **ratios: float) -> dict[str, Any]:
    over = {"autoregressive": 1.0, **ratios}
    rows = [
        {
            "method": method,
            "tokens_per_second": 10.0 * size * ratio,
            "over_plain": {"ratio": ratio, "ci95": None},
            "without_looping": None,
            "mean_acceptance_length": 1.5,
            "by_task": {"qa": {"prompts": 10, "tokens_per_second": 7.0, "over_plain": None}},
        }
        for method, ratio in over.items()
    ]
    return {
        **{"stage": "grid", "target": lineup.SMALL, "precision": "as stored", "complete": True},
        **{"batch_size": size, "temperature": temperature, "memory": "cold", "rows": rows},
        **{"prompts": 80, "turns": 90, "max_tokens": 128, "rounds": 1, "looping": [], "peers": []},
        **{"machines": [{"cpu": "EPYC", "cores": 2}], "dates": ["2026-11-27T09:00:00"]},
    }


def test_batches() -> None:
    """Plain decoding's tokens/s, each method's ratio by size, and the size from which it loses."""
    cells = [
        cell(1, suffix=1.4, pld=1.1, sam=0.9, swift=0.5),
        cell(4, suffix=1.2, pld=0.8, sam=0.7),
        cell(16, suffix=1.0),
        cell(1, 1.0, suffix=1.2),
        {**cell(4, 1.0, suffix=1.1), "complete": False},
    ]
    heading, table, below = conditions.batches({"cells": cells}).split("\n\n")
    assert heading == "**SmolLM2-135M-Instruct, Q4_1**, temperature 0"
    assert table.splitlines()[2:] == [
        "| plain, tokens/s | 10.0 | 40.0 | 160 | |",
        "| `suffix` | 1.40 | 1.20 | 1.00 | over 16 |",
        "| `pld` | 1.10 | 0.80 | – | 2 |",
        "| `sam` | 0.90 | 0.70 | – | 1 |",
    ]
    where = "80 prompts, 128 tokens at most; 2 cores of EPYC, 2026-11-27."
    assert below == f"Batches of 1, 4, 16: {where}"


def test_cold_and_warm() -> None:
    """Side by side; a row that was measured warm alone has no cold side."""
    kept = {**cell(1, suffix=1.6, llma=0.8), "memory": "warm"}
    _, table, _ = conditions.warm({"cells": [cell(1, suffix=1.4, pld=1.1), kept]}).split("\n\n")
    assert table.splitlines()[2:] == [
        "| `suffix` | 1.50 | 1.40 | – | 1.50 | 1.60 | – |",
        "| `llma` | – | – | – | 1.50 | 0.80 | – |",
    ]


def test_tasks() -> None:
    """The three fastest and `auto`."""
    one = cell(1, a=1.5, b=1.4, c=1.3, d=1.2, auto=1.1)
    _, table, _ = conditions.tasks({"cells": [one]}).split("\n\n")
    assert (
        table.splitlines()[0] == "| task | prompts | plain, tokens/s | `a` | `b` | `c` | `auto` |"
    )
    assert table.splitlines()[2] == "| qa | 10 | 7.0 | – | – | – | – |"


def test_every_row_can_be_repeated() -> None:
    """All rows of the README whose name is not all of their options stand in the table of rows."""
    listed = conditions.options(RECORD)
    for row in (row for one in RECORD["cells"] for row in one["rows"] if one["stage"] == "grid"):
        if row["config"] != {"method": row["method"]}:
            assert f"| {words.code(row['method'])} | `{{" in listed
    assert '"draft_backend": "q4"' in listed and "DRAFT" in listed and ".gguf" not in listed


def test_every_file_can_be_fetched() -> None:
    """Each target's and draft model's; the one with a name of its own is the file of the record."""
    files = [file for target in lineup.TARGETS.values() for file in target.files]
    assert {file for file in files if file.endswith(".gguf")} == lineup.FETCHED.keys()
    known = KNOWN[lineup.FETCHED["smollm2-135m-instruct.gguf"]]
    assert known.sha256 == RECORD["models"]["smollm2-135m-instruct.gguf"]["sha256"]
    made = conditions.files(RECORD)
    assert all(own["sha256"] in made for own in RECORD["models"].values())


def test_prompt_lookup_is_asked_alike_of_every_engine() -> None:
    """llama.cpp's also after n-grams of 3 with drafts of 10, as in the other comparison."""
    [alike] = (
        row
        for row in peers_lineup.ROWS
        if (row.engine, row.method) == ("llama.cpp", "prompt lookup")
    )
    rows = lineup.rows("llama.cpp", lineup.TARGETS[lineup.SMALL])
    [own] = (row for row in rows if row.method == "prompt lookup, 3 and 10")
    assert own.options == alike.options
    assert len({row.method for row in rows}) == len(rows)


def test_memory_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """On the page, by target and weights, and by the command."""
    row = {"target": lineup.PAIR, "method": "sps", "tokens": 2000, "peak_mib": 2037.8}
    record = {"cells": [], "memory": [{**row, "backend": "blocks"}]}
    there = {"memory_environment": {"cpu": "EPYC", "cores": 2}}
    assert conditions.memory({**record, **there}).endswith("answer; 2 cores of EPYC.")
    table, below = conditions.memory(record).split("\n\n")
    assert table.splitlines()[-1] == "| Qwen2.5-Coder-1.5B-Instruct | `sps` | 2,038 |"
    assert below == "One conversation of 2,000 tokens, prompt and answer."
    real.show(record)
    assert "2038" in capsys.readouterr().out
