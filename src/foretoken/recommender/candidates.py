"""Which methods apply to a target: those that copy, those that draft with a model that was given or
found, those that draft with the target itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretoken.bench.plan import trained_configs
from foretoken.errors import ForetokenError
from foretoken.llm import LLM
from foretoken.models import gguf
from foretoken.models.load import find
from foretoken.models.native.backends import blocks
from foretoken.recommender.models_nearby import (
    Place,
    folders,
    nearby,
    same_tokenizer,
    smaller_models,
)
from foretoken.trainable.checkpoint import checkpoints, method_of

LONGEST = 8
"""Tokens of a draft with which a chain is screened; shorter ones are predicted from it."""
MOST_FOUND = 2
"""Smaller models that are taken of those found; each has to be loaded."""

BACKEND = "draft_backend"

_COPYING = ("pld", "suffix", "sam")
_LENGTH = "num_speculative_tokens"


@dataclass(frozen=True)
class Candidate:
    """A method to try. label: its name in tables. config: its `speculative_config`. given: whether
    it was asked for, so that leaving it out would be an error. any_length: whether its draft may be
    shortened from the length that the config has."""

    label: str
    config: Mapping[str, Any]
    given: bool = False
    any_length: bool = False

    def of_length(self, tokens: int) -> Candidate:
        """The same with drafts of so many tokens, called by it."""
        plural = "" if tokens == 1 else "s"
        return replace(
            self,
            label=f"{self.label}, {tokens} token{plural}",
            config={**self.config, _LENGTH: tokens},
            any_length=False,
        )


@dataclass(frozen=True)
class Found:
    """candidates: in the order in which they are tried. untried: the smaller models that were found
    and are not among them."""

    candidates: tuple[Candidate, ...]
    untried: tuple[Place, ...]


def find_candidates(
    plain: LLM,
    target: Path,
    draft_models: Seq[str],
    *,
    wide: bool,
) -> Found:
    """All that applies to `plain`'s model, which lies at `target`.

    draft_models: given, small models or trained drafters. wide: whether a pass over many tokens
    costs about what one over a single token does, so that large trees of guesses may pay. Raises
    `ForetokenError` for a draft model that can't be found.
    """
    given = [c for name in draft_models for c in _of_model(plain, Place(name, find(name)), True)]
    named = {find(name).resolve() for name in draft_models}
    places = [place for place in nearby(target) if place.path.resolve() not in named]
    smaller = smaller_models(plain, target, places)
    tried, untried = smaller[:MOST_FOUND], smaller[MOST_FOUND:]
    drafters = checkpoints(folders(places), plain.model)
    names = {place.path: place.name for place in places}
    candidates = [
        *(Candidate(name, {"method": name}) for name in _COPYING),
        *given,
        *(c for place in tried for c in _of_model(plain, place, False)),
        *(
            _with_model(config["method"], names[Path(config["model"])])
            for config in trained_configs(drafters)
        ),
        *_of_the_target(plain, wide),
    ]
    return Found(tuple(_distinct(candidates)), tuple(untried))


def with_auto(draft: Candidate | None) -> Candidate:
    """`auto`, which chooses at every step: between copies, and a draft model where one is good."""
    if draft is None:
        return Candidate("auto", {"method": "auto"})
    found = _with_model("auto", draft.config["model"])
    return _narrowed(found) if BACKEND in draft.config else found


def _with_model(method: str, model: str, **options: Any) -> Candidate:
    return Candidate(
        f"{method} {gguf.model_name(model)}", {"method": method, "model": model, **options}
    )


def _distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Each config once; models of one name in different folders are called by their whole names."""
    found: dict[str, Candidate] = {}
    for one in candidates:
        if one.config in [other.config for other in found.values()]:
            continue
        whole = f"{one.config['method']} {one.config.get('model', '')}"
        found[whole if one.label in found else one.label] = one
    return [replace(one, label=label) for label, one in found.items()]


def _of_model(plain: LLM, place: Place, given: bool) -> list[Candidate]:
    """A trained drafter by every method that reads it; any other model as a draft model."""
    try:
        method = method_of(place.path)
    except ForetokenError:
        method = ""
    trained = trained_configs({place.path: method})
    if trained:
        drafters = (_with_model(config["method"], place.name) for config in trained)
        return [replace(drafter, given=given) for drafter in drafters]
    fits = plain.tokenizer is None or same_tokenizer(plain.tokenizer, place.path)
    name = "sps" if fits else "tli"  # which drafts by the texts of another tokenizer's tokens
    draft = _with_model(name, place.name, **{_LENGTH: LONGEST})
    draft = replace(draft, given=given, any_length=True)
    model = plain.model
    narrow = blocks.supports(model.dtype, model.device) and blocks.has_loops()
    return [draft, _narrowed(draft)] if narrow else [draft]


def _narrowed(draft: Candidate) -> Candidate:
    """The same with the model's weights in 4 bits, which are read faster: what it drafts changes,
    what the target writes doesn't."""
    config = {**draft.config, BACKEND: "q4"}
    return replace(draft, label=f"{draft.label} in q4", config=config, given=False)


def _of_the_target(plain: LLM, wide: bool) -> list[Candidate]:
    """What drafts with nothing but the target, where it can."""
    model = plain.model
    found = [Candidate("token_recycling", {"method": "token_recycling"})] if wide else []
    if "e" in model.levels:
        exit_early = {"method": "early_exit", _LENGTH: LONGEST}
        found.append(Candidate("early_exit", exit_early, any_length=True))
        found.append(Candidate("swift", {"method": "swift"}))
    # A copy in 4 bits is faster only where the target reads at least twice as much.
    heavy = model.bytes_read >= model.parameters
    if {"e", "f"} <= model.levels and heavy and model.source is not None:
        found.append(Candidate("substitute", {"method": "substitute"}))
    return found
