"""What a training would hold, from its target's configuration alone: nothing is loaded or run.

Weights are made without memory (torch's meta device). Memory is what a process has at its peak:
the target's weights, the drafter's with gradients and the optimiser's numbers, and of one batch the
states that the drafter reads, a layer of the target's pass, and what the drafter's steps keep for
their gradients. Allocators and libraries take something on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from foretoken.errors import ForetokenError
from foretoken.train.drafter import config_of, shape_for, trainable
from foretoken.train.recipe import Recipe
from foretoken.trainable.checkpoint import Facts, Trained

_FLOAT, _HALF = 4, 2  # bytes
_ADAM = 2  # numbers of the optimiser for each weight
_KEPT = 14  # states of a decoder layer's width that one step keeps for its gradients
_PASS = 8  # of a target's layer while it runs
_CHUNK = 256  # places whose logits exist at a time, see `losses.chunked`
_LOGITS = 3  # of them: logits, their distribution, its gradient


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


def dry_run(method: str, target: str, recipe: Recipe) -> DryRun:
    """Raises `ForetokenError` for a method that has nothing to train, a shape that doesn't fit the
    target, and a target without a configuration."""
    config = config_of(target)
    text = config.get_text_config()
    parameters = _parameters(config)
    facts = Facts(text.hidden_size, text.vocab_size, text.num_hidden_layers)
    module = _module(method, facts, config, recipe)
    tensors = {name: tuple(weight.shape) for name, weight in module.named_parameters()}
    own = _FLOAT * sum(torch.Size(shape).numel() for shape in tensors.values())
    return DryRun(
        parameters,
        tensors,
        {
            "the target's weights, in 16 bits": _HALF * parameters,
            "the drafter's weights": own,
            "their gradients": own,
            "the optimiser": _ADAM * own,
            "keys and values of a batch, and of a text": _caches(recipe, text),
            "a batch": _batch(recipe, text, module),
        },
    )


def _module(method: str, facts: Facts, config: Any, recipe: Recipe) -> Trained:
    kind = trainable(method).module
    shape = shape_for(kind, config, recipe.shape)
    with torch.device("meta"):
        module: Trained = kind.from_shape(facts, shape, "the recipe")
    return module


def _parameters(config: Any) -> int:
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

    if type(config) is PreTrainedConfig:  # a GGUF file's is of no family's class
        config = AutoConfig.for_model(**(config.to_dict() | {"model_type": config.model_type}))
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except ValueError as error:
        raise ForetokenError(
            f"A {config.model_type} can't be a target: it is no causal language model of "
            "transformers."
        ) from error
    model.tie_weights()
    return sum(weight.numel() for weight in {id(p): p for p in model.parameters()}.values())


def _caches(recipe: Recipe, config: Any) -> int:
    """In 16 bits; what writes and measures takes as much as is free beside, and comes and goes."""
    heads: int = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    of_token: int = 2 * config.num_hidden_layers * width * _HALF
    of_token *= getattr(config, "num_key_value_heads", None) or heads
    places: int = (recipe.rows + 1) * recipe.length
    return places * of_token


def _batch(recipe: Recipe, config: Any, module: Trained) -> int:
    width: int = config.hidden_size
    places = recipe.rows * recipe.length
    steps = int(module.shape.get("unroll") or module.shape.get("num_layers") or 1)
    wide: int = getattr(config, "intermediate_size", None) or 4 * width
    read = len(module.hidden) * places * width * _FLOAT
    passed = places * (_PASS * width + 3 * wide) * _HALF
    kept = steps * places * (_KEPT * width + 3 * wide) * _FLOAT
    logits: int = _LOGITS * min(places, _CHUNK) * config.vocab_size * _FLOAT
    masks = 2 * recipe.rows * recipe.length**2
    return read + passed + kept + logits + masks
