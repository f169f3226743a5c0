"""How other programs read a drafter's folder: their own names of fields and tensors, and their
forward pass, written from what their code does and not from our readers.

Sources: vLLM's model_executor/models/llama_eagle3.py (pull request 42764), its speculative
configuration and the DFlash model's `_read_mask_embedding`; SGLang's srt/models/llama_eagle3.py
(pull request 24663) and its targets' `set_eagle3_layers_to_capture` (llama.py, pull requests 25454
and 32334); for DFlash z-lab's
dflash/model.py, vLLM's model_executor/models/qwen3_dflash.py and SGLang's srt/models/dflash.py
(pull request 34524); for DFlash 2 z-lab's dflash/model.py, vLLM's pull request 52816 and SGLang's
35371; for MLP speculators vLLM's model_executor/models/mlp_speculator.py. Both programs join
captured states in the order of the target's layers, whatever the list's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

VLLM = {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM"}
SGLANG = {"LlamaForCausalLMEagle3"}


@dataclass
class Read:
    """What a program takes from an EAGLE-3 folder. capture: outputs of the target, the embedding's
    being 0. norms: those beyond EAGLE-3's own that it applies. later: its name of the norm before
    attention in layers after the first."""

    config: Mapping[str, Any]
    tensors: dict[str, Tensor]
    capture: list[int]
    norms: set[str]
    later: str = "input_layernorm"


def vllm(folder: Path) -> Read:
    config, tensors = _folder(folder)
    assert config["architectures"][0] in VLLM
    names = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    capture = config.get("eagle_aux_hidden_state_layer_ids") or _usual(config)
    assert tensors["fc.weight"].shape[1] == _states(config) * config["hidden_size"]
    return Read(config, tensors, list(capture), {name for name in names if config.get(name)})


def speculators(folder: Path) -> Read:
    """As `speculators` itself reads its type eagle3 or peagle."""
    config, tensors = _folder(folder)
    names = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    capture = config["eagle_aux_hidden_state_layer_ids"]
    layer = config["transformer_layer_config"]
    return Read(layer, tensors, capture, {name for name in names if config.get(name)})


def sglang(folder: Path, counts: str = "llama") -> Read:
    """Tensors of other norms are not loaded, and not missed. counts: the target that counts the
    layers: Llama's and Qwen's from the first one's output, DeepSeek's so where the list begins
    with 1, GPT-OSS from the embedding."""
    config, tensors = _folder(folder)
    assert config["architectures"][0] in SGLANG
    inner = config.get("eagle_config") or {}
    ids = inner.get("eagle_aux_hidden_state_layer_ids") or _usual(config)
    more = {"llama": 1, "deepseek": int(ids[0] == 1), "gpt_oss": 0}[counts]
    more = more if "eagle_aux_hidden_state_layer_ids" in inner else 0
    assert tensors["fc.weight"].shape[1] == _states(config) * config["hidden_size"]
    norms = {name for name in ("fc_norm", "norm_output") if config.get(name)}
    return Read(config, tensors, [i + more for i in ids], norms, "hidden_norm")


def _states(config: Mapping[str, Any]) -> int:
    """How many captured states both programs make room for."""
    inner = config.get("eagle_config") or {}
    usual = len(inner.get("eagle_aux_hidden_state_layer_ids") or ()) or 3
    return int(config.get("num_aux_hidden_states") or usual)


def _usual(config: Mapping[str, Any]) -> list[int]:
    layers = config["num_target_layers"]
    return [2, layers // 2, layers - 3]


def _folder(folder: Path) -> tuple[Any, dict[str, Tensor]]:
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    return config, {name.replace("midlayer.", "layers.0."): x for name, x in tensors.items()}


def logits(read: Read, states: Mapping[int, Tensor], following: Tensor) -> Tensor:
    """[T, R] of the first drafted token after each place. states: the target's outputs [T, D];
    following: embeddings of the tokens after them [T, D]."""
    captured = torch.cat([states[i] for i in read.capture], -1)
    return _head(read, _outputs(read, joined(read, captured), following))


def logits_after(
    read: Read, states: Mapping[int, Tensor], following: Tensor, drafted: Tensor
) -> Tensor:
    """[R] after drafted tokens, of which these are the embeddings [N, D]: the layers run on their
    own outputs."""
    features = joined(read, torch.cat([states[i] for i in read.capture], -1))
    outputs = _outputs(read, features, following)
    for embedding in drafted:
        last = outputs[-1:]
        if "norm_output" in read.norms:
            last = _norm(read, last, "norm")
        features, following = torch.cat((features, last)), torch.cat((following, embedding[None]))
        outputs = _outputs(read, features, following)
    return _head(read, outputs[-1])


def parallel_logits(
    read: Read,
    states: Mapping[int, Tensor],
    following: Tensor,
    mask: Tensor,
    places: int,
) -> Tensor:
    """[places, R] of P-EAGLE's one pass: after the last place of the text, and at masks, whose
    token has the embedding `mask` [D]."""
    captured = torch.cat([states[i] for i in read.capture], -1)
    hidden = read.tensors["mask_hidden"].view(1, -1).expand(places - 1, -1)
    features = joined(read, torch.cat((captured, hidden)))
    entries = torch.cat((following, mask.expand(places - 1, -1)))
    return _head(read, _outputs(read, features, entries)[len(following) - 1 :])


def joined(read: Read, captured: Tensor) -> Tensor:
    """[T, D] of the captured states side by side."""
    if "norm_before_fc" in read.norms:
        captured = _norm(read, captured, "input_norm")
    if "fc_norm" in read.norms:
        parts = enumerate(captured.chunk(len(read.capture), -1))
        captured = torch.cat([_norm(read, part, f"fc_norm.{i}") for i, part in parts], -1)
    return captured @ read.tensors["fc.weight"].T


def _norm(read: Read, x: Tensor, name: str) -> Tensor:
    weight = read.tensors[f"{name}.weight"]
    return F.rms_norm(x, weight.shape, weight, read.config["rms_norm_eps"])


def _head(read: Read, outputs: Tensor) -> Tensor:
    return _norm(read, outputs, "norm") @ read.tensors["lm_head.weight"].T


def _outputs(read: Read, hidden: Tensor, following: Tensor) -> Tensor:
    """[T, D] of all layers; hidden, following: [T, D]."""
    x = hidden
    for i in range(read.config["num_hidden_layers"]):
        start = f"layers.{i}."
        layer = {
            name.removeprefix(start): tensor
            for name, tensor in read.tensors.items()
            if name.startswith(start)
        }
        if i == 0:
            normed = _norm(read, x, f"{start}hidden_norm")
            residual = normed if "norm_before_residual" in read.norms else x
            y = torch.cat((_norm(read, following, f"{start}input_layernorm"), normed), -1)
        else:
            residual, y = x, _norm(read, x, f"{start}{read.later}")
        x = residual + _attention(y, layer, read.config)
        y = _norm(read, x, f"{start}post_attention_layernorm")
        gate, up = y @ layer["mlp.gate_proj.weight"].T, y @ layer["mlp.up_proj.weight"].T
        x = x + F.silu(gate) * up @ layer["mlp.down_proj.weight"].T
    return x


def _attention(x: Tensor, layer: Mapping[str, Tensor], config: Mapping[str, Any]) -> Tensor:
    width, length = config["head_dim"], len(x)
    q, k, v = (
        (x @ layer[f"self_attn.{name}_proj.weight"].T).view(length, -1, width).transpose(0, 1)
        for name in "qkv"
    )
    if config["model_type"] == "qwen3":
        eps = config["rms_norm_eps"]
        q, k = (
            F.rms_norm(x, (width,), layer[f"self_attn.{name}_norm.weight"], eps)
            for name, x in (("q", q), ("k", k))
        )
    rates = config["rope_theta"] ** -(torch.arange(0, width, 2, dtype=x.dtype) / width)
    angle = torch.arange(length)[:, None] * rates
    cos, sin = (torch.cat((f(angle), f(angle)), -1) for f in (torch.cos, torch.sin))

    def turned(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    groups = len(q) // len(k)
    k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
    out = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
    return out.transpose(0, 1).flatten(1) @ layer["self_attn.o_proj.weight"].T


def dflash(
    folder: Path,
    program: str,
    past: Mapping[int, Tensor],
    root: int,
    embed: Callable[[Tensor], Tensor],
    head: Callable[[Tensor], Tensor],
) -> Tensor:
    """[N, V] logits of a block's masks, as "vllm" or "sglang" has them. past: outputs [T, D] of the
    target's layers, from 0, for the tokens before the root."""
    config, tensors = _folder(folder)
    assert config["architectures"] == ["DFlashDraftModel"] and config["model_type"] == "qwen3"
    given = config["dflash_config"]
    read = Read(config, tensors, sorted(given["target_layer_ids"]), set())
    states = joined(read, torch.cat([past[i] for i in read.capture], -1))
    context = _norm(read, states, "hidden_norm")
    tokens = torch.tensor([root] + [given["mask_token_id"]] * (config["block_size"] - 1))
    x, mask = embed(tokens).float(), mask_of(folder)
    if mask is not None:
        x[tokens == given["mask_token_id"]] = mask
    for i in range(config["num_hidden_layers"]):
        layer = f"layers.{i}"
        seen = _seen(config, program, i, len(context), len(x))
        y = _norm(read, x, f"{layer}.input_layernorm")
        x = x + _after(y, context, f"{layer}.self_attn", tensors, config, seen)
        y = _norm(read, x, f"{layer}.post_attention_layernorm")
        gate, up = (y @ tensors[f"{layer}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + F.silu(gate) * up @ tensors[f"{layer}.mlp.down_proj.weight"].T
    return head(_norm(read, x, "norm")[1:])


def _seen(config: Mapping[str, Any], program: str, layer: int, past: int, size: int) -> Tensor:
    """[S, T + S] what a block's places attend to in a layer: of the text the window's tokens, of
    the block all, or those that are not after them."""
    kinds = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    sliding, window = kinds[layer] == "sliding_attention", config.get("sliding_window")
    causal = config.get("is_causal")
    if program == "vllm":
        given = config["dflash_config"]
        causal = given.get("causal") if causal is None else causal
        window = given.get("swa_window_size", window)
    causal = sliding if causal is None else causal
    place, token = torch.arange(past, past + size)[:, None], torch.arange(past + size)
    near = (place - token < window) if sliding else torch.ones(size, past + size, dtype=torch.bool)
    return near & (token <= place) if causal else near


def dflash2(
    folder: Path,
    past: Mapping[int, Tensor],
    root: int,
    embed: Callable[[Tensor], Tensor],
    head: Callable[[Tensor], Tensor],
) -> list[tuple[int, float]]:
    """The chain that is drafted at temperature 0, with each token's score. past: outputs [T, D] of
    the target's layers, from 0, for the tokens before the root."""
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["DFlash2DraftModel"] and config["is_causal"] is False
    tensors, given = load_file(folder / "model.safetensors"), config["dflash_config"]
    size, group = given["block_size"], given["conv_group_size"]
    eps, width = config["rms_norm_eps"], config["hidden_size"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ tensors[f"{name}.weight"].T

    def norm(x: Tensor, name: str) -> Tensor:
        weight = tensors[f"{name}.weight"]
        return F.rms_norm(x, weight.shape, weight, eps)

    def convolved(x: Tensor, corrections: Tensor, name: str, side: int) -> Tensor:
        """corrections: [S, 2 · taps · groups]"""
        taps = given["conv_kernel_size"]
        each = corrections.view(size, 2, taps, width // group)[:, side]
        weights = each.repeat_interleave(group, -1) + tensors[f"{name}.base_kernel"][side]
        shifted = [F.pad(x, (0, 0, tap, 0))[:size] for tap in range(taps)]
        return sum((weights[:, tap] * shifted[tap] for tap in range(taps)), torch.zeros_like(x))

    context = torch.cat([past[i] for i in sorted(given["target_layer_ids"])], -1)
    context = norm(linear(context, "fc"), "hidden_norm")
    x = embed(torch.tensor([root] + [given["mask_token_id"]] * (size - 1))).float()
    for i in range(config["num_hidden_layers"]):
        layer = f"layers.{i}"
        y = norm(x, f"{layer}.input_layernorm")
        corrections = linear(y, f"{layer}.attention_conv.kernel_projection")
        y = convolved(y, corrections, f"{layer}.attention_conv", 0)
        y = _after(y, context, f"{layer}.self_attn", tensors, config)
        x = x + convolved(y, corrections, f"{layer}.attention_conv", 1)
        y = norm(x, f"{layer}.post_attention_layernorm")
        corrections = linear(y, f"{layer}.mlp_conv.kernel_projection")
        y = convolved(y, corrections, f"{layer}.mlp_conv", 0)
        y = F.silu(linear(y, f"{layer}.mlp.gate_proj")) * linear(y, f"{layer}.mlp.up_proj")
        x = x + convolved(linear(y, f"{layer}.mlp.down_proj"), corrections, f"{layer}.mlp_conv", 1)
    states = norm(x, "norm")[1:]
    drafted, before = [], root
    for state, logits in zip(states, head(states), strict=True):
        own, ids = logits.topk(given["selector_top_k"])
        gate = linear(state, "candidate_selector.hidden_projection")
        gate = gate * tensors["candidate_selector.predecessor_codebook"][before]
        scores = own + tensors["candidate_selector.successor_codebook"][ids] @ gate
        before = int(ids[scores.argmax()])
        drafted.append((before, float(scores.max())))
    return drafted


def _after(
    x: Tensor,
    context: Tensor,
    name: str,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    seen: Tensor | None = None,
) -> Tensor:
    """Attention of a block [S, D] to a text's context [T, D] and to itself. seen [S, T + S]: what
    of both, None for all."""
    width, eps = config["head_dim"], config["rms_norm_eps"]
    both = torch.cat((context, x))
    rates = config["rope_theta"] ** -(torch.arange(0, width, 2) / width)
    angle = torch.arange(len(both))[:, None] * rates
    cos, sin = (torch.cat((f(angle), f(angle)), -1) for f in (torch.cos, torch.sin))

    def heads(x: Tensor, part: str) -> Tensor:
        return (x @ tensors[f"{name}.{part}_proj.weight"].T).view(len(x), -1, width).transpose(0, 1)

    def turned(x: Tensor, part: str, first: int) -> Tensor:
        if config["model_type"] == "qwen3":
            x = F.rms_norm(x, (width,), tensors[f"{name}.{part}_norm.weight"], eps)
        a, b = x.chunk(2, -1)
        return x * cos[first:] + torch.cat((-b, a), -1) * sin[first:]

    q = turned(heads(x, "q"), "q", len(context))
    k, v = turned(heads(both, "k"), "k", 0), heads(both, "v")
    groups = len(q) // len(k)
    k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return out.transpose(0, 1).flatten(1) @ tensors[f"{name}.o_proj.weight"].T


def blocks_causal(folder: Path) -> set[bool]:
    """Whether the places of DFlash's blocks see those before them alone, as vLLM's versions have
    it: the later ones look at `is_causal` first, the others don't look at it."""
    config = json.loads((folder / "config.json").read_text())
    sliding = "sliding_attention" in config.get("layer_types", ())
    older = config["dflash_config"].get("causal", sliding)
    return {bool(older), bool(config.get("is_causal", older))}


def mask_of(folder: Path) -> Tensor | None:
    """The embedding that vLLM and SGLang put in the place of DFlash's mask token; tensors of the
    safetensors file are no candidates."""
    token = json.loads((folder / "config.json").read_text())["dflash_config"]["mask_token_id"]
    file = folder / "mask_embedding.pt"
    if not file.is_file():
        return None
    state = torch.load(file, weights_only=True)
    if isinstance(state, dict):
        assert state.get("mask_token_id", token) == token
        state = state["embedding"]
    found: Tensor = state
    return found


def mlp_speculator(folder: Path, state: Tensor, tokens: Sequence[int]) -> Tensor:
    """[V] logits after the root and what was drafted after it. state: the target's normed last one
    [D], which the root was read from."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    stages, tied = config["n_predict"], config["tie_weights"]
    inner = config["inner_dim"] or config["emb_dim"]
    state_weight = 0.5 ** (0.5 / stages)
    embedding_weight = math.sqrt((1 - state_weight**2) * (inner / 2))

    def of(part: str, stage: int, kind: str = "weight") -> Tensor:
        stage = min(stage, 1 if part == "proj" else 0) if tied else stage
        return tensors[f"speculator.{part}.{stage}.{kind}"]

    def normed(x: Tensor) -> Tensor:
        return x / (x.pow(2).mean() + 1e-6).sqrt()

    x = normed(state) / math.sqrt(2) if config["scale_input"] else state
    for i, token in enumerate(tokens):
        x = of("proj", i) @ x + embedding_weight / state_weight * of("emb", i)[token]
        x = of("ln", i) * normed(x) + of("ln", i, "bias")
        x = x * (1 + torch.erf(x / math.sqrt(2))) / 2
    return of("head", len(tokens) - 1) @ x
