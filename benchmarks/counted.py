"""What small models accept along the target's own answers, counted without serving them.

At temperature 0 a draft's token is accepted where it is the answer's next one. Above it an answer's
token was the accepted draft of that place with the chance min(1, q / p), as rejection sampling
keeps min(p, q) of every token (Leviathan et al. 2023, section 2.3). So one pass of the small model
over an answer tells what serving it comes to, at temperature 0 exactly but for near ties, above it
as the expectation over the draws: many answers a second, where serving writes some tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from lengths import Counts, answers, without_loops

from foretoken import LLM
from foretoken.bench.suites.suite import Prompt
from foretoken.config import create_drafter
from foretoken.drafters.small_lm import SmallLM
from foretoken.files import write_json
from foretoken.models.model import CausalLM
from foretoken.train.batches import collate
from foretoken.train.boost import EarlierDrafters
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.train.run import differentiable
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.lesson import Lesson, estimate
from foretoken.trainable.small_lm import TrainedLM
from foretoken.tree import MOST_NODES

_ROWS = 8  # answers of similar length that are read at once

Texts = dict[str, list[tuple[list[int], list[int]]]]
"""Prompt -> its ids and an answer's, for each answer."""


def written(
    model: str, asked: Sequence[Prompt], samples: Mapping[float, int], most: int, path: Path
) -> dict[str, Texts]:
    """Temperature -> the target's answers to the prompts whose greedy answer does not loop, kept in
    a file. samples: temperature -> answers to each; most: tokens of an answer."""
    if not path.exists():
        greedy = answers(model, None, 0.0, asked, max_tokens=most)
        keep = without_loops(asked, greedy)
        found = {
            str(t): greedy if t == 0 else answers(model, None, t, keep, count, most)
            for t, count in samples.items()
        }
        write_json(
            path,
            {
                t: {
                    p.id: [[out.prompt_token_ids, out.token_ids] for out in outs[p.id]]
                    for p in keep
                }
                for t, outs in found.items()
            },
        )
    kept: dict[str, Texts] = json.loads(path.read_text())
    return kept


class Along:
    """The answers as lessons, whose states of the target are computed once. drafted: tokens."""

    def __init__(self, model: str, texts: Mapping[str, Texts], most: int, drafted: int) -> None:
        with LLM(model, max_num_seqs=1, max_model_len=2048) as llm:
            target = differentiable(llm, model)
        self._facts, self._drafted = Facts.of(target), drafted
        self._lessons = {t: list(_lessons(target, float(t), own, most)) for t, own in texts.items()}

    @torch.no_grad()
    def counts(self, folders: Sequence[Path]) -> dict[str, Counts]:
        """Temperature -> tokens and passes of each prompt's answers, where these small models draft
        a chain each, in one tree."""
        models = [self._module(folder).eval() for folder in folders]
        options = {"model": models[-1], "num_speculative_tokens": self._drafted}
        drafter = create_drafter(SmallLM, "sps", options)
        assert isinstance(drafter, SmallLM)
        accepted = EarlierDrafters(models[:-1], 0.0).together(drafter)
        return {
            t: self._sums((names, lesson, accepted(models[-1], lesson)) for names, lesson in own)
            for t, own in self._lessons.items()
        }

    def _module(self, folder: Path) -> TrainedLM:
        return TrainedLM.from_shape(self._facts, {"model": str(folder)}, str(folder))

    @staticmethod
    def _sums(read: Iterator[tuple[Sequence[str], Lesson, torch.Tensor]]) -> Counts:
        counts: Counts = {}
        for names, lesson, accepted in read:
            for row, name in enumerate(names):
                one = slice(row, row + 1)
                found = estimate(lesson.max_nodes[one], accepted[one])
                sums = counts.setdefault(name, [0.0, 0.0])
                sums[0] += found.tokens
                sums[1] += found.steps
        return counts


def _lessons(
    target: CausalLM, temperature: float, texts: Texts, most: int
) -> Iterator[tuple[list[str], Lesson]]:
    """Prompts' names and their answers, several of similar length at a time."""
    frozen = FrozenTarget(target, MOST_NODES, temperature)
    named = [(name, pair) for name, pairs in texts.items() for pair in pairs]
    records = Records.of([pair for _, pair in named], most, target.vocab_size)
    sizes = np.diff(records.starts)
    order = np.argsort(sizes, kind="stable").tolist()
    for start in range(0, len(order), _ROWS):
        now = order[start : start + _ROWS]
        rows = collate(records, [[i] for i in now], int(sizes[now].max()), 0.0)
        yield [named[i][0] for i in now], frozen.lesson(rows, TrainedLM.hidden)
