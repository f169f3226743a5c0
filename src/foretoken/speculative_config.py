"""The type of a `speculative_config`: every key of every method, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, TypedDict

from foretoken.length import LengthRule
from foretoken.protocols import Drafter, Verifier
from foretoken.trees.grow import Widths


class OtherNames(TypedDict, total=False):
    """Names of transformers and vLLM for keys of `SpeculativeConfig`."""

    assistant_model: Any
    assistant_tokenizer: Any
    draft_model: Any
    max_matching_ngram_size: int
    num_assistant_tokens: int
    num_speculative_nodes: int
    prompt_lookup_num_tokens: int
    suffix_decoding_max_spec_factor: float
    suffix_decoding_max_tree_depth: int
    suffix_decoding_min_token_prob: float


class SpeculativeConfig(OtherNames, total=False):
    """What `LLM` and `assisted` take as `speculative_config`.

    method: a name from `foretoken methods`, "package.module:Class", or a drafter. verifier: an
    acceptance rule in place of the method's own. tuned: a result of `foretoken tune`, by path or
    name. All others are options of some method (docs/drafters says of which) and are checked when
    it is built. Options of an installed package's drafter, and those of one part under the part's
    name, have no key here: give a plain mapping.
    """

    method: str | Drafter
    verifier: str | Verifier
    tuned: str | Path

    acceptance: Seq[float]
    after_error: str
    assistant_confidence_threshold: float | None
    bayes_interval: int
    block_size: int | None
    buffer_mib: float
    cape: Seq[tuple[float, int]]
    checkpoint: Any
    context_window: int
    continuation_tokens: int
    corpus: Any
    datastore: str | Path | None
    decay: float
    depth: int
    draft_backend: str | None
    draft_cost: float | None
    draft_factor: float
    draft_vocab_size: int | None
    drafters: Seq[Drafter]
    every: int
    exit_layer: int | None
    exit_stage: int
    exploration: float
    guess_layer: int | None
    guesses: int
    k_matrix: Seq[Seq[int]] | None
    kept_columns: float
    kept_heads: float
    known: float
    learn_every: int
    lenience: float
    level_cost: float
    level_sizes: Seq[int]
    lr: float
    max_cached_tokens: int
    max_cached_words: int
    max_children: int | None
    max_matches: int
    max_opt_iter: int
    max_score: float
    max_spec_factor: float
    max_spec_offset: float
    max_token_span: int
    max_tolerance_iter: int
    max_tree_depth: int
    min_token_prob: float
    min_token_span: int
    model: Any
    models: Seq[Any]
    ngram_size: int
    num_assistant_tokens_schedule: str | LengthRule
    num_candidates: int
    num_guesses: int
    num_speculative_tokens: int | None
    objective: Mapping[str, float]
    opt_interval: int
    pool_from_prompt: bool
    prompt_lookup_max: int
    prompt_lookup_min: int
    rate: float
    remember: bool
    replacement: bool
    skip: str | Path | Seq[int] | None
    skip_ratio: float
    stage_layers: int | None
    static_bias: int
    target_tokenizer: Any
    tokenizer: Any
    top_k: int
    tree: str | Seq[Seq[int]]
    tree_depth: int | None
    tree_nodes: int | None
    versions: int
    weight: float
    widths: Widths | None
    window: int


AnyConfig = SpeculativeConfig | Mapping[str, Any]
"""A `speculative_config` as functions take it: with the keys above, or any mapping."""
