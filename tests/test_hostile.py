"""benchmarks/hostile: what it counts as a fault, and how it goes on after a crash."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from foretoken import ForetokenError

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

from hostile import made  # noqa: E402
from hostile_inputs import FAMILIES, family  # noqa: E402
from hostile_inputs.case import FAULTS, Case, Outcome, unclear  # noqa: E402
from hostile_inputs.isolate import Isolated, isolated  # noqa: E402
from hostile_inputs.stand import GOOD, GREEDY, Stand, tried  # noqa: E402

DIES = """
import json, os, sys, time
start = int(sys.argv[sys.argv.index("--start") + 1])
for case in range(start, 5):
    print(json.dumps({"begins": case}), flush=True)
    if case == 1:
        print("the last words", file=sys.stderr, flush=True)
        os.abort()
    if case == 3:
        time.sleep(60)
    print(json.dumps({"ended": case, "served": True, "errors": [], "faults": {}}), flush=True)
"""


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    made = Stand(tmp_path_factory.mktemp("stand"))
    yield made
    made.close()


def outcome_of(stand: Stand, run: Any, **given: Any) -> Outcome:
    return tried(Case("made up", run, **given), stand)


def test_a_process_that_dies_or_hangs_counts_against_its_case() -> None:
    """The others are run, each once."""
    work = Isolated([sys.executable, "-c", DIES], {}, 4.0, 5)
    outcomes = list(isolated(work))
    assert [bool(o["faults"]) for o in outcomes] == [False, True, False, True, False]
    assert outcomes[1]["faults"] == {"crashed": "the process ended with SIGABRT the last words"}
    assert "never came back" in outcomes[3]["faults"]["crashed"]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("top_p is 'x'; it must be a number.", ""),
        ("", "nothing"),
        ("top_p is\nbad", "line breaks"),
        ("top_p \x1b[31m", "control"),
        ("top_p " + "x" * 400, "406 characters"),
        ("top_p is <object object at 0x7f>.", "shows"),
        ("It is wrong.", "names none of top_p"),
    ],
)
def test_what_a_good_error_is(message: str, why: str) -> None:
    assert why in unclear(message, ["top_p"]) and bool(why) == bool(unclear(message, ["top_p"]))


def test_faults_are_seen(stand: Stand) -> None:
    """A raw exception, a neighbour's other text, an LLM that is left broken, what must be refused
    or served, an error that is none."""

    def raw(stand: Stand, outcome: Outcome) -> None:
        outcome.attempt(lambda: 1 / 0)

    def harms(stand: Stand, outcome: Outcome) -> None:
        stand.expected[2].append(0)  # as if the neighbour had lost a token
        with stand.neighbour(stand.llm(), outcome):
            pass
        stand.expected[2].pop()

    def breaks(stand: Stand, outcome: Outcome) -> None:
        llm = stand.new()
        llm.close()
        stand.serves(llm, outcome)

    def refuses(stand: Stand, outcome: Outcome) -> None:
        outcome.errors.append("It is wrong.")

    def serves(stand: Stand, outcome: Outcome) -> None:
        llm = stand.llm()
        with stand.neighbour(llm, outcome):
            stand.together(llm, [GOOD[0]], [GREEDY], outcome)

    assert set(outcome_of(stand, raw).faults) == {"raw"}
    assert set(outcome_of(stand, harms).faults) == {"harmed"}
    assert set(outcome_of(stand, breaks).faults) == {"unusable"}
    assert set(outcome_of(stand, refuses, must="serve").faults) == {"wrong"}
    assert set(outcome_of(stand, refuses, names=("top_p",)).faults) == {"unclear"}
    assert set(outcome_of(stand, serves, must="refuse").faults) == {"wrong"}
    good = outcome_of(stand, serves, must="serve")
    assert good.served and not good.faults


def test_a_refusal_is_no_fault(stand: Stand) -> None:
    def run(stand: Stand, outcome: Outcome) -> None:
        raise_ = ForetokenError("top_p is 'x'; it must be a number.")
        outcome.attempt(lambda: (_ for _ in ()).throw(raise_))

    outcome = outcome_of(stand, run, names=("top_p",), must="refuse")
    assert not outcome.faults and outcome.errors


@pytest.mark.parametrize("name", FAMILIES)
def test_a_seed_fixes_the_cases(name: str) -> None:
    """Every family has the cases that it claims, and a seed makes the same ones again."""
    labels = [
        [case.label for case in family(name).cases(Random(seed), FAMILIES[name])]
        for seed in (1, 1, 2)
    ]
    assert labels[0] == labels[1] != labels[2]
    assert len(labels[0]) >= FAMILIES[name]


def test_there_are_a_thousand() -> None:
    assert sum(FAMILIES.values()) >= 1000 and len(FAULTS) == 6


FOREIGN_TO_PYTEST = ("interrupted", "forked")
"""Cases that need a process of their own."""


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Files that cases write, and caches that they damage, lie in a folder of their own."""
    folder = tmp_path_factory.mktemp("apart")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        for name in ("HOME", "FORETOKEN_CACHE", "XDG_CACHE_HOME", "HF_HOME"):
            patch.setenv(name, str(folder / name.lower()))
        (folder / "home").mkdir()
        patch.chdir(folder / "home")
        yield


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_sample_of_each_family_does_no_harm(stand: Stand, name: str) -> None:
    """Ten of the cases that `make hostile` runs, without the processes around them."""
    for case in made(name, 10, 5):
        if not case.label.startswith(FOREIGN_TO_PYTEST):
            assert tried(case, stand).faults == {}, case.label
