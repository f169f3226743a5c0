"""What a training would hold, from its target's configuration alone: nothing is loaded or run.

Weights are made without memory (torch's meta device). Memory is what a process has at its peak:
the target's weights, the drafter's with gradients and the optimiser's numbers, and of one batch the
states that the drafter reads, a layer of the target's pass, and what the drafter's steps keep for
their gradients. Allocators and libraries take something on top, and on a GPU logits, masks and
scores that exist at a time, each tensor up to a 64th of its memory. Where the drafter is shared out
(`shards`), the process is the first, which has whole weights beside its part; where the target is
(`shared_target`), it has a part of each layer and the layers that a pass gathers.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch

from foretoken.drafters.peagle import PEagleModule
from foretoken.drafters.specdec import SpecDecModel
from foretoken.errors import ForetokenError
from foretoken.models.native.check import of_layers
from foretoken.train import joint, shared_target
from foretoken.train.drafter import NUMBERS, config_of, trainable, unfilled
from foretoken.train.recipe import Recipe
from foretoken.trainable.checkpoint import Facts, Trained
from foretoken.trainable.small_lm import TrainedLM

_FLOAT, _HALF = 4, 2  # bytes
_ADAM = 2  # numbers of the optimiser for each weight
_KEPT = 14  # states of a decoder layer's width that one step keeps for its gradients
_PASS = 8  # of a target's layer while it runs
_CHUNK = 256  # places whose logits exist at a time, see `losses.chunked`
_PAIRS = 2**24  # of places whose masks exist at a time, see `frozen`
_GATHERED = 2  # layers of a target that is shared out: the one that runs, and the next one
_LOGITS = 3  # of them: logits, their distribution, its gradient
_NUMBERS = (*NUMBERS, "num_attention_heads")


@dataclass(frozen=True)
class DryRun:
    """target: its parameters; tensors: the drafter's, by name; parts: bytes of a process, by what
    they are for."""

    target: int
    tensors: dict[str, tuple[int, ...]]
    parts: dict[str, int]

    @property
    def drafter(self) -> int:
        """Its parameters."""
        return sum(torch.Size(shape).numel() for shape in self.tensors.values())

    @property
    def bytes(self) -> int:
        return sum(self.parts.values())


def dry_run(
    method: str,
    target: str,
    recipe: Recipe,
    among: int = 1,
    trust_remote_code: bool = False,
    target_among: int = 1,
) -> DryRun:
    """among: the processes that the drafter is shared out over; target_among: those that the
    target is. trust_remote_code: of the target. Raises `ForetokenError` for a method that has
    nothing to train, a shape that doesn't fit the target, and a target without a configuration."""
    if method == joint.METHOD and target_among > 1:
        raise joint.not_shared_out()
    config = config_of(target, trust_remote_code)
    text = _named(config, target)
    parameters, layers = _parameters(config, trust_remote_code, target_among)
    facts = Facts(text.hidden_size, text.vocab_size, text.num_hidden_layers)
    module = _module(method, target, facts, config, recipe)
    weights = dict(module.named_parameters())
    own = _FLOAT * sum(weight.numel() for weight in weights.values())
    trained = _FLOAT * sum(weight.numel() for weight in weights.values() if weight.requires_grad)
    return DryRun(
        parameters,
        {name: tuple(weight.shape) for name, weight in weights.items()},
        {
            **_target(_HALF * parameters, [_HALF * size for size in layers], target_among),
            **_held(own, trained, among),
            "keys and values of a batch, and of a text": _caches(recipe, text),
            "a batch": _batch(recipe, text, module),
        },
    )


def _named(config: Any, target: str) -> Any:
    """The part of a configuration that names a decoder's numbers. Raises `ForetokenError` where one
    that is reckoned by has another name, as code that comes with a target may give it."""
    text = config.get_text_config()
    missing = [name for name in _NUMBERS if not isinstance(getattr(text, name, None), int)]
    if missing:
        raise ForetokenError(
            f"The configuration of {target} has no {missing[0]}, by which memory is reckoned; "
            "leave --dry-run out."
        )
    return text


