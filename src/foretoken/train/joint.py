"""Medusa-2: target and heads trained together, which makes a new target.

Source: Cai et al. 2024 (Medusa), sections 2.2.2 and 2.3.2. The loss is the new target's distance
from the old one's distribution at each place (self-distillation) and 0.2 times that of the heads,
whose learning rate is four times the target's; the paper's first stage, heads alone, is `foretoken
train medusa`, whose checkpoint this may begin with. Departure: all of the target's weights are
trained, where the paper has adapters.

Legend: B rows, T places, D width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from foretoken.drafters.medusa import Medusa, MedusaHeads
from foretoken.errors import ForetokenError
from foretoken.files import write_file
from foretoken.llm import LLM
from foretoken.models.load import find
from foretoken.train.card import recipe_lines, table
from foretoken.train.data import Conversation, sha_of
from foretoken.train.frozen import Frozen
from foretoken.train.loop import Progress, evaluate, lessons, tally, train
from foretoken.train.recipe import Recipe
from foretoken.train.run import Trial, measure, plain, same_run
from foretoken.train.sources import TARGET, texts
from foretoken.trainable.checkpoint import Facts, Trained, VocabularyLayers, read_config
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective, kl_div
from foretoken.trainable.small_lm import TrainedLM

METHOD = "medusa2"
_LM, _HEADS = "target", "heads"
_ITSELF = Objective({"kl_div": 1.0})


class Joint(Trained):
    """model: the target to begin with; heads: a checkpoint of Medusa's to begin with, else new ones
    of shape `rest`; weight: of the heads' loss; faster: their learning rate over the target's."""

    method: ClassVar[str] = METHOD

    def __init__(
        self,
        facts: Facts,
        model: str,
        heads: str | None = None,
        weight: float = 0.2,
        faster: float = 4.0,
        **rest: Any,
    ) -> None:
        super().__init__(facts, model=model, heads=heads, weight=weight, faster=faster, **rest)
        self.target = TrainedLM(facts, model=model)
        self.heads = _begun(heads, facts) if heads else MedusaHeads(facts, **rest)

    def parameter_groups(self) -> list[dict[str, Any]]:
        faster = self.shape["faster"]
        return [
            {"params": list(self.target.parameters()), "factor": 1.0},
            {"params": list(self.heads.parameters()), "factor": faster},
        ]

    def copy_from(self, target: VocabularyLayers) -> None:
        if self.shape["heads"] is None:
            self.heads.copy_from(target)

    def seen(self, lesson: Lesson) -> Lesson:
        """The lesson as the new target reads it."""
        states = self.target.states(lesson)
        return dataclasses.replace(lesson, hidden={-1: states}, head=self.target.head)

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        new = self.seen(lesson)
        own = self.target.loss(new.hidden[-1], lesson, _ITSELF)
        loss: Tensor = own + self.shape["weight"] * self.heads(new, objective)
        return loss

    def count_held_out(self, lesson: Lesson) -> Tensor:
        return self.heads.count_held_out(self.seen(lesson))

    def note_counts(self, counts: Tensor) -> None:
        self.heads.note_counts(counts)

    def save(self, folder: Path, extra: Mapping[str, Any]) -> None:
        self.target.save(folder / _LM, extra)
        self.heads.save(folder / _HEADS, extra)

    def read_weights(self, folder: Path) -> None:
        self.target.read_weights(folder / _LM)
        self.heads.read_weights(folder / _HEADS)

    def save_tokenizer(self, folder: Path, tokenizer: Any) -> None:
        self.target.save_tokenizer(folder / _LM, tokenizer)

    def moved(self, lesson: Lesson) -> Tensor:
        """[3] over the places that count: the summed KL divergence of the new distribution from the
        old, how often both have the same likeliest token, and how many places."""
        row, token = ((lesson.weight > 0) & (lesson.positions > 0)).nonzero(as_tuple=True)
        old = lesson.hidden[-1][row, token - 1]
        new = self.target.states(lesson)[row, token - 1]
        total = torch.zeros(3, dtype=torch.float64)
        for at in range(0, len(row), 256):
            said, known = self.target.head(new[at : at + 256]), lesson.head(old[at : at + 256])
            same = said.argmax(-1) == known.argmax(-1)
            total += torch.tensor([kl_div(said, known).sum(), same.sum(), len(same)])
        return total


def make(
    target: str,
    conversations: Seq[Conversation],
    recipe: Recipe,
    out: Path,
    *,
    source: str = TARGET,
    seed: int = 0,
    every: float = 60.0,
    show: bool = True,
    say: Callable[[Progress], None] = lambda progress: None,
    dtype: str = "auto",
    device: str = "auto",
) -> Trial:
    """Leave a new target in `out`/target, its heads in `out`/heads, and a card.

    The answers are the old target's; the estimate follows them, what is served follows the new one.
    """
    if source != TARGET:
        raise ForetokenError(f"{METHOD} learns from what the target writes, not from {source!r}.")
    llm = LLM(target, dtype=dtype, device=device)
    data = texts(llm, conversations, recipe, out / "data", TARGET, seed, show)[TARGET]
    learned, held = data.split(recipe.held)
    model = plain(llm, target)
    frozen, facts = Frozen(model, llm.engine.target.nodes, recipe.temperature), Facts.of(model)
    recipe_ = asdict(recipe)
    same_run(
        out,
        {"method": METHOD, "target": asdict(facts), "texts": sha_of(data), "seed": seed, **recipe_},
    )
    torch.manual_seed(seed)
    module = Joint.from_shape(facts, {"model": target, **recipe.shape}, "the recipe")
    module = module.to(model.device, frozen.dtype)
    module.copy_from(frozen)
    drafter = Medusa(module.heads, **recipe.serving)
    about = {"recipe": recipe_}

    def acceptance(joint: Any, lesson: Lesson) -> Tensor:
        found: Tensor = drafter.acceptance(joint.heads, joint.seen(lesson))
        return found

    progress = train(
        module,
        frozen,
        lambda step: [learned],
        held,
        recipe,
        acceptance,
        out,
        seed=seed,
        every=every,
        extra=about,
        say=say,
    )
    module.read_weights(out)
    tally(module, frozen, held, recipe.rows)
    module.save(out, about)
    module.save_tokenizer(out, llm.tokenizer)
    expected = evaluate(module, frozen, held, acceptance, recipe.rows)
    new = LLM(out / _LM, dtype=dtype, device=device)
    new.engine.eos_ids = llm.engine.eos_ids
    config = {"method": "medusa", **recipe.serving, "model": str(out / _HEADS)}
    trial = Trial(progress, expected, measure(new, config, held, recipe, seed))
    with torch.no_grad():
        moved = torch.stack([module.moved(x) for x in lessons(frozen, held, module, recipe.rows)])
    _write_card(out, target, len(learned), recipe, trial, moved.sum(0).tolist())
    return trial


def _begun(source: str, facts: Facts) -> MedusaHeads:
    """Medusa's heads of a checkpoint, as they begin."""
    folder = find(source)
    config = read_config(folder)
    Facts(**config["target"]).check(facts, source)
    heads = MedusaHeads.from_shape(facts, config["shape"], source)
    heads.read_weights(folder)
    return heads


