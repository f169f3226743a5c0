"""Cuts a small model out of a large one, which is then distilled into a draft model.

What is kept is what matters along calibration texts. Layers: those that turn the residual stream
most, by one minus the cosine of its direction before and after (block influence, Men et al. 2024,
ShortGPT, section 3). Channels of the residual stream, feed-forward units and heads: those of the
largest mean activation (Muralidharan et al. 2024, Minitron, section 2.2), channels after the norms,
units and heads before the projections that follow them. Query heads go with their key/value head.
The weights that are kept are copied; a norm's take the mean factor by which fewer channels make it
divide by another number.

Legend: N tokens, D width, F feed-forward units, H query heads, K key/value heads, W head width.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.errors import ForetokenError, one_line
from foretoken.files import whole_or_nothing

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_CONFIG = "config.json"
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True)
class Size:
    """What a small model has; None: as many as the large one."""

    layers: int | None = None
    hidden_size: int | None = None
    intermediate_size: int | None = None
    kv_heads: int | None = None


def prune(model: Any, size: Size, texts: Iterable[Seq[int]]) -> Any:
    """A smaller model of transformers, cut out of `model` by what matters along texts of token ids.

    Raises `ForetokenError` for another family, and for a size that isn't smaller or doesn't fit.
    """
    config = model.config
    if config.model_type not in FAMILIES:
        raise ForetokenError(
            f"A {config.model_type} can't be cut; models of {', '.join(FAMILIES)} can."
        )
    wanted = _checked(size, config)
    seen = _Seen(model)
    seen.read(texts)
    layers = sorted(_largest(torch.stack(seen.influence), wanted["num_hidden_layers"]))
    channels = _largest(sum(seen.channels.values(), torch.zeros(())), wanted["hidden_size"])
    small = type(model)(_config(config, wanted, layers)).to(model.dtype)
    small.generation_config.eos_token_id = model.generation_config.eos_token_id
    state, own = dict(model.state_dict()), small.state_dict()
    for at, source in enumerate(layers):
        units = _largest(seen.units[source], wanted["intermediate_size"])
        heads = _largest(seen.heads[source], wanted["num_key_value_heads"])
        for name, weight in _of_layer(state, source).items():
            cut = _cut(name, weight, channels, units, heads, config)
            own[f"model.layers.{at}.{name}"].copy_(cut * seen.factor(source, name, channels))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        own[name].copy_(state[name][:, channels])
    final = state["model.norm.weight"][channels]
    own["model.norm.weight"].copy_(final * seen.factor(None, "norm", channels))
    return small.eval()


def _checked(size: Size, config: Any) -> dict[str, int]:
    given = {
        "num_hidden_layers": size.layers,
        "hidden_size": size.hidden_size,
        "intermediate_size": size.intermediate_size,
        "num_key_value_heads": size.kv_heads,
    }
    wanted = {name: getattr(config, name) if n is None else n for name, n in given.items()}
    for name, number in wanted.items():
        if not 1 <= number <= getattr(config, name):
            raise ForetokenError(
                f"{name} is to be {number} and the model's is {getattr(config, name)}; a part of a "
                "model has at least 1 and no more than that."
            )
    heads = _queries(config) * wanted["num_key_value_heads"]
    if wanted["hidden_size"] % heads:
        raise ForetokenError(
            f"A width of {wanted['hidden_size']} isn't a multiple of the {heads} query heads; "
            "transformers loads nothing else."
        )
    return wanted


def _queries(config: Any) -> int:
    """Query heads of a key/value head."""
    return int(config.num_attention_heads // config.num_key_value_heads)


def _width(config: Any) -> int:
    """W"""
    own = getattr(config, "head_dim", None)
    return int(own or config.hidden_size // config.num_attention_heads)


def _config(config: Any, wanted: Mapping[str, int], layers: Seq[int]) -> Any:
    heads = _queries(config) * wanted["num_key_value_heads"]
    changed = {**config.to_dict(), **wanted}
    changed |= {"num_attention_heads": heads, "head_dim": _width(config)}
    kinds = changed.get("layer_types")
    if kinds:
        changed["layer_types"] = [kinds[i] for i in layers]
    return type(config)(**changed)


def _largest(scores: Tensor, count: int) -> list[int]:
    """The places of the largest scores, in order; of equals the first."""
    chosen = scores.argsort(descending=True, stable=True)[:count]
    return sorted(chosen.tolist())


def _of_layer(state: Mapping[str, Tensor], layer: int) -> dict[str, Tensor]:
    found = {}
    for name, weight in state.items():
        match = _LAYER.fullmatch(name)
        if match and int(match[1]) == layer:
            found[match[2]] = weight
    return found


def _cut(
    name: str, weight: Tensor, channels: Seq[int], units: Seq[int], heads: Seq[int], config: Any
) -> Tensor:
    """The part of a layer's tensor that is kept."""
    module = name.rpartition(".")[0]
    size, queries = _width(config), _queries(config)
    keys = [head * size + i for head in heads for i in range(size)]
    asked = [
        (head * queries + query) * size + i
        for head in heads
        for query in range(queries)
        for i in range(size)
    ]
    outputs = {
        "self_attn.q_proj": asked,
        "self_attn.k_proj": keys,
        "self_attn.v_proj": keys,
        "self_attn.o_proj": channels,
        "mlp.gate_proj": units,
        "mlp.up_proj": units,
        "mlp.down_proj": channels,
        "input_layernorm": channels,
        "post_attention_layernorm": channels,
    }
    inputs = {"self_attn.o_proj": asked, "mlp.down_proj": units}
    if module not in outputs:  # norms of queries and keys, of a head's width
        return weight
    kept = weight[outputs[module]]
    return kept if kept.dim() == 1 else kept[:, inputs.get(module, channels)]


