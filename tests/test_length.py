"""When drafts end: each rule by hand, and that none of them changes what is written."""

from __future__ import annotations

from math import log, sqrt
from timeit import repeat
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.config import build
from foretoken.drafters.small_lm import SmallLM
from foretoken.draws import KeyedDraws
from foretoken.length import (
    SCHEDULES,
    Adaptive,
    Confidence,
    Cumulative,
    Entropy,
    ExpectedGain,
    Fixed,
    Heuristic,
    schedule,
    speedup,
)
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence, draws_for
from foretoken.testing import (
    ByteTokenizer,
    Pair,
    TableModel,
    check_distribution,
    check_greedy,
    check_independence,
    table_pair,
)
from foretoken.tree import DraftTree
from foretoken.verify.speculative import Speculative

COLD, WARM = SamplingParams(temperature=0), SamplingParams()


def sequence(params: SamplingParams = WARM, tokens: tuple[int, ...] = (1,)) -> Sequence:
    return Sequence.start(list(tokens), params)


# --- each rule by hand ---


def test_confidence_compares_the_likeliest_token() -> None:
    """It ends after a distribution whose largest probability is below the threshold, row by row."""
    rule = Confidence(4, 0.5)
    distributions = torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2], [0.1, 0.0, 0.9]])
    assert rule.ends([sequence()] * 3, distributions).tolist() == [False, True, False]
    assert rule.limit(sequence()) == 4 and rule.looks
    assert not Fixed(4).looks and not Fixed(4).ends([sequence()] * 3, distributions).any()


def test_the_adaptive_threshold_follows_the_published_parameters() -> None:
    """Worked by hand with [1, 0.5, 0.9, 1e-2, 0.9]: up while too little is accepted, down while
    enough is, still where drafts are as long as they may be."""
    rule, own, other = Adaptive(4), sequence(), sequence()
    wanted = 0.8
    for drafted, accepted, rate in (
        (4, 2, 0.25),
        (3, 3, 0.625),
        (2, 2, 0.8125),
        (1, 1, 0.90625),
        (4, 4, 0.953125),
        (0, 0, 0),
        (2, 2, 0.9765625),
    ):
        change = 0.01 if rate < 0.9 else -0.01
        if drafted in (0, 4) and (drafted == 0 or rate >= 0.9):
            change = 0
        wanted = 0.9 * wanted + 0.1 * (wanted + change)
        rule.observe(own, drafted, accepted)
        assert rule.threshold(own) == pytest.approx(wanted, abs=1e-15)
        if drafted:
            assert own.state[rule.key][1] == rate
    assert rule.threshold(own) == pytest.approx(0.8 + 0.001 * (3 - 2))
    assert rule.threshold(other) == 0.8  # each sequence has its own
    distributions = torch.tensor([[0.8005, 0.1995], [0.8005, 0.1995]], dtype=torch.float64)
    assert rule.ends([own, other], distributions).tolist() == [True, False]


def test_the_whole_draft_is_what_counts() -> None:
    """No token is unsure, but all together are; each row and each draft by itself."""
    rule, one, other = Cumulative(9, 0.5), sequence(), sequence()
    shares = torch.tensor([[0.8, 0.2], [0.1, 0.9]])
    for _ in range(2):
        assert (rule.limit(one), rule.limit(other)) == (9, 9)
        found = [rule.ends([one, other], shares).tolist() for _ in range(7)]
        assert [row[0] for row in found] == [0.8**i < 0.5 for i in range(1, 8)]
        assert [row[1] for row in found] == [0.9**i < 0.5 for i in range(1, 8)]


@pytest.mark.parametrize(
    ("after_error", "moved"),
    [
        # Halved; all wrong, which is bounded; half wrong.
        ("rate", [0.2, 0.9, 0.5]),
        # 0.2 / mean(0.5, 0.25, 0.125); that / 0.125, of the one wrong token that is known.
        ("confidence", [0.2, 0.2 * 24 / 7, 0.9]),
    ],
)
def test_the_cumulative_threshold(after_error: str, moved: list[float]) -> None:
    """Both readings of the published rule, by hand."""
    rule, own = Cumulative(9, 0.4, after_error=after_error), sequence()
    found = []
    for drafted, accepted in ((3, 3), (3, 0), (4, 2)):
        rule.limit(own)
        for _ in range(3):
            rule.ends([own], torch.tensor([[0.5, 0.5]]))
        rule.observe(own, drafted, accepted)
        rule.observe(own, 0, 0)  # a step without a draft
        found.append(rule.threshold(own))
    assert found == pytest.approx(moved)
    for _ in range(40):
        rule.observe(own, 1, 1)
    assert rule.threshold(own) == 1e-6 and rule.threshold(sequence()) == 0.4
    rule.limit(own)
    rule.observe(own, 1, 0)  # of whose only token no confidence is known
    assert rule.threshold(own) == (0.9 if after_error == "rate" else 1e-6)


