"""What is run: methods, prompts, and which of them are served together."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from benchmarked import SUITE
from foretoken import METHODS, ForetokenError
from foretoken.bench.plan import (
    Plan,
    blocks,
    draft_models,
    every_method,
    method_config,
    relocated,
    seed_of,
    select,
    shard_of,
    trained_configs,
    units,
)
from foretoken.bench.suites.suite import Prompt


def many(*counts: int) -> list[Prompt]:
    """Prompts of tasks a, b …; those of b have two turns each."""
    return [
        Prompt(f"{task}{i}", task, ("x",) * (2 if task == "b" else 1))
        for task, count in zip("abc", counts, strict=False)
        for i in range(count)
    ]


def test_groups_are_of_one_task_and_nest() -> None:
    """At 1, 2 and 3 together: blocks of six, and who is served with whom is the same alone."""
    [first, *_] = found = blocks(many(7, 2), [1, 2, 3])
    assert [[p.id for p in b] for b in found] == [
        ["a0", "a1", "a2", "a3", "a4", "a5"],
        ["b0", "b1"],
        ["a6"],
    ]
    asked = Plan(model="m", name="m", methods={}, batch_sizes=(1, 2, 3), temperatures=(0.0, 1.0))
    groups = [(u.batch_size, u.temperature, u.group) for u in units(first, asked)]
    assert groups[-4:] == [(3, 0.0, "a0+2"), (3, 1.0, "a0+2"), (3, 0.0, "a3+2"), (3, 1.0, "a3+2")]
    assert groups[:2] == [(1, 0.0, "a0"), (1, 1.0, "a0")] and len(groups) == 2 * (6 + 3 + 2)


def test_no_group_shrinks_after_its_first_turn() -> None:
    """Who has more turns is served with others that have as many."""
    turns = {"p": 1, "q": 2, "r": 1, "s": 2}
    mixed = [Prompt(name, "a", ("x",) * count) for name, count in turns.items()]
    assert [[p.id for p in b] for b in blocks(mixed, [2])] == [["p", "r"], ["q", "s"]]


def test_shards_are_disjoint_and_whole() -> None:
    """Every prompt is in one of them."""
    found = blocks(many(9, 5, 3), [1, 2])
    shards = [found[i::3] for i in range(3)]
    assert sorted(p.id for shard in shards for b in shard for p in b) == sorted(
        p.id for p in many(9, 5, 3)
    )
    assert sum(map(len, shards)) == len(found)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/", "-1/2", ""])
def test_a_shard_that_is_none(text: str) -> None:
    """The sentence shows what one looks like."""
    with pytest.raises(ForetokenError, match="1/4"):
        shard_of(text)
    assert (shard_of("1/3"), shard_of("3/3")) == ((1, 3), (3, 3))


def test_selection() -> None:
    """By task and by number; an unknown task is named."""
    assert [p.id for p in select(SUITE, ["qa"], 2)] == ["qa-1", "qa-2"]
    assert len(select(SUITE, None, None)) == 5
    with pytest.raises(ForetokenError, match="Did you mean 'chat'"):
        select(SUITE, ["chats"], None)


def test_every_method_that_can_be_built() -> None:
    """What lacks a draft model or a datastore is named, with what it lacks."""
    found, reasons = every_method(None, 3)
    assert "sps" not in found and "draft" in reasons["sps"]
    assert found["pld"] == {"method": "pld", "num_speculative_tokens": 3}
    found, reasons = every_method("small", None)
    assert found["sps"] == {"method": "sps", "model": "small"}
    assert {row.name for row in METHODS.values() if row.trained} == {*reasons} - {"rest"}
    assert "trained for its target" in reasons["medusa"] and "datastore" in reasons["rest"]
    assert method_config("ngram", "small", None) == {"method": "ngram"}
    with pytest.raises(ForetokenError, match="Did you mean 'pld'"):
        method_config("pldd", None, None)


def test_methods_of_parts() -> None:
    """By the names that `speculative_config` takes; each draws on the drafter that is its own."""
    assert method_config("suffix+sps", "small", 3) == {
        "method": "suffix+sps",
        "model": "small",
        "num_speculative_tokens": 3,
    }
    assert method_config("pld|sps", None, None, {"sps": "s"}) == {
        "method": "pld|sps",
        "sps": {"model": "s"},
    }
    assert method_config("eagle|draft_model", "small", None, {"eagle": "e"}) == {
        "method": "eagle|draft_model",
        "eagle": {"model": "e"},
        "draft_model": {"model": "small"},
    }
    assert method_config("pld|draft_model", None, None, {"sps": "s"}) == {
        "method": "pld|draft_model",
        "draft_model": {"model": "s"},
    }
    own = {"sps": "s", "eagle": "e", "online": "o"}
    assert method_config("sps", "small", None, own) == {"method": "sps", "model": "s"}
    assert method_config("specinfer", "small", None, own)["model"] == "small"
    assert method_config("eagle", None, None, own) == {"method": "eagle", "model": "e"}
    assert method_config("online", "small", None, own) == {"method": "online", "model": "o"}
    every, reasons = every_method(None, None, own)
    assert {"sps", "eagle", "online"} <= {*every} and "eagle2" in reasons


def test_draft_models_move() -> None:
    """By any name of the option; other methods stay as they are."""
    configs = {"a": {"method": "sps", "draft_model": "x"}, "b": {"method": "pld"}}
    assert relocated(configs, {"x": Path("y")})["a"] == {"method": "sps", "draft_model": "y"}
    parts = {"a": {"method": "pld|sps", "model": "x", "sps": {"model": "z"}, "pld": {"top": 1}}}
    assert draft_models({**configs, **parts}) == ["x", "z"]
    assert relocated(parts, {"x": Path("y"), "z": Path("w")})["a"] == {
        "method": "pld|sps",
        "model": "y",
        "sps": {"model": "w"},
        "pld": {"top": 1},
    }


@pytest.mark.parametrize(
    "given", [{"repeats": 2}, {"batch_sizes": (1, 2)}, {"temperatures": (0.0, 1.0)}]
)
def test_warm_drafters_see_a_prompt_once(given: dict[str, Any]) -> None:
    """More than one setting would measure them on what they have learned."""
    once: Any = {"model": "m", "name": "m", "methods": {}, "warm": True, "temperatures": (1.0,)}
    with pytest.raises(ForetokenError, match="just learned"):
        Plan(**{**once, **given})
    Plan(**once)


def test_seeds_of_odd_ids() -> None:
    """An id may hold anything; those of others stay what they were."""
    assert seed_of(1, "é", 0) == zlib.crc32("1 é 0".encode())
    assert seed_of(1, "\ud83d", 0) != seed_of(1, "\ud83c", 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batch_sizes": (4, 0)}, "each must be at least 1"),
        ({"repeats": 0}, "each must be at least 1"),
        ({"temperatures": (0.0, -1.0)}, "In temperatures, temperature"),
        ({"template": "vicunna"}, "Did you mean 'vicuna'"),
    ],
)
def test_what_no_run_can_be_made_of(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ForetokenError, match=said):
        Plan(model="m", name="m", methods={}, **given)


def test_drafters_of_approximate_methods_are_not_tried() -> None:
    """A checkpoint is taken by every method that reads it and keeps the target's text."""
    assert trained_configs({Path("x"): "specdec"}) == [{"method": "specdec", "model": "x"}]
