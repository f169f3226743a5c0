"""The plain Llama that the zoo trains, and its way to a Hugging Face checkpoint and back.

Shapes: B sequences, T tokens, D width, H query heads, K key/value heads, h head width, F
feed-forward width, L layers, V vocabulary.

Weights are kept in float32 and named as Hugging Face names them, so export is a plain copy.
`chunked_loss` never holds the logits of a whole batch: it works out the loss and both gradients
a few hundred tokens at a time, which at V = 8,192 is what makes training on a CPU bearable.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor, nn

from foretoken.files import read_json, write_file
from foretoken.train.muon import precision

CHUNK = 1024


def mixed(device: str) -> torch.autocast:
    """Autocast to that precision; nothing where it is float32."""
    dtype = precision(device)
    return torch.autocast(device, dtype, enabled=dtype is not torch.float32)


@dataclass(frozen=True)
class Config:
    """A Llama's shape; `hf` writes it the way `transformers` reads it."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int = 8192
    head_dim: int = 64
    max_len: int = 2560
    theta: float = 10_000.0
    eps: float = 1e-6

    def hf(self, dtype: str = "float16") -> dict[str, object]:
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_len,
            "rms_norm_eps": self.eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.theta},
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": 1,
            "eos_token_id": 0,
            "pad_token_id": 0,
            "dtype": dtype,
        }


def rope_table(length: int, width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [T, h], halves repeated as `transformers` lays them out."""
    rate = theta ** -(torch.arange(0, width, 2, dtype=torch.float32) / width)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * rate
    both = torch.cat([angle, angle], dim=-1)
    return both.cos(), both.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (y * self.weight).to(x.dtype)


@dataclass
class Past:
    """One layer's keys and values [B, K, S, h], how many are filled, a mask [B, 1, T, filled]."""

    keys: Tensor
    values: Tensor
    filled: int
    mask: Tensor

    def add(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        at = slice(self.filled, self.filled + k.shape[2])
        self.keys[:, :, at], self.values[:, :, at] = k, v
        self.filled = at.stop
        return self.keys[:, :, : at.stop], self.values[:, :, : at.stop]


class Attention(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.hidden, c.heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: Past | None) -> Tensor:
        """x [B, T, D] -> [B, T, D]; with `past`, attends to what it holds and adds to it."""
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.c.heads, -1).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.c.kv_heads, -1).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.c.kv_heads, -1).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if past is not None:
            k, v = past.add(k, v)
        if past is not None and t == 1:
            # The queries of a group become rows of one: no copy of the cache for each of them.
            y = F.scaled_dot_product_attention(
                q.view(b, self.c.kv_heads, -1, self.c.head_dim), k, v, attn_mask=past.mask
            )
            out: Tensor = self.o_proj(y.reshape(b, t, -1))
            return out
        group = self.c.heads // self.c.kv_heads
        y = F.scaled_dot_product_attention(
            q,
            k.repeat_interleave(group, 1),
            v.repeat_interleave(group, 1),
            attn_mask=None if past is None else past.mask,
            is_causal=past is None,
        )
        out = self.o_proj(y.transpose(1, 2).reshape(b, t, -1))
        return out


