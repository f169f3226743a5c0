"""What `foretoken.testing` gives to authors of drafters."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from foretoken import SamplingParams
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.draws import KeyedDraws
from foretoken.sampling.sequence import Sequence
from foretoken.testing import (
    ByteTokenizer,
    Drawn,
    Pair,
    TableModel,
    check_drafter,
    chi_square,
    distance,
    logits_after,
    native,
    reference_distribution,
    related,
    table_pair,
    target_distribution,
    tiny_transformers,
)
from foretoken.tree import Kind


def test_check_drafter_passes_honest_ones() -> None:
    """One that copies and one that draws."""
    check_drafter(lambda pair: PromptLookup(3))
    check_drafter(lambda pair: SmallLM(pair.draft, 2))


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


def test_a_table_is_what_it_says(pair: Pair) -> None:
    """Its logits are the sum over what a place sees; a Markov table's distribution is its row."""
    table = TableModel.random(4, seed=1)
    text = [0, 3, 1, 1, 2, 0, 3]
    expected = sum(table.table[i % 5, token] for i, token in enumerate(text))
    torch.testing.assert_close(logits_after(table, text), expected)
    windowed = TableModel(table.table, window=2)
    torch.testing.assert_close(
        logits_after(windowed, text), table.table[5 % 5, 0] + table.table[6 % 5, 3]
    )
    rows = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    distribution = target_distribution(TableModel.markov(rows), [0], SamplingParams(), 2)
    assert distribution == {(0, 0): 0.25, (0, 1): 0.25, (1, 1): 0.5}


def test_tiny_models_are_repeatable_and_related() -> None:
    """The same seed gives the same weights; the noisy copy is near, and the original untouched."""
    one, again = tiny_transformers(30), tiny_transformers(30)
    near = related(one, 0.02)
    for a, b, c in zip(one.parameters(), again.parameters(), near.parameters(), strict=True):
        assert a.equal(b) and (a.ndim == 1 or 0 < float((a - c).detach().abs().max()) < 0.2)
    assert logits_after(native(one), [1, 2]).dtype == torch.float64
    with torch.no_grad():
        expected = one(torch.tensor([[1, 2]]), past_key_values=DynamicCache()).logits[0, -1]
    torch.testing.assert_close(logits_after(native(one), [1, 2]), expected, atol=1e-10, rtol=0)


def test_byte_tokenizer() -> None:
    """Any text there and back; the last id is the end and is nothing in plain text."""
    for vocab in (257, 97):
        tokenizer = ByteTokenizer(vocab)
        text = "Hello, world! ~\n" + ("é€😀" if vocab == 257 else "")
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text and max(ids) < vocab - 1 == tokenizer.eos_token_id
        assert tokenizer.decode([*ids, vocab - 1]) == text + "<eos>"
        assert tokenizer.decode([*ids, vocab - 1], skip_special_tokens=True) == text
        assert len(tokenizer) == vocab


@pytest.mark.parametrize("kind", [Kind.INDEPENDENT, Kind.WITHOUT_REPLACEMENT])
def test_drawn_trees(kind: Kind) -> None:
    """Shape, rows and kinds are as asked for; without replacement siblings differ."""
    pair = table_pair(3)
    drafter = Drawn(pair.draft, (2, 3), kind)
    drafter.bind(pair.target)  # type: ignore[arg-type]
    for seed in range(20):
        sequence = Sequence.start([0, 1], SamplingParams(), seed=seed)
        draws = KeyedDraws([sequence.key], [2], torch.device("cpu"))
        tree = drafter.draft([sequence], [9], draws)
        assert tree.parent_slots.tolist() == [[0, 0, 1, 1, 1, 2, 2, 2]]
        assert tree.rows.tolist() == [[0, 0, 1, 1, 1, 2, 2, 2]]  # type: ignore[union-attr]
        assert tree.kind is kind and drafter.trees
        if kind is Kind.WITHOUT_REPLACEMENT:
            assert tree.tokens[0, 2:5].sort().values.tolist() == [0, 1, 2]
        for node, path in enumerate(tree.contexts()[0][1:]):
            logits = logits_after(pair.draft, [0, 1, *path[:-1]])
            distribution = reference_distribution(logits, [0, 1], 2, SamplingParams())
            torch.testing.assert_close(tree.proposals[0, tree.rows[0, node]].tolist(), distribution)  # type: ignore[index]


def test_chi_square_and_distance() -> None:
    """A fit, a misfit, the impossible, and rare bins put together."""
    distribution = {(0,): 0.5, (1,): 0.499, (2,): 0.001}
    assert chi_square({(0,): 500, (1,): 500}, distribution) > 0.5
    assert chi_square({(0,): 600, (1,): 400}, distribution) < 1e-6
    assert chi_square({(3,): 1}, distribution) == 0.0
    assert distance({(0,): 1.0}, {(0,): 0.75, (1,): 0.25}) == 0.25
