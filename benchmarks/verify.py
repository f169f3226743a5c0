"""What verification costs: the distributions (fold) and each rule, compared with one softmax of the
same logits.

1. A tree of 64 nodes (branches 4, 3, 2, 1) for 8 sequences and 32,000 tokens, sampled: multiples of
   one softmax over the logits [8, 65, 32000], plain and with top_p. Wanted: 3 and 6.
2. A chain of 8 for one sequence: milliseconds. Wanted: 1.5.

Random distributions, a drafter that is right about half of the time, float32. Example:

    python benchmarks/verify.py --repeats 7 --check
"""

from __future__ import annotations

import statistics
import sys
from argparse import Namespace
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from shared import options, save, table
from torch import Tensor

from foretoken import SamplingParams
from foretoken.draws import Draws, KeyedDraws
from foretoken.protocols import Scores
from foretoken.registry import build_verifier
from foretoken.sampling.fold import fold
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree, Kind
from foretoken.verify.gumbel import GumbelDraws

VOCAB = 32_000
TREE, TREES = (4, 3, 2, 1), 8
CHAIN = (1,) * 8
TREE_RULES = (
    ("target_only", Kind.CHOSEN),
    ("gumbel", Kind.WITHOUT_REPLACEMENT),
    ("multi_candidate", Kind.CHOSEN),
    ("multi_candidate", Kind.INDEPENDENT),
    ("multi_candidate", Kind.WITHOUT_REPLACEMENT),
    ("k_seq", Kind.INDEPENDENT),
    ("traversal", Kind.CHOSEN),
    ("traversal", Kind.INDEPENDENT),
    ("traversal", Kind.WITHOUT_REPLACEMENT),
)
CHAIN_RULES = (
    ("target_only", Kind.CHOSEN),
    ("speculative", Kind.INDEPENDENT),
    ("block", Kind.INDEPENDENT),
    ("multi_candidate", Kind.INDEPENDENT),
    ("k_seq", Kind.INDEPENDENT),
    ("traversal", Kind.INDEPENDENT),
    ("gumbel", Kind.INDEPENDENT),
)
SETTINGS = {"plain": SamplingParams(temperature=0.7), "top_p": SamplingParams(top_p=0.9)}
WANTED = {"plain": 3.0, "top_p": 6.0, "chain_ms": 1.5}


class Case:
    """Logits [B, S, V] of one batch, and its drafts."""

    def __init__(self, branches: tuple[int, ...], batch: int) -> None:
        random = torch.Generator().manual_seed(0)
        parents = _parents(branches)
        self.parents = None if max(branches) == 1 else torch.tensor(parents).expand(batch, -1)
        self.above = torch.tensor(parents).expand(batch, -1)
        places = torch.arange(len(parents) + 1)
        scale = torch.where(places % 16 == 15, 3.0, 5.0)[
            :, None
        ]  # steep distributions, and a few flat ones
        self.logits = scale * torch.randn(batch, len(places), VOCAB, generator=random)
        inner = max(parents) + 1
        noise = torch.randn(batch, inner, VOCAB, generator=random)
        self.proposals = (self.logits[:, :inner] + noise).div(0.7).softmax(-1)
        self.sequences = [Sequence.start([1], SETTINGS["plain"], seed=b) for b in range(batch)]

    def tree(self, kind: Kind) -> DraftTree:
        """The first siblings are the likeliest tokens, so that some are accepted."""
        batch, nodes = self.above.shape
        likely = self.proposals.topk(max(TREE)).indices
        seen = [0] * (nodes + 1)
        columns = []
        for parent in self.above[0].tolist():
            columns.append(likely[:, parent, seen[parent]])
            seen[parent] += 1
        proposals = None if kind == Kind.CHOSEN else self.proposals
        return DraftTree(
            torch.stack(columns, 1),
            [nodes] * batch,
            self.parents,
            None,
            kind,
            proposals,
            self.above,
        )

    def fold(self, params: SamplingParams) -> Tensor:
        for sequence in self.sequences:
            sequence.params = params
        return fold(self.logits, self.sequences, lambda: []).probs

    def draws(self, rule: str) -> Draws:
        sort = GumbelDraws if rule == "gumbel" else KeyedDraws
        keys, starts = [s.key for s in self.sequences], [len(s.tokens) for s in self.sequences]
        return sort(keys, starts, self.logits.device)


