"""Checkpoints of models: damaged files, configs that lie, tensors of another shape or type."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from foretoken import LLM
from foretoken.testing import tiny_transformers
from hostile_inputs import damage
from hostile_inputs.case import Case, Outcome, shown
from hostile_inputs.stand import GOOD, GREEDY, SLOTS, VOCAB, Stand

Folder = Path
Change = Callable[[Folder, Random], str]
"""Changes a checkpoint; returns what was changed."""

BACKENDS = ("auto", "plain", "packed", "panels", "half", "int8")
SERVED = ("target gave", "context", "attention")
"""Words of errors that come with the first text: no probabilities, a context that is too short, and
a mask that isn't followed."""

FILES = (
    "config.json",
    "model.safetensors",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
SIZES = [-1, 0, 1, 2, 3, 5, 7, 31, 64, 96, 97, 98, 1000, 10**6, 10**8, 10**9, 2**31, 2**63, 10**30]
NUMBERS = [
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
    "head_dim",
    "rms_norm_eps",
    "rope_theta",
    "sliding_window",
    "eos_token_id",
    "bos_token_id",
    "pad_token_id",
    "pretraining_tp",
]
OTHERS: dict[str, list[Any]] = {
    "model_type": ["", "nonsense", "gpt2", "mistral", "qwen2", "qwen3", "bert", 5, None, "gemma"],
    "architectures": [[], ["Nonsense"], "LlamaForCausalLM", [5], None, ["BertModel"]],
    "hidden_act": ["relu", "nonsense", 5, None, ""],
    "tie_word_embeddings": [True, "yes", None, 5],
    "attention_bias": [True, "no"],
    "mlp_bias": [True, []],
    "torch_dtype": ["nonsense", 5, "int8", "float16", None],
    "dtype": ["nonsense", 5, "int8", "float16"],
    "rope_scaling": [
        {"type": "linear"}, {"rope_type": "linear", "factor": -1}, {"rope_type": "x"}, "linear",
        {"rope_type": "llama3"}, {"rope_type": "yarn", "factor": 1e308}, [],
        {"rope_type": "dynamic", "factor": "a"}, {"rope_type": "linear", "factor": 0},
    ],
    "rope_parameters": [
        {"rope_type": "linear"}, {"rope_type": "default"}, {"rope_type": "linear", "factor": -1},
        {"rope_type": "default", "rope_theta": "a"}, {"rope_type": "default", "rope_theta": -1},
        {"rope_type": "default", "rope_theta": 0}, {"rope_type": "x", "rope_theta": 1e4}, 5,
    ],
    "layer_types": [["x", "x"], ["sliding_attention"], ["full_attention"] * 9, "a"],
    "quantization_config": [{}, {"quant_method": "gptq"}, {"quant_method": "x"}, 5],
    "auto_map": [{"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}, 5],
    "use_cache": ["a"],
    "is_decoder": ["a"],
    "transformers_version": [5, "99.0"],
}  # fmt: skip


@cache
def sound(stand: Stand) -> Path:
    """A good checkpoint with a tokenizer, in one file."""
    folder = stand.folder / "sound"
    tiny_transformers(VOCAB, dtype=torch.float32).save_pretrained(folder)
    stand.letters.save_pretrained(folder)
    return folder


@cache
def sharded(stand: Stand) -> Path:
    """The same in several files with an index."""
    folder = stand.folder / "sharded"
    model = tiny_transformers(VOCAB, dtype=torch.float32)
    model.save_pretrained(folder, max_shard_size="40KB")
    stand.letters.save_pretrained(folder)
    return folder


def cases(random: Random, count: int) -> Iterator[Case]:
    """Half of them damaged files and configs that lie, half tensors that don't fit."""
    makers = [_damaged, _lying, _lying, _misshapen, _misshapen, _listed]
    for number in range(count):
        yield makers[number % len(makers)](Random(random.randrange(2**62)))


def _damaged(random: Random) -> Case:
    name, seed = random.choice(FILES), random.randrange(2**62)
    how, does = damage.some(Path(name), random)

    def change(folder: Path) -> None:
        does(folder / name, Random(seed))

    return _case(f"{name} {how} (#{seed % 10_000})", change, (name,), random)


def _lying(random: Random) -> Case:
    if random.random() < 0.6:
        key, value = random.choice(NUMBERS), random.choice([*SIZES, *damage.LEAVES])
    else:
        key = random.choice(list(OTHERS))
        value = random.choice(OTHERS[key])

    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))

    return _case(f"config.json: {key}={shown(value)}", change, ("config", key), random)


TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a row more": lambda t: torch.cat([t, t[:1]]),
    "a row less": lambda t: t[1:].clone(),
    "twice the rows": lambda t: torch.cat([t, t]),
    "a column more": lambda t: torch.cat([t, t[..., :1]], -1),
    "a column less": lambda t: t[..., 1:].clone(),
    "no rows": lambda t: t[:0].clone(),
    "no columns": lambda t: t[..., :0].clone(),
    "one number": lambda t: t.flatten()[:1].clone(),
    "a scalar": lambda t: t.flatten()[0].clone(),
    "flat": lambda t: t.flatten().clone(),
    "an axis more": lambda t: t[None].clone(),
    "turned": lambda t: t.T.contiguous(),
    "ints": lambda t: (t * 100).int(),
    "bytes": lambda t: (t * 100).to(torch.int8),
    "bools": lambda t: t > 0,
    "halves": lambda t: t.half(),
    "doubles": lambda t: t.double(),
    "NaN": lambda t: torch.full_like(t, torch.nan),
    "infinite": lambda t: torch.full_like(t, torch.inf),
    "huge": lambda t: torch.full_like(t, 3e38),
    "zeros": lambda t: torch.zeros_like(t),
    "float8": lambda t: t.to(torch.float8_e4m3fn),
}


