"""Small models that come with foretoken: a target, `mini`, its drafter `mini-draft`, and drafters
that read the target's states, such as `mini-eagle`.

The first two are ordinary Hugging Face checkpoint folders; the model cards say what all were
trained on and how well they do. `recipes/zoo` trains them again.
"""

from __future__ import annotations

from pathlib import Path

from foretoken.errors import unknown

__all__ = ["names", "path", "prompts_path"]

_MODELS = Path(__file__).parent / "models"


def names() -> list[str]:
    """The bundled models, by name."""
    return sorted(p.parent.name for p in _MODELS.glob("*/config.json"))


def path(name: str) -> Path:
    """Folder of the bundled model `name`."""
    if name not in names():
        raise unknown("bundled model", name, names())
    return _MODELS / name


def prompts_path() -> Path:
    """The bundled prompts: a JSON object a line with `id`, `task` and `turns`."""
    return Path(__file__).parent / "prompts.jsonl"
