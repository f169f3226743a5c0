"""Where a drafter's texts come from: a file, the target, or the drafter itself, and mixtures.

Source of the four kinds: Zhou et al. 2024 (DistillSpec), section 3.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence as Seq
from pathlib import Path

from foretoken.errors import ForetokenError, unknown
from foretoken.llm import LLM
from foretoken.sampling.params import SamplingParams
from foretoken.train.data import Conversation, fixed, write
from foretoken.train.loop import Texts
from foretoken.train.own import Own
from foretoken.train.recipe import Recipe
from foretoken.train.records import Records
from foretoken.trainable.checkpoint import Trained
from foretoken.trainable.small_lm import TrainedLM

TARGET, FIXED, DRAFTER = "target", "fixed", "drafter"


def named(source: str) -> list[str]:
    """The sources of a mixture such as "target+drafter" or "target+target@1". Raises
    `ForetokenError` for others."""
    names = [name.strip() for name in source.split("+")]
    for name in names:
        if name not in (TARGET, FIXED, DRAFTER) and _temperature(name) is None:
            raise unknown("source", name, [TARGET, f"{TARGET}@TEMPERATURE", FIXED, DRAFTER])
    return list(dict.fromkeys(names))


def _temperature(name: str) -> float | None:
    """1.0 for "target@1"; None for names without one."""
    said = re.fullmatch(rf"{TARGET}@(\d+\.?\d*)", name)
    return float(said[1]) if said else None


def texts(
    llm: LLM,
    conversations: Seq[Conversation],
    recipe: Recipe,
    folder: Path,
    source: str,
    seed: int,
    show: bool,
) -> dict[str, Records]:
    """The records of each source but the drafter. Whatever isn't the file's own is held to what the
    target writes at the recipe's temperature, which is then there too, and first."""
    names, found = named(source), {}
    longest = recipe.length - recipe.max_tokens
    if names != [FIXED]:
        names = [TARGET, *names]
    for name in dict.fromkeys(names):
        if name == FIXED:
            found[FIXED] = fixed(llm, conversations, recipe.length)
        elif name != DRAFTER:
            how, other = params(recipe, seed), _temperature(name)
            if other is not None:
                how = dataclasses.replace(how, temperature=other)
            into = folder if name == TARGET else folder / name
            written = write(llm, conversations, into, how, longest, show=show)
            found[name] = written.without_loops(recipe.distinct)
    for name, records in found.items():
        if len(records) < 2:
            raise ForetokenError(
                f"There are {len(records)} texts to learn from ({name}) that don't loop; give more "
                "prompts."
            )
    return found


def answered(llm: LLM, held: Records, recipe: Recipe, seed: int) -> Records:
    """What the target writes to the prompts of a file's held-out texts, as it will when serving;
    the texts themselves where every prompt is too long or its answer loops."""
    longest = recipe.length - recipe.max_tokens
    every = [held.prompt(i) for i in range(len(held))]
    prompts = [prompt for prompt in every if 0 < len(prompt) <= longest]
    outputs = llm.generate(prompts, params(recipe, seed))
    pairs = [(p, o.token_ids) for p, o in zip(prompts, outputs, strict=True) if not o.error]
    found = Records.of(pairs, recipe.max_tokens, llm.model.vocab_size)
    found = found.without_loops(recipe.distinct)
    return found if len(found) else held


def steps(
    found: dict[str, Records],
    source: str,
    module: Trained,
    llm: LLM,
    recipe: Recipe,
    folder: Path,
    seed: int,
) -> Texts:
    """The parts that each step's records are drawn from."""
    names = named(source)
    parts = [found[name] for name in names if name != DRAFTER]
    if DRAFTER not in names:
        return lambda step: parts
    if not isinstance(module, TrainedLM):
        raise ForetokenError(
            f"A drafter of method {module.method!r} can't write texts by itself; use source "
            "'target', or train method 'sps'."
        )
    if not parts and not recipe.goal.reads_target:
        raise ForetokenError(
            "A drafter learns nothing from its own tokens alone; give an objective that reads the "
            "target's distribution, such as {kl_div: 1.0}."
        )
    own = Own(
        module, llm, found[TARGET], folder, params(recipe, seed), recipe.own_texts, recipe.own_every
    )
    return lambda step: [*parts, own(step)]


def params(recipe: Recipe, seed: int) -> SamplingParams:
    """Of what is written."""
    return SamplingParams(temperature=recipe.temperature, max_tokens=recipe.max_tokens, seed=seed)
