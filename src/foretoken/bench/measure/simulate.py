"""Predicts a speedup from acceptance rates and the costs of passes.

For a batch of b sequences that draft n tokens each, a step costs

    target(b, b·(1 + n)) + n · draft(b, b) + other · target(b, b)

and a plain step target(b, b) + other · target(b, b): the pass, and the engine's work around it,
which both pay. The speedup is the tokens of a step × the time of a plain one ÷ the step's time
(Leviathan et al. 2023, theorem 3.8, where a pass costs the same whatever its width, b = 1 and
other = 0). Rows of a batch that draft less than its longest are padded to it, as the engine does.

The result is as good as the rates and costs that go in.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from foretoken.bench.measure.costs import PassCost
from foretoken.bench.record import Measured
from foretoken.errors import ForetokenError
from foretoken.trees.plan import best_tree, fastest_tree

LONGEST = 16
"""Drafted tokens of a chain, or levels of a tree, up to which the best number is looked for."""
LARGEST = 64
"""Nodes of a tree up to which the best one is looked for."""


@dataclass(frozen=True)
class Machine:
    """What passes cost, target's and drafter's. draft: a pass of the drafter, None where drafting
    costs nothing. other: the engine's work in a step, as a share of a plain pass."""

    target: PassCost
    draft: PassCost | None = None
    other: float = 0.0

    def plain_ms(self, batch: int) -> float:
        """Milliseconds of a step of plain decoding."""
        return (1 + self.other) * self.target(batch, batch)

    def draft_ms(self, batch: int) -> float:
        """Milliseconds of a pass of the drafter over a token of each sequence."""
        return self.draft(batch, batch) if self.draft else 0.0


@dataclass(frozen=True)
class Drafting:
    """How one sequence drafts. tokens: written a step on average, the bonus token included. nodes:
    how many are drafted -> share of the steps. levels: the drafter's passes in a step, None where
    each node takes one."""

    tokens: float
    nodes: Mapping[float, float]
    levels: int | None = None

    @property
    def mean_nodes(self) -> float:
        return sum(nodes * share for nodes, share in self.nodes.items())


@dataclass(frozen=True)
class Chain:
    """Drafts that are chains. kept[i]: the share of the drafts of more than i tokens whose first
    i + 1 are all accepted. reach[i]: the share of the steps that draft more than i tokens."""

    kept: tuple[float, ...]
    reach: tuple[float, ...]

    def drafting(self, length: int) -> Drafting:
        """No more than `length` tokens a draft."""
        reach = [1.0, *self.reach[:length], 0.0]
        tokens = 1 + sum(r * k for r, k in zip(reach[1:-1], self.kept, strict=False))
        shares = {float(n): reach[n] - reach[n + 1] for n in range(len(reach) - 1)}
        return Drafting(tokens, {n: share for n, share in shares.items() if share})


@dataclass(frozen=True)
class Prediction:
    """A batch size and a way to draft. depth: levels of a tree, drafted tokens of a chain."""

    batch_size: int
    nodes: float
    depth: int
    tokens_per_step: float
    step_ms: float
    tokens_per_second: float
    speedup: float


def chain_of_rates(acceptance: Seq[float], longest: int = LONGEST) -> Chain:
    """A chain by rates, where every step drafts. acceptance[i]: how often token i + 1 is accepted
    where those before it were; the last rate holds for all further tokens."""
    if not acceptance or not all(0 <= rate <= 1 for rate in acceptance):
        raise ForetokenError(
            f"The acceptance rates are {list(acceptance)}; give one between 0 and 1, or one for "
            "each position."
        )
    rates = [*acceptance, *[acceptance[-1]] * longest][:longest]
    return Chain(tuple(accumulate(rates, mul)), (1.0,) * longest)


def measured_chain(part: Measured) -> Chain | None:
    """The measured chains of a run, None where drafts were trees; longer ones were not measured."""
    steps, total = _steps(part), part["target_passes"]
    kept = tuple(part["acceptance_rate_per_position"])
    if max(steps, default=0) > len(kept):
        return None
    longer = [sum(c for n, c in steps.items() if n > i) for i in range(len(kept))]
    return Chain(kept, tuple(count / total for count in longer))