def test_entropy_bounds_the_acceptance() -> None:
    """1 - sqrt(0.2 H), H in nats; certain distributions have none, impossible tokens don't
    matter."""
    rule = Entropy(4)
    distributions = torch.tensor(
        [[0.25] * 4, [0.5, 0.5, 0, 0], [0, 1.0, 0, 0]], dtype=torch.float64
    )
    bounds = [1 - sqrt(0.2 * log(4)), 1 - sqrt(0.2 * log(2)), 1.0]
    assert rule.certainty(distributions).tolist() == pytest.approx(bounds)
    assert rule.ends([sequence()] * 3, distributions).tolist() == [True, False, False]
    rule.observe(own := sequence(), 2, 0)
    assert rule.threshold(own) == pytest.approx(0.501)


@given(st.floats(0, 0.999), st.floats(0, 1.5), st.integers(1, 12))
def test_expected_gain_is_the_best_length(rate: float, cost: float, most: int) -> None:
    """No length within the bounds has a higher (1 - a^(g+1)) / ((1 - a)(g c + 1))."""

    def gain(tokens: int) -> float:
        return (1 - rate ** (tokens + 1)) / ((1 - rate) * (tokens * cost + 1))

    rule = ExpectedGain(most, draft_cost=cost, rate=rate)
    limit = rule.limit(sequence())
    assert 1 <= limit <= most
    assert gain(limit) >= max(map(gain, range(1, most + 1))) * (1 - 1e-12)
    assert speedup(rate, limit, cost) == pytest.approx(gain(limit))


def test_expected_gain_learns_per_sequence() -> None:
    """Rejections shorten, acceptance lengthens; free drafting is as long as it may be."""
    rule = ExpectedGain(8, draft_cost=0.2)
    good, bad, new = sequence(), sequence(), sequence()
    for _ in range(20):
        rule.observe(good, rule.limit(good), rule.limit(good))
        rule.observe(bad, rule.limit(bad), 0)
    assert rule.limit(good) == 8 and rule.limit(bad) == 1 < rule.limit(new) < 8
    rule.observe(good, 0, 0)
    assert rule.limit(good) == 8
    # Of 3 drafted and 1 accepted, 2 were tested: the third was never looked at.
    rule.observe(one := sequence(), 3, 1)
    assert one.state[rule.key] == pytest.approx((0.9 * 1.6 + 1, 0.9 * 2 + 2))
    assert ExpectedGain(8, draft_cost=0, rate=0.1).limit(new) == 8
    assert speedup(1.0, 3, 0.0) == 4.0


def test_equal_rules_have_states_of_their_own() -> None:
    """So that one drafter's acceptance doesn't move another's threshold."""
    one, two = schedule("adaptive", 8), schedule("adaptive", 8)
    assert one == two and one is not two
    sequence = Sequence.start([1], SamplingParams(temperature=0))
    before = two.threshold(sequence)  # type: ignore[attr-defined]
    for _ in range(50):
        one.observe(sequence, 8, 0)
    assert two.threshold(sequence) == before != one.threshold(sequence)  # type: ignore[attr-defined]


