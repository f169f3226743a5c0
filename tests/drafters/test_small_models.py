"""All drafters of small models: prompts are read together, and unused rows of a vocabulary aside.

The models here have rows more or fewer than the target, which are not padding but random: the
target writes tokens that the draft model lacks, and the draft model likes tokens that the target
lacks. Nothing of that may change what is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from foretoken import ForetokenError, SamplingParams
from foretoken.drafters.cascade import Cascade
from foretoken.drafters.glide import Glide
from foretoken.drafters.kangaroo import Kangaroo
from foretoken.drafters.slem import Slem
from foretoken.drafters.small_lm import SmallLM
from foretoken.drafters.small_tree import SmallTree
from foretoken.drafters.tli import Tli
from foretoken.engine.engine import Engine
from foretoken.models.model import CausalLM
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter, Verifier
from foretoken.testing import (
    ByteTokenizer,
    Pair,
    TableModel,
    check_distribution,
    check_greedy,
    check_independence,
    native,
    related,
    tiny_pair,
)
from foretoken.trainable.checkpoint import Facts
from foretoken.tree import DraftTree
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.speculative import Speculative

Make = Callable[[Pair], Drafter]

SMALL = ((2, 2), (0, 2))  # a k-matrix

METHODS: dict[str, tuple[Make, Verifier]] = {
    "sps": (lambda pair: SmallLM(pair.draft, 3), Speculative()),
    "entropy": (
        lambda pair: SmallLM(pair.draft, 3, num_assistant_tokens_schedule="entropy"),
        Speculative(),
    ),
    "specinfer": (
        lambda pair: SmallTree(pair.draft, widths=(2, 1), replacement=True),
        MultiCandidate(),
    ),
    "mcsd": (lambda pair: SmallTree(pair.draft, widths=(2, 1)), MultiCandidate()),
    "staged": (lambda pair: Cascade(pair.draft, k_matrix=SMALL), Speculative()),
    "cs_drafting": (
        lambda pair: Cascade(pair.draft, k_matrix=SMALL, lenience=1 / 3),
        Speculative(),
    ),
}
"""Method -> its drafter with this pair's draft model, and its rule."""

each_method = pytest.mark.parametrize("method", METHODS)


@each_method
def test_prompts_of_a_batch_are_read_in_one_pass(method: str) -> None:
    """As the target reads them: one pass over all rows, however unlike their lengths."""
    pair = tiny_pair()
    make, rule = METHODS[method]
    passes = counted(pair.draft)
    read_prompts(pair, make(pair), rule)
    assert passes == [(4, 89)]


def test_prompts_in_another_tokenizer_are_read_in_one_pass() -> None:
    """As many tokens as the target has read, written anew."""
    tokenizer = ByteTokenizer(97)
    for kind in (Tli, Slem):
        pair = tiny_pair()
        passes = counted(pair.draft)
        read_prompts(pair, kind(pair.draft, tokenizer, tokenizer), METHODS["sps"][1])
        assert len(passes) == 1 and passes[0][0] == 4


