"""The licence parts of every bundled model's card: a header, and the sources of its text."""

from __future__ import annotations

from pathlib import Path

ATTRIBUTION = Path(__file__).parents[2] / "zoo" / "ATTRIBUTION.md"
HEADER = """---
language: [en, de]
license: cc-by-sa-4.0
library_name: {library}
pipeline_tag: text-generation
---

"""
_LICENCE = """## Licence

This model is under [CC BY-SA 4.0](https://creativecommons.org/licenses/by-sa/4.0/), the licence of
several of the texts below.
{text}

"""
TRAINED = "It was trained on these texts."
DRAFTERS = {
    "mini": "It was trained on answers of `mini` to prompts from these texts; `mini` learned from "
    "them all.",
    "smollm2": "It was trained on answers of SmolLM2-135M-Instruct (Apache-2.0; its GGUF file in "
    "Q4_1, dequantised) to prompts from these texts.",
}
"""What a drafter learned from, by its target."""


def licence(text: str) -> str:
    """The section on licence and training data that ends a card; `text` says how it was used."""
    return _LICENCE.format(text=text) + ATTRIBUTION.read_text(encoding="utf-8").strip() + "\n"
