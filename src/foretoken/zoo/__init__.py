"""Small models to try things out with: a target, `mini`, its drafter `mini-draft`, and drafters
that read the target's states, such as `mini-eagle`.

They come with the distribution foretoken-zoo. The first two are ordinary Hugging Face checkpoint
folders; the model cards name what all were trained on and what they achieve. `recipes/zoo` trains
them again.
"""

from __future__ import annotations

from pathlib import Path

from foretoken.models.bundled import names, path

__all__ = ["names", "path", "prompts_path"]


def prompts_path() -> Path:
    """The bundled prompts: a JSON object a line with `id`, `task` and `turns`."""
    return Path(__file__).parent / "prompts.jsonl"
