"""What two surveys list, and where each entry is found here, as data: `foretoken methods --survey`.

Sources: Xia et al. 2024 (Unlocking Efficiency in Large Language Model Inference: A Comprehensive
Survey of Speculative Decoding), table 3, sections 5 and 6, and what its section 9 calls open; Zhang
et al. 2024 (Beyond the Speculative Game: A Survey of Speculative Execution in Large Language
Models), its taxonomy of drafters, terminations, draft management, verifiers and acceptance, and the
applications and open challenges that it names. `docs/surveys.md` is written by `page`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

EXACT, APPROXIMATE, PARTLY, MISSING = "exact", "approximate", "in part", "not here"
CLAIMS = (EXACT, APPROXIMATE, PARTLY, MISSING)
"""What is claimed of an entry; of a capability that keeps the text, that it is exact."""

TABLE, TEXT = "Xia et al., table 3", "Xia et al., sections 5 and 6"
TAXONOMY, OPEN = "Zhang et al., taxonomy", "What the surveys call open"

_GREEDY = "test_conformance.py::test_greedy_is_transformers_generate"
_DRAWN = "test_conformance.py::test_distribution_is_the_targets"


class Entry(NamedTuple):
    """One entry of a survey. ours: names of the method table, and commands that begin with
    "foretoken", separated by commas; a "–" where nothing is. test: file::function under tests/ that
    proves the claim. note: where it stands, where that isn't the whole of it."""

    survey: str
    name: str
    ours: str
    claim: str
    test: str
    note: str = ""