def test_layers_over_the_target_read_prompts_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they keep of a prompt is computed for all rows at once."""
    pair, kinds = tiny_pair(), list[tuple[Any, str]]([(Kangaroo, "predict"), (Glide, "keys")])
    for kind, verb in kinds:
        module = kind.module(Facts.of(pair.target)).to(pair.target.dtype).eval()
        rows: list[int] = []
        monkeypatch.setattr(module, verb, noting(getattr(module, verb), rows))
        read_prompts(pair, kind(module), METHODS["sps"][1])
        assert rows == [4]


def noting(function: Callable[..., Any], rows: list[int]) -> Callable[..., Any]:
    """The function, and how many rows it is called with."""

    def noted(states: Tensor, *rest: Any) -> Any:
        rows.append(len(states))
        return function(states, *rest)

    return noted


def read_prompts(pair: Pair, drafter: Drafter, rule: Verifier) -> None:
    """One step, in which four prompts are read."""
    engine = Engine(ModelTarget(pair.target, 4, 128), drafter, rule)
    for length in (40, 3, 17, 90):
        params = SamplingParams(temperature=0, max_tokens=4)
        engine.add([place % 97 for place in range(length)], params)
    engine.step()


def counted(model: CausalLM) -> list[tuple[int, int]]:
    """Rows and columns of each of its passes from now on."""
    passes: list[tuple[int, int]] = []
    forward = model.forward

    def noted(feed: Any, *rest: Any) -> Any:
        passes.append(tuple(feed.tokens.shape))
        return forward(feed, *rest)

    model.forward = noted  # type: ignore[method-assign]
    return passes


def table_with(tokens: int) -> Pair:
    """A target of three tokens, and a related model that has `tokens`."""
    target, wide = TableModel.random(3), TableModel.random(max(tokens, 3), 5).table.clone()
    wide[:, :3, :3] = target.noisy(0.7, 1).table
    return Pair(target, TableModel(wide[:, :tokens, :tokens]))


def model_with(tokens: int) -> Pair:
    """A target of 97 tokens, and a related model whose embedding and head have `tokens` rows."""
    pair = tiny_pair()
    draft = related(pair.transformers, 0.02)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        draft.resize_token_embeddings(tokens, mean_resizing=False)
        draft.lm_head.weight.data[97:] = draft.lm_head.weight.data[: max(0, tokens - 97)] * 1.1
    return Pair(pair.target, native(draft), pair.transformers)


@each_method
@pytest.mark.parametrize("tokens", [2, 4])
def test_distribution_with_unused_rows(method: str, tokens: int) -> None:
    """The joint distribution of three tokens, every outcome enumerated; texts have tokens that only
    the target knows."""
    make, rule = METHODS[method]
    pair, uneven = table_with(tokens), ("entropy", "staged", "cs_drafting")
    rows = 1 if method in uneven else 64
    for params in (SamplingParams(temperature=0.7), SamplingParams(top_k=2, presence_penalty=0.6)):
        check_distribution(make, rule, pair, params, 3, prompt=(0, 2, 1), rows=rows)


@each_method
@pytest.mark.parametrize("tokens", [90, 104])
def test_texts_with_unused_rows(method: str, tokens: int) -> None:
    """Greedy texts are plain decoding's, in batches too; drafts are accepted, and none has a token
    of one vocabulary alone."""
    make, rule = METHODS[method]
    pair = model_with(tokens)
    seen: list[DraftTree] = []

    def made(pair: Pair) -> Drafter:
        drafter = make(pair)
        draft = drafter.draft

        def noted(*args: Any) -> DraftTree:
            seen.append(draft(*args))
            return seen[-1]

        drafter.draft = noted  # type: ignore[method-assign]
        return drafter

    outputs = check_greedy(made, rule, pair, slots=3)
    assert sum(output.stats.accepted for output in outputs) > 5
    written = {token for output in outputs for token in output.token_ids}
    assert tokens > 97 or max(written) >= tokens  # the text has what the draft model lacks
    check_independence(made, rule, pair)
    shared = min(tokens, 97)
    known = 97 if isinstance(make(pair), Cascade) else shared  # it copies any token from the text
    for tree in seen:
        assert not bool((tree.tokens >= known).any())
        if tree.proposals is not None:
            assert tree.proposals.shape[-1] == 97
            assert not bool(tree.proposals[..., shared:].any())


@each_method
def test_another_vocabulary_is_refused(method: str) -> None:
    """Both sizes are named, and what takes models of another tokenizer."""
    make, _ = METHODS[method]
    target = ModelTarget(TableModel.random(4), 1, 16)
    for tokens in (260, 261):
        drafter = make(Pair(target.model, TableModel(torch.zeros(1, tokens, tokens))))
        if tokens == 260:
            drafter.bind(target)
            continue
        with pytest.raises(ForetokenError, match=r"261 tokens and the target's 4; .*'tli' or 'sle"):
            drafter.bind(target)
