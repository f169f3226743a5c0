"""The method table, and nothing else: a method is a named point on the axes.

drafter × length rule × tree shape × verifier. The same table prints in the terminal and in the
documentation and drives the tests: what it claims for a method is tested. A drafter needs no row
here to be used; it gets one when the combination deserves a name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from foretoken.errors import ForetokenError, unknown
from foretoken.protocols import Drafter, Verifier
from foretoken.registry import drafter_class, drafter_names, verifier_class, verifier_names
from foretoken.tree import Kind
from foretoken.tuned import untuned


@dataclass(frozen=True)
class Method:
    """One row. `drafter` and `verifier` are file names in their packages; `options` defaults.
    joins: whether `auto` takes it without being told to, if it can be built."""

    name: str
    drafter: str
    length: str
    tree: str
    verifier: str
    lossless: bool
    trained: bool
    paper: str
    options: Mapping[str, Any] = field(default_factory=dict)
    joins: bool = False


METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        Method("autoregressive", "nothing", "–", "–", "target_only", True, False, "–"),
        Method("sps", "small_lm", "fixed or adaptive", "chain", "speculative", True, False,
               "Leviathan et al. 2023; Chen et al. 2023", joins=True),
        Method("bild", "small_lm", "fallback", "chain", "rollback", False, False,
               "Kim et al. 2023 (Big Little Decoder)",
               {"num_speculative_tokens": 10, "num_assistant_tokens_schedule": "fallback"}),
        Method("specinfer", "small_tree", "fixed", "drawn branches, or top-k", "multi_candidate",
               True, False, "Miao et al. 2024",
               {"widths": (1, 1, 3, 1, 1, 1, 1, 1), "replacement": True}),
        Method("spectr", "small_tree", "fixed", "8 i.i.d. branches", "k_seq", True, False,
               "Sun et al. 2023", {"widths": (8, *[1] * 7), "replacement": True}),
        Method("mcsd", "small_tree", "fixed", "drawn without replacement, or top-k",
               "multi_candidate", True, False, "Yang et al. 2024", {"widths": (4, 2, 2)}),
        Method("sequoia", "small_tree", "planned", "planned", "multi_candidate", True, False,
               "Chen et al. 2024",
               {"acceptance": (0.63, 0.09, 0.04, 0.02, 0.02, 0.01, 0.01, 0.01),
                "tree_nodes": 64, "tree_depth": 10}),
        Method("staged", "cascade", "fixed", "chain", "speculative", True, False,
               "Spector and Ré 2023", {"k_matrix": ((5, 0), (0, 4))}),
        Method("cs_drafting", "cascade", "k-matrix", "chain", "speculative", True, False,
               "Chen et al. 2024 (CS-Drafting)", {"lenience": 1 / 3}),
        Method("pld", "prompt_lookup", "fixed", "chain", "target_only", True, False,
               "Saxena 2023", joins=True),
        Method("llma", "prompt_lookup", "fixed", "chain", "target_only", True, False,
               "Yang et al. 2023",
               {"num_speculative_tokens": 20, "prompt_lookup_max": 5,
                "max_cached_tokens": 50_000}),
        Method("sad", "aggressive", "all that is left", "chain", "target_only", True, False,
               "Sun et al. 2021"),
        Method("suffix", "suffix", "by match length", "by counts", "target_only", True, False,
               "Oliaro et al. 2025 (SuffixDecoding)", joins=True),
        Method("sam", "sam", "by match length", "chain, or by counts", "target_only", True, False,
               "Hu et al. 2025 (SAM-Decoding)"),
        Method("rest", "rest", "by budget", "by counts", "target_only", True, False,
               "He et al. 2024", joins=True),
        Method("jacobi", "jacobi", "fixed", "chain", "target_only", True, False,
               "Santilli et al. 2023 (Jacobi)"),
        Method("gauss_seidel", "jacobi", "to the end of the block", "chain", "target_only", True,
               False, "Santilli et al. 2023 (GS-Jacobi, hybrid)", {"block_size": 3}),
        Method("lookahead", "lookahead", "fixed", "window and n-grams", "target_only", True, False,
               "Fu et al. 2024 (Lookahead)"),
        Method("token_recycling", "token_recycling", "static", "80 nodes", "target_only", True,
               False, "Luo et al. 2025 (Token Recycling)"),
        Method("blockwise", "blockwise", "fixed", "chain", "target_only", True, True,
               "Stern et al. 2018"),
        Method("medusa", "medusa", "by the tree", "static, 63 nodes", "target_only", True, True,
               "Cai et al. 2024 (Medusa)"),
        Method("medusa_typical", "medusa", "by the tree", "static, 63 nodes", "typical", False,
               True, "Cai et al. 2024 (Medusa)"),
        Method("hydra", "hydra", "by the tree", "static, 63 nodes", "target_only", True, True,
               "Ankner et al. 2024 (Hydra)"),
        Method("eagle", "eagle", "by the tree", "25 nodes, drawn or top-k", "multi_candidate", True,
               True, "Li et al. 2024 (EAGLE)"),
        Method("eagle2", "eagle2", "by the tree", "dynamic, 59 nodes", "target_only", True, True,
               "Li et al. 2024 (EAGLE-2)"),
        Method("eagle3", "eagle3", "by the tree", "dynamic, 59 nodes", "target_only", True, True,
               "Li et al. 2025 (EAGLE-3)"),
        Method("pass", "lookahead_embeddings", "fixed", "chain", "speculative", True, True,
               "Monea et al. 2023 (PaSS)"),
        Method("parallel_prompt", "parallel_prompt", "by the tree", "dynamic, 60 nodes",
               "target_only", True, True, "Chen et al. 2024 (Parallel Prompt Decoding)"),
        Method("dflash", "dflash", "fixed", "chain", "speculative", True, True,
               "Chen et al. 2026 (DFlash)"),
        Method("dflash_tree", "dflash_tree", "by the tree", "by chance, 59 nodes", "target_only",
               True, True, "DDTree 2026, of DFlash's distributions"),
        Method("glide", "glide", "fixed", "chain", "speculative", True, True,
               "Du et al. 2024 (GliDe)"),
        Method("glide_cape", "glide_cape", "fixed", "chain with siblings", "target_only", True,
               True, "Du et al. 2024 (CaPE)"),
        Method("mtp", "mtp", "fixed", "chain, or drawn or top-k", "multi_candidate", True, True,
               "DeepSeek-AI 2024 (DeepSeek-V3); Cai et al. 2025 (FastMTP)"),
        Method("kangaroo", "kangaroo", "below a probability", "chain", "speculative", True, True,
               "Liu et al. 2024 (Kangaroo)"),
        Method("specdec", "specdec", "fixed", "chain", "speculative", True, True,
               "Xia et al. 2023 (SpecDec)"),
        Method("specdec_top_beta", "specdec", "fixed", "chain", "top_beta", False, True,
               "Xia et al. 2023 (SpecDec)"),
        Method("tli", "tli", "fixed or adaptive", "chain", "speculative", True, False,
               "Timor et al. 2025 (TLI)"),
        Method("slem", "slem", "fixed", "chain", "target_only", True, False,
               "Timor et al. 2025 (SLEM)"),
        Method("draft_verify", "draft_verify", "adaptive", "chain", "speculative", True, False,
               "Zhang et al. 2024 (Draft & Verify)"),
        Method("early_exit", "early_exit", "fixed", "chain", "speculative", True, False,
               "Elhoushi et al. 2024 (LayerSkip)"),
        Method("swift", "swift", "confidence", "chain with siblings", "target_only", True, False,
               "Xia et al. 2025 (SWIFT)"),
        Method("pruned", "pruned", "fixed", "chain", "speculative", True, False,
               "Li et al. 2017 (pruning by norm)"),
        Method("ppd", "ppd", "–", "–", "target_only", True, False,
               "Yang et al. 2024 (Predictive Pipelined Decoding)"),
        Method("speed", "speed", "–", "–", "target_only", True, False,
               "Hooper et al. 2023 (SPEED)"),
        Method("online", "online", "its part's", "its part's", "speculative", True, False,
               "Liu et al. 2024 (Online Speculative Decoding)"),
        Method("auto", "auto", "by measured cost", "its parts'", "target_only", True, False,
               "Liu et al. 2024 (SmartSpec); Hou et al. 2025 (BanditSpec)"),
    )
}  # fmt: skip

JOINTS = {"+": "either", "|": "merged"}
"""What joins names in a method's name -> the drafter that is made of theirs."""

