"""Two runs beside each other: real changes are found, noise is not, and what differs is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import synthetic
from foretoken.bench.measure import metrics
from foretoken.bench.record import Answer
from foretoken.bench.report import paired
from foretoken.bench.report.compare import Change, compare
from foretoken.cli.commands import app
from foretoken.files import write_file, write_json

PROMPTS = 24


def answers(
    method: str, seed: int, factor: float = 1.0, noise: float = 0.02, size: int = 1
) -> list[Answer]:
    """Prompts that differ twentyfold in cost and twofold in speedup; `noise` is the clock's."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(PROMPTS):
        share = 1.0 if method == "autoregressive" else 0.4 + 0.5 * (i * 7 % PROMPTS) / PROMPTS
        cost = 0.01 * 20 ** (i / PROMPTS) * share
        cost *= factor * float(np.exp(noise * rng.standard_normal()))
        seconds = {"prefill": 0.0, "draft": 0.0, "verify": cost, "other": 0.0}
        seconds |= {"ttft": 0.0, "total": cost}
        group = f"group-{i // size}"
        found.append(
            synthetic.answer(
                method,
                "qa",
                id=f"p{i}",
                seconds=seconds,
                sameness="identical",
                batch_size=size,
                group=group if size > 1 else "",
            )
        )
    return found