def test_schedules_by_name() -> None:
    """Names, their own options, and rules as they are."""
    assert {type(schedule(name, 3)) for name in SCHEDULES} == set(SCHEDULES.values())
    none = {"assistant_confidence_threshold": None, "draft_cost": None}
    assert schedule("constant", 3, none) == Fixed(3)
    option = {"assistant_confidence_threshold": 0.7}
    assert schedule("entropy", 3, option) == Entropy(3, 0.7)
    own = Adaptive(5, target=0.8)
    assert schedule(own, 3) is own


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_assistant_tokens_schedule": "confidense"}, "Did you mean 'confidence'"),
        ({"assistant_confidence_threshold": 0.5}, "belongs to 'confidence', 'adaptive', 'entropy'"),
        ({"num_assistant_tokens_schedule": "confidence", "draft_cost": 0.1}, "'expected_gain'"),
        ({"num_assistant_tokens_schedule": "expected_gain", "draft_cost": -1.0}, "e.g. 0.1"),
        ({"num_assistant_tokens_schedule": Fixed(2), "draft_cost": 0.1}, "length rule itself"),
        (
            {"num_assistant_tokens_schedule": "cumulative", "assistant_confidence_threshold": 2},
            "from 0 to 1",
        ),
        ({"num_assistant_tokens_schedule": "adaptive", "num_speculative_tokens": 0}, "at least 1"),
    ],
    ids=str,
)
def test_wrong_options_are_said(options: dict[str, Any], said: str) -> None:
    """One sentence that names what was given and where it belongs."""
    with pytest.raises(ForetokenError, match=said):
        build({"method": "sps", "model": "folder", **options})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weight": 0.0}, "weight is 0.0; it must be above 0"),
        ({"weight": float("inf")}, "weight is inf"),
        ({"weight": float("nan")}, "weight is nan"),
        ({"rate": 1.5}, "rate is 1.5; it must be from 0 to 1"),
        ({"decay": -0.1}, "decay is -0.1; it must be from 0 to 1"),
    ],
    ids=str,
)
def test_an_expectation_of_nothing(options: dict[str, float], said: str) -> None:
    """What no acceptance rate can be counted by."""
    with pytest.raises(ForetokenError, match=f"^{said}"):
        ExpectedGain(4, **options)


# --- in the small model's drafts ---


OPTIONS: dict[str, dict[str, Any]] = {
    "confidence": {"assistant_confidence_threshold": 0.7},
    "adaptive": {"assistant_confidence_threshold": 0.7},
    "entropy": {"assistant_confidence_threshold": 0.7},
    "cumulative": {"assistant_confidence_threshold": 0.7},
    "expected_gain": {"draft_cost": 0.3},
    "heuristic": {},
}
"""With these some drafts end early, on the models below."""


class Counting(SmallLM):
    """Notes how long its drafts are, and how many passes its model makes."""

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        tree = super().draft(sequences, budgets, draws)
        self.__dict__.setdefault("counts", []).append(tree.counts)
        return tree


def counting(name: str, draft: Any, tokens: int = 3) -> Counting:
    drafter = Counting(draft, tokens, num_assistant_tokens_schedule=name, **OPTIONS[name])
    drafter.counts: list[list[int]] = []  # type: ignore[misc]
    return drafter


@pytest.mark.parametrize("name", ["confidence", "adaptive", "entropy", "cumulative"])
@pytest.mark.parametrize("params", [WARM, SamplingParams(temperature=0.6, top_k=2)], ids=["1", "2"])
def test_no_rule_that_looks_changes_the_distribution(name: str, params: SamplingParams) -> None:
    """One step, every outcome: how much is drafted depends on what was drawn before."""
    made: list[Counting] = []

    def make(pair: Pair) -> Counting:
        made.append(counting(name, pair.draft))
        return made[-1]

    check_distribution(
        make, Speculative(), table_pair(3, seed=5), params, 4, rows=1, steps=1, budget=3
    )
    assert len({count for drafter in made for [count] in drafter.counts}) > 1


PAST = {
    "heuristic": "heuristic",
    "adaptive": Adaptive(2, 0.3, memory=0.0, change=0.7, inertia=0.0),
    "entropy": Entropy(2, 0.3, memory=0.0, change=0.7, inertia=0.0),
    "cumulative": Cumulative(2, 0.9),
    "expected_gain": ExpectedGain(2, draft_cost=0.5, rate=0.9, weight=1.0, decay=0.1),
}
"""So set that one step's fate decides the next draft's length."""


@pytest.mark.parametrize("name", PAST)
def test_no_rule_that_learns_changes_the_distribution(name: str) -> None:
    """Several steps, every outcome: how much is drafted depends on what was accepted before."""
    made: list[Counting] = []

    def make(pair: Pair) -> Counting:
        tokens = 1 if name == "heuristic" else 2
        made.append(Counting(pair.draft, tokens, num_assistant_tokens_schedule=PAST[name]))
        made[-1].counts = []
        return made[-1]

    check_distribution(make, Speculative(), table_pair(2), WARM, 5, rows=1, steps=2, budget=2)
    assert {1, 2} <= {drafter.counts[1][0] for drafter in made if len(drafter.counts) > 1}


def test_the_best_of_thousands_of_lengths_is_found_at_once() -> None:
    """In a time that grows with their number, and not with its square."""

    def seconds(tokens: int) -> float:
        rule, own = ExpectedGain(tokens), sequence()
        return min(repeat(lambda: rule.limit(own), number=1, repeat=5))

    assert seconds(4096) < 64 * seconds(256)


