"""Tests of the tests: known mistakes are put into the code one by one, and the checks must notice.

Mistakes in one line of source are listed in `source_mutants.py`, each with the tests that run with
it in the code; here are those that take more. Mistakes that change the distribution are shown to do
so by enumeration (more than 1e-3 at some text), and the chi-square on a real model must reject them
too. Mistakes in the draws are shown with the seeds that requests use. All others must change a
token, or what is emitted or counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from foretoken import SamplingParams, draws
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.draws import Purpose
from foretoken.engine import engine, stopping
from foretoken.models import cache, target
from foretoken.models.native import transformer
from foretoken.protocols import Drafter, Scores, Verdict, Verifier
from foretoken.sampling import fold, sequence
from foretoken.testing import (
    Oracle,
    Pair,
    TableModel,
    check_distribution,
    check_greedy,
    check_seeded,
    chi_square,
    sampled_counts,
    table_pair,
    target_distribution,
    tiny_pair,
)
from foretoken.tree import DraftTree
from foretoken.verify.shared import chains
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly
from mutation import Mutant, MutantError, noticed
from source_mutants import MUTANTS
from test_conformance import (
    PROMPTS,
    drafts_follow,
    generated,
    models,
    samples_hold,
    states_hold,
    stops_hold,
)
from test_distribution import SIZES, chosen_tree, real_p

COLD = SamplingParams(temperature=0.6)
PENALTIES = SamplingParams(temperature=0.8, repetition_penalty=2.0, frequency_penalty=3.0)


class ReDrawn:
    """A step's draws with other ones for drafting."""

    def __init__(self, own: Any, draft: Callable[..., Tensor]) -> None:
        self._own, self._draft = own, draft

    def draft(self, distribution: Tensor, depth: int, sibling: int = 0) -> Tensor:
        return self._draft(self._own, distribution, depth)

    def take(self, rows: Any) -> ReDrawn:
        return ReDrawn(self._own.take(rows), self._draft)


class Redrawing(SmallLM):
    """A small model's draft, drawn otherwise than it says."""

    how: Callable[..., Tensor]

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        return super().draft(sequences, budgets, ReDrawn(draws, type(self).how))


class Argmax(Redrawing):
    """The likeliest token presented with the softmax as its distribution."""

    how = staticmethod(lambda own, distribution, depth: distribution.argmax(-1))


class BetterOfTwo(Redrawing):
    """Two draws, of which the likelier one is proposed."""

    @staticmethod
    def how(own: Any, distribution: Tensor, depth: int) -> Tensor:
        two = torch.stack([own.draft(distribution, depth), own.draft(distribution, depth, 1)], 1)
        return two.gather(1, distribution.gather(1, two).argmax(1, keepdim=True))[:, 0]


class Unfolded(SmallLM):
    """Drawn at the request's temperature, presented with the distribution at temperature 1."""

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        tree = super().draft(sequences, budgets, draws)
        if tree.proposals is not None:
            raw = tree.proposals ** sequences[0].params.temperature
            tree.proposals = raw / raw.sum(-1, keepdim=True)
        return tree


class Timid(SmallLM):
    """Ends a draft before the first drawn token that it holds for unlikely."""

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        tree = super().draft(sequences, budgets, draws)
        if tree.proposals is not None:
            share = tree.proposals.gather(-1, tree.tokens[..., None])[..., 0]
            bold = (share > 1.2 / tree.proposals.shape[-1]).long().cumprod(1).sum(1).tolist()
            counts = [min(own, other) for own, other in zip(tree.counts, bold, strict=True)]
            return DraftTree(tree.tokens, counts, kind=tree.kind, proposals=tree.proposals)
        return tree


class Wrong(Speculative):
    """Speculative sampling on scores or trees that were tampered with."""

    @staticmethod
    def spoil(trees: DraftTree, scores: Scores) -> None: ...

    def __call__(self, trees: DraftTree, scores: Scores, draws: Any) -> Verdict:
        scores = Scores(scores.logits, scores.probs.clone(), scores.bad)
        self.spoil(trees, scores)
        return super().__call__(trees, scores, draws)


