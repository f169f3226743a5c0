"""Options of `foretoken simulate`: what is accepted, what passes cost, and what to predict."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from foretoken.cli.options import in_panel, numbers
from foretoken.errors import ForetokenError, shown, unknown

if TYPE_CHECKING:
    from foretoken.bench.measure.simulate import Machine, Prediction
    from foretoken.bench.record import Results, Run
    from foretoken.control.curve import Curve

_RATES, _COSTS, _WHAT = "Acceptance", "Costs", "What to predict"
_NODES = 16
_OF_A_ROOFLINE = "bytes_per_parameter", "kv_bytes_per_token", "context"
"""Options that a curve has no use for."""

Rows = list[tuple["Prediction", "Prediction | None"]]
"""For each batch size what was asked for, and the best (None where only the run is known)."""


@dataclass(frozen=True)
class Asked:
    """What to predict: how much is drafted, for how many sequences."""

    draft_length: Annotated[
        int | None,
        in_panel(_WHAT, "--draft-length", min=1, help="Drafted tokens; of a tree, its levels."),
    ] = None
    nodes: Annotated[
        int | None, in_panel(_WHAT, "--nodes", min=1, help=f"Of a tree; by default {_NODES}.")
    ] = None
    batch_sizes: Annotated[str, in_panel(_WHAT, "--batch-sizes", help="E.g. 1,4,16.")] = "1,4,16,64"

    @cached_property
    def sizes(self) -> list[int]:
        """The batch sizes."""
        found = numbers(self.batch_sizes, int, "--batch-sizes")
        if min(found) < 1:
            raise ForetokenError(
                f"--batch-sizes are {shown(self.batch_sizes)}; each must be at least 1."
            )
        return found

    def chain(self, machine: Machine, acceptance: str) -> Rows:
        """By rates of each position."""
        from foretoken.bench.measure.simulate import LONGEST, best_chain, chain_of_rates, predict

        length = self.draft_length or 4
        rates = numbers(acceptance, float, "--acceptance")
        chain = chain_of_rates(rates, max(length, LONGEST))
        asked = chain.drafting(length)
        return [
            (predict(asked, machine, n, length), best_chain(chain, machine, n)) for n in self.sizes
        ]

    def tree(self, machine: Machine, ranks: str) -> Rows:
        """By rates of each child."""
        from foretoken.bench.measure.simulate import LONGEST, best_tree_for, predict, tree

        rates = numbers(ranks, float, "--ranks")
        asked, depth = tree(rates, self.nodes or _NODES, self.draft_length or LONGEST)
        best = {n: best_tree_for(rates, machine, n) for n in self.sizes}
        return [(predict(asked, machine, n, depth), best[n]) for n in self.sizes]

    def again(self, machine: Machine, run: Run) -> Rows:
        """The run's drafts, or shorter ones; longer drafts were not measured."""
        from foretoken.bench.measure import simulate

        chain, depth = simulate.measured_chain(run), len(run["acceptance_rate_per_position"])
        asked = simulate.measured_drafting(run)
        if self.draft_length is not None:
            if chain is None or self.draft_length > depth:
                raise ForetokenError(
                    f"The run drafted {'trees' if chain is None else f'up to {depth} tokens'}, so "
                    f"nothing is known of {self.draft_length} drafted tokens; leave out "
                    "--draft-length, or enter rates by --acceptance."
                )
            asked, depth = chain.drafting(self.draft_length), self.draft_length
        return [
            (
                simulate.predict(asked, machine, size, depth),
                simulate.best_chain(chain, machine, size) if chain else None,
            )
            for size in self.sizes
        ]


