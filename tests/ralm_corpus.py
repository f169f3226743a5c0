"""A corpus of random letters, as tiny models write them, and vectors of texts."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq

import numpy as np

LETTERS = [chr(code) for code in range(32, 127)]

_chosen = random.Random(0)
CORPUS = ["".join(_chosen.choices(LETTERS, k=_chosen.randint(20, 30))) for _ in range(40)]
"""Of 20 to 30 letters, so that with another document the output stands at other positions."""


def embed(texts: Seq[str]) -> np.ndarray:
    """Each text's counts of letters, centred: vectors [texts, 95]."""
    counts = np.array([[text.count(letter) for letter in LETTERS] for text in texts], float)
    return counts - counts.mean(1, keepdims=True)
