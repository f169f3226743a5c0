"""REST: the tree is that of the prefixes counted by hand, and a target's own texts are accepted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foretoken import ForetokenError, SamplingParams
from foretoken.config import build as method
from foretoken.drafters.rest import Rest
from foretoken.lookup.datastore import add, build
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair, serve
from foretoken.tree import DraftTree
from foretoken.verify.target_only import TargetOnly

MADE_FOR = {"vocab_size": 8}


def draft(drafter: Rest, text: list[int], budget: int = 64, vocab_size: int = 8) -> DraftTree:
    drafter.bind(SimpleNamespace(vocab_size=vocab_size, device=torch.device("cpu")))  # type: ignore[arg-type]
    one = Sequence.start(text, SamplingParams(temperature=0))
    return drafter.draft([one], [budget], None)  # type: ignore[arg-type]


def paths(tree: DraftTree) -> set[tuple[int, ...]]:
    return {tuple(path) for path in tree.contexts()[0][1 : tree.counts[0] + 1]}


def counted(texts: list[list[int]], text: list[int], depth: int) -> Counter[tuple[int, ...]]:
    """How often each prefix of up to `depth` tokens follows the longest end of `text`."""
    for size in range(len(text), 0, -1):
        found = Counter(
            tuple(one[at + size : at + size + length])
            for one in texts
            for at in range(len(one) - size + 1)
            if one[at : at + size] == text[-size:]
            for length in range(1, min(depth, len(one) - at - size) + 1)
        )
        if any(text[-size:] == one[at : at + size] for one in texts for at in range(len(one))):
            return found
    return Counter()


letters = st.lists(st.integers(0, 2), min_size=1, max_size=15)


@given(st.lists(letters, min_size=1, max_size=8), letters, st.integers(1, 12))
def test_the_prefixes_seen_most_are_drafted(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]], text: list[int], most: int
) -> None:
    """The nodes are a trie, and none that was left out is seen more often."""
    folder = tmp_path_factory.mktemp("store")
    build(folder, MADE_FOR, texts, segment=20)
    drafter = Rest(folder, most, min_token_span=1, continuation_tokens=4)
    found, counts = paths(draft(drafter, text)), counted(texts, text, 4)
    assert len(found) == min(most, len(counts)) and found <= set(counts)
    assert all(path[:-1] in found for path in found if len(path) > 1)
    best = sorted(counts.values(), reverse=True)[: len(found)]
    assert sorted((counts[path] for path in found), reverse=True) == best


def test_spans_and_budgets(tmp_path: Path) -> None:
    """A phrase shorter than the least finds nothing, one longer than the most is shortened."""
    build(tmp_path, MADE_FOR, [[1, 2, 3, 4, 5], [7, 3, 6], [7, 3, 6]])
    assert paths(draft(Rest(tmp_path), [0, 3])) == set()
    assert paths(draft(Rest(tmp_path), [1, 2, 3])) == {(4,), (4, 5)}
    assert paths(draft(Rest(tmp_path, max_token_span=1, min_token_span=1), [1, 2, 3], 1)) == {(6,)}
    assert paths(draft(Rest(tmp_path), [1, 2, 3], 0)) == set()
    assert paths(draft(Rest(tmp_path, continuation_tokens=1), [1, 2, 3])) == {(4,)}
    assert paths(draft(Rest(tmp_path), [3, 4, 5])) == set()  # the text ends there


def test_what_the_target_wrote_is_accepted(pair: Pair, tmp_path: Path) -> None:
    """With a target's own texts in the datastore, batched, it writes them in a few passes."""
    prompts = [[5, 9, 2], [40, 3, 17], [60, 61, 62]]
    params = SamplingParams(temperature=0, max_tokens=40)
    plain = serve(pair.target, method(None).drafter, TargetOnly(), prompts, params)
    made_for = {"vocab_size": pair.target.vocab_size}
    written = [prompt + out.token_ids for prompt, out in zip(prompts, plain, strict=True)]
    build(tmp_path, made_for, written[:1])
    add(tmp_path, made_for, written[1:])
    built = method({"method": "rest", "datastore": tmp_path})
    drafter, rule = built.drafter, built.verifier
    for slots in (1, 3):
        found = serve(pair.target, drafter, rule, prompts, params, slots=slots)
        assert [one.token_ids for one in found] == [one.token_ids for one in plain]
        assert all(one.stats.mean_acceptance_length > 3 for one in found)


def test_refusals(pair: Pair, tmp_path: Path) -> None:
    """No datastore, one of another vocabulary, and options out of range."""
    with pytest.raises(ForetokenError, match="foretoken datastore build"):
        method({"method": "rest"})
    build(tmp_path, MADE_FOR, [[1, 2, 3]])
    with pytest.raises(ForetokenError, match="made for vocab_size 8 and this target has 97"):
        draft(Rest(tmp_path), [1], vocab_size=97)
    wrong: list[dict[str, Any]] = [
        {"min_token_span": 0},
        {"min_token_span": 17},
        {"max_token_span": 65},
        {"num_speculative_tokens": 0},
        {"continuation_tokens": 0},
        {"max_matches": 0},
    ]
    for options in wrong:
        with pytest.raises(ForetokenError, match=r"1 <= min <= max <= 64|at least 1"):
            Rest(tmp_path, **options)
