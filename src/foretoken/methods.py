"""The method table: a method is a named point on the axes drafter, length, tree and verifier.

`foretoken methods` prints it, the documentation shows it and the tests are driven by it: what it
claims is tested. A drafter can be used without a row here. `foretoken.config` builds a row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from typing import Any


class Need(Flag):
    """What a method can't be built without."""

    NOTHING = 0
    DRAFT_MODEL = auto()
    WEIGHTS = auto()
    """Weights that were trained for the target."""
    DATASTORE = auto()


_REPLACES = {"acceptance": ("widths",), "widths": ("acceptance", "tree")}  # of a row's options


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row of the table; what it leaves out is the default below. drafter, verifier: file names
    in their packages; a drafter's is the row's name by default. length, tree: how long its drafts
    are and what shape they have, as text. target: the file in `foretoken.models` whose class wraps
    the target; the options are then that class's. options: what the row sets, by option name.
    joins_auto: what `auto` sets besides, unless some of it is given; None where plain `auto`
    doesn't take the method, also where its needs are met."""

    name: str
    paper: str
    drafter: str = ""
    length: str = "fixed"
    tree: str = "chain"
    verifier: str = "target_only"
    lossless: bool = True
    needs: Need = Need.NOTHING
    target: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    joins_auto: Mapping[str, Any] | None = None

    @property
    def trained(self) -> bool:
        """Whether it drafts with weights that were trained for its target."""
        return Need.WEIGHTS in self.needs

    def options_beside(self, given: Collection[str]) -> dict[str, Any]:
        """What the row sets where these are given, some of which would contradict it."""
        replaced = {own for option in given for own in _REPLACES.get(option, ())}
        return {own: value for own, value in self.options.items() if own not in replaced}


