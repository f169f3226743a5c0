"""What steps cost: the measured curve, and what real steps teach."""

from __future__ import annotations

import numpy as np
import pytest

from foretoken import ForetokenError
from foretoken.control.cost_model import CostModel, DraftCost, unmeasured

CURVE = {1: 10.0, 2: 11.0, 4: 12.0, 8: 14.0, 16: 20.0, 32: 30.0, 64: 55.0}


def model(fixed: bool = False) -> CostModel:
    return CostModel(
        CURVE, {"copy": DraftCost(call=0.02), "small": DraftCost(level=1.0)}, fixed=fixed
    )


def test_passes_of_a_padded_batch() -> None:
    """A batch costs what all its rows cost at the widest one's length."""
    costs = model()
    assert costs.passes(1, 3) == [10, 11, 11.5, 12]
    assert costs.passes(4, 1) == [12, 14]
    assert costs.passes(32, 2)[2] == pytest.approx(55 + 32 * 25 / 32)  # after the last point
    assert costs.drafts["small"](4, 3) == 3 and costs.drafts["copy"](4, 3) == pytest.approx(0.08)


def test_nonsense_is_refused() -> None:
    """As by the curve itself."""
    with pytest.raises(ForetokenError, match="cost curve"):
        CostModel({}, {})


def test_a_machine_that_slows_down_changes_no_choice() -> None:
    """All steps ten times as slow: costs keep their proportions, also those not seen lately."""
    costs, before = model(), np.array(model().passes(1, 31))
    for _ in range(400):
        costs.record_pass_time(6, 130.0)
        costs.record_draft_time("small", 1, 4, 40.0)
    after = np.array(costs.passes(1, 31))
    assert after / after[0] == pytest.approx(before / before[0], rel=0.1)
    assert costs.drafts["small"].level / after[0] == pytest.approx(0.1, rel=0.1)


def test_what_was_measured_wrong_is_corrected() -> None:
    """Real passes cost other than measured: their proportions are found, without jumps."""
    costs, truth = model(), {1: 10.0, 5: 25.0, 9: 28.0}
    random = np.random.default_rng(0)
    for _ in range(600):
        tokens = int(random.choice(list(truth)))
        costs.record_pass_time(tokens, truth[tokens] * random.lognormal(0, 0.1))
    plain, five, nine = (costs.passes(1, 8)[nodes] for nodes in (0, 4, 8))
    assert five / plain == pytest.approx(2.5, rel=0.15)
    assert nine / plain == pytest.approx(2.8, rel=0.15)


def test_a_drafter_that_is_dearer_than_measured() -> None:
    """Its own cost is corrected, by its proportion to the passes."""
    costs = model()
    for _ in range(300):
        costs.record_pass_time(5, costs.curve(5))
        costs.record_draft_time("small", 1, 4, 12.0)
    assert costs.drafts["small"].level == pytest.approx(3.0, rel=0.1)


def test_what_a_draft_is_hoped_to_cost() -> None:
    """What was learned as long as it counts, then what was measured; no more than was learned."""
    for real in (12.0, 2.0):
        costs = model()
        for _ in range(300):
            costs.record_draft_time("small", 1, 4, real)
        learned = costs.drafts["small"].level
        assert costs.hoped("small").level == pytest.approx(learned, rel=0.01)
        costs.forget("small", 100)
        assert costs.hoped("small").level == pytest.approx(min(learned, 1.0), rel=0.01)
        assert costs.drafts["small"].level == learned


def test_a_draft_that_read_what_it_missed_can_only_be_cheaper() -> None:
    """Than was learned, and not than was measured."""
    costs = model()
    costs.record_computed("small", 1, 4, 400.0, 30)
    costs.record_computed("small", 1, 4, 0.1, 30)
    assert costs.drafts["small"].level == 1.0
    for _ in range(300):
        costs.record_computed("small", 1, 4, 12.0, 1)
    assert costs.drafts["small"].level == pytest.approx(3.0, rel=0.1)
    for _ in range(300):
        costs.record_computed("small", 1, 4, 0.1, 30)
    assert costs.drafts["small"].level == pytest.approx(1.0)