class WarmBonus(Wrong):
    """The token after a wholly accepted draft is drawn at temperature 1."""

    @staticmethod
    def spoil(trees: DraftTree, scores: Scores) -> None:
        scores.probs[:, -1] = scores.logits[:, -1].softmax(-1)


class RawTarget(Wrong):
    """The target's distribution without the request's parameters."""

    @staticmethod
    def spoil(trees: DraftTree, scores: Scores) -> None:
        scores.probs.copy_(scores.logits.softmax(-1))


class MatchArgmax(Speculative):
    """A drawn token is accepted where it is the target's likeliest, and only there."""

    def __call__(self, trees: DraftTree, scores: Scores, draws: Any) -> Verdict:
        if trees.nodes == 0:
            return super().__call__(trees, scores, draws)
        best = scores.probs[:, :-1].argmax(-1)
        sure = Scores(scores.logits, torch.zeros_like(scores.probs), scores.bad)
        sure.probs[:, :-1].scatter_(-1, best[..., None], 1.0)
        sure.probs[:, -1] = scores.probs[:, -1]
        return super().__call__(trees, sure, draws)


def residual_patch(residual: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any], None]:
    """The distribution after a rejection, given p and q, replaced."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        def final(
            trees: DraftTree, probs: Tensor, distributions: Tensor, lengths: Tensor, owed: Tensor
        ) -> Tensor:
            rows = torch.arange(trees.batch)
            p, last = probs[rows, lengths], lengths.clamp(max=trees.nodes - 1)
            q = distributions[rows, last]
            if residual is one_hot_residual:
                q = torch.zeros_like(q).scatter_(-1, trees.tokens[rows, last][:, None], 1.0)
            all_kept = (lengths == torch.tensor(trees.counts))[:, None]
            distribution = torch.where(all_kept, p, residual(p, q))
            return torch.where(distribution.sum(-1, keepdim=True) > 0, distribution, p)[:, None]

        patch.setattr(chains, "_final_distribution", final)

    return apply


def one_hot_residual(p: Tensor, q: Tensor) -> Tensor:
    return (p - q).clamp(min=0)


def shifted_commit(patch: pytest.MonkeyPatch) -> None:
    """The accepted path is kept one cache place too far back."""
    keep = cache.KVCache.keep

    def wrong(self: Any, slots: Any, paths: Any) -> None:
        keep(self, slots, [[node + 1 for node in path] for path in paths])

    patch.setattr(cache.KVCache, "keep", wrong)


def short_commit(patch: pytest.MonkeyPatch) -> None:
    """The committed length is one too small wherever a draft was accepted."""
    keep = cache.KVCache.keep

    def wrong(self: Any, slots: Any, paths: Any) -> None:
        keep(self, slots, paths)
        for slot, path in zip(slots, paths, strict=True):
            self.lengths[slot] -= bool(path)

    patch.setattr(cache.KVCache, "keep", wrong)


def unmoved_commit(patch: pytest.MonkeyPatch) -> None:
    """The first nodes are kept instead of the accepted ones."""
    keep = cache.KVCache.keep
    patch.setattr(
        cache.KVCache,
        "keep",
        lambda self, slots, paths: keep(self, slots, [range(1, len(p) + 1) for p in paths]),
    )


def flat_depths(patch: pytest.MonkeyPatch) -> None:
    """Every node of a tree stands at the position of its slot."""
    patch.setattr(
        DraftTree,
        "depths",
        property(lambda self: torch.arange(self.nodes + 1).expand(self.batch, -1)),
    )


def seen_siblings(patch: pytest.MonkeyPatch) -> None:
    """Every node sees all nodes before it, not only those on its path."""
    patch.setattr(target, "tree_feed", lambda *args, old=target.tree_feed: _open(old(*args)))


def _open(feed: Any) -> Any:
    feed.ancestors = torch.ones_like(feed.ancestors).tril()
    return feed


def blind_penalties(patch: pytest.MonkeyPatch) -> None:
    """Penalties count the accepted text and not the draft before a place."""
    patch.setattr(DraftTree, "contexts", lambda self: [[[]] * (self.nodes + 1)] * self.batch)


@dataclass(frozen=True)
class DistributionMutant:
    """A mistake and where it shows: as a drafter, a rule, or a patch."""

    make: Callable[[Pair], Drafter] = lambda pair: SmallLM(pair.draft, 2)
    rule: Verifier = field(default_factory=Speculative)
    patch: Callable[[pytest.MonkeyPatch], None] = lambda patch: None
    params: SamplingParams = COLD
    rows: int = 256


LAW_MUTANTS = {
    "argmax with its softmax": DistributionMutant(lambda pair: Argmax(pair.draft, 2)),
    "better of two": DistributionMutant(lambda pair: BetterOfTwo(pair.draft, 2)),
    "raw logits as q": DistributionMutant(lambda pair: Unfolded(pair.draft, 2)),
    "unlikely draws dropped": DistributionMutant(lambda pair: Timid(pair.draft, 2), rows=1),
    "bonus at another temperature": DistributionMutant(rule=WarmBonus()),
    "raw target": DistributionMutant(rule=RawTarget()),
    "accepted by argmax": DistributionMutant(rule=MatchArgmax()),
    "residual of a one-hot": DistributionMutant(patch=residual_patch(one_hot_residual)),
    "resampled from p": DistributionMutant(patch=residual_patch(lambda p, q: p)),
    "residual not cut at zero": DistributionMutant(
        patch=residual_patch(lambda p, q: (p - q).abs())
    ),
    "bonus from q": DistributionMutant(patch=residual_patch(lambda p, q: q)),
    "commit shifted": DistributionMutant(patch=shifted_commit),
    "commit too short": DistributionMutant(patch=short_commit),
    "commit not moved": DistributionMutant(chosen_tree, TargetOnly(), unmoved_commit),
    "depth is slot": DistributionMutant(chosen_tree, TargetOnly(), flat_depths),
    "siblings seen": DistributionMutant(chosen_tree, TargetOnly(), seen_siblings),
    "penalties blind": DistributionMutant(patch=blind_penalties, params=PENALTIES),
}


@pytest.mark.parametrize("name", LAW_MUTANTS)
def test_distribution_mutants(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake moves the distribution of three tokens by more than 1e-3, and the distribution's
    check says so."""
    mutant = LAW_MUTANTS[name]
    size = SIZES["chosen-tree"] if mutant.make is chosen_tree else {"rows": mutant.rows}
    mutant.patch(monkeypatch)
    with pytest.raises(AssertionError, match="is off by") as caught:
        check_distribution(mutant.make, mutant.rule, table_pair(3), mutant.params, 3, **size)
    assert float(str(caught.value).split("off by ")[1].split()[0]) > 1e-3


