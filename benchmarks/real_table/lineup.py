"""Who is measured: targets, our methods, and the other engines with their rows.

A method's config names the draft model by `DRAFT` (in blocks of 4 bits, beside a target whose
weights are as stored; else in the target's precision), by `LYING` as its file has it, or by `INT8`;
whoever loads the models puts them in. Options of other engines are read by their files in
peers/engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lineup import DRAFT as DRAFTING
from lineup import LOOKUP, PLAIN, Row

from foretoken.bench.record import BASELINE

DRAFT, LYING, INT8 = "<draft model>", "<draft model as stored>", "<draft model in int8>"
LENGTHS = (2, 4, 6, 8)
NARROW, COPY = "sps-4-int8", "substitute"
"""For targets in float16, whose draft model would be as wide, and which have bits to spare."""
SURE, REDUCED = "sps-8-sure", "sps-8-sure-64k"
"""Which end a draft where the small model isn't sure; the second drafts the first ids alone."""
WIDE = "sps-4-stored"
"""For targets whose weights are as stored."""


@dataclass(frozen=True)
class Target:
    """A model's file, or a checkpoint as `LLM` takes it, and its draft model's."""

    model: str
    draft: str | None = None

    @property
    def files(self) -> list[str]:
        return [self.model, *([self.draft] if self.draft else [])]


TARGETS = {
    "qwen2.5-coder-1.5b": Target(
        "qwen2.5-coder-1.5b-instruct.gguf", "qwen2.5-coder-0.5b-instruct.gguf"
    ),
    "smollm2-135m": Target("smollm2-135m-instruct.gguf"),
    "qwen2.5-coder-0.5b": Target("qwen2.5-coder-0.5b-instruct.gguf"),
    "mini": Target("mini", "mini-draft"),
}
FETCHED = {
    "qwen2.5-coder-1.5b-instruct.gguf": "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/"
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    "qwen2.5-coder-0.5b-instruct.gguf": "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/"
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "smollm2-135m-instruct.gguf": "smollm2-135m-instruct",
}
"""What `foretoken zoo fetch` brings each file by, which lies under its name here."""
PAIR, SMALL, OTHER_SIZE = "qwen2.5-coder-1.5b", "smollm2-135m", "qwen2.5-coder-0.5b"

_SPS: dict[str, dict[str, Any]] = {
    f"sps-{n}": {"method": "sps", "model": DRAFT, "num_speculative_tokens": n} for n in LENGTHS
}
_SURE = {
    **_SPS["sps-8"],
    "num_assistant_tokens_schedule": "confidence",
    "assistant_confidence_threshold": 0.7,
}
_WITH_DRAFT: dict[str, dict[str, Any]] = {
    **_SPS,
    SURE: _SURE,
    REDUCED: {**_SURE, "draft_vocab_size": 65_536},
    NARROW: {**_SPS["sps-4"], "model": INT8},
    WIDE: {**_SPS["sps-4"], "model": LYING},
    **{
        name: {"method": name, "model": DRAFT}
        for name in ("suffix+sps", "pld|sps", "cs_drafting", "specinfer", "sequoia")
    },
}
_ALONE = (
    *("pld", "suffix", "sam", "llma", "lookahead", "token_recycling", "swift", "draft_verify"),
    COPY,
)
_WITHOUT: dict[str, dict[str, Any]] = {name: {"method": name} for name in _ALONE}


def methods(target: Target) -> dict[str, dict[str, Any]]:
    """A target's methods by row name, plain decoding first."""
    auto = {"method": "auto"} | ({"model": DRAFT} if target.draft else {})
    drafting = _WITH_DRAFT if target.draft else {}
    return {BASELINE: {"method": BASELINE}, **drafting, **_WITHOUT, "auto": auto}


