"""From a method's name, a target and prompts to a checkpoint with its card."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from foretoken.config import create_drafter
from foretoken.engine.stats import AcceptanceStats
from foretoken.errors import ForetokenError
from foretoken.files import read_json, write_file
from foretoken.llm import LLM
from foretoken.methods import METHODS
from foretoken.models.load import load_model
from foretoken.models.model import CausalLM
from foretoken.registry import drafter_class, drafter_names
from foretoken.train.boost import Former
from foretoken.train.card import write_card
from foretoken.train.data import Conversation, sha_of
from foretoken.train.frozen import Frozen
from foretoken.train.loop import Progress, evaluate, tally, train
from foretoken.train.recipe import Recipe
from foretoken.train.records import Records
from foretoken.train.sources import FIXED, answered, params, steps, texts
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.lesson import Estimate
from foretoken.trainable.protocol import Trainable
from foretoken.trainable.small_lm import TrainedLM


@dataclass(frozen=True)
class Trial:
    """What a finished training has to show."""

    progress: Progress
    expected: Estimate
    served: AcceptanceStats


def make(
    method: str,
    target: str,
    conversations: Seq[Conversation],
    recipe: Recipe,
    out: Path,
    *,
    source: str = "target",
    after: Seq[Path | str] = (),
    seed: int = 0,
    every: float = 60.0,
    show: bool = True,
    say: Callable[[Progress], None] = lambda progress: None,
    dtype: str = "auto",
    device: str = "auto",
) -> Trial:
    """Write the texts, train, measure, and leave checkpoint and card in `out`.

    source: "target" (what it writes to the prompts), "fixed" (the file's own texts), "drafter"
    (what a small model writes itself while it learns), or several with "+" between them. after:
    checkpoints of drafters that this one is to stand beside: it learns what they miss. Raises
    `ForetokenError` for what can't be trained so.
    """
    cls = trainable(method)
    llm = LLM(target, dtype=dtype, device=device)
    found = texts(llm, conversations, recipe, out / "data", source, seed, show)
    main = next(iter(found))
    told = sha_of(Records.joined(list(found.values())))
    found[main], held = found[main].split(recipe.held)
    found = {name: part if name == main else part.apart(held) for name, part in found.items()}
    if main == FIXED:
        held = answered(llm, held, recipe, seed)
    model = plain(llm, target)
    facts = Facts.of(model)
    recipe_ = asdict(recipe)
    same_run(
        out,
        {
            "method": method,
            "target": asdict(facts),
            "texts": told,
            "source": source,
            "after": [str(folder) for folder in after],
            "seed": seed,
            **recipe_,
        },
    )
    about = {"target_name": target, "recipe": recipe_}
    former = _former(cls, facts, after, model, recipe) if after else None
    nodes, weigh = llm.engine.target.nodes, former.weigh if former else None
    frozen = Frozen(model, nodes, recipe.temperature, weigh)
    module = _module(cls, facts, recipe, frozen, found[main], seed)
    options = dict(METHODS[method].options) if method in METHODS else {}
    drafter: Any = create_drafter(cls, method, {**options, **recipe.serving, "model": module})
    acceptance = former.together(drafter) if former else drafter.acceptance
    learned = steps(found, source, module, llm, recipe, out / "own", seed)
    progress = train(
        module,
        frozen,
        learned,
        held,
        recipe,
        acceptance,
        out,
        seed=seed,
        every=every,
        extra=about,
        say=say,
    )
    module.read_weights(out)  # the best, which may not be the last
    tally(module, frozen, held, recipe.rows)
    module.save(out, about)
    module.save_tokenizer(out, llm.tokenizer)
    expected = evaluate(module, frozen, held, acceptance, recipe.rows)
    config = {"method": method, **recipe.serving, "model": str(out)}
    if former:
        config = merged([*after, out], drafter.num_speculative_tokens)
    trial = Trial(progress, expected, measure(llm, config, held, recipe, seed))
    text = f"{sum(map(len, found.values()))} records ({source}), {len(held)} held out"
    write_card(out, module, target, text, recipe, progress, expected, trial.served)
    return trial


def _module(
    cls: type[Any], facts: Facts, recipe: Recipe, frozen: Frozen, learned: Records, seed: int
) -> Any:
    """What is to be trained, as it begins."""
    torch.manual_seed(seed)
    made = cls.module.from_shape(facts, recipe.shape, "the recipe")
    module = made.to(frozen.model.device, frozen.dtype)
    module.set_token_counts(learned.counts(facts.vocab_size))
    module.copy_from(frozen)
    return module


def trainable(method: str) -> type[Any]:
    """The drafter's class. Raises `ForetokenError` for a method that has nothing to train."""
    row = METHODS.get(method)
    name = row.drafter if row else method
    cls = drafter_class(name) if name in drafter_names() else None
    if not isinstance(cls, Trainable):
        able = [n for n in drafter_names() if isinstance(drafter_class(n), Trainable)]
        raise ForetokenError(
            f"There is nothing to train for method {method!r}; choose one of: {', '.join(able)}."
        )
    return cls


def merged(folders: Seq[Path | str], depth: int) -> dict[str, Any]:
    """How several drafters are served: a chain of each, in one tree."""
    models = [str(folder) for folder in folders]
    return {"method": "specinfer", "models": models, "widths": (1,) * depth, "replacement": True}


def _former(
    cls: type[Any], facts: Facts, after: Seq[Path | str], model: CausalLM, recipe: Recipe
) -> Former:
    if not issubclass(cls.module, TrainedLM):
        raise ForetokenError("Only small models learn after others; use method 'sps' with after.")
    found = [TrainedLM.from_shape(facts, {"model": str(folder)}, str(folder)) for folder in after]
    return Former([each.to(model.device) for each in found], recipe.known)


def plain(llm: LLM, target: str) -> CausalLM:
    """The target on a backend that gradients pass through."""
    if llm.model.backend == "plain":
        return llm.model
    return load_model(target, dtype=llm.model.dtype, device=llm.model.device, backend="plain")


def measure(
    llm: LLM, config: Mapping[str, Any], held: Records, recipe: Recipe, seed: int
) -> AcceptanceStats:
    """The engine's counts on the held-out prompts, at the temperature of the recipe."""
    server = LLM(llm.model, tokenizer=llm.tokenizer, speculative_config=config)
    server.engine.eos_ids = llm.engine.eos_ids
    prompts = [held.prompt(i) for i in range(len(held)) if len(held.prompt(i))]
    outputs = server.generate(prompts, params(recipe, seed))
    for output in outputs:
        if output.error:
            raise ForetokenError(output.error)
    return server.stats


def same_run(out: Path, about: Mapping[str, Any]) -> None:
    """Note in the folder what is made there, or refuse one where something else was begun."""
    path = out / "training.json"
    out.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_file(path, json.dumps(about, indent=1) + "\n")
        return
    begun = read_json(path, "a training's settings")
    now = json.loads(json.dumps(about))
    different = [key for key in now if begun.get(key) != now[key]]
    if different:
        raise ForetokenError(
            f"Another training was begun in {out}: {different[0]} was {begun.get(different[0])!r} "
            f"and is now {now[different[0]]!r}; give another --out."
        )
