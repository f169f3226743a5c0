"""The multi-token-prediction layer: what it reads and learns; what is estimated is served."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretoken import ForetokenError
from foretoken.drafters.mtp import Mtp, MtpModule
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair, tiny_pair
from foretoken.train.batches import Batches, collate
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.losses import Objective
from foretoken.verify.multi_candidate import MultiCandidate
from lessons import check_estimate, check_expectation, taught


def new(pair: Pair, **shape: Any) -> MtpModule:
    torch.manual_seed(3)
    return MtpModule(Facts.of(pair.target), **shape).double()


@pytest.fixture(scope="module")
def trained(small: Pair, records: Records) -> MtpModule:
    """A few steps on these very texts."""
    goal = Objective({"kl_div": 1.0}, 0.6)
    found: MtpModule = taught(new(small), small.target, Batches(records, 4, 64, 0).batch, goal)
    return found


@pytest.mark.parametrize("options", [{}, {"tree": ((0,), (1,), (0, 0), (1, 0), (1, 1))}])
def test_the_estimate_is_what_is_served(
    small: Pair, records: Records, trained: MtpModule, options: dict[str, Any]
) -> None:
    """Chain and tree, each place; the text is plain decoding's."""
    drafter = Mtp(trained, **options)
    assert drafter.trees == bool(options)
    total = check_estimate(drafter, trained, small.target, records, MultiCandidate())
    assert total.acceptance_length > 1.2


@pytest.mark.parametrize("tree", [(), ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0))])
def test_the_expectation_of_what_is_drawn(small: Pair, trained: MtpModule, tree: Any) -> None:
    """A chain, and a tree whose siblings are drawn without replacement."""
    check_expectation(Mtp(trained, tree=tree), trained, small.target, MultiCandidate())


def test_what_the_layer_reads(small: Pair, records: Records) -> None:
    """Embedding and state, each normed, side by side in the published order; a normed output."""
    module = new(small, heads=2)
    lesson = FrozenTarget(small.target).lesson(collate(records, [[0]], 12, 0.0), (-1,))
    layer: Any = module.mtp_layers[0]
    with torch.no_grad():
        for norm in (layer.hidden_layernorm, layer.token_layernorm, layer.final_layernorm):
            norm.weight.copy_(torch.rand(32) + 0.5)
        layer.self_attn.o_proj.weight.zero_()
        found = module.outputs(lesson, 1)[0, 3, 0]
        state, near = lesson.hidden[-1][0, 3], lesson.embed(lesson.tokens[0, 4])
        both = torch.cat((layer.token_layernorm(near), layer.hidden_layernorm(state)))
        x = layer.input_proj.weight @ both
        expected = layer.final_layernorm(x + layer.mlp(layer.post_attention_layernorm(x)))
    torch.testing.assert_close(found, expected)


def test_weights_learn_and_have_the_public_names(small: Pair, records: Records) -> None:
    """A gradient for each; another target and an empty draft are refused."""
    module = new(small)
    lesson = FrozenTarget(small.target).lesson(collate(records, [[0, 1], [2, 3]], 40, 0.25), (-1,))
    module(lesson, Objective({"kl_div": 1.0}, 0.6)).backward()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in module.parameters())
    norms = ("hidden", "token", "input", "post_attention", "final")
    names = {"input_proj.weight", *(f"{x}_layernorm.weight" for x in norms)}
    names |= {f"self_attn.{x}_proj.weight" for x in "qkvo"}
    names |= {f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")}
    assert set(module.state_dict()) == {f"mtp_layers.0.{name}" for name in names}
    other = ModelTarget(tiny_pair(23, width=16).target, 1, 32)
    with pytest.raises(ForetokenError, match=r"hidden_size 32 and this target has 16"):
        Mtp(module).bind(other)
    with pytest.raises(ForetokenError, match="num_speculative_tokens is 0"):
        Mtp(module, num_speculative_tokens=0)
