"""Medusa-2: target and heads trained together, which makes a new target.

Source: Cai et al. 2024 (Medusa), sections 2.2.2 and 2.3.2. The loss is the new target's distance
from the old one's distribution at each place (self-distillation) and 0.2 times that of the heads,
the first of which weighs `decay`, the second its square; their learning rate is four times the
target's. The paper's first stage, heads alone, is `foretoken train medusa`, whose checkpoint this
may begin with. The paper has low-rank adapters of the target's layers, which `lora_rank` asks for;
without it all of the target's weights are trained. Departure: the target's head has no adapter, as
it may be its embedding too.

Legend: B rows, T places, D width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from foretoken.drafters.medusa import Medusa, MedusaHeads
from foretoken.engine.stats import AcceptanceStats
from foretoken.errors import ForetokenError
from foretoken.files import write_file
from foretoken.llm import LLM
from foretoken.train.card import licence_lines, loops, noted, recipe_lines, table
from foretoken.train.frozen import FrozenTarget
from foretoken.train.job import Job, Outcome, Setting
from foretoken.train.loop import Acceptance, lessons
from foretoken.train.measure import measure
from foretoken.train.recipe import Recipe
from foretoken.train.sources import TARGET
from foretoken.trainable import formats
from foretoken.trainable.adapted_lm import AdaptedLM
from foretoken.trainable.checkpoint import Facts, Trained, VocabularyLayers, read_config
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective, kl_div
from foretoken.trainable.small_lm import TrainedLM, native_config
from foretoken.trees.plan import PAPER

METHOD = "medusa2"
_TARGET, _HEADS = "target", "heads"
_SELF_DISTILLATION = Objective({"kl_div": 1.0})


class JointModule(Trained):
    """The target and its heads as one module. model: the target to begin with; heads: a checkpoint
    of Medusa's to begin with, else new ones of shape `rest`; weight: of the heads' loss; faster:
    the heads' learning rate ÷ the target's; lora_rank, lora_alpha: of the target's adapters, None
    where all of its weights are trained."""

    method: ClassVar[str] = METHOD
    by_reach = True

    def __init__(
        self,
        facts: Facts,
        model: str,
        heads: str | None = None,
        weight: float = 0.2,
        faster: float = 4.0,
        lora_rank: int | None = None,
        lora_alpha: float = 16.0,
        **rest: Any,
    ) -> None:
        super().__init__(
            facts,
            model=model,
            heads=heads,
            weight=weight,
            faster=faster,
            lora_rank=lora_rank,
            lora_alpha=lora_alpha,
            **rest,
        )
        self.target = (
            TrainedLM(facts, model=model)
            if lora_rank is None
            else AdaptedLM(facts, model, lora_rank, lora_alpha)
        )
        self.heads = _heads_of(heads, facts) if heads else MedusaHeads(facts, **rest)

    def parameter_groups(self) -> list[dict[str, Any]]:
        faster = self.shape["faster"]
        return [
            {"params": [p for p in self.target.parameters() if p.requires_grad], "factor": 1.0},
            {"params": list(self.heads.parameters()), "factor": faster},
        ]

    def of_vocabulary(self) -> list[Tensor]:
        return [*self.target.of_vocabulary(), *self.heads.of_vocabulary()]

    def copy_from(self, target: VocabularyLayers) -> None:
        if self.shape["heads"] is None:
            self.heads.copy_from(target)

    def reread(self, lesson: Lesson) -> Lesson:
        """The lesson as the new target reads it."""
        states, head = self.target.states(lesson), self.target.lm.get_output_embeddings()
        trained = tuple(weight for weight in head.parameters() if weight.requires_grad)
        return dataclasses.replace(
            lesson, hidden={-1: states}, head=self.target.head, head_parameters=trained
        )

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        new = self.reread(lesson)
        distillation = self.target.loss(new.hidden[-1], lesson, _SELF_DISTILLATION)
        # The paper counts heads from 1, and the heads' own loss from 0.
        weight = self.shape["weight"] * objective.decay
        loss: Tensor = distillation + weight * self.heads(new, objective)
        return loss

    def count_held_out(self, lesson: Lesson) -> Tensor:
        return self.heads.count_held_out(self.reread(lesson))

    def note_counts(self, counts: Tensor) -> None:
        self.heads.note_counts(counts)

    def save(self, folder: Path, extra: Mapping[str, Any]) -> None:
        self.target.save(folder / _TARGET, extra)
        self.heads.save(folder / _HEADS, extra)

    def read_weights(self, folder: Path) -> None:
        self.target.read_weights(folder / _TARGET)
        self.heads.read_weights(folder / _HEADS)

    def save_tokenizer(self, folder: Path, tokenizer: Any) -> None:
        self.target.save_tokenizer(folder / _TARGET, tokenizer)

    def distance(self, lesson: Lesson) -> Tensor:
        """[3] over the places that count: the summed KL divergence of the new distribution from the
        old, how often both have the same likeliest token, and how many places."""
        row, token = ((lesson.weight > 0) & (lesson.positions > 0)).nonzero(as_tuple=True)
        old = lesson.hidden[-1][row, token - 1]
        new = self.target.states(lesson)[row, token - 1]
        total = torch.zeros(3, dtype=torch.float64)
        for at in range(0, len(row), 256):
            after, before = self.target.head(new[at : at + 256]), lesson.head(old[at : at + 256])
            same = after.argmax(-1) == before.argmax(-1)
            total += torch.tensor([kl_div(after, before).sum(), same.sum(), len(same)])
        return total


class JointTraining:
    """A `Subject`: the target and Medusa's heads. `out`/target is a new target, `out`/heads its
    heads; estimates are made on the old target's answers, serving is measured with the new one."""

    folders: ClassVar[tuple[str, ...]] = (_TARGET, _HEADS)
    weigh = None

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.identity: dict[str, Any] = {}
        self.extra = {"recipe": asdict(setting.job.recipe)}

    @classmethod
    def check(cls, job: Job) -> None:
        if job.source != TARGET:
            raise ForetokenError(
                f"{METHOD} learns from what the target writes, not from {job.source!r}."
            )
        if job.after:
            raise ForetokenError(
                "Only small models learn after others; use method 'sps' with after."
            )
        if job.shard_target:
            raise not_shared_out()
        JointModule.check_objective(job.recipe.goal)
        native_config(job.target)  # before hours of answers

    def new_module(self) -> Trained:
        job = self._setting.job
        shape = shape_for(job.target, job.recipe)
        return JointModule.from_shape(self._setting.facts, shape, "the recipe")

    def acceptance(self, module: Trained) -> Acceptance:
        drafter = Medusa(_joint(module).heads, **self._setting.job.recipe.serving)

        def of_heads(joint: Trained, lesson: Lesson) -> Tensor:
            module = _joint(joint)
            return drafter.acceptance(module.heads, module.reread(lesson))

        return of_heads

    def serve(self, module: Trained) -> AcceptanceStats:
        job = self._setting.job
        target = LLM(job.out / _TARGET, dtype=job.dtype, device=job.device).model
        heads = str(job.out / _HEADS)
        config = {"method": "medusa", "tree": PAPER, **job.recipe.serving, "model": heads}
        return measure(self._setting, target, config)

    def write_card(self, module: Trained, frozen: FrozenTarget, outcome: Outcome) -> None:
        setting, joint = self._setting, _joint(module)
        joint.eval()  # without dropout
        held_out = lessons(frozen, setting.held_out, joint, setting.job.recipe.rows)
        with torch.no_grad():
            distance = torch.stack([joint.distance(lesson) for lesson in held_out]).sum(0)
        _write_card(setting, outcome, *distance.tolist())