def test_a_pause_is_no_cost() -> None:
    """One step in fifty takes a hundred times as long."""
    costs = model()
    for number in range(500):
        costs.record_pass_time(5, 12.5 * (100 if number % 50 == 7 else 1))
        costs.record_pass_time(1, 10.0)
    table = costs.passes(1, 4)
    assert table[4] / table[0] == pytest.approx(1.25, rel=0.1)


def test_costs_never_fall() -> None:
    """Whatever noise says, more tokens are never cheaper."""
    costs, random = model(), np.random.default_rng(1)
    for _ in range(500):
        costs.record_pass_time(int(random.integers(1, 80)), 10 * random.lognormal(0, 0.5))
    assert (np.diff(costs.passes(1, 70)) >= 0).all()


@pytest.mark.parametrize("tokens", [9, 200, 2048])
def test_passes_far_beyond_a_curve_that_falls(tokens: int) -> None:
    """As a GPU's does, where noise is larger than what a few tokens add."""
    costs = CostModel({1: 2.1, 2: 2.0, 8: 1.7}, {}, per_cell=1e-6)
    for _ in range(50):
        costs.record_pass_time(tokens, 3.0, cells=1000)
    assert min(costs.passes(1, 64)) > 1
    assert costs.passes(1, 7)[7] == pytest.approx(3.0, rel=0.4)  # the machine's pace, or the size


def test_fixed_costs_stay() -> None:
    """For whoever wants the same choice every time."""
    costs = model(fixed=True)
    for _ in range(100):
        costs.record_pass_time(5, 500.0)
        costs.record_draft_time("small", 1, 4, 500.0)
    assert costs.passes(1, 4) == model().passes(1, 4)
    assert costs.drafts["small"] == DraftCost(level=1.0)


def test_what_was_not_timed() -> None:
    """A level of drawing costs a tenth of a pass, a copy a hundredth."""
    assert unmeasured(20.0, True)(3, 2) == 4.0 and unmeasured(20.0, False)(3, 2) == pytest.approx(
        0.6
    )


def test_a_slow_machine_is_no_surprise() -> None:
    """What takes as much longer as all passes do lately is neither extra nor a new cost."""
    costs = model()
    for _ in range(9):
        costs.record_pass_time(1, 40.0)
    assert costs.extra_ms("small", 1, 4, 16.0) == pytest.approx(0.0, abs=1e-6)
    assert costs.extra_ms("small", 1, 4, 20.0) == pytest.approx(1.0, rel=1e-3)
    assert costs.extra_ms("small", 1, 4, 12.0) == pytest.approx(-1.0, rel=1e-3)
    costs.record_draft_time("small", 1, 4, 16.0)
    assert costs.drafts["small"].level == pytest.approx(1.0)
    costs.record_draft_time("small", 1, 4, 4.0)  # at this pace it is cheaper than measured
    assert costs.drafts["small"].level < 0.95


def test_what_was_looked_up_before_is_computed_anew() -> None:
    """Once real passes have shown that it is wrong."""
    costs = model()
    before = costs.passes(2, 3), costs.sizes(8)
    for step in range(160):  # most are plain ones, which show how fast the machine is
        costs.record_pass_time(8 if step % 4 == 3 else 1, 50.0 if step % 4 == 3 else 10.0)
    assert costs.passes(2, 3)[3] == costs.sizes(8)[8] > 1.5 * before[1][8]
    assert before[0][3] == before[1][8] == 14


def test_reading_the_cache_is_no_surprise() -> None:
    """What a long text adds to a pass is not the pass's own cost."""
    costs = CostModel({1: 10.0, 8: 14.0}, {}, per_cell=0.01)
    for step in range(160):
        if step % 4 == 3:
            costs.record_pass_time(8, 14.0 + 20.0, cells=2000)
        else:
            costs.record_pass_time(1, 10.0)
    assert costs.passes(1, 7)[7] == pytest.approx(14.0)
