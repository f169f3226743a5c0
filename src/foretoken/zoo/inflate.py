"""Inflates a small Llama to the cost of a large one without changing what it predicts.

A cost can be measured on such a model where a real one of that size is not at hand: it reads as
many bytes and multiplies as many numbers as the named shape, yet its drafts are accepted exactly
as often as the small model's.

Shapes: D width, H query heads, K key/value heads, h head width, F feed-forward width, V
vocabulary; primes (`'`) mark the inflated ones.

- Added residual dimensions stay zero: the embedding's new columns and the new rows of o_proj and
  down_proj are zero. So are those two's columns for added heads and feed-forward units, and all
  of both in added layers. Everything else that is new holds dense random numbers.
- RMSNorm then divides by the mean over D' instead of D, so its weights take a factor sqrt(D/D')
  and its epsilon a factor D/D'.
- Head width h -> h' = m h: dimension i moves to m i, where the rotary frequency is the same; q
  takes a factor sqrt(m), as attention divides by sqrt(h'); q is zero in the dimensions between.
- Added tokens must never be predicted. There is no bias, so one spare residual dimension carries a
  constant from the embedding to the end, hidden from the layers by a zero in their norms and
  far too small to move the mean square; the final norm and the head's added rows magnify it to
  about -1,000, half each, so that neither number overflows float16.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from foretoken.errors import ForetokenError, unknown
from foretoken.files import read_json, whole_or_nothing, write_file
from foretoken.zoo.shape import SHAPES, Shape, parameters_read, proportional

__all__ = ["SHAPES", "Shape", "inflate", "parameters_read", "proportional"]

SPARE_SIZE = 3e-5  # the constant, as a fraction of the smallest embedding row's length
ADDED_LOGIT = 1_000.0
SHARD_BYTES = 2 * 2**30
TOKENIZER_FILES = ("*.jinja", "tokenizer*", "special_tokens_map.json", "generation_config.json")


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A checkpoint's config and, in float32, its tensors."""
    config = read_json(folder / "config.json", "a checkpoint's config")
    if config.get("model_type") not in ("llama", "mistral"):
        raise ForetokenError(f"inflate knows Llama and Mistral, not {config.get('model_type')!r}.")
    if config.get("attention_bias") or config.get("mlp_bias"):
        raise ForetokenError("inflate knows only models without biases in their linear layers.")
    state: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        state |= {k: v.float() for k, v in load_file(file).items()}
    if not state:
        raise ForetokenError(f"There are no .safetensors files in {folder}.")
    return config, state


def _heads(old: Shape, new: Shape) -> tuple[list[int], list[int]]:
    """Place of each query head, and the source of each key/value head (-1: none)."""
    group, room = old.heads // old.kv_heads, new.heads // new.kv_heads
    queries, sources = [], []
    for source in range(old.kv_heads):
        for at in range(group):
            if at % room == 0:
                sources.append(source)
            queries.append((len(sources) - 1) * room + at % room)
    if len(sources) > new.kv_heads:
        raise ForetokenError(
            f"{old.heads} query heads on {old.kv_heads} key/value heads need {len(sources)} "
            f"key/value heads of {room} queries, and the shape has {new.kv_heads}."
        )
    return queries, sources + [-1] * (new.kv_heads - len(sources))


def _check(old: Shape, new: Shape) -> None:
    for name in ("layers", "intermediate", "vocab", "head_dim"):
        if getattr(new, name) < getattr(old, name):
            raise ForetokenError(
                f"{name} would shrink from {getattr(old, name)} to {getattr(new, name)}."
            )
    if new.hidden < old.hidden + (new.vocab > old.vocab):
        raise ForetokenError(
            f"a width of {new.hidden} leaves no spare dimension next to {old.hidden}: it must be "
            "larger than the original's where the vocabulary grows."
        )
    if new.hidden % new.heads or new.heads % new.kv_heads:
        raise ForetokenError(
            f"{new.heads} heads must divide the width of {new.hidden}, and {new.kv_heads} "
            "key/value heads the heads: transformers loads nothing else."
        )
    if new.head_dim % old.head_dim:
        raise ForetokenError(f"head width {new.head_dim} is not a multiple of {old.head_dim}.")


