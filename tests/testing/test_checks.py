"""The checks that authors of drafters call."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.models.target import ModelTarget
from foretoken.testing import Drawn, Pair, check_drafter, check_greedy, check_independence
from foretoken.testing import checks as all_checks
from foretoken.testing.checks import PROMPTS, greedy_reference
from foretoken.verify.target_only import TargetOnly


def test_check_drafter_passes_honest_ones() -> None:
    """One that copies and one that draws."""
    check_drafter(lambda pair: PromptLookup(3))
    check_drafter(lambda pair: SmallLM(pair.draft, 2))


class Late(PromptLookup):
    """Knows how much it drafts once it is bound, as a drafter that reads a checkpoint."""

    def bind(self, access):  # type: ignore[no-untyped-def]
        super().bind(access)
        self._nodes = self.num_speculative_tokens

    @property
    def nodes(self) -> int:
        return self._nodes


def test_check_drafter_asks_for_nodes_after_bind() -> None:
    check_drafter(lambda pair: Late(2))


class Dishonest(SmallLM):
    """Says that its tokens were drawn from a flat distribution."""

    def draft(self, sequences, budgets, draws):  # type: ignore[no-untyped-def]
        tree = super().draft(sequences, budgets, draws)
        if tree.proposals is not None:
            tree.proposals = torch.full_like(tree.proposals, 1 / tree.proposals.shape[-1])
        return tree


def test_check_drafter_fails_a_dishonest_one() -> None:
    """The distribution is off, and it says by how much."""
    with pytest.raises(AssertionError, match="is off by"):
        check_drafter(lambda pair: Dishonest(pair.draft, 2))


class Choosy(Drawn):
    """Leaves out its third token where that is an unlikely one."""

    def draft(self, sequences, budgets, draws):  # type: ignore[no-untyped-def]
        tree = super().draft(sequences, budgets, draws)
        if tree.nodes < 3 or tree.proposals is None:
            return tree
        third = [tree.proposals[row, 2, tree.tokens[row, 2]] > 0.4 for row in range(tree.batch)]
        return replace(tree, counts=[3 if likely else 2 for likely in third])


def test_check_drafter_looks_at_the_third_node() -> None:
    with pytest.raises(AssertionError, match="is off by"):
        check_drafter(lambda pair: Choosy(pair.draft, (1, 1, 1)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: [*text[:3], (text[3] + 1) % 97, *text[4:]], r"text 1 differs .* token 3: "),
        (lambda text: text[:-1], r"text 1 differs .* token 7: \[\d+\] instead of \[\]"),
    ],
)
def test_check_greedy_says_where_a_text_differs(pair: Pair, change: Any, said: str) -> None:
    """In a token, or in its length."""
    right = [greedy_reference(pair.target, prompt, 8) for prompt in PROMPTS[:2]]
    wrong = [right[0], change(right[1])]
    copies = lambda pair: PromptLookup(3)  # noqa: E731
    check_greedy(copies, TargetOnly(), pair, tokens=8, expected=right)
    with pytest.raises(AssertionError, match=said):
        check_greedy(copies, TargetOnly(), pair, tokens=8, expected=wrong)


def test_check_independence_cuts_prompts(pair: Pair) -> None:
    """A target that forgets what it read of a prompt in another pass is found."""

    class Forgets(ModelTarget):
        def prefill(self, sequences: Any, chunk: int, *rest: Any, **options: Any) -> Any:
            for sequence in sequences if chunk < 4 else ():
                sequence.tokens[0] = 1
            return super().prefill(sequences, chunk, *rest, **options)

    def wrap(target: ModelTarget) -> ModelTarget:
        target.__class__ = Forgets
        return target

    with pytest.raises(AssertionError, match="requests in 2 slots against each alone"):
        check_independence(lambda pair: PromptLookup(3), TargetOnly(), pair, wrap=wrap)


def test_check_drafter_makes_every_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone and together, and each distribution whole and after one step; of drawn drafts the text
    at a seed is not asked for."""
    made = Counter[str]()
    names = [f"check_{what}" for what in ("greedy", "independence", "seeded", "distribution")]
    for name in names:
        monkeypatch.setattr(all_checks, name, lambda *_, name=name, **__: made.update([name]))
    check_drafter(lambda pair: PromptLookup(3))
    assert [made[name] for name in names] == [2, 1, 2, 4]
    made.clear()
    check_drafter(lambda pair: SmallLM(pair.draft, 2))
    assert [made[name] for name in names] == [2, 1, 0, 4]