def not_shared_out() -> ForetokenError:
    """For a target that is to be shared out by itself."""
    return ForetokenError(
        f"{METHOD} trains the target itself, which shard shares out with its heads; leave "
        "shard_target out."
    )


def shape_for(target: str, recipe: Recipe) -> dict[str, Any]:
    """The shape of a new module that begins as this target."""
    return {"model": target, **recipe.shape}


def _joint(module: Trained) -> JointModule:
    assert isinstance(module, JointModule)
    return module


def _heads_of(source: str, facts: Facts) -> MedusaHeads:
    """Medusa's heads of a checkpoint, ours or FasterDecoding's."""
    folder = formats.find(source)
    config = read_config(folder)
    if config["foretoken_method"] != MedusaHeads.method:
        raise ForetokenError(
            f"{source} is a checkpoint of method {config['foretoken_method']!r}, and {METHOD} "
            f"begins with heads of {MedusaHeads.method!r}."
        )
    facts.updated(config["target"]).check(facts, source)
    heads = MedusaHeads.from_shape(facts, config["shape"], source)
    if "published" in config:
        heads.load_state_dict(config["published"].tensors())
    else:
        heads.read_weights(folder)
    return heads


def _write_card(
    setting: Setting, outcome: Outcome, divergence: float, same: float, places: float
) -> None:
    """Write the folder's README.md, which tells how far the new target is from the old one.
    divergence, same, places: as `JointModule.distance` counts them."""
    job, texts = setting.job, len(setting.records[TARGET])
    out, target = job.out, job.target
    lines = [
        f"# {target} and Medusa's heads, trained together",
        "",
        f"`{_TARGET}` is a new target: it does not write what `{target}` writes. Along "
        f"{places:.0f} held-out tokens of `{target}` its distribution is "
        f"{divergence / places:.4f} nats (KL divergence) from the old one, and its likeliest token "
        f"is the same at {100 * same / places:.1f} % of them. "
        "Drafting with the heads changes nothing of what the new target writes.",
        "",
        f'    LLM("{job.name}/{_TARGET}", speculative_config={{"method": "medusa", '
        f'"model": "{job.name}/{_HEADS}"}})',
        "",
        f"Text: {texts} answers of `{target}`. It was trained for {outcome.progress.step} steps by "
        f"`foretoken train {METHOD}`. {noted(setting.model.device)}",
        "",
        *table(outcome.expected, outcome.served),
        "",
        "The estimate comes from one pass over held-out answers of the old target; what was served "
        "is the engine's own count on the same prompts, whose answers are the new one's. "
        + loops(job.recipe),
        "",
        *licence_lines(target),
        "",
        "## Recipe",
        "",
        *recipe_lines(job.recipe),
        "",
    ]
    write_file(out / "README.md", "\n".join(lines))
