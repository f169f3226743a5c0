"""What passes cost: every size in turn, the right bytes, and a function of what was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.access import Wants
from foretoken.bench.measure import costs
from foretoken.models.load import wrapped
from foretoken.models.native import backends
from foretoken.models.native.build import build_native
from foretoken.testing import Pair, native, tiny_transformers

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_ARRAY_BYTES", 4096)


@pytest.fixture
def methods(pair: Pair) -> dict[str, LLM]:
    """Plain decoding, a copying method and one with a draft model, around one target."""
    configs: dict[str, dict[str, Any]] = {
        "autoregressive": {"method": "autoregressive"},
        "pld": {"method": "pld"},
        "sps": {"method": "sps", "model": pair.draft},
    }
    return {name: LLM(pair.target, speculative_config=c) for name, c in configs.items()}


class Clock:
    """In place of `_timed`: does the work, and says that the k-th timing took k milliseconds."""

    def __init__(self) -> None:
        self.passes = 0
        self.reads: list[int] = []

    def __call__(self, work: Callable[[], object], device: torch.device) -> float:
        out = work()
        self.passes += 1
        if isinstance(out, torch.Tensor):
            self.reads.append(self.passes)
        return float(self.passes)


def test_what_is_measured(methods: dict[str, LLM]) -> None:
    """All sizes of target and draft model for each batch size; model-free methods have no model."""
    found = costs.measure_costs(methods["pld"], methods, batch_sizes=(16, 4), context=32, repeats=2)
    assert (found["context"], found["repeats"]) == (32, 2)
    assert found["bandwidth_gb_s"] > 0
    passes = found["target"]["passes"]
    assert [part["batch_size"] for part in passes] == [1, 4, 16]
    sizes = [[int(size) for size in part["ms"]] for part in passes]
    assert sizes[0] == [1, 2, 4, 8, 16, 32, 64]
    assert sizes[1] == [4, 8, 16, 32, 64]
    assert sizes[2] == [16, 32, 64, 128]  # a few tokens of each at least
    assert all(ms > 0 for part in passes for ms in part["ms"].values())
    assert set(found["drafts"]) == set(methods)
    assert found["drafts"]["autoregressive"] is found["drafts"]["pld"] is None
    assert found["drafts"]["sps"] is not None
    assert len(found["drafts"]["sps"]["passes"]) == 3


def test_rounds_are_interleaved(methods: dict[str, LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    """A size is timed once a round; the first round is left out, the others' median taken."""
    clock = Clock()
    monkeypatch.setattr(costs, "_timed", clock)
    monkeypatch.setattr(costs, "WARM", 1)
    found = costs.measure_costs(methods["sps"], {"sps": methods["sps"]}, context=8, repeats=3)
    each = 2 * (1 + len(costs.WIDTHS)) + 1  # of target and draft model, and the memory
    assert clock.reads == [each, 2 * each, 3 * each, 4 * each]
    [alone] = found["target"]["passes"]
    middle = 2 * each  # rounds 1, 2 and 3 begin after 1, 2 and 3 times `each`
    assert list(alone["ms"].values()) == [middle + place for place in range(2, 9)]
    seconds = (middle + each) / 1000
    assert found["bandwidth_gb_s"] == pytest.approx(4096 / seconds / 1e9)


def test_bytes_of_the_context(methods: dict[str, LLM]) -> None:
    """Keys and values of two layers, two heads of eight numbers, eight bytes each."""
    found = costs.measure_costs(methods["pld"], {}, context=10, repeats=1)
    assert found["target"]["kv_bytes"] == 10 * 2 * 2 * 2 * 8 * 8


def test_measuring_leaves_no_trace(methods: dict[str, LLM]) -> None:
    """The models' own caches and statistics stay as they were."""
    llm, params = methods["sps"], SamplingParams(temperature=0, max_tokens=8)
    before = llm.generate([[1, 2, 3]], params)[0].token_ids
    llm.reset_stats()
    costs.measure_costs(llm, methods, context=16, repeats=1)
    assert llm.stats.passes == 0
    assert llm.generate([[1, 2, 3]], params)[0].token_ids == before


def test_context_has_room(methods: dict[str, LLM]) -> None:
    """A context that the model can't hold together with the widest pass is cut."""
    found = costs.measure_costs(methods["pld"], {}, context=10_000, repeats=1)
    assert found["context"] == methods["pld"].model.max_length - 65


def test_unknown_drafting_is_left_out(pair: Pair) -> None:
    """What a method that runs parts of the target costs is not known, so it isn't called free."""
    llm = LLM(pair.target, speculative_config={"method": "pld"})
    llm.engine.drafter.wants = Wants("ae")
    assert costs.measure_costs(llm, {"layers": llm}, context=8, repeats=1)["drafts"] == {}


