"""Steps of the loop with a grammar and without one, on the same drafts.

Both follow a record that is known: each step drafts a tree of 16 nodes (twelve tokens of the record
and four beside them), and accepts the twelve, whatever the model would have written. So both score
the same tokens at the same places, and the grammar's share is all that differs.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar

import torch

from foretoken import LLM, SamplingParams
from foretoken.draws import Draws
from foretoken.grammar.compiling import found_backend
from foretoken.grammar.constraint import CompiledGrammar
from foretoken.grammar.params import StructuredOutputsParams
from foretoken.models.target import ModelTarget
from foretoken.progress import track
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.sampling.sequence import Sequence
from foretoken.step import prefill, step
from foretoken.testing import Scripted
from foretoken.tree import DraftTree, Kind
from foretoken.verify.target_only import TargetOnly

MAIN, BESIDE = 12, (1, 4, 7, 10)
NODES = MAIN + len(BESIDE)
KINDS = ("free", "grammar")


@dataclass(frozen=True)
class Following(Verifier):
    """Decides as plain decoding does, and accepts `tokens` instead, the last one as the bonus."""

    tokens: Seq[int]

    exact: ClassVar[bool] = False
    trees: ClassVar[bool] = True
    sampling: ClassVar[bool] = True
    source: ClassVar[str] = "none"
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.CHOSEN})

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        TargetOnly()(trees, scores, draws)
        nodes = [*zip(trees.tokens[0].tolist(), trees.parent_slots[0].tolist(), strict=True)]
        path = [0]
        for token in self.tokens[:-1]:
            path.append(nodes.index((token, path[-1])) + 1)
        last = torch.tensor([self.tokens[-1]])
        return Verdict(torch.tensor([path[1:]]), torch.tensor([len(path) - 1]), last)


def drafted(ids: Seq[int], at: int) -> list[list[int]]:
    """The paths of the tree after `at` tokens of the record."""
    main = list(ids[at : at + MAIN])
    other = [next(t for t in ids if t != main[depth]) for depth in BESIDE]
    return [main, *([*main[:d], token] for d, token in zip(BESIDE, other, strict=True))]


@torch.inference_mode()
def tree_steps(llm: LLM, schema: Any, record: Any, rounds: int) -> dict[str, Any]:
    """Milliseconds of a step of each kind, the median of each round; their ratio, and the median of
    the ratios."""
    ids = llm.tokenizer(json.dumps(record, separators=(",", ":")), add_special_tokens=False)
    ids = ids["input_ids"]
    backend = found_backend("auto")(llm.tokenizer, llm.model.vocab_size, llm.engine.eos_ids)
    start = backend.compile(StructuredOutputsParams(json=schema))
    grammar = CompiledGrammar("the record", llm.model.vocab_size, start)
    prompt = llm.tokenizer("Write the records as JSON.")["input_ids"]
    target = ModelTarget(llm.model, len(KINDS), len(prompt) + len(ids) + NODES + 1, NODES)
    drafter = Scripted(lambda s, n: drafted(ids, len(s.output)))
    target.bind(drafter)
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with track("Steps", rounds, True) as advance:
        for number in range(rounds + 1):
            spent = _round(target, drafter, prompt, ids, grammar, llm.engine.eos_ids)
            for kind in KINDS if number else ():  # the first is a warm-up
                found[kind].append(statistics.median(spent[kind]))
            advance()
    ratios = [a / b for a, b in zip(found["grammar"], found["free"], strict=True)]
    return {
        "nodes": NODES,
        "steps": len(spent["free"]),
        "free_ms": found["free"],
        "grammar_ms": found["grammar"],
        "ratios": ratios,
        "ratio": statistics.median(ratios),
    }


def _round(
    target: ModelTarget, drafter: Scripted, prompt: Any, ids: Any, grammar: Any, ends: Any
) -> dict[str, list[float]]:
    """The record once by each kind, step by step in turn, the first of them alternating."""
    kinds = {
        kind: Sequence.start(
            prompt,
            SamplingParams(
                temperature=0, structured_outputs=grammar if kind == "grammar" else None
            ),
            end_ids=ends,
        )
        for kind in KINDS
    }
    for sequence in kinds.values():
        target.begin(sequence)
        while target.pending(sequence):
            prefill(target, drafter, [sequence], 256)
    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number, at in enumerate(range(0, len(ids) - MAIN - 1, MAIN + 1)):
        rule = Following(ids[at : at + MAIN + 1])
        for kind in KINDS if number % 2 else reversed(KINDS):
            began = perf_counter()
            [done] = step(target, drafter, rule, [kinds[kind]], [NODES])
            spent[kind].append(1000 * (perf_counter() - began))
            assert done.error is None, done.error
    for sequence in kinds.values():
        target.end(sequence)
    return spent
