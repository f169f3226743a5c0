"""Writes answers with a trained model, many prompts at a time, with a key/value cache.

Rows are padded on the left; rows that have ended are dropped when a quarter of the batch has.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from model import Llama, Past, mixed, precision
from tokenizer import EOS_ID
from torch import Tensor

BEST = 16  # likeliest tokens kept at each place
Answer = tuple[list[int], Tensor, Tensor]
"""Tokens; the model's likeliest tokens instead of each, and their probabilities [tokens, K]."""


class Batch:
    """The rows still being written; B rows, S cache places."""

    def __init__(self, model: Llama, prompts: list[list[int]], limit: int) -> None:
        c, longest, b = model.config, max(map(len, prompts)), len(prompts)
        self.model, size = model, longest + limit
        self.ids = torch.zeros(b, longest, dtype=torch.long)
        self.seen = torch.zeros(b, size, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            self.ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            self.seen[row, longest - len(prompt) :] = True
        padding = torch.tensor([[longest - len(p)] for p in prompts])
        self.position = torch.arange(longest) - padding
        empty = torch.zeros(b, c.kv_heads, size, c.head_dim, dtype=precision("cpu"))
        nothing = torch.zeros(0)
        self.past = [Past(empty.clone(), empty.clone(), 0, nothing) for _ in range(c.layers)]

    def forward(self) -> Tensor:
        """Logits [B, V] after the last token of each row."""
        t, filled = self.ids.shape[1], self.past[0].filled
        mask = self.seen[:, None, None, : filled + t]
        if t > 1:
            # Padding sees itself: with nothing to see it would be 0 / 0 and poison the cache.
            own = torch.eye(t, dtype=torch.bool)
            mask = (mask & torch.ones(t, t, dtype=torch.bool).tril()) | own
        x = self.model.embed_tokens(self.ids).to(precision("cpu"))
        at = self.position.clamp(min=0)
        cos, sin = (table[at][:, None].to(x.dtype) for table in (self.model.cos, self.model.sin))
        for block, past in zip(self.model.layers, self.past, strict=True):
            past.mask = mask
            x = block(x, cos, sin, past)
        return F.linear(self.model.norm(x[:, -1]), self.model.embed_tokens.weight).float()

    def feed(self, tokens: Tensor) -> None:
        self.ids, self.position = tokens[:, None], self.position[:, -1:] + 1

    def keep(self, rows: Tensor) -> None:
        self.ids, self.position, self.seen = self.ids[rows], self.position[rows], self.seen[rows]
        for past in self.past:
            past.keys, past.values = past.keys[rows], past.values[rows]


@torch.inference_mode()
def generate(
    model: Llama,
    prompts: list[list[int]],
    limit: int,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
) -> list[Answer]:
    """One answer a prompt, without the prompt; end-of-text ends it unless `limit` did."""
    answers: list[list[int]] = [[] for _ in prompts]
    best = torch.zeros(len(prompts), limit, BEST, dtype=torch.int16)
    chance = torch.zeros(len(prompts), limit, BEST, dtype=torch.float16)
    live = torch.arange(len(prompts))
    batch = Batch(model, prompts, limit)
    with mixed("cpu"):
        for place in range(limit):
            logits = batch.forward()
            top = logits.softmax(-1).topk(BEST)
            best[live, place], chance[live, place] = top.indices.to(best.dtype), top.values.half()
            if temperature > 0:
                chances = (logits / temperature).softmax(-1)
                tokens = torch.multinomial(chances, 1, generator=generator).squeeze(1)
            else:
                tokens = logits.argmax(-1)
            for i, token in zip(live.tolist(), tokens.tolist(), strict=True):
                if not answers[i] or answers[i][-1] != EOS_ID:
                    answers[i].append(token)
            batch.feed(tokens)
            ended = torch.tensor([answers[i][-1] == EOS_ID for i in live.tolist()])
            if ended.all():
                break
            if ended.float().mean() > 0.25:
                live = live[~ended]
                batch.keep(~ended)
    return [(a, best[i, : len(a)], chance[i, : len(a)]) for i, a in enumerate(answers)]


def in_batches(
    model: Llama,
    prompts: list[list[int]],
    limit: int,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
    room: int = 24_000,
) -> Iterator[tuple[int, list[int], Tensor, Tensor]]:
    """(index, answer, best, chance); prompts of like length go together, `room` tokens at most."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    while order:
        rows = order[:1]
        while len(rows) < min(96, len(order)) and len(prompts[order[len(rows)]]) * len(rows) < room:
            rows.append(order[len(rows)])
        order = order[len(rows) :]
        answers = generate(model, [prompts[i] for i in rows], limit, temperature, generator)
        yield from ((i, *answer) for i, answer in zip(rows, answers, strict=True))