REAL_MUTANTS = [
    name
    for name, mutant in LAW_MUTANTS.items()
    if mutant.make is not chosen_tree and not name.startswith("commit")  # two tokens are one step
]


@pytest.fixture(scope="module")
def small_pair() -> Pair:
    """As in the distribution's own tests."""
    return tiny_pair(48, noise=0.1, width=16)


@pytest.mark.parametrize("name", REAL_MUTANTS)
def test_chi_square_rejects_distribution_mutants(
    name: str, small_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample of the real model's test is large enough to notice the same mistakes."""
    mutant = LAW_MUTANTS[name]
    mutant.patch(monkeypatch)
    assert real_p(mutant.make, mutant.rule, small_pair, mutant.params) < 1e-3


def shared(*purposes: Purpose) -> Callable[[pytest.MonkeyPatch], None]:
    """The numbers of several purposes are one."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        own = draws.uniforms

        def uniforms(key: Any, position: Any, purpose: Purpose, index: Any = 0) -> Tensor:
            same = purposes[0] if purpose in purposes else purpose
            return own(key, position, same, 0 if purpose in purposes else index)

        patch.setattr(draws, "uniforms", uniforms)

    return apply


def one_number(patch: pytest.MonkeyPatch) -> None:
    """All acceptance tests of a step use the first one's number."""
    own = draws.uniforms
    patch.setattr(
        draws,
        "uniforms",
        lambda key, position, purpose, index=0: own(
            key, position, purpose, index * 0 if purpose is Purpose.ACCEPT else index
        ),
    )


def no_position(patch: pytest.MonkeyPatch) -> None:
    """A seed's numbers are the same at every position."""
    own = draws.uniforms
    patch.setattr(
        draws,
        "uniforms",
        lambda key, position, purpose, index=0: own(key, position * 0, purpose, index),
    )


def no_depth(patch: pytest.MonkeyPatch) -> None:
    """All draft tokens of a step use the first one's number."""
    draft = draws.KeyedDraws.draft
    patch.setattr(
        draws.KeyedDraws,
        "draft",
        lambda self, distribution, depth, sibling=0: draft(self, distribution, 0),
    )


DRAWS_MUTANTS = {
    "draft and acceptance": shared(Purpose.DRAFT, Purpose.ACCEPT),
    "draft and residual": shared(Purpose.DRAFT, Purpose.TOKEN),
    "acceptance and residual": shared(Purpose.ACCEPT, Purpose.TOKEN),
    "acceptances": one_number,
    "positions": no_position,
    "depths": no_depth,
}


def seeds_p(pair: Pair) -> float:
    """How likely the distribution over 16,000 seeds is under the target's own."""
    params = SamplingParams()
    counts = sampled_counts(
        pair.target, lambda: SmallLM(pair.draft, 2), Speculative(), [0, 1, 0], params, 3, 16_000
    )
    return chi_square(counts, target_distribution(pair.target, [0, 1, 0], params, 3))


def test_seeds_give_the_distribution() -> None:
    """Over many seeds the keyed numbers write the target's joint distribution of three tokens."""
    assert seeds_p(table_pair(3)) > 1e-3


@pytest.mark.parametrize("name", DRAWS_MUTANTS)
def test_draws_mutants(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number used twice shows in the distribution over seeds."""
    DRAWS_MUTANTS[name](monkeypatch)
    assert seeds_p(table_pair(3)) < 1e-6


def oracle(length: int) -> Callable[[Pair], Drafter]:
    texts = {tuple(prompt): generated(tuple(prompt)) for prompt in PROMPTS}
    return lambda pair: Oracle(texts, length)


def greedy_lookup() -> None:
    check_greedy(
        lambda pair: PromptLookup(),
        TargetOnly(),
        models("native"),
        slots=3,
        prompts=PROMPTS[:4],
        expected=[generated(tuple(prompt)) for prompt in PROMPTS[:4]],
    )


def seeded_lookup() -> None:
    check_seeded(lambda pair: PromptLookup(), TargetOnly(), models("native"), slots=3)


def ties() -> None:
    """Equal logits: the first token wins, alone and in company."""
    even = TableModel.markov(torch.tensor([[0.2, 0.4, 0.4], [0.5, 0.0, 0.5], [0.3, 0.4, 0.3]]))
    check_greedy(
        lambda pair: Nothing(),
        TargetOnly(),
        Pair(even, even),
        slots=2,
        tokens=6,
        prompts=[[0], [2], [1]],
        expected=[[1, 0] * 3, [1, 0] * 3, [0, 1] * 3],
    )


def no_stop(patch: pytest.MonkeyPatch) -> None:
    """An accepted block is emitted whole."""
    check = stopping.StopChecker.check

    def wrong(self: Any, block: Any) -> Any:
        ending = check(self, block)
        ending.emitted = len(block)
        return ending

    patch.setattr(stopping.StopChecker, "check", wrong)


def counted_behind_a_stop(patch: pytest.MonkeyPatch) -> None:
    """The block is cut and yet counted whole."""
    settle = engine.Engine._settle

    def wrong(self: Any, sample: Any, done: Any) -> None:
        before = sample.request.stats.tokens
        settle(self, sample, done)
        sample.request.stats.tokens = before + len(done.tokens)

    patch.setattr(engine.Engine, "_settle", wrong)


def late_stop_string(patch: pytest.MonkeyPatch) -> None:
    """Stop strings are looked for at the ends of blocks only."""
    after = stopping.StopChecker._after
    check = stopping.StopChecker.check

    def wrong_check(self: Any, block: Any) -> Any:
        self.last = len(block)
        return check(self, block)

    def wrong(self: Any, token: int, place: int) -> Any:
        ending = after(self, token, place)
        return ending if ending is None or place == self.last else None

    patch.delattr(stopping.StopChecker, "__slots__", raising=False)
    patch.setattr(stopping.StopChecker, "check", wrong_check)
    patch.setattr(stopping.StopChecker, "_after", wrong)


def one_sample(patch: pytest.MonkeyPatch) -> None:
    """All samples of a request share one stream of numbers."""
    key = draws.stream_key
    patch.setattr(sequence, "stream_key", lambda seed, sample: key(seed, 0))


def no_seed(patch: pytest.MonkeyPatch) -> None:
    """Rows draw by their place in the batch."""
    own = draws.KeyedDraws.__init__
    patch.setattr(
        draws.KeyedDraws,
        "__init__",
        lambda self, keys, starts, device: own(self, list(range(len(keys))), starts, device),
    )


def by_call(patch: pytest.MonkeyPatch) -> None:
    """Numbers depend on how the text was cut into steps."""
    own = draws.KeyedDraws.pick
    patch.setattr(
        draws.KeyedDraws,
        "pick",
        lambda self, given, depths: own(self, given, depths + 1000 * given.shape[1]),
    )


def last_of_equals(patch: pytest.MonkeyPatch) -> None:
    """Greedy ties go to the last token where more than one row is in the pass."""
    own = fold.likeliest

    def wrong(logits: Tensor) -> Tensor:
        if logits.shape[0] > 1:
            return logits.shape[-1] - 1 - logits.flip(-1).argmax(-1)
        return own(logits)

    patch.setattr(fold, "likeliest", wrong)


def first_rows_settings(patch: pytest.MonkeyPatch) -> None:
    """The whole batch is folded with the first row's temperature."""
    own = fold._column
    patch.setattr(
        fold, "_column", lambda values, like, places: own([values[0]] * len(values), like, places)
    )


def long_fork(patch: pytest.MonkeyPatch) -> None:
    """A sample takes over the first token that another one wrote."""
    patch.setattr(
        target.ModelTarget,
        "fork",
        lambda self, one, copy: self.cache.copy(
            self.cache.slot(one.id), self.cache.slot(copy.id), copy.prompt_length - 2
        ),
    )


def stale_cache(patch: pytest.MonkeyPatch) -> None:
    """The draft model's cache keeps rejected tokens."""
    patch.setattr(SmallLM, "observe", lambda self, sequences, steps: None)


def masks_alike(patch: pytest.MonkeyPatch) -> None:
    """Padding rows and columns are seen by all (a ragged batch without a mask)."""
    from foretoken.models.feed import Feed

    own = Feed.visible
    patch.setattr(
        Feed, "visible", lambda self, window=None: own(self, window) | (len(self.slots) > 1)
    )


def neighbours_scale(patch: pytest.MonkeyPatch) -> None:
    """Activations are scaled by the largest in the whole pass, as in stock dynamic int8."""
    own = transformer.Transformer.head

    def wrong(self: Any, states: Tensor) -> Tensor:
        step = states.abs().max() / 7
        return own(self, (states / step).round() * step)

    patch.setattr(transformer.Transformer, "head", wrong)


@dataclass(frozen=True)
class TokenMutant:
    """A mistake, and the check that must fail with it."""

    patch: Callable[[pytest.MonkeyPatch], None]
    check: Callable[[], None]


TOKEN_MUTANTS = {
    "stop ignored": TokenMutant(
        no_stop, lambda: stops_hold(oracle(8), TargetOnly(), models("native"))
    ),
    "counted after a stop": TokenMutant(
        counted_behind_a_stop, lambda: stops_hold(oracle(8), TargetOnly(), models("native"))
    ),
    "stop seen late": TokenMutant(
        late_stop_string, lambda: stops_hold(oracle(8), TargetOnly(), models("native"))
    ),
    "samples alike": TokenMutant(
        one_sample,
        lambda: samples_hold(lambda pair: Nothing(), TargetOnly(), models("native")),
    ),
    "noise by row": TokenMutant(no_seed, seeded_lookup),
    "noise by call": TokenMutant(by_call, seeded_lookup),
    "ties by company": TokenMutant(last_of_equals, ties),
    "settings of the first row": TokenMutant(
        first_rows_settings,
        lambda: states_hold(lambda pair: Nothing(), TargetOnly(), models("native")),
    ),
    "fork too short": TokenMutant(
        long_fork, lambda: samples_hold(lambda pair: Nothing(), TargetOnly(), models("native"))
    ),
    "stale draft cache": TokenMutant(
        stale_cache,
        lambda: drafts_follow(lambda pair: SmallLM(pair.draft, 3), Speculative(), models("native")),
    ),
    "commit shifted": TokenMutant(shifted_commit, greedy_lookup),
    "neighbours seen": TokenMutant(masks_alike, greedy_lookup),
    "neighbours scale": TokenMutant(neighbours_scale, greedy_lookup),
}


@pytest.mark.parametrize("name", TOKEN_MUTANTS)
def test_token_mutants(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check passes on the code as it is and fails with the mistake in it."""
    mutant = TOKEN_MUTANTS[name]
    mutant.check()
    mutant.patch(monkeypatch)
    with pytest.raises(AssertionError):
        mutant.check()


def test_every_known_mistake_can_still_be_made() -> None:
    """Each piece of source is found once, and the tests that notice it exist."""
    tests = Path(__file__).parent
    for name, mutant in MUTANTS.items():
        mutant.code()
        assert mutant.tests, name
        for test in mutant.tests:
            file, _, function = test.partition("::")
            assert f"def {function}(" in (tests / file).read_text("utf-8"), test


def test_a_mistake_is_put_into_whatever_holds_the_function() -> None:
    """By its syntax, whatever its layout; also into names imported before; and out again."""
    held = draws._signed
    mutant = Mutant("foretoken.draws:_signed", "(x\n  - (1<<64))", "-1", ())
    assert held(1 << 63) == -(1 << 63)
    with mutant.applied():
        assert held(1 << 63) == draws._signed(1 << 63) == -1 and held(7) == 7
    assert held(1 << 63) == -(1 << 63)


@pytest.mark.parametrize(
    ("where", "old", "message"),
    [
        ("foretoken.draws:_signed", "x - 1", "0 times, and not once"),
        ("foretoken.draws:mix", "x", "6 times, and not once"),
        ("foretoken.draws:no_function", "x", "no_function is no function"),
        ("foretoken.draws:GOLDEN", "x", "GOLDEN is no function"),
    ],
)
def test_a_mistake_that_no_longer_fits_is_an_error(where: str, old: str, message: str) -> None:
    """So that it is brought up to date when the code changes."""
    with (
        pytest.raises(MutantError, match=message),
        Mutant(where, old, "y", ()).applied(),
    ):
        pass


def test_a_test_that_passes_with_a_mistake_fails() -> None:
    """And one that raises something else than by an assertion isn't taken for a good one."""
    mutant = Mutant("foretoken.draws:_signed", "x - (1 << 64)", "-1", ())
    with noticed("that", mutant):
        assert draws._signed(1 << 63) == -(1 << 63)
    survived = pytest.raises(pytest.fail.Exception, match="passes with the mistake 'that'")
    with survived, noticed("that", mutant):
        assert draws._signed(7) == 7
    with pytest.raises(NameError), noticed("that", mutant):
        no_such_name  # type: ignore[name-defined]  # noqa: B018, F821
    assert draws._signed(1 << 63) == -(1 << 63)
