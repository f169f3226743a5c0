"""What `auto` loses against the best of plain decoding and every method that it chooses from.

By the cost model: the bundled pair answers the bundled prompts, and time is the sum of the measured
costs of the target's passes and the drafters' steps (for larger targets, which are the pair
inflated and write the same texts, at their costs). For `auto` the time of its decisions is added.
Speeds are of the steps in which the batch is full, after the first answers. At temperature 1 the
rule is "gumbel" for all, with which a seed's text is the same whatever drafts.

By the clock: plain decoding and `auto` in turn, round after round, in 16 cells; then with drafters
that are always wrong. Before each round the drafters' memory of earlier texts is cleared; what is
known of their acceptance and of costs stays, as in a server. Seconds are of decoding alone.

Results are kept by cell, so that the parts can be measured one by one. Example:

    python benchmarks/auto.py --part model --targets mini 135m
    python benchmarks/auto.py --part clock wrong --targets mini
    python benchmarks/auto.py --part none --check
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

from page_values import geometric
from scipy import stats as statistical
from shared import bundled, options, save, table
from simulate import models

from foretoken import LLM, SamplingParams
from foretoken.access import Access
from foretoken.config import auto_parts, build
from foretoken.control.cost_model import CostModel, DraftCost
from foretoken.drafters.auto import Auto
from foretoken.drafters.nothing import Nothing
from foretoken.draws import Draws
from foretoken.progress import track
from foretoken.protocols import BaseDrafter, Drafter, Step
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree, Kind, chains

TASKS = ("chat", "math", "qa", "rag", "summarization", "translation")
BATCHES = (1, 2, 4, 8)
TEMPERATURES = (0.0, 1.0)
TARGETS = ("mini", "135m", "1.1b")
CLOCKED = tuple(product(("mini", "135m"), ("chat", "summarization"), (1, 4), TEMPERATURES))
REGRET, FLOOR = 0.02, 0.98
WARM = 4
PLAIN = "autoregressive"


@dataclass(eq=False)
class Ledger:
    """Notes what a drafter did: its calls as (rows of the step, rows, levels), steps as (rows,
    nodes, tokens), and its seconds, the ledgers' of its `parts` not counted. The rest is the
    drafter's."""

    drafter: Drafter
    parts: Seq[Ledger] = ()
    calls: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    seconds: float = 0.0
    batch: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.drafter, name)

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        for part in self.parts:
            part.batch = len(sequences)
        with self._timed():
            tree = self.drafter.draft(sequences, budgets, draws).trim(budgets)
            if not self.parts:
                levels = max(tree.counts) if tree.is_chain else int(tree.depths.max())
                self.calls[self.batch or len(sequences), len(sequences), levels] += 1
        return tree

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        decoding = bool(steps[0].tokens)
        with self._timed() if decoding else nullcontext():
            self.drafter.observe(sequences, steps)
        if decoding:
            tokens = sum(len(step.tokens) for step in steps)
            self.steps.append((len(steps), steps[0].tree.nodes, tokens))

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began, before = perf_counter(), sum(part.seconds for part in self.parts)
        yield
        spent = perf_counter() - began
        self.seconds += spent - sum(part.seconds for part in self.parts) + before


class Wrong(BaseDrafter):
    """Proposes a token that is never written; as one that copies, or as one that computes."""

    def __init__(self, token: int, follows: bool) -> None:
        self.token, self.follows = token, follows

    def bind(self, access: Access) -> None:
        self._device = access.device

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        return chains([[self.token] * min(8, budget) for budget in budgets], self._device)


def prompts(given: Namespace, llm: LLM, task: str) -> list[list[int]]:
    """A task's prompts as token ids."""
    mine = [p for p in bundled() if p.task == task][: given.prompts]
    return [llm.chat_prompt([{"role": "user", "content": p.turns[0]}]) for p in mine]


def params(given: Namespace, temperature: float) -> SamplingParams:
    return SamplingParams(
        temperature=temperature, max_tokens=given.max_tokens, ignore_eos=True, seed=0
    )