AUTO = "auto"
"""The method that chooses among others; "auto:pld,sps" names them."""

ONLINE = "online"
"""The method whose drafter learns while it serves; "online:medusa" names it, else it is "sps"."""

MOST = "num_speculative_tokens"

NEEDED = ("model", "datastore")
"""Options without which some methods can't be built."""

ALIASES = {"ngram": "pld", "draft_model": "sps", "prompt_lookup": "pld", "none": "autoregressive"}
"""Names of other libraries for the same method."""

OPTION_ALIASES = {
    "num_assistant_tokens": "num_speculative_tokens",
    "prompt_lookup_num_tokens": "num_speculative_tokens",
    "max_matching_ngram_size": "prompt_lookup_max",
    "suffix_decoding_max_tree_depth": "max_tree_depth",
    "suffix_decoding_max_spec_factor": "max_spec_factor",
    "suffix_decoding_min_token_prob": "min_token_prob",
    "assistant_model": "model",
    "assistant_tokenizer": "tokenizer",
    "draft_model": "model",
}
"""Names of other libraries for the same option."""


def build(config: Mapping[str, Any] | None) -> tuple[Drafter, Verifier, str]:
    """Drafter, verifier and the method's name from a `speculative_config`.

    `method` is a row's name or alias, a drafter's file name, "package.module:Class", or a drafter
    object. `verifier` overrides the row's rule. All other keys are the drafter's options.

    Names joined by "+" take the draft that promises most, by "|" all drafts in one tree.
    "auto:pld,sps" takes at every step what pays most of the named parts by measured cost, or
    nothing; "auto" of all that join it without being named, with the small model if `model` names
    one. An option of such a method goes to every part that has it, and a mapping under a part's
    name to that part alone; the rule is the exact one for what they make.

    "tuned" names what `foretoken tune` found, by path or name; what stands beside it wins.
    """
    options = untuned(config or {"method": "autoregressive"})
    method = options.pop("method", None) or _guess(options)
    verifier = options.pop("verifier", None)
    if not isinstance(method, str):
        drafter: Drafter = method
        if options:
            raise ForetokenError(
                f"The method is a {type(drafter).__name__} object, so {', '.join(options)} would "
                "be ignored; set its fields instead."
            )
        rule = verifier or _default_verifier(drafter)
        return drafter, _verifier(rule), type(drafter).__name__
    if method.partition(":")[0] == AUTO:
        return _auto(method, options, verifier)
    wrapper, _, part = method.partition(":")
    if wrapper == ONLINE and "drafters" not in options:
        return _composed(method, ONLINE, [part or "sps"], options, verifier)
    for joint in JOINTS:
        if joint in method:
            return _joined(method, joint, options, verifier)
    name = ALIASES.get(method, method)
    row = METHODS.get(name)
    cls, own = _part(name)
    drafter = create(cls, name, {**own, **options})
    rule = verifier or (row.verifier if row else _default_verifier(drafter))
    return drafter, _verifier(rule), name


