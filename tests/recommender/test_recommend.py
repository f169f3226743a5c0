"""`recommend`, whole, on a tiny model; and what it refuses before it loads one."""

from __future__ import annotations

import math
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

import foretoken
from command_line import Pair
from foretoken import ForetokenError
from foretoken.bench.measure import costs
from foretoken.bench.record import BASELINE
from foretoken.bench.run.runner import Runner
from foretoken.recommender import served, servings
from foretoken.recommender.race import Allowance
from foretoken.recommender.recommend import _by_seconds, _Run
from foretoken.recommender.verdict import LEAST

pytestmark = pytest.mark.usefixtures("cache")

TEXTS = [f"Tell me about number {number}." for number in range(4 * LEAST)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Costs of passes have tests of their own; and there is nothing in the hub's cache."""
    monkeypatch.setattr(costs, "_ARRAY_BYTES", 2**16)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def test_the_whole(checkpoints: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell is timed, with your own config and auto among the methods; what was left out
    has a prediction or a reason. The clock goes on when it is looked at, no unit counts as
    disturbed and no answer as a loop, which most greedy answers of so small a model are: nothing
    hangs on how fast the machine is."""
    monkeypatch.setattr(servings, "DISTURBED", math.inf)
    monkeypatch.setattr(served, "looping", lambda _plain: [])
    looks = count()
    clock = Allowance(4, lambda: next(looks) / 30)
    monkeypatch.setattr(Allowance, "starting", lambda _seconds: clock)
    lines: list[str] = []
    found = foretoken.recommend(
        checkpoints[0],
        draft_models=[checkpoints[1]],
        prompts=TEXTS,
        batch_sizes=(1, 2),
        seconds=4,
        max_tokens=8,
        speculative_config={"method": "pld", "num_speculative_tokens": 2},
        tell=lines.append,
    )
    cells = {(row.cell.batch_size, row.cell.temperature) for row in found.rows}
    assert cells == {(1, 0.0), (1, 1.0), (2, 0.0), (2, 1.0)}
    timed = {row.method for row in found.rows}
    assert {BASELINE, "yours"} <= timed and any(name.startswith("auto") for name in timed)
    shown = {*timed, *(one.best.label for one in found.screened), *found.not_run}
    for name in ("pld", "suffix", "sps draft", "swift"):
        assert any(label.startswith(name) for label in shown), name
    assert found.config == (found.chosen[0].config if found.chosen else None)
    assert found.sentence and not found.interrupted and lines[-1].startswith("Timing ")


def test_ctrl_c(checkpoints: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of screening, what is known is told, and that it isn't much."""
    served = Runner.serve
    left = iter(range(2))

    def interrupted(self: Runner, unit: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return served(self, unit)

    monkeypatch.setattr(Runner, "serve", interrupted)
    found = foretoken.recommend(
        checkpoints[0],
        prompts=TEXTS,
        temperatures=[0],
        seconds=60,
        max_tokens=8,
        dtype="float32",
        backend="plain",
    )
    assert found.options == {"dtype": "float32", "backend": "plain"}
    assert found.interrupted and found.config is None and not found.rows
    assert "promises most" in found.sentence and found.screened
    assert any("Interrupted" in note for note in found.notes)


def test_your_config_is_tried_before_others_are_measured(
    checkpoints: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that can't be served ends the call at once, and not after the screening."""

    def never(self: Runner, unit: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(Runner, "serve", never)
    with pytest.raises(ForetokenError, match="nowhere"):
        foretoken.recommend(
            checkpoints[0],
            prompts=TEXTS,
            seconds=60,
            max_tokens=8,
            speculative_config={"method": "sps", "model": "./nowhere"},
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"prompts": TEXTS[:4]},
            "are 4 prompts, and an interval at batch 1 needs at least 5;",
        ),
        ({"prompts": TEXTS, "batch_sizes": (8,)}, "at batch 8 needs at least 40"),
        ({"prompts": [1, 2]}, "something else than texts"),
        ({"prompts": "./nowhere.txt"}, "nowhere.txt can't be read"),
        ({"batch_sizes": ()}, "give at least one of each"),
        ({"temperatures": (-1,)}, "give at least one of each"),
        ({"seconds": 0}, "seconds is 0"),
        ({"seconds": float("inf")}, "seconds is inf"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"speculative_config": {"method": "plt"}}, "plt"),
        ({"draft_models": ["./nowhere"], "prompts": TEXTS}, "nowhere"),
    ],
)
def test_refused(options: dict[str, Any], said: str, checkpoints: Pair) -> None:
    with pytest.raises(ForetokenError, match=said):
        foretoken.recommend(checkpoints[0], **options)


def test_the_bar_ends_with_the_time() -> None:
    """It goes on by whole seconds, each once, and no further than it is long."""
    now, shown = 0.0, list[int]()
    step = _by_seconds(Allowance.starting(5.0, lambda: now), lambda: shown.append(1))
    for now, expected in ((0.0, 0), (2.5, 3), (2.6, 3), (9.0, 5)):  # noqa: B007
        step()
        assert len(shown) == expected


def test_what_was_screened_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timing begins with the prompts that nobody has answered yet."""
    asked: list[str] = []

    def timing(prompts: list[str], cells: Any) -> Any:
        asked.extend(prompts)
        return SimpleNamespace(run=lambda *given: None)

    monkeypatch.setattr("foretoken.recommender.recommend.Timing", timing)
    run: Any = _Run.__new__(_Run)
    run._lineup = SimpleNamespace(serve=None, keep=None, finalists=lambda *given: [])
    run._allowance = run._advance = run._cells = None
    run._many, run._tell, run._prompts = 2, lambda line: None, ["a", "b", "c", "d"]
    screening: Any = SimpleNamespace(
        left=[], used=3, run=lambda *given: None, predictions=lambda: []
    )
    run.measure(screening, [])
    assert asked == ["d", "a", "b", "c"]