def around(first: LLM, drafter: Any, batch: int, rule: str | None = None) -> LLM:
    config = {"method": drafter, **({"verifier": rule} if rule else {})}
    return LLM(
        first.model, tokenizer=first.tokenizer, max_num_seqs=batch, speculative_config=config
    )


# By the cost model.


class Believed(CostModel):
    """Costs that stay as measured, but for what asking a drafter that copies takes with all the
    thinking about it: `auto` learns that from real steps."""

    def record_draft_time(self, name: str, sequences: int, levels: int, ms: float) -> None:
        if not levels:
            own = self.drafts[name].call
            call = min(ms / sequences, 2 * own)  # a pause is no cost
            self.drafts[name] = DraftCost(call=0.95 * own + 0.05 * call)


def costs_of(given: Namespace, target: str) -> CostModel:
    """What the target's passes and the parts' steps cost."""
    with tempfile.TemporaryDirectory(prefix="foretoken-") as folder:
        large, small = models(given, target, Path(folder))
        first = LLM(large, dtype="float32", max_num_seqs=1)
        draft = LLM(small, dtype="float32", max_num_seqs=1).model
        began = perf_counter()
        llm = LLM(
            first.model,
            tokenizer=first.tokenizer,
            max_num_seqs=1,
            speculative_config={"method": "auto", "model": draft},
        )
        print(f"{target}: costs known after {perf_counter() - began:.2f} s", flush=True)
        drafter: Any = llm.engine.drafter
        costs: CostModel = drafter.costs
        curve = dict(zip(costs._sizes, costs._ms, strict=True))
        return CostModel(curve, costs.drafts, fixed=True)


def parts(draft: Any) -> dict[str, Callable[[], Drafter]]:
    """The methods that `auto` chooses from, each as it is by itself."""
    config = {"model": draft}
    return {
        name: lambda name=name: build({"method": name, **(config if name == "sps" else {})}).drafter
        for name in auto_parts("auto", config)
    }


def speed(
    ledger: Ledger, parts: dict[str, Ledger], costs: CostModel, batch: int, think: float = 0.0
) -> float:
    """Tokens a millisecond of the full steps; think: milliseconds for each of them."""
    full = [(nodes, tokens) for rows, nodes, tokens in ledger.steps if rows == batch]
    ms = sum(costs.curve(batch * (1 + nodes)) + think for nodes, _ in full)
    for name, part in parts.items():
        for (step, rows, levels), times in part.calls.items():
            ms += times * costs.drafts[name](rows, levels) * (step == batch)
    return sum(tokens for _, tokens in full) / ms


def served(llm: LLM, ledgers: Seq[Ledger], asked: list[list[int]], own: SamplingParams) -> None:
    """Prompts are answered; the first of them, from which drafters may learn, are not noted."""
    warm = min(WARM, len(asked) - max(BATCHES))  # what is left fills the largest batch
    llm.generate(asked[:warm], own)
    for ledger in ledgers:
        ledger.calls.clear()
        ledger.steps.clear()
        ledger.seconds = 0.0
    llm.generate(asked[warm:], own)


def noting(first: LLM, batch: int, asked: list[list[int]], own: SamplingParams) -> float:
    """Milliseconds that a ledger's own work adds to each step: plain decoding has nothing else."""
    plain = Ledger(Nothing())
    served(around(first, plain, batch), [plain], asked, own)
    return 1000 * plain.seconds / len(plain.steps)