_ROWS = (
    Method(name="autoregressive", drafter="nothing", length="–", tree="–", paper="–"),
    Method(
        name="sps",
        drafter="small_lm",
        length="fixed or adaptive",
        verifier="speculative",
        needs=Need.DRAFT_MODEL,
        joins_auto={
            "num_assistant_tokens_schedule": "confidence",
            "assistant_confidence_threshold": 0.7,
        },
        paper="Leviathan et al. 2023; Chen et al. 2023",
    ),
    Method(
        name="bild",
        drafter="small_lm",
        length="fallback",
        verifier="rollback",
        lossless=False,
        needs=Need.DRAFT_MODEL,
        options={"num_speculative_tokens": 10, "num_assistant_tokens_schedule": "fallback"},
        paper="Kim et al. 2023 (Big Little Decoder)",
    ),
    Method(
        name="specinfer",
        drafter="small_tree",
        tree="drawn branches, or top-k",
        verifier="multi_candidate",
        needs=Need.DRAFT_MODEL,
        options={"widths": (1, 1, 3, 1, 1, 1, 1, 1), "replacement": True},
        paper="Miao et al. 2024",
    ),
    Method(
        name="spectr",
        drafter="small_tree",
        tree="8 i.i.d. branches",
        verifier="k_seq",
        needs=Need.DRAFT_MODEL,
        options={"widths": (8, *[1] * 7), "replacement": True},
        paper="Sun et al. 2023",
    ),
    Method(
        name="mcsd",
        drafter="small_tree",
        tree="drawn without replacement, or top-k",
        verifier="multi_candidate",
        needs=Need.DRAFT_MODEL,
        options={"widths": (4, 2, 2)},
        paper="Yang et al. 2024",
    ),
    Method(
        name="sequoia",
        drafter="small_tree",
        length="planned",
        tree="planned",
        verifier="multi_candidate",
        needs=Need.DRAFT_MODEL,
        options={"acceptance": (0.63, 0.09, 0.04, 0.02, 0.02, 0.01, 0.01, 0.01), "tree": "auto"},
        paper="Chen et al. 2024",
    ),
    Method(
        name="llmcad",
        drafter="paced",
        length="cumulative confidence",
        tree="paced by confidence",
        needs=Need.DRAFT_MODEL,
        paper="Xu et al. 2023 (LLMCad)",
    ),
    Method(
        name="staged",
        drafter="cascade",
        verifier="speculative",
        needs=Need.DRAFT_MODEL,
        options={"k_matrix": ((5, 0), (0, 4))},
        paper="Spector and Ré 2023",
    ),
    Method(
        name="cs_drafting",
        drafter="cascade",
        length="k-matrix",
        verifier="speculative",
        needs=Need.DRAFT_MODEL,
        options={"lenience": 1 / 3},
        paper="Chen et al. 2024 (CS-Drafting)",
    ),
    Method(name="pld", drafter="prompt_lookup", joins_auto={}, paper="Saxena 2023"),
    Method(
        name="llma",
        drafter="prompt_lookup",
        options={"num_speculative_tokens": 20, "prompt_lookup_max": 5, "max_cached_tokens": 50_000},
        paper="Yang et al. 2023",
    ),
    Method(name="sad", drafter="aggressive", length="64 of what is left", paper="Sun et al. 2021"),
    Method(
        name="suffix",
        length="by match length",
        tree="by counts",
        joins_auto={},
        paper="Oliaro et al. 2025 (SuffixDecoding)",
    ),
    Method(
        name="sam",
        length="by match length",
        tree="chain, or by counts",
        paper="Hu et al. 2025 (SAM-Decoding)",
    ),
    Method(
        name="rest",
        length="by budget",
        tree="by counts",
        needs=Need.DATASTORE,
        joins_auto={},
        paper="He et al. 2024",
    ),
    Method(name="grammar", length="what is forced", paper="Zheng et al. 2024 (SGLang), §4"),
    Method(name="jacobi", drafter="jacobi", paper="Santilli et al. 2023 (Jacobi)"),
    Method(
        name="gauss_seidel",
        drafter="jacobi",
        length="to the end of the block",
        options={"block_size": 3},
        paper="Santilli et al. 2023 (GS-Jacobi, hybrid)",
    ),
    Method(
        name="lookahead",
        tree="window and n-grams, planned",
        paper="Fu et al. 2024 (Lookahead)",
    ),
    Method(
        name="token_recycling",
        length="static",
        tree="planned, up to 80 nodes",
        paper="Luo et al. 2025 (Token Recycling)",
    ),
    Method(name="blockwise", needs=Need.WEIGHTS, paper="Stern et al. 2018"),
    Method(
        name="medusa",
        length="by the tree",
        tree="planned, up to 63 nodes",
        needs=Need.WEIGHTS,
        paper="Cai et al. 2024 (Medusa)",
    ),
    Method(
        name="medusa_typical",
        drafter="medusa",
        length="by the tree",
        tree="static, 63 nodes",
        verifier="typical",
        lossless=False,
        needs=Need.WEIGHTS,
        options={"tree": "paper"},  # what is written depends on it
        paper="Cai et al. 2024 (Medusa)",
    ),
    Method(
        name="hydra",
        length="by the tree",
        tree="planned, up to 63 nodes",
        needs=Need.WEIGHTS,
        paper="Ankner et al. 2024 (Hydra)",
    ),
    Method(
        name="mlp_speculator",
        length="by the tree",
        tree="planned, up to 63 nodes",
        needs=Need.WEIGHTS,
        paper="Wertheimer et al. 2024 (MLP speculator)",
    ),
    Method(
        name="eagle",
        length="by the tree",
        tree="25 nodes, drawn or top-k",
        verifier="multi_candidate",
        needs=Need.WEIGHTS,
        paper="Li et al. 2024 (EAGLE)",
    ),
    Method(
        name="eagle2",
        length="by the tree",
        tree="dynamic, up to 59 nodes",
        needs=Need.WEIGHTS,
        paper="Li et al. 2024 (EAGLE-2)",
    ),
    Method(
        name="eagle3",
        length="by the tree",
        tree="dynamic, up to 59 nodes",
        needs=Need.WEIGHTS,
        paper="Li et al. 2025 (EAGLE-3)",
    ),
    Method(
        name="peagle",
        verifier="speculative",
        needs=Need.WEIGHTS,
        paper="Hui et al. 2026 (P-EAGLE)",
    ),
    Method(
        name="pass",
        drafter="lookahead_embeddings",
        verifier="speculative",
        needs=Need.WEIGHTS,
        paper="Monea et al. 2023 (PaSS)",
    ),
    Method(
        name="parallel_prompt",
        length="by the tree",
        tree="dynamic, 60 nodes",
        needs=Need.WEIGHTS,
        paper="Chen et al. 2024 (Parallel Prompt Decoding)",
    ),
    Method(
        name="dflash",
        verifier="speculative",
        needs=Need.WEIGHTS,
        paper="Chen et al. 2026 (DFlash)",
    ),
    Method(
        name="dflash_tree",
        length="by the tree",
        tree="by chance, 59 nodes",
        needs=Need.WEIGHTS,
        paper="DDTree 2026, of DFlash's distributions",
    ),
    Method(
        name="dflash2",
        verifier="speculative",
        needs=Need.WEIGHTS,
        paper="Inco AI and z-lab 2026 (DFlash 2)",
    ),
    Method(
        name="dflash2_tree",
        length="by the tree",
        tree="by chance, 59 nodes",
        needs=Need.WEIGHTS,
        paper="DDTree 2026, of DFlash 2's distributions",
    ),
    Method(
        name="glide",
        verifier="speculative",
        needs=Need.WEIGHTS,
        paper="Du et al. 2024 (GliDe)",
    ),
    Method(
        name="glide_cape",
        tree="chain with siblings",
        needs=Need.WEIGHTS,
        paper="Du et al. 2024 (CaPE)",
    ),
    Method(
        name="mtp",
        tree="chain, or drawn or top-k",
        verifier="multi_candidate",
        needs=Need.WEIGHTS,
        paper="DeepSeek-AI 2024 (DeepSeek-V3); Cai et al. 2025 (FastMTP)",
    ),
    Method(
        name="kangaroo",
        length="below a probability",
        verifier="speculative",
        needs=Need.WEIGHTS,
        paper="Liu et al. 2024 (Kangaroo)",
    ),
    Method(
        name="specdec",
        verifier="speculative",
        needs=Need.WEIGHTS,
        paper="Xia et al. 2023 (SpecDec)",
    ),
    Method(
        name="specdec_top_beta",
        drafter="specdec",
        verifier="top_beta",
        lossless=False,
        needs=Need.WEIGHTS,
        paper="Xia et al. 2023 (SpecDec)",
    ),
    Method(
        name="tli",
        length="fixed or adaptive",
        verifier="speculative",
        needs=Need.DRAFT_MODEL,
        paper="Timor et al. 2025 (TLI)",
    ),
    Method(name="slem", needs=Need.DRAFT_MODEL, paper="Timor et al. 2025 (SLEM)"),
    Method(
        name="draft_verify",
        length="adaptive",
        verifier="speculative",
        paper="Zhang et al. 2024 (Draft & Verify)",
    ),
    Method(
        name="early_exit",
        verifier="speculative",
        paper="Elhoushi et al. 2024 (LayerSkip)",
    ),
    Method(
        name="swift",
        length="confidence",
        tree="chain with siblings",
        paper="Xia et al. 2025 (SWIFT)",
    ),
    Method(name="pruned", verifier="speculative", paper="Li et al. 2017 (pruning by norm)"),
    Method(
        name="substitute",
        verifier="speculative",
        paper="Wang et al. 2025 (SubSpec)",
    ),
    Method(
        name="ppd",
        drafter="nothing",
        target="ppd",
        length="–",
        tree="–",
        paper="Yang et al. 2024 (Predictive Pipelined Decoding)",
    ),
    Method(
        name="speed",
        drafter="nothing",
        target="speed",
        length="–",
        tree="–",
        paper="Hooper et al. 2023 (SPEED)",
    ),
    Method(
        name="online",
        length="its part's",
        tree="its part's",
        verifier="speculative",
        needs=Need.DRAFT_MODEL,
        paper="Liu et al. 2024 (Online Speculative Decoding)",
    ),
    Method(
        name="auto",
        length="by measured cost",
        tree="its parts'",
        paper="Liu et al. 2024 (SmartSpec); Hou et al. 2025 (BanditSpec)",
    ),
)

METHODS = {row.name: replace(row, drafter=row.drafter or row.name) for row in _ROWS}
"""The table by name."""