ENTRIES = (
    Entry(TABLE, "SpecDec (Xia et al. 2023)", "specdec", EXACT, _DRAWN),
    Entry(
        TABLE,
        "SpecDec's relaxed check",
        "specdec_top_beta",
        APPROXIMATE,
        "verify/test_top_beta.py::test_top_beta_by_hand",
    ),
    Entry(TABLE, "SpS (Chen et al. 2023)", "sps", EXACT, _DRAWN),
    Entry(TABLE, "SpecInfer (Miao et al. 2024)", "specinfer", EXACT, _DRAWN),
    Entry(
        TABLE,
        "DistillSpec (Zhou et al. 2023)",
        "sps, foretoken train",
        EXACT,
        _DRAWN,
        "its divergences are objectives of the training",
    ),
    Entry(
        TABLE,
        "Online Speculative (Liu et al. 2023)",
        "online",
        EXACT,
        "drafters/test_online.py::test_text_stays_and_acceptance_rises",
    ),
    Entry(TABLE, "CS. Drafting (Chen et al. 2023)", "cs_drafting", EXACT, _DRAWN),
    Entry(TABLE, "REST (He et al. 2023)", "rest, foretoken datastore", EXACT, _GREEDY),
    Entry(TABLE, "Blockwise Decoding (Stern et al. 2018)", "blockwise", EXACT, _GREEDY),
    Entry(TABLE, "Medusa (Cai et al. 2024)", "medusa", EXACT, _GREEDY),
    Entry(
        TABLE,
        "PPD (Yang et al. 2023)",
        "ppd",
        EXACT,
        "models/test_ppd.py::test_text_is_the_targets",
    ),
    Entry(TABLE, "Self-Speculative (Zhang et al. 2023)", "draft_verify", EXACT, _DRAWN),
    Entry(
        TABLE, "Parallel Decoding (Santilli et al. 2023)", "jacobi, gauss_seidel", EXACT, _GREEDY
    ),
    Entry(TABLE, "Lookahead Decoding (Fu et al. 2024)", "lookahead", EXACT, _GREEDY),
    Entry(TABLE, "EAGLE (Li et al. 2024)", "eagle", EXACT, _DRAWN),
    Entry(TEXT, "SAD (Sun et al. 2021)", "sad", EXACT, _GREEDY),
    Entry(TEXT, "SpecTr (Sun et al. 2023)", "spectr", EXACT, _DRAWN),
    Entry(
        TEXT,
        "BiLD (Kim et al. 2023)",
        "bild",
        APPROXIMATE,
        "verify/test_rollback.py::test_rollback_by_hand",
    ),
    Entry(
        TEXT,
        "BiLD's check as Xia et al. word it",
        "foretoken methods",
        APPROXIMATE,
        "verify/test_rollback_run.py::test_rollback_run_by_hand",
        "by consecutive mismatches: the rule `rollback_run`, listed by --axis verify",
    ),
    Entry(
        TEXT,
        "SPEED (Hooper et al. 2023)",
        "speed",
        EXACT,
        "models/test_speed.py::test_text_is_the_targets",
    ),
    Entry(TEXT, "PaSS (Monea et al. 2023)", "pass", EXACT, _DRAWN),
    Entry(TEXT, "Staged speculation (Spector and Ré 2023)", "staged", EXACT, _DRAWN),
    Entry(TEXT, "GliDe with CaPE (Du et al. 2024)", "glide, glide_cape", EXACT, _GREEDY),
    Entry(TEXT, "PLD (Saxena 2023)", "pld", EXACT, _GREEDY),
    Entry(TEXT, "LLMA (Yang et al. 2023)", "llma", EXACT, _GREEDY),
    Entry(
        TEXT,
        "Lenience (Leviathan et al. 2023)",
        "foretoken methods",
        APPROXIMATE,
        "verify/test_lenience.py::test_distribution_of_lenience",
        "an acceptance rule, listed by --axis verify",
    ),
    Entry(TAXONOMY, "drafter: a smaller model", "sps, tli, slem, pruned", EXACT, _DRAWN),
    Entry(TAXONOMY, "drafter: predictive heads", "medusa, hydra, blockwise", EXACT, _GREEDY),
    Entry(TAXONOMY, "drafter: a retriever", "rest, suffix, sam", EXACT, _GREEDY),
    Entry(
        TAXONOMY,
        "drafter: layers of the target",
        "draft_verify, early_exit, swift, kangaroo",
        EXACT,
        _DRAWN,
    ),
    Entry(TAXONOMY, "termination: static", "sps", EXACT, _DRAWN),
    Entry(
        TAXONOMY,
        "termination: adaptive thresholds",
        "sps, kangaroo, swift",
        EXACT,
        "test_length.py::test_no_rule_that_looks_changes_the_distribution",
    ),
    Entry(
        TAXONOMY,
        "termination: heuristic rules",
        "sps",
        EXACT,
        "test_length.py::test_no_rule_that_learns_changes_the_distribution",
    ),
    Entry(TAXONOMY, "draft management: a trie", "specinfer, suffix, rest", EXACT, _GREEDY),
    Entry(TAXONOMY, "draft management: a beam", "eagle2, eagle3", EXACT, _GREEDY),
    Entry(TAXONOMY, "verifier: chains", "sps", EXACT, _DRAWN),
    Entry(
        TAXONOMY,
        "verifier: token trees",
        "specinfer, sequoia",
        EXACT,
        "trees/test_grow.py::test_drawn_trees_keep_the_distribution",
    ),
    Entry(
        TAXONOMY,
        "acceptance: exact matching",
        "pld, medusa",
        EXACT,
        "verify/test_exact_rules.py::test_temperature_zero_is_exact_match",
    ),
    Entry(
        TAXONOMY,
        "acceptance: rejection sampling",
        "sps, specinfer, spectr",
        EXACT,
        "verify/test_exact_rules.py::test_the_distribution_is_the_targets",
    ),
    Entry(
        TAXONOMY,
        "acceptance: typical",
        "medusa_typical",
        APPROXIMATE,
        "verify/test_typical.py::test_distribution_of_typical",
    ),
    Entry(
        TAXONOMY,
        "acceptance: contrastive",
        "foretoken methods",
        APPROXIMATE,
        "verify/test_approximate_rules.py::test_the_distribution_is_another",
        "the rule `contrast`, listed by --axis verify",
    ),
    Entry(
        TAXONOMY,
        "application: RaLMSpec",
        "foretoken ralm",
        EXACT,
        "apps/ralm/test_ralm.py::test_the_plain_loops_text",
        "documents by BM25 or dense vectors; KNN-LM is `foretoken.apps.knn`",
    ),
    Entry(
        TAXONOMY,
        "application: LLMCad",
        "llmcad",
        EXACT,
        "drafters/test_paced.py::test_the_text_is_plain_decodings",
        "with `weights_memory`; nothing is drafted while layers load",
    ),
    Entry(
        TAXONOMY,
        "application: speculative contrastive decoding",
        "sps",
        EXACT,
        "models/test_contrastive.py::test_distribution",
    ),
    Entry(
        OPEN,
        "batches and continuous batching",
        "auto",
        EXACT,
        "test_conformance.py::test_company_and_chunks_change_nothing",
        "no row waits for the slowest; auto drafts less as the batch grows",
    ),
    Entry(
        OPEN,
        "the length of drafts against their cost",
        "auto, foretoken tune, foretoken recommend",
        EXACT,
        _GREEDY,
    ),
    Entry(
        OPEN,
        "alignment of the drafter",
        "online, foretoken train",
        EXACT,
        "drafters/test_online.py::test_text_stays_and_acceptance_rises",
    ),
    Entry(
        OPEN,
        "sparse targets (mixtures of experts)",
        "foretoken generate",
        EXACT,
        "test_architectures.py::test_what_runs_through_transformers",
        "through transformers; no drafting that knows of experts",
    ),
    Entry(
        OPEN,
        "hybrid and recurrent targets",
        "–",
        MISSING,
        "test_architectures.py::test_what_is_refused",
        "refused when loaded: a state that isn't keys and values can't be taken back",
    ),
    Entry(
        OPEN,
        "compression: quantised and pruned models",
        "substitute, pruned, foretoken prune",
        EXACT,
        _GREEDY,
        "as drafters; a quantised target is its own reference",
    ),
    Entry(
        OPEN,
        "multimodal models",
        "–",
        MISSING,
        "engine/test_prompts.py::test_messages_that_are_none",
        "texts only: images and sound are no input",
    ),
    Entry(
        OPEN,
        "distributed serving",
        "foretoken serve",
        PARTLY,
        "serve/replicas/test_run.py::test_one_is_killed_under_load",
        "`--replicas`: each holds the whole model; one that outgrows a machine is for vLLM or "
        "SGLang, which `foretoken export` writes drafters for",
    ),
)