def _target(whole: int, layers: Seq[int], among: int) -> dict[str, int]:
    """Bytes of the target by what they are for; whole: of its weights; layers: of each layer's."""
    if among == 1:
        return {"the target's weights, in 16 bits": whole}
    return {
        "the target's layers, in 16 bits, a part": -(-sum(layers) // among),
        "its embedding, last norm and head, whole": whole - sum(layers),
        "layers of a pass, gathered": _GATHERED * max(layers, default=0),
    }


def _held(own: int, trained: int, among: int) -> dict[str, int]:
    """Bytes of the drafter by what they are for; own: of its weights, trained: of those that
    change. Shared out, the module is one group: a step has all weights and gradients for a
    while."""
    parts = {
        "the drafter's weights": own,
        "their gradients": trained,
        "the optimiser": _ADAM * trained,
    }
    if among == 1:
        return parts
    return {
        **{f"{name}, a part": -(-size // among) for name, size in parts.items()},
        "weights and gradients of a step, gathered": own + trained,
        "the whole weights, at the first process": own,
    }


def _module(method: str, target: str, facts: Facts, config: Any, recipe: Recipe) -> Trained:
    if method == joint.METHOD:
        return unfilled(joint.JointModule, facts, config, joint.shape_for(target, recipe))
    return unfilled(trainable(method).module, facts, config, recipe.shape)


def _parameters(config: Any, trust_remote_code: bool, target_among: int) -> tuple[int, list[int]]:
    """The target's, and those of each of its decoder layers."""
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

    from foretoken.models.hf.adapter import layers_of

    if type(config) is PreTrainedConfig:  # a GGUF file's is of no family's class
        config = AutoConfig.for_model(**(config.to_dict() | {"model_type": config.model_type}))
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except ValueError as error:
        raise ForetokenError(
            f"A {config.model_type} can't be a target: it is no causal language model of "
            "transformers."
        ) from error
    model.tie_weights()
    layers = layers_of(model)
    if layers is None and target_among > 1:
        raise shared_target.no_layers(model)
    return _count(model), [_count(layer) for layer in layers or ()]


def _count(module: Any) -> int:
    """Its parameters."""
    return sum(weight.numel() for weight in {id(p): p for p in module.parameters()}.values())


def _caches(recipe: Recipe, config: Any) -> int:
    """In 16 bits; what writes and measures takes as much as is free beside, and comes and goes."""
    each = of_layers(config)
    of_token = 0
    for layer in each:
        heads: int = layer.num_attention_heads
        width: int = getattr(layer, "head_dim", None) or layer.hidden_size // heads
        of_token += 2 * width * _HALF * (getattr(layer, "num_key_value_heads", None) or heads)
    places: int = (recipe.rows + 1) * recipe.length
    layers: int = config.num_hidden_layers
    return places * of_token * layers // len(each)


def _batch(recipe: Recipe, config: Any, module: Trained) -> int:
    width: int = config.hidden_size
    places = recipe.rows * recipe.length
    read = len(module.hidden) * places * width * _FLOAT
    passed = places * (_PASS * width + 3 * _inner(config)) * _HALF
    steps, layer = _layers(module, recipe, config)
    kept = int(steps * places * (_KEPT * layer.hidden_size + 3 * _inner(layer)) * _FLOAT)
    logits: int = _LOGITS * min(places, _CHUNK) * config.vocab_size * _FLOAT
    masks = 2 * min(recipe.rows * recipe.length**2, _PAIRS)
    return read + passed + kept + logits + masks


def _layers(module: Trained, recipe: Recipe, config: Any) -> tuple[float, Any]:
    """How many layers a drafter's steps run, each over as many places as the rows have, and the
    configuration that these are like: the target's, but of a small language model its own."""
    if isinstance(module, SpecDecModel):
        module = module.base
    elif isinstance(module, joint.JointModule):
        module = module.target
    if isinstance(module, TrainedLM):
        return module.lm.config.num_hidden_layers, module.lm.config
    shape, layers = module.shape, int(module.shape.get("num_layers") or 1)
    if isinstance(module, PEagleModule):  # runs once, over the text and its masks
        return layers * (1 + shape["blocks"] * (shape["depths"] - 1) / recipe.length), config
    return layers * int(shape.get("unroll") or 1), config


def _inner(config: Any) -> int:
    """The width of a layer's feed-forward."""
    inner: int = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    return inner