class Mlp(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden, c.intermediate, bias=False)
        self.up_proj = nn.Linear(c.hidden, c.intermediate, bias=False)
        self.down_proj = nn.Linear(c.intermediate, c.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.input_layernorm = Norm(c.hidden, c.eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = Norm(c.hidden, c.eps)
        self.mlp = Mlp(c)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: Past | None = None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, past)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Llama(nn.Module):
    """Token ids [B, T] to the final hidden states [B, T, D]; `logits` puts the tied head on."""

    cos: Tensor
    sin: Tensor

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.config = c
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        self.layers = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = Norm(c.hidden, c.eps)
        cos, sin = rope_table(c.max_len, c.head_dim, c.theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.initialise()

    def initialise(self) -> None:
        """Both ways back into the residual start at zero: each block begins as the identity."""
        for name, p in self.named_parameters():
            if p.dim() < 2:
                continue
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(p)
            else:
                nn.init.normal_(p, std=0.02 if "embed" in name else p.shape[1] ** -0.5)

    def forward(self, ids: Tensor) -> Tensor:
        t = ids.shape[1]
        x = self.embed_tokens(ids)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        cos, sin = self.cos[:t].to(x.dtype), self.sin[:t].to(x.dtype)
        for block in self.layers:
            x = block(x, cos, sin)
        out: Tensor = self.norm(x)
        return out

    def logits(self, ids: Tensor) -> Tensor:
        return F.linear(self(ids), self.embed_tokens.weight)

    def parameters_read(self) -> int:
        """Parameters a decoding step reads: all of them, as the head is the embedding."""
        return sum(p.numel() for p in self.parameters())


def _cross_entropy(logits: Tensor, goal: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Losses [T] and weighted d loss / d logits [T, V] of one chunk."""
    x = logits.float()
    top = x.amax(-1, keepdim=True)
    e = (x - top).exp()
    total = e.sum(-1, keepdim=True)
    is_goal = torch.arange(x.shape[-1], device=x.device) == goal[:, None]
    loss = total.log().squeeze(-1) + top.squeeze(-1) - (x * is_goal).sum(-1)
    grad = (e / total - is_goal.float()) * weight[:, None]
    return loss, grad.to(logits.dtype)


class _ChunkedLoss(torch.autograd.Function):
    kernel: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = staticmethod(_cross_entropy)

    @staticmethod
    def forward(ctx, hidden, head, goal, weight):  # type: ignore[no-untyped-def]
        cast = head.to(hidden.dtype)
        d_hidden = torch.empty_like(hidden)
        d_head = torch.zeros_like(head)
        losses = torch.empty(hidden.shape[0], device=hidden.device)
        for lo in range(0, hidden.shape[0], CHUNK):
            at = slice(lo, lo + CHUNK)
            losses[at], grad = _ChunkedLoss.kernel(hidden[at] @ cast.t(), goal[at], weight[at])
            d_hidden[at] = grad @ cast
            d_head += grad.t() @ hidden[at]
        ctx.save_for_backward(d_hidden, d_head)
        return (losses * weight).sum(), losses

    @staticmethod
    def backward(ctx, d_loss, _):  # type: ignore[no-untyped-def]
        d_hidden, d_head = ctx.saved_tensors
        return d_hidden * d_loss.to(d_hidden.dtype), d_head * d_loss, None, None


def chunked_loss(
    hidden: Tensor, head: Tensor, goal: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Weighted cross entropy: hidden [N, D], head [V, D], goal, weight [N] -> sum, each [N]."""
    return _ChunkedLoss.apply(hidden, head, goal, weight)  # type: ignore[no-any-return]


def compile_loss() -> None:
    _ChunkedLoss.kernel = staticmethod(torch.compile(_cross_entropy, dynamic=False))


def save_hf(model: Llama, folder: Path, dtype: torch.dtype = torch.float16) -> None:
    """Write config.json and model.safetensors, each whole or not at all."""
    state = {f"model.{k}": v.detach().to(dtype).contiguous() for k, v in model.state_dict().items()}
    write_file(folder / "model.safetensors", save(state, metadata={"format": "pt"}))
    name = str(dtype).removeprefix("torch.")
    write_file(folder / "config.json", json.dumps(model.config.hf(name), indent=2) + "\n")


def load_hf(folder: Path) -> Llama:
    """Read back what `save_hf` wrote, as float32."""
    raw = read_json(folder / "config.json", "a checkpoint's config")
    names = {
        "hidden": "hidden_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "intermediate": "intermediate_size",
        "vocab": "vocab_size",
        "head_dim": "head_dim",
        "max_len": "max_position_embeddings",
        "eps": "rms_norm_eps",
    }
    shape = {ours: raw[theirs] for ours, theirs in names.items()}
    model = Llama(Config(**shape, theta=raw["rope_parameters"]["rope_theta"]))
    state = load_file(folder / "model.safetensors")
    model.load_state_dict({k.removeprefix("model."): v.float() for k, v in state.items()})
    return model