def _joined(
    method: str, joint: str, options: Mapping[str, Any], verifier: str | Verifier | None
) -> tuple[Drafter, Verifier, str]:
    """The parts' drafters as a joint has it."""
    if any(other in method for other in JOINTS if other != joint):
        raise ForetokenError(f"Method {method!r} mixes '+' and '|'; put one of them between parts.")
    names = [name.strip() for name in method.split(joint)]
    return _composed(method, JOINTS[joint], names, options, verifier)


def _auto(
    method: str, options: Mapping[str, Any], verifier: str | Verifier | None
) -> tuple[Drafter, Verifier, str]:
    """The chooser around its parts' drafters, which may draft as much as it does."""
    wrapper = drafter_class(AUTO)
    if "drafters" in options:
        drafter = create(wrapper, method, options)
        return drafter, _verifier(verifier or _default_verifier(drafter)), method
    names = auto_parts(method, options)
    options = {MOST: wrapper.num_speculative_tokens, **options}
    own = {"names": names, "lenient": method == AUTO}
    return _composed(method, AUTO, names, options, verifier, own)


def auto_parts(method: str, options: Collection[str]) -> list[str]:
    """The parts that "auto:…" names, with commas or "+" between them; of "auto" all that join it,
    as far as the options name what they need."""
    if method != AUTO:
        return [name.strip() for name in method.partition(":")[2].replace("+", ",").split(",")]
    needed = {own: own for key in options if (own := OPTION_ALIASES.get(key, key)) in NEEDED}
    found = []
    for row in METHODS.values():
        if row.joins:
            cls = drafter_class(row.drafter)
            with suppress(ForetokenError):  # it needs something that nobody named
                create(cls, row.name, {key: needed[key] for key in needed if key in _fields(cls)})
                found.append(row.name)
    return found