def test_weights_as_they_lie_in_memory() -> None:
    """Matrices that float16 holds exactly count half; the embedding only where it is the head."""
    model = tiny_transformers(width=64, dtype=torch.float32)
    matrices = sum(w.numel() for n, w in model.state_dict().items() if w.ndim > 1)
    table = model.get_input_embeddings().weight.numel()
    weights = model.state_dict()

    def read(name: str) -> int:
        built = build_native(model.config, weights.__getitem__, torch.float32, CPU, name)
        return built.bytes_read

    assert read("plain") == 4 * (matrices - table) == wrapped(model).bytes_read
    if "half" in _served():
        weights = {name: w.half().float() for name, w in weights.items()}
        assert read("half") == 2 * (matrices - table)
    model.config.tie_word_embeddings = True
    assert read("plain") == 4 * (matrices - table)  # the head is gone, the embedding read instead


def _served() -> list[str]:
    from foretoken.models.native.backends import half

    return ["half"] if half.supports(torch.float32, CPU) else []


def test_unfit_weights_stay_whole() -> None:
    """The half backend says of each matrix how it really holds it."""
    if "half" not in _served():
        pytest.skip("this torch build has no FBGEMM")
    _, make = backends.choose("half", torch.float32, CPU)
    for value, size in ((0.5, 2), (1 + 2**-12, 4)):
        layer = make(torch.full((64, 960), value), None)
        assert backends.nbytes(layer, 64 * 960, torch.float32) == 64 * 960 * size


def test_pass_cost_takes_the_batch_size_below() -> None:
    """Measured batch sizes have their own curve and serve those up to the next one."""
    cost = costs.pass_cost(
        {
            "weight_bytes": 0,
            "kv_bytes": 0,
            "passes": [
                {"batch_size": 1, "ms": {"1": 10.0, "8": 24.0}},
                {"batch_size": 4, "ms": {"4": 30.0, "8": 50.0}},
            ],
        }
    )
    assert cost(1, 1) == 10.0
    assert cost(1, 4.5) == pytest.approx(17.0)
    assert cost(3, 8) == 24.0
    assert cost(4, 4) == cost(16, 4) == 30.0
    assert cost(16, 12) == pytest.approx(70.0)


@pytest.mark.parametrize("passes", [None, [None], [{"batch_size": None, "ms": {}}], [{"ms": 5}]])
def test_costs_of_a_damaged_record(passes: Any) -> None:
    """One sentence, and what to do."""
    with pytest.raises(ForetokenError, match="The costs of these results can't be read"):
        costs.pass_cost({"passes": passes})  # type: ignore[typeddict-item]


def test_passes_that_score_more_than_drafts_are_left_out(pair: Pair) -> None:
    """Lookahead's window is in every pass and in no record's drafted tokens."""
    llm = LLM(pair.target, speculative_config={"method": "lookahead"})
    assert costs.measure_costs(llm, {"lookahead": llm}, context=8, repeats=1)["drafts"] == {}


@pytest.mark.parametrize(("seconds", "passes"), [(0.0, 12), (0.2, 2)])
def test_caches_are_filled_first(
    methods: dict[str, LLM], monkeypatch: pytest.MonkeyPatch, seconds: float, passes: int
) -> None:
    """By a dozen passes, or as many as end within 0.3 seconds and the one that doesn't."""
    case = costs._PassTimes(methods["pld"].model, 1, 8)
    now, widths = 0.0, []

    def milliseconds(width: int) -> float:
        nonlocal now
        now += seconds
        widths.append(width)
        return 0.0

    monkeypatch.setattr(case, "milliseconds", milliseconds)
    monkeypatch.setattr(costs, "perf_counter", lambda: now)
    case.warm(costs.WARM)
    assert widths == [1] * passes


def test_the_shortest_context_decides(pair: Pair) -> None:
    """The draft model's, where that is the shorter one."""
    short = native(tiny_transformers(layers=1, max_length=100))
    llm = LLM(pair.target, speculative_config={"method": "sps", "model": short})
    assert costs.Meter(llm, {"sps": llm}, context=10_000).context == 100 - 65


def test_a_draft_model_is_not_warmed_up_like_a_target(
    methods: dict[str, LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In decoding the target's passes come between its own."""
    llm, warmed = methods["sps"], dict[int, int]()
    meter = costs.Meter(llm, {"sps": llm}, context=8)

    def noted(case: Any, passes: int) -> None:
        warmed[id(case.model)] = passes

    monkeypatch.setattr(costs._PassTimes, "warm", noted)
    meter.round()
    draft = costs.draft_model(llm.engine.drafter)
    assert warmed == {id(llm.model): costs.WARM, id(draft): 1}


def test_a_model_of_other_passes_does_not_draft_for_nothing(
    methods: dict[str, LLM], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it makes more or fewer of them than one a token, what drafting costs is not known."""
    llm = methods["pld"]
    monkeypatch.setattr(type(llm.engine.drafter), "small_models", [pair.draft])
    assert costs.measure_costs(llm, {"mine": llm}, context=8, repeats=1)["drafts"] == {}