@dataclass(frozen=True)
class Rates:
    """How much is accepted: rates that were entered, or a run's."""

    acceptance: Annotated[
        str | None,
        in_panel(
            _RATES,
            "--acceptance",
            help="How often a drafted token is accepted: one rate, "
            "or one a position, each among drafts accepted so far.",
        ),
    ] = None
    ranks: Annotated[
        str | None,
        in_panel(_RATES, "--ranks", help="Of trees: how often child 1, 2 … is the accepted one."),
    ] = None
    results: Annotated[
        Path | None,
        in_panel(_RATES, "--from", help="A results.json: its costs, and with --method its rates."),
    ] = None
    method: Annotated[
        str | None, in_panel(_RATES, "--method", help="The method in --from whose rates count.")
    ] = None
    temperature: Annotated[
        float | None, in_panel(_RATES, "--temperature", help="Of the run in --from; by default 0.")
    ] = None

    def read(self) -> tuple[Results | None, Run | None]:
        """The results, and the run in them whose rates count, as far as they are named."""
        from foretoken.bench.record import read_results

        if self.results is None and self.temperature is not None:
            raise ForetokenError("--temperature is of a run; add --from, or leave it out.")
        measured = None if self.results is None else read_results(self.results)
        run = None if self.method is None else _run(measured, self.method, self.temperature or 0.0)
        return measured, run

    def predictions(self, machine: Machine, run: Run | None, asked: Asked) -> tuple[Rows, str]:
        """A row for each batch size, and a phrase on where the rates come from."""
        if sum(x is not None for x in (self.acceptance, self.ranks, run)) != 1:
            raise ForetokenError(
                "Give acceptance rates in one way: --acceptance for chains, --ranks for trees, or "
                "--from with --method for those of a run."
            )
        if asked.nodes is not None and self.ranks is None:
            raise ForetokenError("--nodes is of a tree; give --ranks with it, or leave it out.")
        if self.acceptance is not None:
            return asked.chain(machine, self.acceptance), f"entered: {self.acceptance}"
        if self.ranks is not None:
            return asked.tree(machine, self.ranks), f"entered by rank: {self.ranks}"
        assert run is not None
        about = f"measured: {run['method']}, temperature {run['temperature']:g}"
        return asked.again(machine, run), about


@dataclass(frozen=True)
class Costs:
    """What passes of target and drafter cost."""

    curve: Annotated[
        str | None,
        in_panel(
            _COSTS,
            "--curve",
            help="Milliseconds of a pass by its tokens, '1:30,8:33,64:60', "
            "or a JSON file of such an object.",
        ),
    ] = None
    parameters: Annotated[
        float | None, in_panel(_COSTS, "--parameters", help="Of the target, for a roofline.")
    ] = None
    bytes_per_parameter: Annotated[
        float, in_panel(_COSTS, "--bytes-per-parameter", help="2 is half precision.")
    ] = 2.0
    bandwidth_gb_s: Annotated[
        float | None, in_panel(_COSTS, "--bandwidth-gb-s", help="Of the memory.")
    ] = None
    tflops: Annotated[
        float | None, in_panel(_COSTS, "--tflops", help="Of the arithmetic, at that precision.")
    ] = None
    kv_bytes_per_token: Annotated[
        float, in_panel(_COSTS, "--kv-bytes-per-token", help="Of the key/value cache, all layers.")
    ] = 0.0
    context: Annotated[
        int, in_panel(_COSTS, "--context", help="Tokens that each sequence looks back on.")
    ] = 0
    draft_cost: Annotated[
        float | None,
        in_panel(
            _COSTS, "--draft-cost", help="The drafter's pass as a share of the target's; 0 is free."
        ),
    ] = None
    other: Annotated[
        float | None,
        in_panel(
            _COSTS, "--other", help="The engine's own work in a step, as a share of a plain pass."
        ),
    ] = None

    def machine(
        self, measured: Results | None, run: Run | None, temperature: float
    ) -> tuple[Machine, str]:
        """The costs, and a phrase on where they come from."""
        entered = self._entered()
        if entered and measured and run is None:
            raise ForetokenError(
                "--from gives costs, which were entered too, and with --method rates; add "
                "--method, or leave out --from or the entered costs."
            )
        made, source = entered or _measured(measured, run, temperature)
        if self.other is not None:
            made = replace(made, other=self.other)
            source += f", the engine's own work entered as {self.other:g} of a plain pass"
        if self.draft_cost is not None:
            share, target = self.draft_cost, made.target
            made = replace(made, draft=lambda batch, tokens: share * target(batch, tokens))
            source += f", a drafter's pass entered as {share:g} of the target's"
        elif made.draft is None:
            _check_free(measured, run)
            source += ", drafting free"
        if not all(0 <= share < math.inf for share in (self.draft_cost or 0, made.other)):
            raise ForetokenError("--draft-cost and --other are finite shares of a pass, from 0 on.")
        return made, source

    def _entered(self) -> tuple[Machine, str] | None:
        """A curve or a roofline, where one was given."""
        from foretoken.bench.measure.simulate import Machine, roofline

        line = (self.parameters, self.bandwidth_gb_s, self.tflops)
        if self.curve is not None and any(line):
            raise ForetokenError("Give --curve or the numbers of a roofline, and not both.")
        if not any(line):
            self._check_no_roofline()
        if self.curve is not None:
            entered = _curve(self.curve)
            return Machine(lambda batch, tokens: entered(tokens)), "entered curve"
        if not any(line):
            return None
        all_of_it = (*line, self.bytes_per_parameter, self.kv_bytes_per_token, self.context)
        good = all(number is None or 0 <= number < math.inf for number in all_of_it)
        if not (good and self.parameters and self.bandwidth_gb_s and self.tflops):
            raise ForetokenError(
                "A roofline needs --parameters, --bandwidth-gb-s and --tflops, all above 0, no "
                "other number below 0, and all of them finite."
            )
        cost = roofline(
            self.parameters,
            self.bytes_per_parameter,
            self.bandwidth_gb_s,
            self.tflops,
            self.kv_bytes_per_token,
            self.context,
        )
        return Machine(cost), (
            f"roofline of entered numbers ({self.parameters:g} parameters of "
            f"{self.bytes_per_parameter:g} bytes, {self.bandwidth_gb_s:g} GB/s, "
            f"{self.tflops:g} TFLOP/s)"
        )

    def _check_no_roofline(self) -> None:
        """Raise `ForetokenError` for what costs of another kind would leave out."""
        for field in fields(self):
            if field.name in _OF_A_ROOFLINE and vars(self)[field.name] != field.default:
                raise ForetokenError(
                    f"--{field.name.replace('_', '-')} is of a roofline; add --parameters, "
                    "--bandwidth-gb-s and --tflops, or leave it out."
                )


