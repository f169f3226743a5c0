"""benchmarks/soak.py: what it takes for a leak, and that its clients send what they count."""

from __future__ import annotations

import gc
import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken import LLM, METHODS
from foretoken.models.load import load_tokenizer
from foretoken.registry import drafter_class

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import clients  # noqa: E402
import soak  # noqa: E402


def waves(**grows: float) -> list[dict[str, Any]]:
    """Waves of which these numbers grow by this share of the first one, each from the last."""
    start = {"resident": 600.0, "in_use": 400.0, "objects": 10**6}
    start |= {"threads": 10, "files": 4, "ms": 3.0}
    return [
        {key: value * (1 + grows.get(key, 0) * wave) for key, value in start.items()}
        for wave in range(40)
    ]


def said(seen: list[dict[str, Any]], **others: Any) -> str:
    row = {"busy": False, "wrong": [], "texts_of_the_probe": 1, **soak.judged(seen), **others}
    return "; ".join(soak.failures(row))


def test_what_counts_as_a_leak() -> None:
    """Memory or objects that grow after the first 500 requests, threads and open files; what grows
    before them, or by less, or comes and goes, does not."""
    assert said(waves()) == ""
    early = waves()
    for wave in early[:20]:
        wave |= {"resident": 300.0, "in_use": 30.0, "objects": 5, "threads": 1, "files": 1}
    assert said(early) == ""
    peaks = waves()
    for wave in peaks[1::2]:
        wave |= {"resident": 700.0, "in_use": 500.0, "threads": 12}
    assert said(peaks) == ""
    assert said(waves(resident=0.0008, in_use=0.0008, objects=0.0008)) == ""
    assert said(waves(resident=0.002)) == "resident memory grew by 1.9%"
    assert said(waves(in_use=0.002)) == "memory in use grew by 1.9%"
    assert said(waves(objects=0.002)) == "objects grew by 1.9%"
    assert said(waves(threads=0.1)) == "10 threads more"
    assert said(waves(files=0.25)) == "10 files more"
    assert said(waves(ms=0.05)) == ""
    slow = waves()
    for wave in slow[30:]:
        wave["ms"] = 12.0
    assert said(slow) == "a step takes 4.0 times as long"
    assert said(waves(), texts_of_the_probe=2) == "the same prompt had different texts"
    assert said(waves(), busy=True) == "requests or slots were left"
    assert said(waves(), wrong=["a", "b"]) == "unexpected: ['a']"


@pytest.mark.skipif(sys.platform != "linux", reason="reads GNU's allocator and /proc")
def test_memory_is_seen() -> None:
    """What is held on to shows in the numbers, and what is let go of doesn't."""
    gc.collect()
    before, resident = soak.in_use(), soak.resident()
    kept = torch.ones(256 << 18)  # above what an allocator keeps: its pages are new
    assert soak.in_use() - before == pytest.approx(256, abs=0.1)
    assert soak.resident() - resident > 192  # the system may take other pages back meanwhile
    del kept
    assert soak.in_use() - before == pytest.approx(0, abs=0.1)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    config = {"method": "suffix", "max_cached_tokens": 2000}
    tokenizer = clients.Tokenizer(load_tokenizer("mini"))
    with LLM("mini", speculative_config=config, tokenizer=tokenizer, max_num_seqs=2) as llm:
        yield llm


@pytest.mark.parametrize("kind", clients.KINDS)
def test_requests_end_as_their_kind_does(
    kind: str, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of request comes to its own end, and nothing of it is left."""
    monkeypatch.setattr(clients, "KINDS", {kind: 1})
    sender = clients.Clients(llm, 0)
    for number in range(4):
        sender.one(number)
    assert (sender.outcomes, sender.wrong) == ({kind: 4}, [])
    llm.generate([[1, 2, 3]])
    assert not llm.engine.busy and llm.engine.target.free == 2


def test_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred requests of all kinds through one LLM: the record, and no failure but of memory,
    time and threads, for which a hundred are too few."""
    monkeypatch.setattr(soak, "WARM", 50)
    given = Namespace(model="mini", draft_model="mini-draft", seed=1)
    row = soak.serve("mixed", 100, given)
    assert sum(row["outcomes"].values()) == 100 and len(row["outcomes"]) >= 7
    assert len(row["chosen"]) >= 4 and row["texts_of_the_probe"] == 1
    of_many = ("grew", "times as long", "threads more")
    assert not [said for said in soak.failures(row) if not any(each in said for each in of_many)]
    assert row["threads_after_close"] < row["end"]["threads"]
    json.dumps(row)


def test_check_names_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 1 and the reason is printed; the record has all runs so far, and goes on."""
    served: list[str] = []

    def isolated(name: str, given: Namespace) -> dict[str, Any]:
        served.append(name)
        good = {"busy": False, "wrong": [], "texts_of_the_probe": 1, "seconds": 1.0}
        return {"run": name, "requests": 1000} | good | soak.judged(waves(in_use=how[name]))

    def status(*options: str) -> int:
        monkeypatch.setattr(sys, "argv", ["soak.py", "--out", str(tmp_path), *options])
        return int(soak.main())

    monkeypatch.setattr(soak, "isolated", isolated)
    how = {"pld": 0.0, "sam": 0.002, "sad": 0.0}
    assert status("--check", "--methods", "pld") == 0
    assert status("--resume", "--methods", "pld", "sam") == 0
    assert status("--resume", "--check", "--methods", "sad") == 1
    assert "memory in use grew by 1.9%" in capsys.readouterr().out
    assert served == ["pld", "sam", "sad"]
    record = json.loads((tmp_path / "soak.json").read_text())
    assert [row["run"] for row in record["runs"]] == served and not record["met"]
    assert all({"cpu", "git_commit", "date"} <= {*row["environment"]} for row in record["runs"])
    with pytest.raises(SystemExit):
        status("--requests", "900")
    assert "at least 1000" in capsys.readouterr().err


def test_all_methods_that_run_here() -> None:
    """Those without weights, or with bundled ones; what keeps something is among them."""
    assert {"mixed", "auto", "online", "sps", "eagle2", "rest", "ppd"} <= {*soak.RUNS}
    assert {*soak.BOUNDS, *soak.SETTINGS} <= {*soak.RUNS}


@pytest.mark.parametrize(
    ("methods", "options"),
    [
        (["suffix", "llma", "pld"], ["max_cached_tokens"]),
        (["token_recycling"], ["num_candidates"]),
        (["online"], ["versions", "buffer_mib", "window"]),
        (["swift"], ["max_opt_iter"]),
        (["tli", "slem"], ["max_cached_words"]),
    ],
)
def test_bounds_are_what_the_page_says(methods: list[str], options: list[str]) -> None:
    """The options are there, with these defaults, and the record names them."""
    page = (BENCHMARKS.parent / "docs/drafters/README.md").read_text(encoding="utf-8")
    page = page.partition("## What is kept across requests")[2]
    names = ", ".join(f"`{method}`" for method in methods)
    [row] = [line for line in page.splitlines() if line.startswith(f"| {names} |")]
    for option in options:
        defaults = [default_of(method, option) for method in methods]
        assert f"`{option}`: {', '.join(dict.fromkeys(defaults))}" in row
        assert all(option in soak.BOUNDS[method] for method in methods)


def default_of(method: str, option: str) -> str:
    row = METHODS[method]
    defaults = {each.name: each.default for each in fields(drafter_class(row.drafter))}
    return f"{row.options.get(option, defaults[option]):,.0f}"
