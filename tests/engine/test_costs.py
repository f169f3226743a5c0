"""Costs that are measured when an engine is made, and kept for the next one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from foretoken import LLM, SamplingParams
from foretoken.control.cost_model import DraftCost
from foretoken.drafters.auto import Auto
from foretoken.drafters.eagle import Eagle
from foretoken.drafters.either import Either
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.rest import Rest
from foretoken.drafters.small_lm import SmallLM
from foretoken.engine import costs
from foretoken.lookup import datastore
from foretoken.models.budget import CacheBudget
from foretoken.models.native.transformer import Transformer
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair, native, related
from foretoken.trainable.eagle import EagleModule
from foretoken.verify.target_only import TargetOnly
from lessons import seeded

pytestmark = pytest.mark.usefixtures("cache")


class Counted(ModelTarget):
    """Counts the passes that score, by their tokens."""

    passes: ClassVar[list[int]] = []

    def score(self, sequences: Any, tree: Any) -> Any:
        Counted.passes.append(1 + tree.nodes)
        return super().score(sequences, tree)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(costs, "target_for", Counted)
    monkeypatch.setattr(costs, "_ENOUGH", 0.0)  # as if each pass took long
    monkeypatch.setattr(costs, "_WARMING", 0.0)
    Counted.passes.clear()
    return Counted.passes


def kept_files(cache: Path) -> dict[Path, str]:
    return {path: path.read_text("utf-8") for path in cache.rglob("*.json")}


def test_costs_are_measured_once(
    pair: Pair, cache: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each width once or twice; then two passes tell whether what was kept holds."""
    monkeypatch.setattr(costs, "_AT_MOST", 60.0)
    monkeypatch.setattr(costs, "_agree", lambda ms, kept: True)
    config = {"method": "auto", "model": pair.draft}

    def passes() -> list[int]:
        counted.clear()
        LLM(pair.target, speculative_config=config)
        return counted.copy()

    first = passes()
    kept = kept_files(cache)
    assert first == [1, 1, 1, 8, 8, 4, 4, 16, 16, 2, 2, 32, 64]
    assert passes() == [1, 1]
    assert kept_files(cache) == kept
    monkeypatch.setattr(costs, "_agree", lambda ms, kept: False)
    assert passes() == first
    now = kept_files(cache)
    assert now.keys() == kept.keys() and all(now[path] != kept[path] for path in kept)