def _layer_sources(old: int, new: int) -> list[int | None]:
    """The original layer that stands at each depth, spread evenly; None for added ones."""
    places = {(i + 1) * new // old - 1: i for i in range(old)}
    return [places.get(i) for i in range(new)]


class _Inflation:
    """Makes the large model's tensors one at a time, so that only one shard is in memory."""

    def __init__(
        self, state: dict[str, Tensor], old: Shape, new: Shape, final_rms: float, seed: int
    ) -> None:
        self.state, self.old, self.new = state, old, new
        self.norm_factor = (old.hidden / new.hidden) ** 0.5
        self.spare = old.hidden  # index of the dimension that carries the constant
        table = state["model.embed_tokens.weight"]
        self.constant = SPARE_SIZE * float(table.norm(dim=1).clamp(min=1e-3).min())
        # The residual's root mean square over D' dimensions is final_rms * norm_factor.
        self.magnify = (ADDED_LOGIT * final_rms * self.norm_factor / self.constant) ** 0.5
        self.queries, self.kv_sources = _heads(old, new)
        self.noise = torch.Generator().manual_seed(seed)

    def random(self, rows: int, columns: int) -> Tensor:
        """[rows, columns] normal numbers that keep the size of what they multiply."""
        return torch.empty(rows, columns).normal_(std=columns**-0.5, generator=self.noise)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All of the checkpoint, by name, in the order of the layers."""
        yield "model.embed_tokens.weight", self.embedding()
        for at, source in enumerate(_layer_sources(self.old.layers, self.new.layers)):
            for name, tensor in self.layer(source):
                yield f"model.layers.{at}.{name}", tensor
        final = self.norm(self.state["model.norm.weight"])
        final[self.spare :][:1] = self.magnify
        yield "model.norm.weight", final
        yield "lm_head.weight", self.head()

    def embedding(self) -> Tensor:
        """[V', D'], the constant in the spare dimension of every row."""
        old = self.state["model.embed_tokens.weight"]
        table = torch.zeros(self.new.vocab, self.new.hidden)
        added = self.new.vocab - self.old.vocab
        table[self.old.vocab :, : self.old.hidden] = self.random(added, self.old.hidden)
        table[: self.old.vocab, : self.old.hidden] = old
        table[:, self.spare :][:, :1] = self.constant
        return table

    def head(self) -> Tensor:
        """[V', D'], in the added rows nothing but what makes their logits about -1,000."""
        old = self.state.get("lm_head.weight", self.state["model.embed_tokens.weight"])
        table = self.random(self.new.vocab, self.new.hidden)
        table[:, self.spare :][:, :1] = 0.0
        table[: self.old.vocab, : self.old.hidden] = old
        if self.new.vocab > self.old.vocab:
            table[self.old.vocab :] = 0.0
            table[self.old.vocab :, self.spare] = -self.magnify
        return table

    def norm(self, old: Tensor | None) -> Tensor:
        """[D] -> [D']; the spare dimension is hidden from whoever reads the result."""
        weight = torch.full((self.new.hidden,), self.norm_factor)
        if old is not None:
            weight[: self.old.hidden] = old * self.norm_factor
        weight[self.spare :][:1] = 0.0
        return weight

    def layer(self, source: int | None) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a layer made from layer `source`, or of an added one."""
        old: dict[str, Tensor] = {}
        if source is not None:
            prefix = f"model.layers.{source}."
            old = {k[len(prefix) :]: v for k, v in self.state.items() if k.startswith(prefix)}
        for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            yield name, self.norm(old.get(name))
        originals = list(range(self.old.kv_heads)) if source is not None else []
        kv = [s if s in originals else -1 for s in self.kv_sources]
        queries: list[int] = [-1] * self.new.heads
        for i, place in enumerate(self.queries if originals else []):
            queries[place] = i
        for letter, heads in (("q", queries), ("k", kv), ("v", kv)):
            name = f"self_attn.{letter}_proj.weight"
            yield name, self.project(old.get(name), heads, is_query=letter == "q")
        yield "self_attn.o_proj.weight", self.gather(old.get("self_attn.o_proj.weight"), queries)
        for letter in ("gate", "up"):
            weight = self.random(self.new.intermediate, self.new.hidden)
            if old:
                weight[: self.old.intermediate, : self.old.hidden] = old[
                    f"mlp.{letter}_proj.weight"
                ]
            yield f"mlp.{letter}_proj.weight", weight
        weight = torch.zeros(self.new.hidden, self.new.intermediate)
        if old:
            weight[: self.old.hidden, : self.old.intermediate] = old["mlp.down_proj.weight"]
        yield "mlp.down_proj.weight", weight

    def project(self, old: Tensor | None, heads: list[int], is_query: bool) -> Tensor:
        """q, k or v [H h, D] -> [H' h', D']; `heads` names the original at each place."""
        h, wide = self.old.head_dim, self.new.head_dim
        weight = self.random(len(heads) * wide, self.new.hidden)
        step = wide // h
        for place, head in enumerate(heads):
            if head < 0 or old is None:
                continue
            rows = slice(place * wide, (place + 1) * wide)
            if is_query:
                weight[rows] = 0.0  # the dimensions between must not add to the scores
            rows = slice(place * wide, (place + 1) * wide, step)
            scale = step**0.5 if is_query else 1.0
            weight[rows, : self.old.hidden] = old[head * h : (head + 1) * h] * scale
        return weight

    def gather(self, old: Tensor | None, heads: list[int]) -> Tensor:
        """o_proj [D, H h] -> [D', H' h'], zero but for the original heads' dimensions."""
        h, wide = self.old.head_dim, self.new.head_dim
        weight = torch.zeros(self.new.hidden, len(heads) * wide)
        for place, head in enumerate(heads):
            if head >= 0 and old is not None:
                columns = slice(place * wide, (place + 1) * wide, wide // h)
                weight[: self.old.hidden, columns] = old[:, head * h : (head + 1) * h]
        return weight


def _final_rms(folder: Path, vocab: int) -> float:
    """Typical root mean square of the states that the small model's final norm receives."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    states: list[Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
    ids = torch.randint(vocab, (4, 32), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        model(ids)
    return float(states[0].float().square().mean(-1).sqrt().median())


def _write(
    tensors: Iterator[tuple[str, Tensor]],
    folder: Path,
    dtype: torch.dtype,
    advance: Callable[[], object],
) -> None:
    """One model.safetensors, or numbered shards of about 2 GiB with an index."""
    shards: list[dict[str, Tensor]] = [{}]
    where: dict[str, int] = {}
    size = total = 0

    def flush() -> None:
        part = folder / f"part-{len(shards):05d}"
        try:
            save_file(shards[-1], part, metadata={"format": "pt"})
        except (OSError, SafetensorError) as error:
            part.unlink(missing_ok=True)
            raise ForetokenError(
                f"{folder} can't be written: {error}; make room, or give another folder."
            ) from error
        shards[-1] = {}

    for name, tensor in tensors:
        advance()
        stored = tensor.to(dtype).contiguous()
        if size and size + stored.nbytes > SHARD_BYTES:
            flush()
            shards.append({})
            size = 0
        shards[-1][name], where[name] = stored, len(shards)
        size, total = size + stored.nbytes, total + stored.nbytes
    flush()
    if len(shards) == 1:
        (folder / "part-00001").rename(folder / "model.safetensors")
        return
    files = {i: f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in set(where.values())}
    for i, file in files.items():
        (folder / f"part-{i:05d}").rename(folder / file)
    index = {
        "metadata": {"total_size": total},
        "weight_map": {k: files[i] for k, i in where.items()},
    }
    write_file(folder / "model.safetensors.index.json", json.dumps(index, indent=1) + "\n")


def inflate(
    source_dir: str | Path,
    out_dir: str | Path,
    shape: Shape | str,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    advance: Callable[[], object] = lambda: None,
) -> Path:
    """Write the model in `source_dir`, inflated to `shape`, into `out_dir` and return that.

    `shape` is a `Shape` or a name in `SHAPES`; `proportional` finds one for a drafter.
    `advance` is called for every tensor, of which there are 3 and 9 a layer. Raises
    `ForetokenError` for a model or a shape that can't be inflated.
    """
    if isinstance(shape, str) and shape not in SHAPES:
        raise unknown("shape", shape, SHAPES)
    source, out = Path(source_dir), Path(out_dir)
    label = shape if isinstance(shape, str) else "custom"
    new = SHAPES[shape] if isinstance(shape, str) else shape
    config, state = _read(source)
    old = Shape.of(config)
    _check(old, new)
    work = _Inflation(state, old, new, _final_rms(source, old.vocab), seed)
    config |= {
        "hidden_size": new.hidden,
        "num_hidden_layers": new.layers,
        "num_attention_heads": new.heads,
        "num_key_value_heads": new.kv_heads,
        "head_dim": new.head_dim,
        "intermediate_size": new.intermediate,
        "vocab_size": new.vocab,
        "rms_norm_eps": config["rms_norm_eps"] * old.hidden / new.hidden,
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
        "foretoken_inflated": {"from": source.name, "shape": label, **asdict(new)},
    }
    with whole_or_nothing(out):
        _write(work.tensors(), out, dtype, advance)
        for pattern in TOKENIZER_FILES:
            for file in source.glob(pattern):
                shutil.copy(file, out / file.name)
        # The last, so that what a killed process leaves is no model.
        write_file(out / "config.json", json.dumps(config, indent=2) + "\n")
    return out
