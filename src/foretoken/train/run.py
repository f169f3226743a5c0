"""From a method's name, a target and prompts to a checkpoint with its card."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from foretoken.engine.stats import AcceptanceStats
from foretoken.errors import ForetokenError
from foretoken.lesson import Estimate
from foretoken.llm import LLM
from foretoken.methods import METHODS, create, drafter_class, drafter_names
from foretoken.models.load import load_model
from foretoken.models.model import CausalLM
from foretoken.sampling import SamplingParams
from foretoken.train.card import write_card
from foretoken.train.data import Conversation, fixed, sha_of, write
from foretoken.train.frozen import Frozen
from foretoken.train.loop import Progress, evaluate, tally, train
from foretoken.train.recipe import Recipe
from foretoken.train.records import Records
from foretoken.trained import Facts, replace


@dataclass(frozen=True)
class Trial:
    """What a finished training has to show."""

    progress: Progress
    expected: Estimate
    served: AcceptanceStats


def make(
    method: str, target: str, conversations: Seq[Conversation], recipe: Recipe, out: Path, *,
    source: str = "target", seed: int = 0, every: float = 60.0, show: bool = True,
    say: Callable[[Progress], None] = lambda progress: None, dtype: str = "auto",
    device: str = "auto",
) -> Trial:  # fmt: skip
    """Write the texts, train, measure, and leave checkpoint and card in `out`.

    source: "target" (what it writes to the prompts), "fixed" (the file's own texts) or "mixed"
    (both). Raises `ForetokenError` for what can't be trained so.
    """
    cls = trainable(method)
    llm = LLM(target, dtype=dtype, device=device)
    data = texts(llm, conversations, recipe, out / "data", source, seed, show)
    learned, held = data.split(recipe.held)
    model = plain(llm, target)
    frozen = Frozen(model, llm.engine.target.nodes)
    facts = Facts.of(model)
    recipe_ = asdict(recipe)
    _same_run(out, {
        "method": method, "target": asdict(facts), "texts": sha_of(data), "seed": seed, **recipe_,
    })  # fmt: skip
    about = {"target_name": target, "recipe": recipe_}
    torch.manual_seed(seed)
    module = cls.module.built(facts, recipe.shape, "the recipe").to(model.device, frozen.dtype)
    module.count(learned.counts(facts.vocab_size))
    module.start(frozen)
    options = dict(METHODS[method].options) if method in METHODS else {}
    drafter: Any = create(cls, method, {**options, **recipe.serving, "model": module})
    progress = train(
        module, frozen, learned, held, recipe, drafter.reached, out, seed=seed, every=every,
        extra=about, say=say,
    )  # fmt: skip
    module.read(out)  # the best, which may not be the last
    tally(module, frozen, held, recipe.rows)
    module.save(out, about)
    expected = evaluate(module, frozen, held, drafter.reached, recipe.rows)
    trial = Trial(progress, expected, measure(llm, method, out, held, recipe, seed))
    text = f"{len(learned)} records ({source}), {len(held)} held out"
    write_card(out, module, target, text, recipe, progress, expected, trial.served)
    return trial


def trainable(method: str) -> type[Any]:
    """The drafter's class. Raises `ForetokenError` for a method that has nothing to train."""
    row = METHODS.get(method)
    name = row.drafter if row else method
    cls = drafter_class(name) if name in drafter_names() else None
    if not hasattr(cls, "module"):
        able = [n for n in drafter_names() if hasattr(drafter_class(n), "module")]
        raise ForetokenError(
            f"There is nothing to train for method {method!r}; choose one of: {', '.join(able)}."
        )
    assert cls is not None
    return cls


def texts(
    llm: LLM, conversations: Seq[Conversation], recipe: Recipe, folder: Path, source: str,
    seed: int, show: bool,
) -> Records:  # fmt: skip
    """The records of a source."""
    parts = []
    if source not in ("target", "fixed", "mixed"):
        raise ForetokenError(f"source is {source!r}; it must be 'target', 'fixed' or 'mixed'.")
    if source in ("target", "mixed"):
        params = SamplingParams(
            temperature=recipe.temperature, max_tokens=recipe.max_tokens, seed=seed
        )
        longest = recipe.length - recipe.max_tokens
        parts.append(write(llm, conversations, folder, params, longest, show=show))
    if source in ("fixed", "mixed"):
        parts.append(fixed(llm, conversations, recipe.length))
    data = Records.joined(parts)
    if len(data) < 2:
        raise ForetokenError(
            f"There are {len(data)} texts to learn from; give at least two prompts."
        )
    return data


def plain(llm: LLM, target: str) -> CausalLM:
    """The target on a backend that gradients pass through."""
    if llm.model.backend == "plain":
        return llm.model
    return load_model(target, dtype=llm.model.dtype, device=llm.model.device, backend="plain")


def measure(
    llm: LLM, method: str, folder: Path, held: Records, recipe: Recipe, seed: int
) -> AcceptanceStats:
    """The engine's counts on the held-out prompts, at the temperature of the recipe."""
    config = {"method": method, **recipe.serving, "model": str(folder)}
    server = LLM(llm.model, tokenizer=llm.tokenizer, speculative_config=config)
    server.engine.eos_ids = llm.engine.eos_ids
    params = SamplingParams(temperature=recipe.temperature, max_tokens=recipe.max_tokens, seed=seed)
    prompts = [held.prompt(i) for i in range(len(held)) if len(held.prompt(i))]
    outputs = server.generate(prompts, params)
    for output in outputs:
        if output.error:
            raise ForetokenError(output.error)
    return server.stats


def _same_run(out: Path, about: Mapping[str, Any]) -> None:
    """Note in the folder what is made there, or refuse one where something else was begun."""
    path = out / "training.json"
    if not path.exists():
        replace(path, (json.dumps(about, indent=1) + "\n").encode())
        return
    begun = json.loads(path.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(about))
    different = [key for key in now if begun.get(key) != now[key]]
    if different:
        raise ForetokenError(
            f"Another training was begun in {out}: {different[0]} was {begun.get(different[0])!r} "
            f"and is now {now[different[0]]!r}; give another --out."
        )
