"""Acceptance rates in files: read as a few nodes, replaced whole, never in anybody's way."""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from foretoken import LLM, SamplingParams
from foretoken.control.knowledge import _WEIGHT, Knowledge
from foretoken.control.rates import KINDS, History, Rates, chain
from foretoken.drafters.auto import Auto
from foretoken.testing import Pair

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


class Owner:
    """Whoever ends."""


def learned(nodes: int = 100, sampled: bool = False) -> Rates:
    rates, history = Rates(), History(sampled)
    for number in range(nodes):
        history.record_pass(rates, chain(2), 2, [1, 2] if number % 4 else [])
    return rates


def keep(rates: Rates, key: str = "part") -> None:
    """Read, learn, end."""
    owner = Owner()
    own = Rates()
    Knowledge(owner, {"it": key}).read([own])
    own.tested, own.accepted = rates.tested, rates.accepted
    del owner


def files(rates: Path) -> list[Path]:
    return sorted(rates.glob("*"))


def read(key: str = "part") -> Rates:
    rates, owner = Rates(), Owner()
    Knowledge(owner, {"it": key}).read([rates])
    return rates


def test_it_is_read_as_a_few_nodes() -> None:
    before = learned()
    keep(before)
    after, shares = read(), []
    for kind in range(KINDS):
        pairs = zip(before.tested[kind], before.accepted[kind], strict=True)
        for depth, (tested, accepted) in enumerate(pairs):
            assert after.tested[kind][depth] == pytest.approx(min(tested, _WEIGHT), rel=0.01)
            share = after.accepted[kind][depth] / after.tested[kind][depth]
            assert share == pytest.approx(accepted / tested, abs=0.01)
            shares.append(share)
    assert shares and not any(map(any, read("another").tested))


def test_greedy_and_sampled_are_apart() -> None:
    greedy, sampled = learned(), learned(sampled=True)
    half = KINDS // 2
    assert any(map(any, greedy.tested[:half])) and not any(map(any, greedy.tested[half:]))
    assert any(map(any, sampled.tested[half:])) and not any(map(any, sampled.tested[:half]))


DAMAGE: list[Any] = [
    "",
    "{",
    "[]",
    "{}",
    {"schema": 2, "counts": [[]] * KINDS},
    {"schema": 1, "counts": [[]] * (KINDS - 1)},
    {"schema": 1, "counts": [[[1, None]]] * KINDS},
    {"schema": 1, "counts": [[[-1, 0]]] * KINDS},
    {"schema": 1, "counts": [[[1, 2, 3]]] * KINDS},
    {"schema": 1, "counts": [[[float("nan"), 0]]] * KINDS},
    {"schema": 1, "counts": [[[1, 1]] * 9999] * KINDS},
]


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_file_is_ignored_and_replaced(rates: Path, damage: Any, caplog: Any) -> None:
    keep(learned())
    [path] = files(rates)
    path.write_text(damage if isinstance(damage, str) else json.dumps(damage))
    with caplog.at_level(logging.WARNING):
        assert not any(map(any, read().tested))
    assert "learned anew" in caplog.text
    keep(learned())
    assert any(map(any, read().tested))


def test_more_accepted_than_tested_is_all_accepted(rates: Path) -> None:
    keep(learned())
    [path] = files(rates)
    data = json.loads(path.read_text())
    data["counts"] = [[[2.0, 9.0]]] * KINDS
    path.write_text(json.dumps(data))
    assert read().accepted[0] == [2.0]


def test_what_cannot_be_written_is_told(monkeypatch: Any, tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / ("x" * 300)):  # the second can't be looked for
        monkeypatch.setattr("foretoken.control.knowledge.cache_folder", lambda to=folder: to)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            keep(learned())
        assert "learned at every start" in caplog.text


def test_nothing_new_is_not_written(rates: Path) -> None:
    keep(learned())
    [path] = files(rates)
    path.unlink()
    keep(Rates())
    assert not files(rates)


def _many(count: int) -> None:
    for number in range(count):
        keep(learned(20 + number))