def test_nothing_is_left_of_what_was_timed(
    pair: Pair, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a slot nor what stood in it, the target's or the draft model's."""
    monkeypatch.setattr(costs, "_AT_MOST", 60.0)
    monkeypatch.setattr(costs, "_ENOUGH", 0.0)
    config = {"method": "auto", "model": pair.draft}
    with LLM(pair.target, speculative_config=config, max_num_seqs=1, eos_ids=()) as llm:
        target = llm.engine.target
        assert (target.free, target.budget.written, target.budget.reserved) == (1, 0, 0)
        assert any('"call"' in text for text in kept_files(cache).values())  # drafts were timed
        params = SamplingParams(temperature=0, max_tokens=5)
        assert len(llm.generate([1, 2], params)[0].token_ids) == 5


def test_the_first_passes_dont_count(
    pair: Pair, cache: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that fits into a large cache is faster from the tenth pass on; what was measured
    then still holds at the next start."""

    def timed(work: Callable[[], object], device: torch.device) -> float:
        work()
        return 5.0 if len(counted) < 10 else 3.0 + counted[-1] / 100

    monkeypatch.setattr(costs, "_ENOUGH", 60.0)
    monkeypatch.setattr(costs, "_WARMING", 60.0)
    monkeypatch.setattr(costs, "_AT_MOST", 60.0)
    monkeypatch.setattr(costs, "timed", timed)

    def passes() -> int:
        counted.clear()
        LLM(pair.target, speculative_config={"method": "auto"})
        return len(counted)

    first, again = passes(), passes()
    assert again == 1 + costs.WARM < first


def measured(pair: Pair, part: Any) -> DraftCost:
    target = ModelTarget(pair.target, 1, 256)
    part.bind(target)
    return costs.measured(costs.Loop(target, part, TargetOnly()), {"it": part}).drafts["it"]


def test_drafts_of_a_busy_machine_are_forgotten(
    pair: Pair, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where passes turn out to be faster than they were, so are drafts: they are timed again, or at
    the next start where there is no time."""

    def found() -> float:
        return measured(pair, SmallLM(pair.draft, 3))(1, 4)

    monkeypatch.setattr(costs, "_AT_MOST", 60.0)
    monkeypatch.setattr(costs, "_agree", lambda ms, kept: True)
    found()
    [file] = [path for path, text in kept_files(cache).items() if '"call"' in text]
    slow = {**json.loads(file.read_text()), "ms": {"call": 1e6}}
    file.write_text(json.dumps(slow))
    assert found() == 1e6
    monkeypatch.setattr(costs, "_agree", lambda ms, kept: False)
    assert found() < 1e5 and json.loads(file.read_text())["ms"]["call"] < 1e5
    slow = {**json.loads(file.read_text()), "ms": {"call": 1e6}}
    file.write_text(json.dumps(slow))
    measured(pair, PromptLookup(3))  # it isn't a part, but the passes are others now
    monkeypatch.setattr(costs, "_agree", lambda ms, kept: True)
    assert found() < 1e5 and json.loads(file.read_text())["ms"]["call"] < 1e5
    file.write_text(json.dumps({"ms": {"call": 1e6}}))  # without the plain pass beside it
    assert found() < 1e5
    slow = {**json.loads(file.read_text()), "ms": {"call": 1e6}}
    file.write_text(json.dumps(slow))
    monkeypatch.setattr(costs, "_agree", lambda ms, kept: False)
    monkeypatch.setattr(costs, "_before", lambda until, ms: False)
    assert found() < 1e5


def test_drafts_are_kept_at_the_pace_of_the_passes(
    pair: Pair, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that are timed at a later start, when the machine is somewhat slower."""
    monkeypatch.setattr(costs, "_AT_MOST", 60.0)
    monkeypatch.setattr(costs, "timed", lambda work, device: 10.0)
    measured(pair, PromptLookup(3))
    monkeypatch.setattr(costs, "timed", lambda work, device: 14.0)
    monkeypatch.setattr(costs, "_step", lambda loop, part, sequence, nodes: (nodes, 1.4 * nodes))
    for _ in range(2):  # timed, and read
        found = measured(pair, SmallLM(pair.draft, 3))
        assert (found.call, found.level) == pytest.approx((0.0, 1.0))


def test_a_slow_model_is_measured_over_several_starts(
    pair: Pair, cache: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No start takes longer than it may; the widths that say most come first, drafts last."""
    now = 0.0

    def slow(work: Any, device: Any) -> float:
        """A pass of 60 ms, and 4 for each further token."""
        nonlocal now
        work()
        ms = 56.0 + 4 * counted[-1]
        now += ms / 1000
        return ms

    monkeypatch.setattr(costs, "timed", slow)
    monkeypatch.setattr(costs, "perf_counter", lambda: now)

    def start() -> set[int]:
        nonlocal now
        now = 0.0
        counted.clear()
        LLM(pair.target, speculative_config={"method": "auto", "model": pair.draft})
        assert now <= costs._AT_MOST
        return {*counted} - {1}

    assert [start() for _ in range(5)] == [{2, 4, 8}, {16}, {32}, {64}, set()]
    [(_, text)] = kept_files(cache).items()
    assert json.loads(text)["ms"] == {str(w): pytest.approx(56 + 4 * w) for w in costs.WIDTHS}


def test_a_model_too_slow_to_be_timed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass that reads the first token says what there is time to learn."""
    now = 0.0

    class Slow(costs.PassProbe):
        def __init__(self, *given: Any) -> None:
            nonlocal now
            super().__init__(*given)
            now += 0.7

        def run(self, width: int) -> Any:
            nonlocal now
            now += 0.7
            return super().run(width)

    monkeypatch.setattr(costs, "PassProbe", Slow)
    monkeypatch.setattr(costs, "perf_counter", lambda: now)
    llm = LLM(pair.target, speculative_config={"method": "auto", "model": pair.draft})
    assert now == 0.7 and llm.generate([[1, 2]])[0].token_ids


def test_widths_that_were_not_timed() -> None:
    """On the lines between and beyond those that were."""
    assert costs.completed({1: 32.0}) == {w: 32.0 + 2 * (w - 1) for w in costs.WIDTHS}
    assert costs.completed({1: 32.0, 8: 33.0})[64] == 33.0 + 2 * 56  # never as good as free
    known = {1: 10.0, 4: 12.0, 8: 24.0, 16: 40.0}
    rest = {2: pytest.approx(10 + 2 / 3), 32: 40 + 16 * 2.0, 64: 40 + 48 * 2.0}
    assert costs.completed(known) == {**known, **rest}
    assert costs.completed({1: 10.0, 64: 9.0})[32] == pytest.approx(9.5)


def test_what_a_pass_reads_besides_weights(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of the cache takes as long as so many bytes of weights; in 16 bits, half as long."""
    rising = {1: 2.0, 8: 3.0}  # timed ones may fall by chance, which the curve would even out
    monkeypatch.setattr(costs, "_passes", lambda model, known, until: (rising, 1.0))
    for stored in (None, torch.bfloat16):
        target = ModelTarget(pair.target, 1, 32, budget=CacheBudget(dtype=stored))
        loop = costs.Loop(target, PromptLookup(3), TargetOnly())
        found, cache = costs.measured(loop, {}), target.cache
        assert found.per_cell == pytest.approx(2.0 * cache.token_bytes / pair.target.bytes_read)
        assert isinstance(pair.target, Transformer) and found.packed == pair.target.packs


def test_what_is_estimated_by_bytes(pair: Pair) -> None:
    drafter = SmallLM(pair.draft, 3)
    drafter.bind(ModelTarget(pair.target, 1, 32))
    share = pair.draft.bytes_read / pair.target.bytes_read
    assert costs._estimated(pair.target, drafter, 20.0).level == pytest.approx(20 * share)
    assert costs._estimated(pair.target, PromptLookup(5), 20.0).call == pytest.approx(0.2)


DAMAGED = [b"", b"{", b"\xff", b"[]", b"{}", b'{"ms": 3}', b'{"ms": {}}', b'{"ms": {"1": 1.0}}']
DAMAGED += [b'{"ms": {"call": "x"}}', b'{"ms": {"call": NaN, "level": -1}}', None]
DAMAGED += [b'{"ms": {"1": 1.0, "8": 0}}']


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_files_are_made_again(
    content: bytes | None, pair: Pair, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What isn't a measurement counts for nothing, whatever stands there; None: a folder."""
    monkeypatch.setattr(costs, "_AT_MOST", 60.0)
    monkeypatch.setattr(costs, "_ENOUGH", 0.0)
    monkeypatch.setattr(costs, "_agree", lambda ms, kept: True)
    config = {"method": "auto:pld,sps", "model": pair.draft}
    LLM(pair.target, speculative_config=config)
    files = list(cache.rglob("*.json"))
    assert len(files) == 3  # the passes and two drafts
    for file in files:
        file.unlink()
        file.mkdir() if content is None else file.write_bytes(content)
    LLM(pair.target, speculative_config=config)
    assert content is None or all(json.loads(file.read_text())["ms"] for file in files)


def test_costs_that_cant_be_kept(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Measured all the same, and the sentence names the file."""
    (tmp_path / "file").write_text("")
    for name in ("file", "x" * 300):  # the second can't even be looked for
        monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / name))
        caplog.clear()
        LLM(pair.target, speculative_config={"method": "auto:pld"})
        assert str(tmp_path / name) in caplog.text and "measured at every start" in caplog.text


def test_what_is_kept_must_agree() -> None:
    """A machine that was busy, or is now, shows it by half as much again."""
    assert costs._agree(10.0, 14.0) and costs._agree(14.0, 10.0)
    assert not costs._agree(10.0, 16.0) and not costs._agree(16.0, 10.0)


def test_the_key_of_a_cached_table(pair: Pair) -> None:
    """A drafter's class, its plain options by name and the shapes of its models: a table is used
    again for the same ones only."""
    drafter = SmallLM(pair.draft, 3)
    drafter.bind(ModelTarget(pair.target, 1, 32))
    name, *rest = costs._identity(drafter)
    shape = costs.shape_of(pair.draft)
    assert name == "SmallLM" and "num_speculative_tokens=3" in rest
    assert rest[-len(shape) :] == shape and rest.count(shape[0]) == shape.count(shape[0])
    assert costs._identity(PromptLookup(5)) != costs._identity(PromptLookup(6))


def test_what_acceptance_depends_on(
    pair: Pair, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's weights and the draft model's, though others of their shapes cost the same."""
    monkeypatch.setattr(costs, "_AT_MOST", 0.0)
    other = native(related(pair.transformers, 0.02, seed=9))

    def of(target: Any, draft: Any) -> str:
        access, part = ModelTarget(target, 1, 256), SmallLM(draft, 3)
        part.bind(access)
        found = costs.measured(costs.Loop(access, part, TargetOnly()), {"it": part}).of
        return str(found["it"])

    given = (pair.target, pair.draft), (pair.target, other), (other, pair.draft)
    assert costs.shape_of(other) == costs.shape_of(pair.draft)
    texts = [of(*each) for each in given]
    assert len({*texts}) == 3 and of(*given[0]) == texts[0]


def test_what_a_speed_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a model's numbers, its dtype and its backend; the machine's threads."""
    numbers = dict.fromkeys(("layers", "width", "vocab_size", "parameters", "bytes_read"), 3)
    shape = {**numbers, "dtype": torch.float32, "backend": "plain"}
    changes: dict[str, Any] = {**dict.fromkeys(numbers, 4), "dtype": torch.float64, "backend": "q8"}
    plain: Any = SimpleNamespace(**shape)
    for name, value in changes.items():
        other: Any = SimpleNamespace(**{**shape, name: value})
        assert costs.shape_of(other) != costs.shape_of(plain), name
    device = torch.device("cpu")
    before = costs._machine(device)
    assert costs._machine(device) == before
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert costs._machine(device) != before


def test_trained_heads_and_stores_are_known_by_their_files(pair: Pair, tmp_path: Path) -> None:
    """Not by their names, which may come to stand for others; also within a drafter of several."""
    target = ModelTarget(pair.target, 1, 64)
    folder, heads = tmp_path / "heads", seeded(EagleModule, pair)
    found = []
    for scale in (1.0, 1.0, 2.0):
        with torch.no_grad():
            for weight in heads.parameters():
                weight.mul_(scale)
        heads.save(folder, {})
        for drafter in (Eagle(folder), Either([PromptLookup(3), Eagle(str(folder))])):
            drafter.bind(target)
            found.append(costs._identity(drafter))
    assert found[:2] == found[2:4]
    assert found[4] != found[0] and found[5] != found[1]
    stores = []
    for number in range(2):
        datastore.build(
            tmp_path / f"{number}", {"vocab_size": pair.target.vocab_size}, [[1, 2, number]]
        )
        stores.append(costs._identity(Rest(tmp_path / f"{number}")))
    assert stores[0] != stores[1]


def test_costs_of_another_foretoken_are_not_used(
    pair: Pair, cache: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those of another version nor those of other loops, which are what passes take."""
    monkeypatch.setattr(costs, "_AT_MOST", 60.0)
    monkeypatch.setattr(costs, "_agree", lambda ms, kept: True)

    def passes() -> int:
        counted.clear()
        LLM(pair.target, speculative_config={"method": "auto:pld"})
        return len(counted)

    first = passes()
    assert passes() == 2 < first
    monkeypatch.setattr(costs, "version", lambda name: "99.0")
    assert (passes(), passes()) == (first, 2)
    monkeypatch.setattr(costs.kernels, "_FLAGS", ("-O1",))
    assert (passes(), passes()) == (first, 2)


def test_levels_count_where_depth_costs() -> None:
    """Of two timed drafts: a call alone where the deeper one is hardly slower, else a price a
    level."""
    assert costs._line(1, 2.0, 4, 2.5) == {"call": 2.5}
    assert costs._line(1, 2.0, 4, 8.0) == {"call": 0.0, "level": 2.0}
    assert costs._line(2, 3.0, 2, 9.0) == {"call": 9.0}


def test_drafts_that_end_early_tell_what_a_level_costs(pair: Pair) -> None:
    """A small model that is unsure stops after its first token, however long the draft may be."""
    assert costs._early(2, 9.0) == {"call": 0.0, "level": 4.5}
    assert costs._early(0, 3.0) == {"call": 0.0, "level": 3.0}
    unsure = SmallLM(
        pair.draft,
        16,
        num_assistant_tokens_schedule="confidence",
        assistant_confidence_threshold=1.0,
    )
    drafter = Auto([unsure], names=["sps"])
    LLM(pair.target, speculative_config={"method": drafter})
    assert drafter.costs is not None and drafter.costs.drafts["sps"].level > 0


def test_only_the_later_rounds_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones are slow: of five the last three are kept, of two the second."""
    monkeypatch.setattr(costs, "_ENOUGH", 0.0)
    for least, kept in ((5, [[3.0], [4.0], [5.0]]), (2, [[2.0]]), (1, [[1.0]])):
        rounds = iter([[1.0], [2.0], [3.0], [4.0], [5.0]])
        assert costs._rounds(lambda rounds=rounds: next(rounds), least) == kept  # type: ignore[misc]
