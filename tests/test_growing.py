"""benchmarks/growing.py: what it counts as growing, and that its record shows no pause."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
RECORD = BENCHMARKS / "results" / "growing.json"
if not RECORD.is_file():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))
import growing  # noqa: E402
import page_values  # noqa: E402

PAUSE = 5.0  # ms, less than anybody sees


def test_steps_that_take_pages() -> None:
    """By the faults of most texts; a text in which one place was slow moves nothing."""
    plain, grows, slow = (3.0, 3.0, 0), (3.5, 3.0, 180), (9.0, 3.0, 2)
    texts = [[plain, grows, plain], [slow, grows, plain], [plain, (3.7, 3.0, 200), plain]]
    found = growing.summary(texts)
    assert (found["tokens"], found["texts"], found["growing_steps"]) == (3, 3, 1)
    assert found["pass_ms"] == 3.0
    assert found["extra_ms_of_a_growing_step"] == found["largest_extra_ms"] == 0.5
    assert found["largest_extra_ms_of_others"] == 0.0


def test_what_growing_adds_to_a_token() -> None:
    """Of the steps that take pages alone: the others' differences are noise, above 0 or below."""
    quick, grows = (2.0, 3.0, 0), (3.5, 3.0, 180)
    models = [growing.summary([[quick, grows, each, each]] * 2) for each in (quick, grows)]
    assert page_values.DERIVED["growing.json"]({"models": models}) == {
        "ms a token": pytest.approx([0.5 / 4, 3 * 0.5 / 4])
    }


def test_no_pause_is_seen() -> None:
    """What growing adds is a hundredth of the time, and no step of it is long."""
    record = json.loads(RECORD.read_text("utf-8"))
    added = page_values.DERIVED["growing.json"](record)["ms a token"]
    for model, ms in zip(record["models"], added, strict=True):
        assert model["growing_steps"] >= 40
        assert ms <= 0.01 * model["pass_ms"]
        assert model["largest_extra_ms"] <= PAUSE


def test_models_are_named_by_themselves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes no pair, and says so rather than measure another model."""
    monkeypatch.setattr(sys, "argv", ["growing.py", "a.gguf", "--model", "b.gguf"])
    with pytest.raises(SystemExit):
        growing.main()
    assert "name models without --model" in capsys.readouterr().err