def missing(entries: Seq[Entry] = ENTRIES) -> list[Entry]:
    """Those of which something is not here."""
    return [entry for entry in entries if entry.claim in (PARTLY, MISSING)]


def page() -> str:
    """The page docs/surveys.md."""
    parts = [
        "# The surveys, entry by entry\n\nWhat two surveys of the field list, and where it is "
        "found here: a method of the [table](methods.md) or a command, what is claimed, and the "
        "test that proves it. *Exact* means that the text, or its distribution, is plain "
        "decoding's ([exactness](exactness.md)). `foretoken methods --survey` prints the same. "
        "The surveys are Xia et al. 2024 (*Unlocking Efficiency in Large Language Model "
        "Inference*) and Zhang et al. 2024 (*Beyond the Speculative Game*).\n"
    ]
    for survey in dict.fromkeys(entry.survey for entry in ENTRIES):
        parts.append(
            f"\n## {survey}\n\n| entry | here | claim | test | note |\n|---|---|---|---|---|"
        )
        parts += [_line(entry) for entry in ENTRIES if entry.survey == survey]
    return "\n".join(parts) + "\n"


def _line(entry: Entry) -> str:
    ours = ", ".join(name if name == "–" else f"`{name}`" for name in entry.ours.split(", "))
    return f"| {entry.name} | {ours} | {entry.claim} | `tests/{entry.test}` | {entry.note} |"
