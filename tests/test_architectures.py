"""Every architecture of the page: it says what transformers says, or it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from architectures import PAGE, REFUSED, SERVED, VOCAB, page, softmax_of_its_dtype, tiny
from foretoken import SamplingParams
from foretoken.config import build
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.errors import ForetokenError
from foretoken.models.feed import chain_feed, tree_feed
from foretoken.models.hf.adapter import HFModel
from foretoken.models.model import CausalLM
from foretoken.models.native import block
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import native, serve
from foretoken.testing.checks import texts
from foretoken.trees.from_lists import from_paths

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = [[5, 9, 2, 5, 9, 2, 5], [40, 3, 3, 17, 40, 3, 8, 40, 3]]
PATHS = [[[3, 4, 5], [3, 6], [7]], [[2, 2]], [[9, 8], [9, 7, 4, 3]]]
NEAR = 1e-5
"""Some families compute routers, sinks or rotations in float32, whatever the model's dtype."""


@pytest.fixture(autouse=True)
def whole_softmax(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """See `softmax_of_its_dtype`."""
    monkeypatch.setattr(torch.nn.functional, "softmax", softmax_of_its_dtype)
    with torch.inference_mode():
        yield


def known(name: str) -> str:
    """Skips what this version of transformers doesn't have yet."""
    if name not in CONFIG_MAPPING_NAMES:
        pytest.skip(f"transformers has no {name}")
    return name


def check_logits(model: CausalLM, theirs: Any) -> None:
    """Prompts in chunks, trees in ragged rows, plain passes, a commit: each path's own logits."""
    target = ModelTarget(model, slots=3, max_length=48, nodes=9)
    rows = [
        Sequence.start([(7 * i + n) % (VOCAB - 2) + 2 for i in range(n)], GREEDY)
        for n in (9, 2, 24)
    ]
    for row in rows:
        target.begin(row)
    while waiting := [row for row in rows if target.pending(row)]:
        target.prefill(waiting, 4)

    @cache
    def after(text: tuple[int, ...]) -> Tensor:
        logits: Tensor = theirs(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
        return logits

    def check(rows: list[Sequence], paths: list[list[list[int]]]) -> None:
        trees = from_paths(paths, CPU)
        logits = target.score(rows, trees).logits
        for b, (row, contexts) in enumerate(zip(rows, trees.contexts(), strict=True)):
            for slot in range(trees.counts[b] + 1):
                want = after((*row.tokens, *contexts[slot]))
                torch.testing.assert_close(logits[b, slot], want, rtol=0, atol=NEAR)

    check(rows, PATHS)
    check([rows[2], rows[0]], [PATHS[2], [[7], [6], [3, 4, 5, 3, 4, 5, 6]]])  # past a window's edge
    check([rows[1]], [[]])
    check(rows, PATHS)
    target.commit(rows, [[1, 2], [1], []])
    for row, written in zip(rows, ([3, 4, 11], [2, 12], [13]), strict=True):
        row.tokens += written
    check(rows, PATHS)


def check_states(model: CausalLM, theirs: Any) -> None:
    """Level d: the states that enter and leave each layer, and the normed ones."""
    memory, ids = model.new_cache(1, 16), [5, 9, 7, 3, 4, 8, 2]
    layers = (*range(model.layers), -1)
    feed = chain_feed(memory, [memory.acquire(0)], [ids])
    states = model.forward(feed, memory, layers).hidden
    wanted = theirs(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    for layer in layers:
        torch.testing.assert_close(states[layer], wanted[layer], rtol=0, atol=NEAR)


def check_embedding(model: CausalLM, theirs: Any) -> None:
    """Level d: an embedding in place of a token."""
    memory = model.new_cache(1, 16)
    feed = tree_feed(memory, [memory.acquire(0)], [5], from_paths([[[6, 7]]], CPU))
    feed.replaced = (torch.tensor([[False, True, False]]), model.embed(torch.full((1, 3), 9)))
    logits = model.forward(feed, memory).logits
    want = theirs(input_ids=torch.tensor([[5, 9, 7]]), use_cache=False).logits
    torch.testing.assert_close(logits, want, rtol=0, atol=NEAR)


def check_text(model: CausalLM, theirs: Any) -> None:
    """Drafts copied from the text, two prompts at a time: what `generate` writes."""
    theirs.generation_config.eos_token_id, theirs.generation_config.pad_token_id = None, 0
    drafter = PromptLookup(3)
    rule = build({"method": drafter}).verifier
    written = texts(serve(model, drafter, rule, PROMPTS, GREEDY))
    for prompt, ids in zip(PROMPTS, written, strict=True):
        text = theirs.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)
        assert ids == text[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", SERVED)
def test_what_runs_through_transformers(name: str) -> None:
    """With the access that the page says."""
    theirs = tiny(known(name))
    model = HFModel(theirs)
    assert "".join(sorted(model.levels)) == SERVED[name]
    check_logits(model, theirs)
    if "d" in model.levels:
        check_states(model, theirs)
        check_embedding(model, theirs)
    check_text(model, theirs)


@pytest.mark.parametrize("name", block.FAMILIES)
def test_what_runs_natively(name: str) -> None:
    theirs = tiny(name)
    model = native(theirs)
    assert model.levels == set("abcdef")
    check_logits(model, theirs)
    check_states(model, theirs)
    check_embedding(model, theirs)
    check_text(model, theirs)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    """In one sentence, which says why."""
    theirs = tiny(known(name))
    with pytest.raises(ForetokenError, match=REFUSED[name]) as caught:
        HFModel(theirs)
    assert "\n" not in str(caught.value) and type(theirs).__name__ in str(caught.value)


def test_a_hybrid_family_whose_layers_all_attend() -> None:
    """As some of Granite 4.0's models do; with one of another kind it isn't served."""
    name = known("granitemoehybrid")
    kinds = ["attention", "linear_attention", "attention"]
    sizes: dict[str, Any] = {"mamba_n_heads": 8, "position_embedding_type": "rope"}
    theirs = tiny(name, layer_types=["attention"] * 3, **sizes)
    check_logits(model := HFModel(theirs), theirs)
    check_text(model, theirs)
    with pytest.raises(ForetokenError, match="keep more than keys and values"):
        HFModel(tiny(name, layer_types=kinds, **sizes))


def test_the_page_is_made_from_these_lists() -> None:
    """`python tests/architectures.py` writes it."""
    assert PAGE.read_text() == page()
    assert not SERVED.keys() & REFUSED.keys()
    assert block.FAMILIES.keys() <= SERVED.keys()
