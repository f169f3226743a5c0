"""What tests of training share: a few prompts, a small recipe, and a training with them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from foretoken.spellings import Conversation
from foretoken.train.job import Job, Outcome
from foretoken.train.recipe import read_recipe
from foretoken.train.run import make

WORDS = ["the sea", "a house", "one night", "red wine", "cold bread", "my friend", "so long"]
PROMPTS = [Conversation(({"role": "user", "content": word},), raw=True) for word in WORDS]
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 4096,
}
SMALL: dict[str, Any] = {
    "length": 64,
    "max_tokens": 24,
    "held": 2,
    "rows": 2,
    "steps": 10,
    "evaluate_every": 5,
    "patience": 9,
    "distinct": 0.0,
    "lr": 3e-3,
    "shape": SHAPE,
}


def small_lm_job(
    target: Path,
    out: Path,
    source: str = "target",
    prompts: Seq[Conversation] = PROMPTS,
    **changes: Any,
) -> Job:
    """A job for a small model."""
    recipe = read_recipe("sps", {**SMALL, **changes})
    return Job("sps", str(target), prompts, recipe, out, source=source, show=False)


def train_small_lm(
    target: Path, out: Path, source: str = "target", after: Any = (), **changes: Any
) -> tuple[Outcome, list[float]]:
    """The outcome of a small model's training, and the loss of each step."""
    losses: list[float] = []
    outcome = make(
        Job(
            "sps",
            str(target),
            PROMPTS,
            read_recipe("sps", {**SMALL, **changes}),
            out,
            source=source,
            after=after,
            show=False,
            report=lambda now: losses.append(now.loss),
        )
    )
    return outcome, losses


def tuned(target: Path, out: Path) -> Path:
    """A copy of a target of which one matrix in the middle has other numbers."""
    shutil.copytree(target, out)
    weights = load_file(out / "model.safetensors")
    name = next(name for name in sorted(weights) if "mlp.up_proj" in name)
    weights[name] = 1.5 * weights[name]
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    return out