def _parents(branches: tuple[int, ...]) -> list[int]:
    """The parent slot of each node, depth by depth."""
    parents, level = [], [0]
    for count in branches:
        above = [slot for slot in level for _ in range(count)]
        level = list(range(len(parents) + 1, len(parents) + 1 + len(above)))
        parents += above
    return parents


def rule_work(case: Case, name: str, kind: Kind, probs: Tensor) -> Callable[[], object]:
    """One verdict, from a tree whose derived fields have not been computed."""
    rule, made = build_verifier(name), case.tree(kind)
    bad = torch.zeros(probs.shape[:2], dtype=torch.bool)
    scores = Scores(case.logits, probs, bad)

    def work() -> object:
        fields = (made.parents, made.kinds, made.kind, made.proposals, made.rows)
        fresh = DraftTree(made.tokens, made.counts, *fields)
        return rule(fresh, scores, case.draws(name))

    return work


@torch.inference_mode()
def milliseconds(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The median of each, interleaved, after a first run that does not count."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(repeats + 1):
        for name, work in works.items():
            began = perf_counter()
            work()
            if repeat:
                times[name].append(1000 * (perf_counter() - began))
    return {name: statistics.median(values) for name, values in times.items()}


def measured(case: Case, rules: tuple[tuple[str, Kind], ...], repeats: int) -> dict[str, float]:
    """Milliseconds of the softmax, of both folds, and of each rule on the plain distributions."""
    probs = case.fold(SETTINGS["plain"])
    works: dict[str, Callable[[], object]] = {"softmax": lambda: case.logits.softmax(-1)}
    for setting, params in SETTINGS.items():
        works[f"fold {setting}"] = lambda params=params: case.fold(params)  # type: ignore[misc]
    for name, kind in rules:
        works[f"{name} {kind.name.lower()}"] = rule_work(case, name, kind, probs)
    return milliseconds(works, repeats)


def multiples(results: dict[str, float]) -> dict[str, dict[str, float]]:
    """Fold and rule together, in softmaxes, for each rule and setting."""
    softmax = results["softmax"]
    folds = {setting: results[f"fold {setting}"] for setting in SETTINGS}
    rules = {name: ms for name, ms in results.items() if name.split()[0] not in ("softmax", "fold")}
    return {
        name: {"rule": ms / softmax, **{s: (fold + ms) / softmax for s, fold in folds.items()}}
        for name, ms in rules.items()
    }


def report(given: Namespace) -> dict[str, Any]:
    trees = measured(Case(TREE, TREES), TREE_RULES, given.repeats)
    chain = measured(Case(CHAIN, 1), CHAIN_RULES, 3 * given.repeats)
    shares = multiples(trees)
    print(
        f"one softmax: {trees['softmax']:.1f} ms; folds: plain {trees['fold plain']:.1f} ms, "
        f"top_p {trees['fold top_p']:.1f} ms\n"
    )
    rows = [["64 nodes x 8, in softmaxes", "rule", "fold + rule", "with top_p"]]
    rows += [[n, *(f"{s[k]:.2f}" for k in ("rule", *SETTINGS))] for n, s in shares.items()]
    table(rows)
    print()
    table([["chain of 8", "ms"], *([name, f"{ms:.2f}"] for name, ms in chain.items())])
    return {"tree_ms": trees, "tree_softmaxes": shares, "chain_ms": chain, "wanted": WANTED}


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="at least 3 (default: 5)")
    parser.add_argument("--check", action="store_true", help="fail unless all are as wanted")
    given = parser.parse_args()
    results = report(given)
    met = all(
        share[s] <= WANTED[s] for share in results["tree_softmaxes"].values() for s in SETTINGS
    )
    met &= (
        max(ms for name, ms in results["chain_ms"].items() if " " in name and "fold" not in name)
        <= WANTED["chain_ms"]
    )
    save("verify", given, {**results, "met": met})
    return 0 if met or not given.check else 1


if __name__ == "__main__":
    sys.exit(main())