class Dropping(SmallLM):
    """Not allowed: ends a draft before a drawn token whose own probability is low."""

    keep = 0

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        tree = super().draft(sequences, budgets, draws)
        if tree.proposals is None:
            return tree
        share = tree.proposals.gather(-1, tree.tokens[..., None])[..., 0]
        bold = (share >= 0.4).long().cumprod(1).sum(1) + self.keep
        counts = [min(own, most) for own, most in zip(tree.counts, bold.tolist(), strict=True)]
        return DraftTree(tree.tokens, counts, kind=tree.kind, proposals=tree.proposals)


class Keeping(Dropping):
    """Allowed: it ends after that token."""

    keep = 1


def test_dropping_a_drawn_token_is_caught() -> None:
    """The same threshold on the drawn token itself: dropping it biases, keeping it doesn't."""

    def check(kind: type[Dropping], tolerance: float) -> None:
        check_distribution(
            lambda p: kind(p.draft, 2),
            Speculative(),
            table_pair(3),
            WARM,
            3,
            rows=1,
            steps=1,
            budget=2,
            tolerance=tolerance,
        )

    check(Keeping, 1e-12)
    with pytest.raises(AssertionError, match="is off by"):
        check(Dropping, 1e-2)


@pytest.mark.parametrize("name", OPTIONS)
def test_text_depends_neither_on_company_nor_on_the_rule(name: str, pair: Pair) -> None:
    """At temperature 0 plain decoding's tokens in ragged batches; sampled ones as if alone."""
    for slots in (1, 3):
        outputs = check_greedy(
            lambda p: counting(name, p.draft, 5),
            Speculative(),
            pair,
            slots=slots,
            prompts=[[5, 9, 2, 5], [40, 3, 3], [11] * 3],
        )
        assert sum(output.stats.accepted for output in outputs) > 0
    check_independence(lambda p: counting(name, p.draft, 5), Speculative(), pair)


def sure_then_unsure(certain: int) -> TableModel:
    """Tokens 0, 1, 2 … follow each other for sure, and from `certain` on anything may follow."""
    rows = torch.full((6, 6), 1 / 6, dtype=torch.float64)
    for token in range(certain):
        rows[token] = 0.02
        rows[token, token + 1] = 0.9
    return TableModel.markov(rows)


class Passes:
    """A model that counts its passes."""

    def __init__(self, model: TableModel) -> None:
        self.model, self.passes = model, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, *given: Any) -> Any:
        self.passes += 1
        return self.model.forward(*given)


@pytest.mark.parametrize("name", ["confidence", "adaptive", "entropy", "cumulative"])
@pytest.mark.parametrize("params", [COLD, SamplingParams(temperature=0.9, seed=1)], ids=["0", "1"])
def test_rows_end_on_their_own(name: str, params: SamplingParams) -> None:
    """Each row of a batch ends after the first unsure distribution, and no pass is made for
    none."""
    model = Passes(sure_then_unsure(3))
    rows = [sequence(params, (5, 0)), sequence(params, (0, 1)), sequence(params, (0, 4))]
    tree = drafted(model, name, rows)
    assert tree.counts == [4, 3, 1]
    assert model.passes == 4 and tree.nodes == 4
    for b, row in enumerate(rows):
        alone = drafted(Passes(sure_then_unsure(3)), name, [row])
        assert alone.counts == [tree.counts[b]]
        assert alone.tokens[0].equal(tree.tokens[b, : alone.nodes])


def drafted(model: Any, name: str, rows: list[Sequence]) -> DraftTree:
    """What is drafted for the rows with tokens 0, 1, 2, 3 sure to come, one after the other."""
    drafter = SmallLM(
        model, 6, num_assistant_tokens_schedule=name, assistant_confidence_threshold=0.5
    )
    drafter.bind(ModelTarget(sure_then_unsure(3), 3, 40))
    for row in rows:
        drafter.begin(row)
    return drafter.draft(rows, [9] * len(rows), Likeliest())


class Likeliest(KeyedDraws):
    """Draws the likeliest token, so that a sampled draft can be foreseen."""

    def __init__(self) -> None:
        pass

    def draft(self, distribution: Tensor, depth: int, sibling: int = 0) -> Tensor:
        return distribution.argmax(-1)