def test_two_processes_at_once(rates: Path) -> None:
    """A reader finds one file whole, and nothing else is left in the folder."""
    others = [multiprocessing.get_context("fork").Process(target=_many, args=(8,)) for _ in "ab"]
    for other in others:
        other.start()
    while any(other.is_alive() for other in others):
        for path in files(rates):
            if path.suffix == ".json" and not path.name.startswith("."):
                assert len(json.loads(path.read_text())["counts"]) == KINDS
    assert [other.exitcode for other in others] == [0, 0]
    assert len(files(rates)) == 1 and any(map(any, read().tested))


def serve(pair: Pair, **options: Any) -> tuple[list[list[int]], Auto]:
    """The texts, and who chose."""
    config = {"method": "auto:sps,pld", "model": pair.draft, **options}
    llm = LLM(pair.target, max_num_seqs=2, speculative_config=config)
    texts = [out.token_ids for out in llm.generate([[1, 2, 3, 1, 2], [5, 6, 5, 6]], GREEDY)]
    drafter = llm.engine.drafter
    assert isinstance(drafter, Auto)
    llm.close()
    return texts, drafter


def most_tested(drafter: Auto) -> float:
    """Nodes of the kind that was tested most."""
    rates = drafter.control.rates
    return max((n for own in rates for kind in own.tested for n in kind), default=0.0)


def test_the_text_is_the_same_with_and_without(rates: Path, pair: Pair) -> None:
    without, drafter = serve(pair, remember=False)
    del drafter
    gc.collect()
    assert not files(rates)
    first, drafter = serve(pair)
    assert most_tested(drafter) > 0
    del drafter
    gc.collect()
    kept = files(rates)
    assert kept
    for path in kept:  # whatever they say, even that all is always accepted
        data = json.loads(path.read_text())
        data["counts"] = [[[99.0, 99.0]] * 16] * KINDS
        path.write_text(json.dumps(data))
    second, drafter = serve(pair)
    assert most_tested(drafter) >= _WEIGHT - 1
    assert without == first == second


def test_what_was_forgotten_is_not_written(rates: Path, pair: Pair) -> None:
    _, drafter = serve(pair)
    assert most_tested(drafter) > 0
    assert drafter.shared is not None
    drafter.shared.reset()
    assert not most_tested(drafter)
    del drafter
    gc.collect()
    assert not files(rates)


def test_it_is_written_while_it_runs(rates: Path, monkeypatch: Any) -> None:
    """And at most now and then."""
    now = [0.0]
    monkeypatch.setattr("foretoken.control.knowledge.monotonic", lambda: now[0])
    started: list[Any] = []

    class Thread:
        def __init__(self, target: Any, **_: Any) -> None:
            self._target = target

        def start(self) -> None:
            started.append(self._target())

    monkeypatch.setattr("foretoken.control.knowledge.threading.Thread", Thread)
    owner, own = Owner(), Rates()
    knowledge = Knowledge(owner, {"it": "part"})
    knowledge.read([own])
    History().record_pass(own, chain(2), 2, [1])
    knowledge.keep()
    assert not started and not files(rates)
    now[0] = 61.0
    knowledge.keep()
    knowledge.keep()
    assert len(started) == 1 and len(files(rates)) == 1


def test_nothing_is_written_after_a_drop(rates: Path, monkeypatch: Any) -> None:
    """Neither meanwhile nor at the end."""
    now = [0.0]
    monkeypatch.setattr("foretoken.control.knowledge.monotonic", lambda: now[0])
    thread = "foretoken.control.knowledge.threading.Thread"
    monkeypatch.setattr(thread, lambda **given: pytest.fail(str(given)))
    owner, own = Owner(), Rates()
    knowledge = Knowledge(owner, {"it": "part"})
    knowledge.read([own])
    History().record_pass(own, chain(2), 2, [1])
    knowledge.drop()
    now[0] = 61.0
    knowledge.keep()
    del owner
    assert not files(rates)
