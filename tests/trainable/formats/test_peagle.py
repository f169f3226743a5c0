"""P-EAGLE as AWS and SpecForge publish it for vLLM, and as speculators does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import consumers
from drafted import chain_predictions
from eagle3_files import HEAD, SPECULATORS, VLLM, several
from foreign import VOCAB, WIDTH, target_of, written
from foretoken import ForetokenError
from foretoken.config import build
from foretoken.drafters.peagle import PEagleModule
from foretoken.testing import Pair
from foretoken.trainable.formats import recognise

AWS = {**VLLM, "ptd_token_id": 7}
SPECFORGE = {**VLLM, "architectures": ["PEagleDraftModel"], "mask_token_id": 7}
THEIRS = {
    **SPECULATORS,
    "speculators_model_type": "peagle",
    "architectures": ["PEagleSpeculator"],
    "mask_token_id": 7,
    "norm_before_residual": True,
    "fc_norm": True,
}
HIDDEN = {"mask_hidden": (1, 1, 3 * WIDTH)}
EMBEDDING = {"embed_tokens.weight": (VOCAB, WIDTH)}
VARIANTS: dict[str, Any] = {
    "aws": (AWS, "midlayer", {"mask_hidden": (1, 3 * WIDTH)} | EMBEDDING),
    "without an embedding": (AWS, "layers.0", HIDDEN),
    "specforge": (SPECFORGE, "layers.0", HIDDEN | EMBEDDING),
    "speculators": (THEIRS, "layers.0", HIDDEN | EMBEDDING),
}


@pytest.mark.parametrize("places", [1, 4])
@pytest.mark.parametrize("name", VARIANTS)
def test_places_are_those_of_the_program(
    name: str, places: int, small: Pair, tmp_path: Path
) -> None:
    """The distributions that a chain is drawn from while serving, in float64."""
    config, first, more = VARIANTS[name]
    folder = several(tmp_path, config, first, more)
    if name == "specforge":  # another name for the same form
        config = {**config, "architectures": ["LlamaForCausalLMEagle3"]}
        read = consumers.vllm(written(tmp_path / "vllm", config, _tensors(folder)))
    else:
        read = (consumers.speculators if name == "speculators" else consumers.vllm)(folder)
    own = read.tensors.get("embed_tokens.weight", small.target.embed(torch.arange(VOCAB)))
    ids = read.tensors["d2t"] + torch.arange(HEAD)
    found = chain_predictions("peagle", folder, small, num_speculative_tokens=places)
    assert {len(each.path) for each in found} == set(range(places))
    for each in found:
        states = dict(enumerate(each.hidden))
        following = own[torch.tensor(each.text[1:])]
        logits = consumers.parallel_logits(read, states, following, own[7], places)
        torch.testing.assert_close(each.probs[ids], logits[len(each.path)].softmax(-1))
        assert float(each.probs.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("named", "token"),
    [
        ({"pard_token": 3}, 3),
        ({"ptd_token_id": "4", "pard_token": 3}, 3),
        ({"ptd_token_id": "4"}, 4),
        ({"pard_token": 3, "mask_token_id": 0}, 0),
    ],
)
def test_the_mask_token_has_three_names(named: dict[str, Any], token: int, tmp_path: Path) -> None:
    """Of several, vLLM's first; as a number or as text."""
    published = recognise(several(tmp_path, {**VLLM, **named}, "layers.0", HIDDEN))
    assert published is not None and published.shape["mask_token_id"] == token


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    return consumers.load_file(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("config", "more", "message"),
    [
        (VLLM, HIDDEN, "names no mask token; add the mask_token_id"),
        ({**AWS, "ptd_token_id": 23}, HIDDEN, "mask_token_id is 23"),
        (THEIRS, {}, "P-EAGLE without mask_hidden"),
        (AWS, {"mask_hidden": (1, 1, WIDTH)}, r"\[1, 1, 32\] .* \[1, 1, 96\]"),
    ],
)
def test_what_does_not_fit_is_refused(
    config: dict[str, Any], more: Any, message: str, small: Pair, tmp_path: Path
) -> None:
    """One sentence, which says what to add where something can be."""
    folder = several(tmp_path, config, "layers.0", more)
    with pytest.raises(ForetokenError, match=message) as refused:
        PEagleModule.load(folder, target_of(small))
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)


def test_another_method_does_not_take_it(small: Pair, tmp_path: Path) -> None:
    """Without its masks it is no EAGLE-3."""
    folder = several(tmp_path, AWS, "midlayer", HIDDEN | EMBEDDING)
    with pytest.raises(ForetokenError, match="of method 'peagle' and not of 'eagle3'"):
        build({"method": "eagle3", "model": str(folder)}).drafter.bind(target_of(small))