def test_greedy_and_sampled_rows_side_by_side() -> None:
    """At temperature 0 the drafter's softmax is looked at, not the one-hot: both rows end alike."""
    rows = [sequence(COLD, (5, 1)), sequence(WARM, (5, 1))]
    assert drafted(sure_then_unsure(3), "confidence", rows).counts == [3, 3]
    assert drafted(sure_then_unsure(3), "entropy", rows).counts == [3, 3]


def test_rules_that_do_not_look_are_not_asked(pair: Pair) -> None:
    """A fixed length costs no look at the distributions and no transfer."""

    class Blind(Fixed):
        def ends(self, sequences: Any, distributions: Tensor) -> Tensor:
            raise AssertionError("asked")

    drafter = SmallLM(pair.draft, 3, num_assistant_tokens_schedule=Blind(3))
    drafter.bind(ModelTarget(pair.target, 1, 40))
    drafter.begin(row := sequence(WARM, (1, 2)))
    assert drafter.draft([row], [9], draws_for([row], torch.device("cpu"))).counts == [3]


def test_by_name_through_the_front_door(pair: Pair) -> None:
    """`speculative_config` takes the schedules and their options."""
    texts = set()
    for name, options in OPTIONS.items():
        config = {
            "method": "sps",
            "model": pair.draft,
            "num_assistant_tokens": 6,
            "num_assistant_tokens_schedule": name,
            **options,
        }
        llm = LLM(pair.target, tokenizer=ByteTokenizer(97), speculative_config=config)
        [out] = llm.generate("a b a b", SamplingParams(temperature=0, max_tokens=20))
        texts.add(tuple(out.token_ids))
        assert out.stats.accepted > 0
    assert len(texts) == 1


def fallback(draft: Any, threshold: float, tokens: int = 3) -> Counting:
    drafter = Counting(
        draft,
        tokens,
        num_assistant_tokens_schedule="fallback",
        assistant_confidence_threshold=threshold,
    )
    drafter.counts: list[list[int]] = []  # type: ignore[misc]
    return drafter


def test_fallback_hands_the_pen_over(pair: Pair) -> None:
    """It ends one token earlier than confidence at the same threshold, and may draft nothing."""
    prompts = [[5, 9, 2, 5, 9, 2, 5], [40, 3, 3, 17, 40, 3]]
    confident = Counting(
        pair.draft,
        10,
        num_assistant_tokens_schedule="confidence",
        assistant_confidence_threshold=0.35,
    )
    falling = fallback(pair.draft, 0.35, 10)
    for drafter in (confident, falling):
        check_greedy(lambda p, d=drafter: d, Speculative(), pair, slots=2, prompts=prompts)  # type: ignore[misc]
    ended = [(a, b) for a, b in zip(confident.counts[0], falling.counts[0], strict=True) if a < 10]
    assert ended and all(a - b == 1 for a, b in ended)
    assert [0, 0] in falling.counts


def test_fallback_keeps_the_distribution() -> None:
    """The token at which it ends is not drawn at all, so nothing that was drawn is dropped."""
    made: list[Counting] = []

    def make(pair: Pair) -> Counting:
        made.append(fallback(pair.draft, 0.6))
        return made[-1]

    check_distribution(
        make, Speculative(), table_pair(3, seed=5), WARM, 4, rows=1, steps=1, budget=3
    )
    assert len({count for drafter in made for [count] in drafter.counts}) > 1


def test_length_rules() -> None:
    """Fixed stays; the heuristic adds two after whole acceptance, else takes one, down to one."""
    one, other = (Sequence.start([1], SamplingParams()) for _ in range(2))
    fixed, heuristic = Fixed(4), schedule("heuristic", 2)
    fixed.observe(one, 4, 4)
    assert fixed.limit(one) == 4 and isinstance(heuristic, Heuristic)
    wanted = []
    for drafted, accepted in ((2, 2), (4, 3), (3, 0), (0, 0), (2, 0), (1, 0), (1, 1)):
        heuristic.observe(one, drafted, accepted)
        wanted.append(heuristic.limit(one))
    assert wanted == [4, 3, 2, 2, 1, 1, 3]
    assert heuristic.limit(other) == 2


@pytest.mark.parametrize(("start", "most"), [(2, 64), (63, 64), (100, 100)])
def test_the_heuristic_grows_to_a_bound(start: int, most: int) -> None:
    """64 tokens, or what it starts from if that is more."""
    rule, one = schedule("heuristic", start), sequence()
    for _ in range(40):
        now = rule.limit(one)
        rule.observe(one, now, now)
    assert rule.limit(one) == rule.most == most