def _measured(measured: Results | None, run: Run | None, temperature: float) -> tuple[Machine, str]:
    from foretoken.bench.measure.ideal import machine
    from foretoken.bench.record import BASELINE
    from foretoken.bench.report.wording import machine as where

    if measured is None or measured["costs"] is None:
        raise ForetokenError(
            "There is no cost curve: give --curve, a roofline's numbers, or --from with a "
            "results.json in which costs were measured."
        )
    costs: Any = measured["costs"]
    plain = _run(measured, BASELINE, temperature)
    source = f"measured, {measured['target']['name']} on {where(measured)}"
    return machine(costs, run["method"] if run else BASELINE, plain), source


def _check_free(measured: Results | None, run: Run | None) -> None:
    """Drafting at no cost may be entered, but a run's method must be known to draft so."""
    if measured is None or run is None:
        return
    drafts = (measured["costs"] or {}).get("drafts", {})
    if drafts.get(run["method"], "unknown") is not None:
        raise ForetokenError(
            f"What a pass of the drafter of {run['method']!r} costs was not measured there; enter "
            "it by --draft-cost, as a share of the target's (0 is free)."
        )


def _run(measured: Results | None, method: str, temperature: float) -> Run:
    """The run of the smallest batch size."""
    if measured is None:
        raise ForetokenError("--method names a run: say in which results.json, by --from.")
    names = {run["method"] for run in measured["runs"]}
    if method not in names:
        raise unknown("method in these results", method, sorted(names))
    runs = [
        r for r in measured["runs"] if r["method"] == method and r["temperature"] == temperature
    ]
    if not runs:
        raise ForetokenError(
            f"{method!r} was not measured at temperature {temperature:g}; give another by "
            "--temperature."
        )
    return min(runs, key=lambda run: run["batch_size"])


def _curve(text: str) -> Curve:
    """A cost curve from '1:30,8:33,64:60', or from a JSON file with such an object."""
    from foretoken.control.curve import Curve
    from foretoken.files import read_json

    try:
        if Path(text).is_file():
            pairs: Iterable[Any] = read_json(text, "a cost curve").items()
        else:
            pairs = [part.split(":") for part in text.split(",")]
        points = {int(size): float(ms) for size, ms in pairs}
    except (ValueError, TypeError, AttributeError) as error:
        raise ForetokenError(
            f"--curve is {shown(text)}; give tokens and milliseconds such as 1:30,8:33,64:60, or a "
            'JSON file of {"1": 30, "8": 33}.'
        ) from error
    return Curve(points)