def _composed(
    method: str, wrapper: str, names: Seq[str], options: Mapping[str, Any],
    verifier: str | Verifier | None, own: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Drafter, Verifier, str]:  # fmt: skip
    """A wrapper, with options of its `own`, around the parts' drafters."""
    if len(set(names)) < len(names):
        raise ForetokenError(
            f"Method {method!r} names a part twice; name each part once (a method and its "
            "drafter's file name count as two)."
        )
    parts = {name: _part(name) for name in names}
    cls = drafter_class(wrapper)
    takers = {name: _fields(part) for name, (part, _) in parts.items()}
    given = _shared_out(method, options, {**takers, wrapper: _fields(cls)})
    made = [create(part, name, {**row, **given[name]}) for name, (part, row) in parts.items()]
    drafter = create(cls, method, {**given[wrapper], **own, "drafters": made})
    return drafter, _verifier(verifier or _default_verifier(drafter)), method


def _shared_out(
    method: str, options: Mapping[str, Any], takers: Mapping[str, list[str]]
) -> dict[str, dict[str, Any]]:
    """Each taker's options: those that it has, and last those that are given under its name."""
    given: dict[str, dict[str, Any]] = {name: {} for name in takers}
    for key, value in options.items():
        having = [name for name, own in takers.items() if _own_name(key, own) in own]
        if not having and not (key in takers and isinstance(value, Mapping)):
            raise unknown(
                f"option of method {method!r}", key,
                [*takers, *(field for own in takers.values() for field in own)],
            )  # fmt: skip
        for name in having:
            given[name][key] = value
    return {name: own | dict(options.get(name, {})) for name, own in given.items()}


def _part(name: str) -> tuple[type[Any], Mapping[str, Any]]:
    """Class and default options of a method by any of its names."""
    own = ALIASES.get(name, name)
    row = METHODS.get(own)
    if row is None and own not in drafter_names() and ":" not in own:
        raise unknown("method", name, [*METHODS, *ALIASES, *drafter_names()])
    return drafter_class(row.drafter if row else own), row.options if row else {}


def _guess(options: Mapping[str, Any]) -> str:
    """As in vLLM: a config that names a draft model and no method means that model drafts."""
    if "model" in options:
        return "sps"
    raise ForetokenError(
        'speculative_config names no method; e.g. {"method": "pld"} or '
        '{"method": "sps", "model": "folder-or-hub-id"}.'
    )


def create(cls: type[Any], name: str, options: Mapping[str, Any]) -> Drafter:
    """The drafter with its options checked by name."""
    known = _fields(cls)
    given: dict[str, Any] = {}
    for key, value in options.items():
        own = _own_name(key, known)
        if own not in known:
            raise unknown(f"option of method {name!r}", key, known or ["(it has none)"])
        given[own] = value
    try:
        drafter: Drafter = cls(**given)
    except TypeError as error:
        raise ForetokenError(f"Method {name!r} can't be built: {error}.") from error
    return drafter


def options_of(name: str) -> set[str]:
    """The options that a method takes; of "auto" and "online" those of its parts too."""
    wrapper, _, part = name.partition(":")
    parts = {AUTO: lambda: auto_parts(name, ["model"]), ONLINE: lambda: [part or "sps"]}
    if wrapper not in parts:
        return set(_fields(_part(name)[0]))
    of_parts = (field for each in parts[wrapper]() for field in _fields(_part(each)[0]))
    return {*_fields(drafter_class(wrapper)), *of_parts}


def _fields(cls: type[Any]) -> list[str]:
    """The options of a drafter's class."""
    return [f.name for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []


def _own_name(key: str, known: Collection[str]) -> str:
    """An option's name here, where other libraries call it otherwise."""
    return key if key in known else OPTION_ALIASES.get(key, key)


def _verifier(rule: str | Verifier) -> Verifier:
    if not isinstance(rule, str):
        return rule
    if rule not in verifier_names() and ":" not in rule:
        raise unknown("verifier", rule, verifier_names())
    built: Verifier = verifier_class(rule)()
    return built


def _default_verifier(drafter: Drafter) -> str:
    """The exact rule for what the drafter makes: chosen nodes keep plain decoding's very tokens."""
    if drafter.kinds <= {Kind.CHOSEN, Kind.AUXILIARY}:
        return "target_only"
    return "multi_candidate" if drafter.trees else "speculative"