def folder(path: Path, found: list[Answer], samples: bool = True, **suite: Any) -> Path:
    """A folder of results measured from the answers."""
    record: Any = synthetic.results()
    record["suite"] |= {"left_out": [], **suite}
    record["runs"] = metrics.runs(found, record["suite"]["left_out"], repeats=1)
    record["crossover"] = []
    write_json(path / "results.json", record)
    if samples:
        write_file(path / "samples.jsonl", "".join(a.line() + "\n" for a in found))
    return path


Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make("a", pld=1.1): plain decoding, and pld a tenth slower than in its first run."""

    def build(
        name: str, *, seed: int = 0, noise: float = 0.02, size: int = 1, **given: Any
    ) -> Path:
        factors = {key: given.pop(key) for key in list(given) if key in synthetic.METHODS}
        factors = {"autoregressive": 1.0, "pld": 1.0, **factors}
        found = [
            a
            for i, (method, factor) in enumerate(factors.items())
            if factor is not None
            for a in answers(method, 10 * seed + i, factor, noise, size)
        ]
        return folder(tmp_path / name, found, **given)

    return build


def change(a: Path, b: Path, what: str, method: str = "pld") -> Change:
    [found] = [c for c in compare(a, b).changes if (c.what, c.method) == (what, method)]
    return found


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_the_same_run_twice_is_no_change(make: Make) -> None:
    a, b = make("a"), make("b")
    assert not compare(a, b).beyond
    found = run(a, b, "--fail-on-regression")
    assert found.exit_code == 0 and "No change beyond noise" in found.stdout


def test_a_small_change_is_found_by_pairing(make: Make) -> None:
    """8 % on prompts that differ twofold: the intervals overlap widely, the pairs do not."""
    a, b = make("a"), make("b", seed=1, pld=1.08)
    found = change(a, b, "speedup")
    assert found.beyond and found.regression and found.percent == "−8 %"
    assert found.sentence == "speedup of pld 1.52→1.40 (−8 %, beyond noise)"
    alone = change(make("c", samples=False), make("d", seed=1, pld=1.08, samples=False), "speedup")
    assert alone.beyond is False and not alone.regression


def test_faster_is_no_regression(make: Make) -> None:
    found = change(make("a"), make("b", pld=0.8), "speedup")
    assert found.beyond and not found.regression and found.percent == "+25 %"


def test_noise_is_no_change(make: Make) -> None:
    found = change(make("a", noise=0.4), make("b", seed=1, noise=0.4, pld=1.05), "speedup")
    assert found.beyond is False


def test_false_alarms_are_as_rare_as_promised() -> None:
    """Of runs that differ by noise alone, about one in twenty is outside of its 95 % interval."""
    rng = np.random.default_rng(0)
    outside = 0
    for _ in range(200):
        units = np.exp(0.3 * rng.standard_normal((30, 2, 5)))
        ends = paired.ratio_interval(units, "speedup", 0.025)
        assert ends is not None
        outside += not ends[0] <= 1 <= ends[1]
    assert 3 <= outside <= 24


def test_many_comparisons_share_the_alarms() -> None:
    """What would be beyond noise alone (2.3 deviations) is not, where it is one of 200."""
    noise = np.random.default_rng(3).standard_normal(40)
    units = np.ones((40, 2, 5))
    units[:, 1, 1] = np.exp(0.3 * (noise - noise.mean()) / noise.std() + 0.11)
    alone, among = (paired.ratio_interval(units, "speedup", 0.025 / n) for n in (1, 200))
    assert alone is not None and among is not None
    assert not alone[0] <= 1 <= alone[1] and among[0] <= 1 <= among[1]


def test_slower_plain_decoding_counts_on_the_same_machine_only(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = make("a"), make("b", autoregressive=1.2, pld=1.2)
    found = change(a, b, "tokens/s", "autoregressive")
    assert found.beyond and found.regression
    assert not change(a, b, "speedup").beyond  # both methods slowed down alike
    other = json.loads((b / "results.json").read_text())
    other["environment"]["cpu"] = "Another CPU"
    write_json(b / "results.json", other)
    assert not change(a, b, "tokens/s", "autoregressive").regression
    assert "environment, cpu: Made-up CPU @ 2.10GHz → Another CPU" in compare(a, b).differences


def test_what_is_only_in_one_is_named(make: Make) -> None:
    a, b = make("a", sps=1.0), make("b", lookahead=1.0, max_tokens=99)
    found = compare(a, b)
    assert found.only_before == ["sps at temperature 0, batch size 1"]
    assert found.only_after == ["lookahead at temperature 0, batch size 1"]
    assert found.differences == ["suite, max tokens: 128 → 99"]
    text = " ".join(run(a, b).stdout.split())  # wherever the lines break
    assert "only in" in text and "sps at temperature 0" in text and "128 → 99" in text


def test_other_text_than_before_is_a_regression(make: Make, tmp_path: Path) -> None:
    a, b = make("a"), make("b")
    lines = (b / "samples.jsonl").read_text().splitlines()
    found = [Answer.parse(line) for line in lines]
    wrong = [replace(x, sameness="different") if x.id == "p3" else x for x in found]
    folder(b, [x if x.method == "autoregressive" else y for x, y in zip(found, wrong, strict=True)])
    text = change(a, b, "same text")
    assert (text.before, text.after) == ("yes", "1 of 24 differ") and text.regression
    assert run(a, b).exit_code == 0
    assert run(a, b, "--fail-on-regression").exit_code == 1
    back = change(b, a, "same text")
    assert back.beyond and not back.regression


def test_pairs_are_of_prompts_that_count_in_both(make: Make) -> None:
    """Loops and failures of either run are left out; the values are those of the rest."""
    a, b = make("a", left_out=["p23"]), make("b")
    everything = [Answer.parse(line) for line in (b / "samples.jsonl").read_text().splitlines()]
    broken = [
        replace(x, error="gone") if (x.id, x.method) == ("p22", "pld") else x for x in everything
    ]
    folder(b, broken)
    rest = [x for x in everything if x.id not in ("p22", "p23")]
    mine = [x for x in rest if x.method == "pld"]
    plain = [x for x in rest if x.method == "autoregressive"]
    expected = metrics.measure(mine, plain)["speedup"]
    assert change(a, b, "speedup").after == pytest.approx(expected)


def test_batches_are_the_unit(make: Make) -> None:
    """The same groups are paired; other groups leave only the intervals."""
    a, b = make("a", size=4), make("b", seed=1, size=4)
    found = paired.gather(Answer.parse(x) for x in (a / "samples.jsonl").read_text().splitlines())
    [mine] = [v for k, v in found.items() if k[2] == "pld"]
    units = paired.pair((mine, mine), (mine, mine))
    assert units is not None and units.shape == (PROMPTS // 4, 2, 5)
    assert not compare(a, b).beyond
    mixed = {k: replace(v, group=f"group-{i % 6}") for i, (k, v) in enumerate(mine.items())}
    assert paired.pair((mine, mine), (mixed, mixed)) is None


def test_two_single_targets_are_compared_in_any_case(make: Make) -> None:
    a, b = make("a"), make("b")
    other = json.loads((b / "results.json").read_text())
    other["target"]["dtype"] = "bfloat16"
    write_json(b / "results.json", other)
    found = compare(a, b)
    assert found.changes and "target, dtype: float32 → bfloat16" in found.differences
    write_json(a / "results-x.json", {**other, "target": {**other["target"], "dtype": "float64"}})
    found = compare(a, b)
    assert not found.changes
    assert found.only_before == ["synthetic, float32", "synthetic, float64"]


def test_comparison_as_json(make: Make) -> None:
    found = json.loads(run(make("a"), make("b", pld=1.5), "--json").stdout)
    assert {c["what"] for c in found["changes"] if c["beyond"]} == {"speedup"}
    assert found["changes"][0]["method"] == "autoregressive"