def by_model(given: Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each cell's regret, with the speeds over plain decoding."""
    costs = {target: costs_of(given, target) for target in given.targets}
    first = LLM(given.model, dtype="float32", max_num_seqs=1)
    draft = LLM(given.draft_model, dtype="float32", max_num_seqs=1).model
    cells = list(product(given.tasks, given.temperatures, given.batches))
    with track("By the cost model", len(cells), True) as advance:
        for task, temperature, batch in cells:
            asked, own = prompts(given, first, task), params(given, temperature)
            rule = "gumbel" if temperature else None
            alone = noting(first, batch, asked, own)
            singles = {}
            for name, make in parts(draft).items():
                singles[name] = Ledger(make())
                served(around(first, singles[name], batch, rule), [singles[name]], asked, own)
            for target, cost in costs.items():
                speeds = {PLAIN: batch / cost.curve(batch)}
                for name, ledger in singles.items():
                    speeds[name] = speed(ledger, {name: ledger}, cost, batch)
                inner = {name: Ledger(make()) for name, make in parts(draft).items()}
                _widened(inner)
                believed = Believed(dict(cost.curve.points), cost.drafts, fixed=True)
                auto = Auto(list(inner.values()), names=list(inner), costs=believed)
                whole = Ledger(auto, list(inner.values()))
                ledgers = [whole, *inner.values()]
                served(around(first, whole, batch, rule), ledgers, asked, own)
                think = max(0.0, 1000 * whole.seconds / len(whole.steps) - alone)
                speeds["auto"] = speed(whole, inner, cost, batch, think)
                best = max(value for name, value in speeds.items() if name != "auto")
                yield (
                    f"{target}, {task}, {batch}, {temperature:g}",
                    {
                        "speedup": {name: v / speeds[PLAIN] for name, v in speeds.items()},
                        "regret": 1 - speeds["auto"] / best,
                        "thinking_us": 1000 * think,
                    },
                )
            advance()


def _widened(inner: dict[str, Ledger]) -> None:
    """Parts of `auto` may draft as much as it does."""
    for ledger in inner.values():
        part: Any = ledger.drafter
        if hasattr(part, "num_speculative_tokens") and part.kinds != {Kind.CHOSEN}:
            part.num_speculative_tokens = Auto.num_speculative_tokens
            part.__post_init__()
        elif hasattr(part, "num_speculative_tokens"):
            part.num_speculative_tokens = Auto.num_speculative_tokens


# By the clock.


def seconds(llm: LLM, asked: Seq[Seq[int]], own: SamplingParams) -> float:
    """Of decoding, the drafter's memory of earlier texts being empty."""
    for part in getattr(llm.engine.drafter, "drafters", ()):
        if part.shared is not None:
            part.shared.reset()
    llm.reset_stats()
    llm.generate(asked, own)
    return llm.stats.decode_time


def race(
    given: Namespace, plain: LLM, auto: LLM, asked: list[list[int]], own: SamplingParams
) -> dict[str, Any]:
    """The speedup's geometric mean over the rounds, with a 95 % interval by Student's t."""
    logs = []
    chosen: Counter[str] = Counter()
    for turn in range(given.rounds + 1):
        pair = [plain, auto][:: 1 if turn % 2 else -1]
        spent = {id(llm): seconds(llm, asked, own) for llm in pair}
        chosen += auto.stats.chosen
        spent_drafting = [1e6 * llm.stats.draft_time / llm.stats.passes for llm in (plain, auto)]
        if turn:  # the first round warms up
            logs.append(math.log(spent[id(plain)] / spent[id(auto)]))
    mean, error = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    reach = float(statistical.t.ppf(0.975, len(logs) - 1)) * error
    return {
        "speedup": math.exp(mean),
        "ci95": [math.exp(mean - reach), math.exp(mean + reach)],
        "rounds": len(logs),
        "error": error,
        "chosen": dict(chosen.most_common()),
        "drafting_us_per_step": spent_drafting,
    }


def by_clock(given: Namespace, wrong: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each cell's race; with drafters that are always wrong, where `wrong`."""
    for target in (t for t in given.targets if t in ("mini", "135m")):
        with tempfile.TemporaryDirectory(prefix="foretoken-") as folder:
            large, small = models(given, target, Path(folder))
            first = LLM(large, dtype="float32", max_num_seqs=1)
            draft = LLM(small, dtype="float32", max_num_seqs=1).model
            for shape, task, batch, temperature in CLOCKED:
                if shape != target or task not in given.tasks or batch not in given.batches:
                    continue
                if temperature not in given.temperatures or (wrong and task != "chat"):
                    continue
                # A queue longer than the batch, so that slots that are done are filled again.
                asked = prompts(given, first, task)[: max(given.clocked, 3 * batch)]
                config: dict[str, Any] = {"method": "auto", "model": draft}
                if wrong:
                    token = first.tokenizer.bos_token_id or 0
                    config = {
                        "method": Auto(
                            [Wrong(token, True), Wrong(token, False)], names=["copies", "computes"]
                        )
                    }
                llms = [
                    LLM(
                        first.model,
                        tokenizer=first.tokenizer,
                        max_num_seqs=batch,
                        speculative_config=own,
                    )
                    for own in ({"method": PLAIN}, config)
                ]
                results = race(given, llms[0], llms[1], asked, params(given, temperature))
                yield f"{target}, {task}, {batch}, {temperature:g}", results


# All parts.


def missed(results: dict[str, dict[str, Any]]) -> list[str]:
    """What is not as wanted."""
    bad = [
        f"model: {k} {c['regret']:.1%}" for k, c in results["model"].items() if c["regret"] > REGRET
    ]
    for part in ("clock", "wrong"):
        bad += [
            f"{part}: {k} {c['speedup']:.3f}"
            for k, c in results[part].items()
            if c["speedup"] < FLOOR
        ]
    if results["clock"] and geometric(results["clock"])[0] < 1:
        bad.append("clock: geometric mean")
    if results["wrong"] and geometric(results["wrong"])[0] < FLOOR:
        bad.append("wrong: geometric mean")
    wanted = {
        "model": len(TARGETS) * len(TASKS) * len(BATCHES) * len(TEMPERATURES),
        "clock": len(CLOCKED),
    }
    bad += [
        f"{part}: {n - len(results[part])} cells are not measured"
        for part, n in wanted.items()
        if len(results[part]) < n
    ]
    return bad


def show(results: dict[str, dict[str, Any]]) -> None:
    if results["model"]:
        names = list(next(iter(results["model"].values()))["speedup"])
        rows = [["target, task, batch, T", *names, "regret"]]
        for key, cell in results["model"].items():
            rows.append(
                [key, *(f"{cell['speedup'][n]:.2f}" for n in names), f"{cell['regret']:.1%}"]
            )
        table(rows)
    for part in ("clock", "wrong"):
        if results[part]:
            rows = [[f"{part}: target, task, batch, T", "speedup", "95 %"]]
            for key, cell in results[part].items():
                low, high = cell["ci95"]
                rows.append([key, f"{cell['speedup']:.3f}", f"{low:.3f}-{high:.3f}"])
            low, mean, high = geometric(results[part])
            rows.append(["geometric mean", f"{mean:.3f}", f"{low:.3f}-{high:.3f}"])
            print()
            table(rows)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument(
        "--part",
        nargs="+",
        default=["model", "clock", "wrong"],
        choices=["model", "clock", "wrong", "none"],
    )
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=TARGETS)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--temperatures", nargs="+", type=float, default=list(TEMPERATURES))
    parser.add_argument("--prompts", type=int, default=12, help="of a task (default: 12)")
    parser.add_argument("--clocked", type=int, default=4, help="prompts of a round (default: 4)")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer (default: 64)")
    parser.add_argument("--rounds", type=int, default=6, help="that are timed (default: 6)")
    parser.add_argument("--fresh", action="store_true", help="keep nothing of earlier runs")
    parser.add_argument("--check", action="store_true", help="fail unless all is as wanted")
    given = parser.parse_args()
    path = given.out / "auto.json"
    results: dict[str, dict[str, Any]] = {"model": {}, "clock": {}, "wrong": {}}
    if path.is_file() and not given.fresh:
        old = json.loads(path.read_text("utf-8"))
        results = {part: old.get(part, {}) for part in results}
    makers = {
        "model": lambda: by_model(given),
        "clock": lambda: by_clock(given, False),
        "wrong": lambda: by_clock(given, True),
    }
    for part in given.part:
        for key, cell in makers[part]() if part in makers else ():
            results[part][key] = cell
            print(part, key, json.dumps(cell), flush=True)
            _keep(given, results)
    show(results)
    bad = missed(results)
    print(f"\nNot as wanted: {'; '.join(bad) or 'nothing'}.")
    _keep(given, results)
    return 1 if bad and given.check else 0


def _keep(given: Namespace, results: dict[str, Any]) -> None:
    settings = {"regret_wanted": REGRET, "speedup_wanted": FLOOR, "max_tokens": given.max_tokens}
    save("auto", given, {**settings, **results, "met": not missed(results)})


if __name__ == "__main__":
    sys.exit(main())