def measured_drafting(part: Measured) -> Drafting:
    """The steps of a run. Raises `ForetokenError` where there were none, or where a server did not
    tell what it drafted."""
    total, tokens = part["target_passes"], part["mean_acceptance_length"]
    if not total or tokens is None:
        raise ForetokenError("The run has no decoding steps; choose another method.")
    steps, depth = _steps(part), len(part["acceptance_rate_per_position"])
    if tokens > 1 and not any(steps):
        raise ForetokenError(
            "The run got several tokens from a pass, and how many were drafted for them is not "
            "known; enter rates by --acceptance."
        )
    tree = max(steps, default=0) > depth
    shares = {float(nodes): count / total for nodes, count in steps.items()}
    return Drafting(tokens, shares, depth if tree else None)


def _steps(part: Measured) -> dict[int, int]:
    if "nodes_per_step" not in part:
        raise ForetokenError(
            "The results don't say how many tokens each step drafted (nodes_per_step); measure "
            "again with this version."
        )
    return {int(nodes): count for nodes, count in part["nodes_per_step"].items()}


def step_ms(drafting: Drafting, machine: Machine, batch: int) -> float:
    """Milliseconds of a step of a batch, averaged over the length of its longest draft."""
    total = machine.other * machine.target(batch, batch)
    for nodes, share in _distribution_of_longest(drafting.nodes, batch).items():
        levels = nodes if drafting.levels is None else drafting.levels * bool(nodes)
        passes = machine.target(batch, batch * (1 + nodes)) + levels * machine.draft_ms(batch)
        total += share * passes
    return total


def _distribution_of_longest(shares: Mapping[float, float], rows: int) -> dict[float, float]:
    """The distribution of the largest of `rows` independent draws."""
    longest: dict[float, float] = {}
    below = 0.0
    for nodes in sorted(shares):
        upto = below + shares[nodes]
        longest[nodes] = upto**rows - below**rows
        below = upto
    return longest


def speedup(drafting: Drafting, machine: Machine, batch: int = 1) -> float:
    """Tokens a second ÷ plain decoding's."""
    return drafting.tokens * machine.plain_ms(batch) / step_ms(drafting, machine, batch)


def predict(drafting: Drafting, machine: Machine, batch: int, depth: int) -> Prediction:
    """All numbers at one batch size; `depth` is only passed on."""
    ms = step_ms(drafting, machine, batch)
    return Prediction(
        batch,
        drafting.mean_nodes,
        depth,
        drafting.tokens,
        ms,
        1000 * batch * drafting.tokens / ms,
        speedup(drafting, machine, batch),
    )


def best_chain(chain: Chain, machine: Machine, batch: int) -> Prediction:
    """The draft length with most tokens a second; 0 where plain decoding is fastest."""
    rows = (
        predict(chain.drafting(length), machine, batch, length)
        for length in range(len(chain.kept) + 1)
    )
    return max(rows, key=lambda row: row.speedup)


def tree(ranks: Seq[float], nodes: int, depth: int) -> tuple[Drafting, int]:
    """The tree with most tokens a step within these nodes and levels, and its depth.

    ranks: how often the first, second … child of an accepted node is the accepted one.
    """
    plan = best_tree(ranks, nodes, depth)
    return Drafting(plan.tokens, {float(len(plan.paths)): 1.0}, plan.depth), plan.depth


def best_tree_for(ranks: Seq[float], machine: Machine, batch: int) -> Prediction:
    """The tree with most tokens a second; one without nodes where plain decoding is fastest."""
    other = machine.other * machine.target(batch, batch)
    target = {
        nodes: other + machine.target(batch, batch * (1 + nodes)) for nodes in range(LARGEST + 1)
    }
    plan = fastest_tree(ranks, target, machine.draft_ms(batch), nodes=LARGEST, depth=LONGEST)
    drafting = Drafting(plan.tokens, {float(len(plan.paths)): 1.0}, plan.depth)
    return predict(drafting, machine, batch, plan.depth)


def roofline(
    parameters: float,
    bytes_per_parameter: float,
    bandwidth_gb_s: float,
    tflops: float,
    kv_bytes_per_token: float = 0.0,
    context: int = 0,
) -> PassCost:
    """A pass that takes as long as its bytes take to arrive, or its products, whichever is longer.

    Read: every parameter once, and each sequence's keys and values. Multiplied: two operations per
    parameter and token. No machine reaches this; large models come nearest.
    """
    weights = parameters * bytes_per_parameter

    def cost(batch: int, tokens: float) -> float:
        reading = (weights + batch * context * kv_bytes_per_token) / (bandwidth_gb_s * 1e9)
        multiplying = 2 * parameters * tokens / (tflops * 1e12)
        return 1000 * max(reading, multiplying)

    return cost
