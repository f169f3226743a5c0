"""Answers written with a cache."""

from __future__ import annotations

import torch

from recipe_data import random_llama


def test_cached_answers_follow_the_model() -> None:
    """Answers written with a cache are the model's first choices."""
    import sample

    net = random_llama()
    asked = [[1, 7, 8, 9], [1, 5], [1, 9, 9, 9, 9, 9, 9]]
    for prompt, (answer, best, _) in zip(asked, sample.generate(net, asked, 6), strict=True):
        assert best[:, 0].tolist() == answer
        logits = net.logits(torch.tensor([prompt + answer]))[0, len(prompt) - 1 : -1]
        said = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        assert (logits.amax(-1) - said).max() < 0.15  # the first choice, but for bfloat16