class _Seen:
    """What hooks see of a model along texts; sums over tokens."""

    def __init__(self, model: Any) -> None:
        self._model, layers = model, model.model.layers
        self.influence = [torch.zeros(()) for _ in layers]
        self.units: dict[int, Tensor] = defaultdict(lambda: torch.zeros(()))  # [F] of each layer
        self.heads: dict[int, Tensor] = defaultdict(lambda: torch.zeros(()))  # [K] of each layer
        self.channels: dict[str, Tensor] = defaultdict(lambda: torch.zeros(()))  # [D] of each norm
        self._squares: dict[str, Tensor] = defaultdict(lambda: torch.zeros(()))  # [D], before it

    @torch.no_grad()
    def read(self, texts: Iterable[Seq[int]]) -> None:
        """Raises `ForetokenError` where there is none."""
        handles, count = self._hooks(), 0
        try:
            for text in texts:
                ids = torch.tensor([list(text)], device=self._model.device)
                self._model.model(input_ids=ids, use_cache=False)
                count += 1
        finally:
            for handle in handles:
                handle.remove()
        if not count:
            raise ForetokenError("There is no text to see by what a model needs; give one.")

    def factor(self, layer: int | None, name: str, channels: Seq[int]) -> float:
        """What a norm's weights are multiplied by, so that what is kept of its outputs stays as
        large; 1 for other tensors."""
        key = "norm" if layer is None else f"{layer}.{name.removesuffix('.weight')}"
        if key not in self._squares:
            return 1.0
        squares = self._squares[key]
        return float((squares[channels].mean() / squares.mean()).sqrt())

    def _hooks(self) -> list[Any]:
        model = self._model.model
        handles = [model.norm.register_forward_hook(self._norm("norm"))]
        for i, layer in enumerate(model.layers):
            handles += [
                layer.register_forward_hook(self._turn(i)),
                layer.mlp.down_proj.register_forward_pre_hook(self._unit(i)),
                layer.self_attn.o_proj.register_forward_pre_hook(self._head(i)),
            ]
            for name in ("input_layernorm", "post_attention_layernorm"):
                norm = getattr(layer, name)
                handles.append(norm.register_forward_hook(self._norm(f"{i}.{name}")))
        return handles

    def _norm(self, key: str) -> Callable[..., None]:
        def hook(_: Any, given: tuple[Tensor, ...], out: Tensor) -> None:
            self.channels[key] = self.channels[key] + out.double().abs().flatten(0, 1).sum(0)
            each = given[0].double().square()
            each = each / each.mean(-1, keepdim=True).clamp(min=1e-30)  # every token alike
            self._squares[key] = self._squares[key] + each.flatten(0, 1).sum(0)

        return hook

    def _turn(self, layer: int) -> Callable[..., None]:
        def hook(_: Any, given: tuple[Tensor, ...], out: Any) -> None:
            after = out[0] if isinstance(out, tuple) else out
            same = F.cosine_similarity(given[0].double(), after.double(), dim=-1)
            self.influence[layer] = self.influence[layer] + (1 - same).sum()

        return hook

    def _unit(self, layer: int) -> Callable[..., None]:
        def hook(_: Any, given: tuple[Tensor, ...]) -> None:
            self.units[layer] = self.units[layer] + given[0].double().abs().flatten(0, 1).sum(0)

        return hook

    def _head(self, layer: int) -> Callable[..., None]:
        def hook(_: Any, given: tuple[Tensor, ...]) -> None:
            count = self._model.config.num_key_value_heads
            each = given[0].double().flatten(0, 1).unflatten(-1, (count, -1)).norm(dim=-1)
            self.heads[layer] = self.heads[layer] + each.sum(0)

        return hook


def write(small: Any, tokenizer: Any, out: Path) -> None:
    """Save a model and its tokenizer into a new folder, or nothing. Raises `ForetokenError` where
    that can't be done."""
    from safetensors import SafetensorError

    try:
        with whole_or_nothing(out), TemporaryDirectory(dir=out) as folder:
            small.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            # The configuration last, so that what a killed process leaves is no model.
            for file in sorted(Path(folder).iterdir(), key=lambda file: file.name == _CONFIG):
                file.rename(out / file.name)
    except (OSError, SafetensorError) as error:
        raise ForetokenError(
            f"{out} can't be written: {one_line(error)}; make room, or give another folder."
        ) from error