def _write_card(
    out: Path, target: str, texts: int, recipe: Recipe, trial: Trial, moved: list[float]
) -> None:
    """README.md of the folder, which says that the target is another one."""
    far, same, places = moved
    lines = [
        f"# {target} and Medusa's heads, trained together",
        "",
        f"`{_LM}` is a new target: it does not write what `{target}` writes. Along {places:.0f} "
        f"held-out tokens of `{target}` its distribution is {far / places:.4f} nats (KL "
        "divergence) from the old one, and its likeliest token is the same at "
        f"{100 * same / places:.1f} % of them. "
        "Drafting with the heads changes nothing of what the new target writes.",
        "",
        f'    LLM("{out.name}/{_LM}", speculative_config={{"method": "medusa", '
        f'"model": "{out.name}/{_HEADS}"}})',
        "",
        f"Text: {texts} answers of `{target}`. It was trained for {trial.progress.step} steps by "
        f"`foretoken train {METHOD}`.",
        "",
        *table(trial.expected, trial.served),
        "",
        "The estimate comes from one pass over held-out answers of the old target; what was served "
        "is the engine's own count on the same prompts, whose answers are the new one's.",
        "",
        "## Recipe",
        "",
        *recipe_lines(recipe),
        "",
    ]
    write_file(out / "README.md", "\n".join(lines))
