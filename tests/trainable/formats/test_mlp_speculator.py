"""IBM's MLP speculators, read as vLLM reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import consumers
from drafted import predictions
from foreign import VOCAB, WIDTH, target_of, written
from foretoken import ForetokenError
from foretoken.drafters.mlp_speculator import MlpSpeculatorStages
from foretoken.testing import Pair

CONFIG = {
    "architectures": ["MLPSpeculatorPreTrainedModel"],
    "model_type": "mlp_speculator",
    "emb_dim": WIDTH,
    "inner_dim": 24,
    "vocab_size": VOCAB,
    "n_predict": 3,
    "n_candidates": 5,
    "top_k_tokens_per_head": [5, 4, 3],
    "tie_weights": False,
    "scale_input": False,
}


def published(folder: Path, repeated: bool = False, **changed: Any) -> Path:
    """A checkpoint with random weights. repeated: it has tied ones once for each stage."""
    config = {**CONFIG, **changed}
    inner = config["inner_dim"] or WIDTH
    random = torch.Generator().manual_seed(7)
    sizes = {"emb": (VOCAB, inner), "head": (VOCAB, inner), "ln": (inner,), "proj": (inner, inner)}
    tensors: dict[str, torch.Tensor] = {}
    for i in range(config["n_predict"]):
        for part, size in sizes.items():
            shape = (inner, WIDTH) if (part, i) == ("proj", 0) else size
            for kind in ("weight", "bias") if part == "ln" else ("weight",):
                noise = torch.randn(shape, generator=random, dtype=torch.float64)
                name = f"speculator.{part}.{i}.{kind}"
                tensors[name] = 0.5 * noise + (part == "ln" and kind == "weight")
                own = min(i, 1 if part == "proj" else 0)
                if config["tie_weights"] and i > own:
                    tensors[name] = tensors[f"speculator.{part}.{own}.{kind}"].clone()
                    if not repeated:
                        del tensors[name]
    return written(folder, config, tensors)


VARIANTS: dict[str, dict[str, Any]] = {
    "untied": {},
    "scaled": {"scale_input": True},
    "tied": {"tie_weights": True, "scale_input": True},
    "tied, each stage stored": {"tie_weights": True, "repeated": True},
    "of the target's width": {"inner_dim": 0},
    "one stage": {"n_predict": 1, "top_k_tokens_per_head": [5]},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_it_predicts_what_vllm_computes(name: str, small: Pair, tmp_path: Path) -> None:
    """At every node of the trees that are drafted while serving."""
    folder = published(tmp_path, **VARIANTS[name])
    found = predictions("mlp_speculator", folder, small, tree="paper")
    assert max(len(each.path) for each in found) == VARIANTS[name].get("n_predict", 3) - 1
    for each in found:
        tokens = [each.text[-1], *each.path]
        logits = consumers.mlp_speculator(folder, each.hidden[-1][-1], tokens)
        torch.testing.assert_close(each.probs, logits.softmax(-1))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"emb_dim": 16}, "hidden_size 16 .* has 32"),
        ({"vocab_size": 29}, "vocab_size 29 .* has 23"),
        ({"method": "sum_lstm"}, "'sum_lstm', and only IBM's"),
        ({"n_predict": 1, "tie_weights": True}, "can't share weights"),
        ({"inner_dim": 16}, r"\[23, 24\] .* \[23, 16\]"),
        ({"n_predict": 4}, "no tensor 'emb.3.weight'"),
        ({"tie_weights": True}, "emb.1.weight differs from emb.0.weight"),
    ],
)
def test_what_does_not_fit_is_refused(
    changed: dict[str, Any], message: str, small: Pair, tmp_path: Path
) -> None:
    """One sentence, with both values where there are two."""
    folder = published(tmp_path)
    tensors = consumers.load_file(folder / "model.safetensors")
    written(folder, {**CONFIG, **changed}, tensors)
    with pytest.raises(ForetokenError, match=message) as refused:
        MlpSpeculatorStages.load(folder, target_of(small))
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)