_BRANCHES = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
"""A tree for a layer that predicts three tokens."""
_NODES = (*_BRANCHES, (2,), (0, 0, 0, 0))
"""A tree of eight for four heads each of which reads the tokens before its own."""
_EIGHT = {"tree": "planned", "tree_nodes": 8}
"""The best tree of so many nodes for the rates that the checkpoint was measured at."""
_SMALL = {"draft_backend": "q4"}
"""Half of the time of int8, in which one row shows what that costs in acceptance."""
PAPERS = ("eagle3-paper", "medusa-paper", "dflash2_tree")
"""Rows with the paper's tree, whose length other places compare with and which cost most: at
temperature 1 they are left out."""
TRAINED: dict[str, dict[str, Any]] = {
    "eagle3": {"method": "eagle3", "model": "smollm2-eagle3"},
    "eagle3-chain": {
        **{"method": "eagle3", "model": "smollm2-eagle3", "tree": "paper"},
        **{"depth": 4, "top_k": 1, "tree_nodes": 4},
    },
    "eagle3-paper": {"method": "eagle3", "model": "smollm2-eagle3", "tree": "paper"},
    "medusa": {"method": "medusa", "model": "smollm2-medusa"},
    "medusa-paper": {"method": "medusa", "model": "smollm2-medusa", "tree": "paper"},
    "medusa-8": {"method": "medusa", "model": "smollm2-medusa", **_EIGHT},
    "hydra": {"method": "hydra", "model": "smollm2-hydra"},
    "hydra-8": {"method": "hydra", "model": "smollm2-hydra", "tree": _NODES},
    "dflash2": {"method": "dflash2", "model": "smollm2-dflash2"},
    "dflash2-3": {"method": "dflash2", "model": "smollm2-dflash2", "num_speculative_tokens": 3},
    "dflash2_tree": {"method": "dflash2_tree", "model": "smollm2-dflash2"},
    "dflash2_tree-8": {"method": "dflash2_tree", "model": "smollm2-dflash2", "tree_nodes": 8},
    "mtp": {"method": "mtp", "model": "smollm2-mtp"},
    "mtp-tree": {"method": "mtp", "model": "smollm2-mtp", "tree": _BRANCHES},
    **{
        f"{label}-{n}": {"method": "sps", "model": model, "num_speculative_tokens": n, **_SMALL}
        for label, model in (("draft", "smollm2-draft"), ("fresh", "smollm2-draft-fresh"))
        for n in (2, 4)
    },
    "draft-4-int8": {"method": "sps", "model": "smollm2-draft", "draft_backend": "int8"},
    "auto+draft": {"method": "auto", "model": "smollm2-draft", **_SMALL},
    "auto+eagle3": {"method": "auto:suffix,eagle3", "model": "smollm2-eagle3"},
    "auto+dflash2": {"method": "auto:suffix,dflash2", "model": "smollm2-dflash2"},
}
"""Rows of the drafters that were trained for SmolLM2, which the zoo has by these models' names."""
DRAFTERS = tuple(dict.fromkeys(config["model"] for config in TRAINED.values()))


@dataclass(frozen=True)
class Peer:
    """Another engine at one precision. engine: the name in peers/lineup.py. weights: how the file
    is given to it: "gguf", "folder" (dequantised), or what OpenVINO's export calls its format."""

    engine: str
    weights: str
    given: Mapping[str, Any] = field(default_factory=dict)


_THEIR_OWN = {"PERFORMANCE_HINT": "LATENCY"}
"""OpenVINO's defaults for everything but the hint that one request at a time calls for."""
PEERS = {
    "llama.cpp": Peer("llama.cpp", "gguf", {"cache_type": "f16"}),
    "transformers bfloat16": Peer("transformers", "folder", {"dtype": "bfloat16"}),
    "transformers float32": Peer("transformers", "folder", {"dtype": "float32"}),
    "openvino int8": Peer("openvino", "int8", {"properties": _THEIR_OWN}),
    "openvino int4": Peer("openvino", "int4", {"properties": _THEIR_OWN}),
}

_AS_OTHERS = {"--spec-ngram-simple-size-n": "3", "--spec-ngram-simple-size-m": "10"}
"""The other engines' prompt lookup: after n-grams of 3 it copies 10 tokens."""
_LLAMA = (
    ("", "ngram-simple", {}),
    ("3 and 10", "ngram-simple", _AS_OTHERS),
    ("map-k", "ngram-map-k", {}),
    ("map-k4v", "ngram-map-k4v", {}),
    ("mod", "ngram-mod", {}),
)


def rows(peer: str, target: Target) -> list[Row]:
    """The rows of an engine; those that draft with a model only where there is one."""
    made = [Row(peer, PLAIN), *_OTHERS[PEERS[peer].engine](peer)]
    return [row for row in made if target.draft or row.kind != DRAFTING]


def _llama(peer: str) -> list[Row]:
    drafting = {"--spec-type": "draft-simple", "--spec-draft-n-max": "4"}
    copying = [Row(peer, LOOKUP, note, {"--spec-type": kind, **o}) for note, kind, o in _LLAMA]
    return [
        Row(peer, DRAFTING, "", {**drafting, "--spec-draft-p-min": "0"}),
        Row(peer, DRAFTING, "its threshold", drafting),
        *copying,
    ]


def _transformers(peer: str) -> list[Row]:
    constant = {
        "num_assistant_tokens": 4,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    copied = {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 3}
    return [
        Row(peer, DRAFTING, "", {"assisted": True, **constant}),
        Row(peer, DRAFTING, "its defaults", {"assisted": True}),
        Row(peer, LOOKUP, "", {"call": copied}),
    ]


def _openvino(peer: str) -> list[Row]:
    copied = {"drafts": "lookup", "num_assistant_tokens": 10, "max_ngram_size": 3}
    return [
        Row(peer, DRAFTING, "", {"drafts": "model", "num_assistant_tokens": 4}),
        Row(peer, LOOKUP, "", copied),
    ]


_OTHERS = {"llama.cpp": _llama, "transformers": _transformers, "openvino": _openvino}
