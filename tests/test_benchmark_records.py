"""What benchmarks write down of how they were run, what they go on from, and whose turn it is."""

from __future__ import annotations

import gzip
import json
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretoken import ForetokenError
from foretoken.bench.suites.suite import Prompt
from foretoken.models.load import find

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import acceptance  # noqa: E402
import contrastive  # noqa: E402
import copying  # noqa: E402
import draft  # noqa: E402
import kept  # noqa: E402
import knn  # noqa: E402
import offloaded  # noqa: E402

ASKED = [Prompt("g", "grammar", ("Correct: He go home.",)), Prompt("q", "qa", ("Who is Ada?",))]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Of what is found, without what this machine has found before."""
    monkeypatch.setattr(kept, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, script: Any, out: Path, *more: str) -> dict[str, Any]:
    """The record that a script's command writes."""
    name = script.__name__
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--out", str(out), *more])
    assert script.main() == 0
    record: dict[str, Any] = json.loads((out / f"{name}.json").read_text())
    return record


def test_what_long_benchmarks_go_on_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same options, script, source, threads, machine, models and texts; else they begin
    anew."""
    script, text, model = folder / "some.py", folder / "text.txt", folder / "model"
    model.mkdir()
    parts = (script, text, model / "config.json")
    for part in parts:
        part.write_text("{}")

    def found(**options: Any) -> Any:
        given = Namespace(**{"model": str(model), "k": 1, "check": False, **options})
        work = kept.of_options(script, given, [given.model], [str(text)])
        before = work.get("a")
        work.keep("a", 1)
        return before

    assert found() is None and found() == found(check=True) == 1
    assert found(k=2) is None and found(k=2) == 1
    for part in parts:
        part.write_text("{ }")
        assert found() is None and found() == 1, part
    for name in ("code", "processor"):
        monkeypatch.setattr(kept, name, lambda *_: "another")
        assert found() is None and found() == 1, name
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    assert found() is None and found() == 1


def test_a_datastore_says_how_much_of_it_is_real(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "notes.txt").write_text("Ada Finch was born in Dunmore, where her father lived.")
    monkeypatch.setattr(knn, "identity", lambda *_: {})
    corpus = ("--corpus", str(folder / "notes.txt"), "--entries", "60", "--k", "4")
    record = run(monkeypatch, knn, folder, *corpus, "--limit", "1", "--max-tokens", "4")
    speed = record["speed"]
    assert speed["entries"] == 60 and 5 < speed["real_entries"] < 30
    about = {name: record[name] for name in ("k", "limit", "max_tokens", "corpus")}
    assert about == {"k": 4, "limit": 1, "max_tokens": 4, "corpus": ["notes.txt"]}


def test_a_contrastive_record_says_what_was_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"different": 0, "amateur_passes": 2, "drafted": 1, "steps": 1}
    monkeypatch.setattr(contrastive, "counts", lambda given: {"greedy": counts})
    monkeypatch.setattr(contrastive, "speed", lambda *_: {"speedup": 2.0})
    record = run(monkeypatch, contrastive, folder, "--limit", "3", "--max-tokens", "5")
    assert (record["limit"], record["max_tokens"], record["met"]) == (3, 5, True)


def test_each_prompt_of_an_offloaded_model_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the one that warms up."""
    calls: list[str] = []
    weights = SimpleNamespace(bytes_so_far=0, pass_bytes=0)
    nobody = SimpleNamespace(parts=[], small_models=[])

    class Fake:
        model = SimpleNamespace(offloaded=weights)
        engine = SimpleNamespace(drafter=nobody)
        stats = SimpleNamespace(tokens=2, passes=2)

        def __init__(self, *_: Any, **__: Any) -> None:
            return

        def chat_prompt(self, turns: Any) -> list[int]:
            return [1]

        def reset_stats(self) -> None:
            calls.append("measured from here")

        def reset_prefix_cache(self) -> None:
            calls.append("forgets")

        def generate(self, *_: Any) -> list[Any]:
            calls.append("answers")
            return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1])])]

    monkeypatch.setattr(offloaded, "LLM", Fake)
    monkeypatch.setattr(offloaded, "read_bytes", lambda: 0)
    given = Namespace(model=str(find("mini")), draft_model="mini-draft", weights_memory=1)
    given.limit, given.max_tokens = 1, 4
    monkeypatch.setattr(offloaded, "bundled", lambda limit=None: ASKED)
    offloaded.one(given, "plain")
    assert calls == ["answers", "measured from here", "forgets", "answers"]


def test_the_bundled_prompts_are_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are no held-out ones; their tasks are others."""
    monkeypatch.setattr(acceptance.data, "folder", lambda: None)
    monkeypatch.setattr(acceptance, "bundled", lambda limit: ASKED)
    record = run(monkeypatch, acceptance, folder, "--limit", "1", "--max-tokens", "8")
    assert record["prompts"] == "bundled" and record["limit"] == 1
    assert list(record["by_task"]) == ["grammar", "qa", "overall"]
    counted = (record["by_task"]["overall"][key] for key in ("prompts", "looping", "skipped"))
    assert sum(counted) == 2


def test_a_file_without_prompts_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled ones would be called held-out ones, and none measured."""
    (folder / "corpora").mkdir()
    monkeypatch.setattr(acceptance.data, "folder", lambda: folder)
    rows = [{"task": "poems", "messages": [{"role": "user", "content": "x"}]}, {"turns": []}]
    with gzip.open(folder / "corpora" / "heldout.jsonl.gz", "wt") as file:
        file.write("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(ForetokenError, match=r"heldout\.jsonl\.gz has no prompt of the tasks chat"):
        acceptance.held_out(3)
    with gzip.open(folder / "corpora" / "heldout.jsonl.gz", "at") as file:
        file.write(json.dumps(rows[0] | {"task": "qa"}))
    assert acceptance.held_out(3) == [("qa", rows[0]["messages"])]


def test_a_limit_that_was_not_measured_is_missed() -> None:
    record = json.loads((BENCHMARKS / "results" / "copying.json").read_text())["methods"]
    assert copying.missed(record) == []
    del record["pld"], record["llma"]["rag"]
    tasks = [("pld", "grammar"), ("pld", "rag"), ("llma", "rag"), ("pld", "summarization")]
    told = [f"{method} on {task} is not measured" for method, task in tasks]
    assert sorted(copying.missed(record)) == sorted(told)


def test_no_drafter_always_begins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the record says how long the text was and how often it was written."""
    begun: list[str] = []

    def decode(drafter: Any, *_: Any) -> draft.Times:
        begun.append(type(drafter).__name__)
        return draft.Times(0.0, [0.0], [1])

    monkeypatch.setattr(draft, "decode", decode)
    monkeypatch.setattr(draft, "STORED", 4000)
    record = run(monkeypatch, draft, folder, "--repeats", "2")
    count = len(record["drafters"])
    first, second = begun[:count], begun[count:]
    assert second == [*first[1:], first[0]] and first != second
    about = {name: record[name] for name in ("context", "written", "budget", "repeats")}
    assert about == {"context": 2000, "written": 600, "budget": 64, "repeats": 2}
