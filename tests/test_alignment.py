"""benchmarks/alignment.py: what is asked of its record."""

from __future__ import annotations

import copy
import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import alignment  # noqa: E402


def test_a_record_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one that is there is as wanted; one in which nothing is gained is told of."""
    monkeypatch.setattr(sys, "argv", ["alignment.py", "--check"])
    assert alignment.main() == 0 and "all as wanted" in capsys.readouterr().out
    record = json.loads((BENCHMARKS / "results" / "alignment.json").read_text())
    worse = copy.deepcopy(record)
    worse["from_nothing"][alignment.DISTILLED]["1.0"]["ratio"] = 1.01
    (tmp_path / "alignment.json").write_text(json.dumps(worse))
    monkeypatch.setattr(sys, "argv", ["alignment.py", "--check", "--out", str(tmp_path)])
    assert alignment.main() == 1
    assert "T = 1.0: distilled is 1.010 times plain text" in capsys.readouterr().out


def test_a_folder_is_gone_on_with_by_the_same_settings(tmp_path: Path) -> None:
    """With further arms, and files that have moved; not with others, nor where nothing is noted."""
    (data := tmp_path / "prompts.jsonl").write_text('{"prompt": "the sea"}\n')
    (moved := tmp_path / "moved.jsonl").write_text(data.read_text())
    (other := tmp_path / "other.jsonl").write_text('{"prompt": "a house"}\n')
    work = tmp_path / "work"
    given = {"model": "mini", "draft_model": "mini-draft", "data": [str(data)], "work": work}
    given |= {"prompts": None, "objectives": ("nll",), "sources": ("fixed",), "suite": "bundled"}
    given |= {"lr": 2e-3, "matrix_lr": 2e-2, "rows": 2, "length": 512, "temperature": 0.0}
    given |= {"own_every": 50, "own_texts": 256, "max_tokens": 64}
    alignment.begin(Namespace(**given))
    further = {"objectives": ("nll", "tv"), "sources": (), "data": [str(moved)]}
    alignment.begin(Namespace(**given | further))
    for change, said in (
        ({"lr": 1e-3}, "another --lr: 0.002, now 0.001"),
        ({"suite": str(moved)}, "another --suite"),
        ({"data": [str(other)]}, "another --data"),
        ({"draft_model": "mini"}, "another --draft-model"),
    ):
        with pytest.raises(SystemExit, match=said):
            alignment.begin(Namespace(**given | change))
    (work / "settings.json").rename(work / "nll-fixed.json")
    with pytest.raises(SystemExit, match=r"no settings\.json that says how they were made"):
        alignment.begin(Namespace(**given))


def test_a_record_has_every_arm_that_is_there(tmp_path: Path) -> None:
    """Those of earlier runs too; the one that they are compared with is always among them."""
    given = Namespace(work=tmp_path, objectives=["tv"], sources=["drafter"])
    assert alignment.known_arms(given) == ["nll, fixed", "tv, drafter"]
    (tmp_path / "kl_div-target@1.json").write_text("{}")
    assert alignment.known_arms(given) == ["nll, fixed", "kl_div, target@1", "tv, drafter"]


def test_an_arm_serves_its_last_weights() -> None:
    """Nothing is chosen on the way, where arms would differ in their luck."""
    given = {"lr": 1e-3, "matrix_lr": 0.0, "rows": 1, "length": 64, "temperature": 0.0}
    given |= {"own_every": 5, "own_texts": 8, "max_tokens": 16}
    chosen = alignment.recipe(Namespace(**given), 40, "tv", {})
    assert chosen.evaluate_every == chosen.steps == 40 and chosen.own_every == 5


def test_what_steps_learned_is_summed(tmp_path: Path) -> None:
    """Over the lines of a training's metrics."""
    (tmp_path / "nll-fixed").mkdir()
    lines = [json.dumps({"step": n, "learned": 1.5 * n}) for n in (1, 2)]
    (tmp_path / "nll-fixed" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    bench = object.__new__(alignment.Bench)
    bench.given = Namespace(work=tmp_path)
    assert bench.learned("nll, fixed") == 4.5