def _misshapen(random: Random) -> Case:
    place, how = random.randrange(10**6), random.choice([*TENSORS, "missing", "renamed", "extra"])
    label = f"tensor #{place % 21} {how}"

    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        name = sorted(tensors)[place % len(tensors)]
        if how in TENSORS:
            tensors[name] = TENSORS[how](tensors[name])
        elif how == "extra":
            tensors["model.layers.2.mlp.up_proj.weight"] = torch.zeros(3, 3)
        else:
            tensor = tensors.pop(name)
            tensors |= {f"x.{name}": tensor} if how == "renamed" else {}
        save_file(tensors, path, {"format": "pt"})

    return _case(label, change, ("tensor", "weight", "safetensors", "shape", *SERVED), random)


def _listed(random: Random) -> Case:
    """A sharded checkpoint whose index lies, or whose shards are damaged."""
    seed = random.randrange(2**62)
    name = random.choice(("model.safetensors.index.json", "a shard"))
    how, does = damage.some(Path(name if name.endswith("json") else "x.safetensors"), random)

    def change(folder: Path) -> None:
        shards = sorted(folder.glob("model-*.safetensors"))
        path = folder / name if name.endswith("json") else Random(seed).choice(shards)
        does(path, Random(seed))

    label = f"sharded, {name} {how} (#{seed % 10_000})"
    names = ("index", "shard", "safetensors", "tensor", *SERVED)
    return _case(label, change, names, random, sharded)


def _case(
    label: str,
    change: Callable[[Path], None],
    names: tuple[str, ...],
    random: Random,
    made: Callable[[Stand], Path] = sound,
) -> Case:
    native = random.random() < 0.75
    options: dict[str, Any] = {"model_impl": "native" if native else "transformers"}
    if native:
        options["backend"] = random.choice(BACKENDS)
    elif random.random() < 0.5:
        options = {}
    drafts = random.random() < 0.15

    def run(stand: Stand, outcome: Outcome) -> None:
        folder = damage.copy(made(stand), stand.place())
        change(folder)
        given: dict[str, Any] = {"max_num_seqs": SLOTS, **options}
        if drafts:
            given = {"speculative_config": {"method": "sps", "model": str(folder)}}
        with stand.neighbour(stand.llm(), outcome):
            model = stand.target if drafts else folder
            llm = outcome.attempt(lambda: LLM(model, **given))
            if llm is not None:
                with llm:
                    outputs = outcome.attempt(lambda: llm.generate([GOOD[1]], GREEDY)) or []
                stand.note(outputs, outcome)
                texts = [output.token_ids for output in outputs if output.error is None]
                if drafts and any(text != stand.expected[1] for text in texts):
                    outcome.blame("wrong", "it wrote another text than plain decoding")

    how = "as a draft model" if drafts else ", ".join(map(str, options.values())) or "auto"
    where = (
        "config",
        "folder",
        "checkpoint",
        "context",
        "natively",
        "max_model_len",
        "safetensors",
        *names,
    )
    return Case(f"{label}; {how}", run, where)
