"""`foretoken simulate`: predicts the speedup on other hardware and at other batch sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from foretoken.cli import output
from foretoken.errors import ForetokenError, shown, unknown

if TYPE_CHECKING:
    from foretoken.bench.measure.simulate import Machine, Prediction
    from foretoken.bench.record import Results, Run
    from foretoken.control.curve import Curve

_RATES, _COSTS, _WHAT = "Acceptance", "Costs", "What to predict"
_NODES = 16
_OF_A_ROOFLINE = {"bytes_per_parameter": 2.0, "kv_bytes_per_token": 0.0, "context": 0}
_Number = TypeVar("_Number", int, float)


def _option(panel: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, **settings)


def simulate(
    acceptance: Annotated[
        str | None,
        _option(
            _RATES,
            "--acceptance",
            help="How often a drafted token is accepted: one rate, "
            "or one a position, each among drafts accepted so far.",
        ),
    ] = None,
    ranks: Annotated[
        str | None,
        _option(_RATES, "--ranks", help="Of trees: how often child 1, 2 … is the accepted one."),
    ] = None,
    results: Annotated[
        Path | None,
        _option(_RATES, "--from", help="A results.json: its costs, and with --method its rates."),
    ] = None,
    method: Annotated[
        str | None, _option(_RATES, "--method", help="The method in --from whose rates count.")
    ] = None,
    temperature: Annotated[
        float | None, _option(_RATES, "--temperature", help="Of the run in --from; by default 0.")
    ] = None,
    curve: Annotated[
        str | None,
        _option(
            _COSTS,
            "--curve",
            help="Milliseconds of a pass by its tokens, '1:30,8:33,64:60', "
            "or a JSON file of such an object.",
        ),
    ] = None,
    parameters: Annotated[
        float | None, _option(_COSTS, "--parameters", help="Of the target, for a roofline.")
    ] = None,
    bytes_per_parameter: Annotated[
        float, _option(_COSTS, "--bytes-per-parameter", help="2 is half precision.")
    ] = 2.0,
    bandwidth_gb_s: Annotated[
        float | None, _option(_COSTS, "--bandwidth-gb-s", help="Of the memory.")
    ] = None,
    tflops: Annotated[
        float | None, _option(_COSTS, "--tflops", help="Of the arithmetic, at that precision.")
    ] = None,
    kv_bytes_per_token: Annotated[
        float, _option(_COSTS, "--kv-bytes-per-token", help="Of the key/value cache, all layers.")
    ] = 0.0,
    context: Annotated[
        int, _option(_COSTS, "--context", help="Tokens that each sequence looks back on.")
    ] = 0,
    draft_cost: Annotated[
        float | None,
        _option(
            _COSTS, "--draft-cost", help="The drafter's pass as a share of the target's; 0 is free."
        ),
    ] = None,
    other: Annotated[
        float | None,
        _option(
            _COSTS, "--other", help="The engine's own work in a step, as a share of a plain pass."
        ),
    ] = None,
    draft_length: Annotated[
        int | None,
        _option(_WHAT, "--draft-length", min=1, help="Drafted tokens; of a tree, its levels."),
    ] = None,
    nodes: Annotated[
        int | None, _option(_WHAT, "--nodes", min=1, help=f"Of a tree; by default {_NODES}.")
    ] = None,
    batch_sizes: Annotated[str, _option(_WHAT, "--batch-sizes", help="E.g. 1,4,16.")] = "1,4,16,64",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead.")] = False,
) -> None:
    """Predict the speedup for acceptance rates and a cost curve, and the best draft length.

    Rates are entered or a run's; costs are a run's, an entered curve, or the roofline of a machine.
    Whatever was entered is called so, and every speedup here is predicted.

    Example: [bold]foretoken simulate --acceptance 0.8 --draft-cost 0.1 --curve 1:30,64:60[/bold]
    """
    from foretoken.bench.record import read_results

    if results is None and temperature is not None:
        raise ForetokenError("--temperature is of a run; add --from, or leave it out.")
    temperature = temperature or 0.0
    measured = None if results is None else read_results(results)
    run = None if method is None else _run(measured, method, temperature)
    line = parameters, bytes_per_parameter, bandwidth_gb_s, tflops
    costs = _Costs(curve, *line, kv_bytes_per_token, context, draft_cost, other)
    machine, source = costs.machine(measured, run, temperature)
    rates = _Rates(acceptance, ranks, run, draft_length, nodes)
    sizes = _numbers(batch_sizes, int, "--batch-sizes")
    if min(sizes) < 1:
        raise ForetokenError(f"--batch-sizes are {shown(batch_sizes)}; each must be at least 1.")
    rows, about = rates.predictions(machine, sizes)
    answer = {
        "predicted": True,
        "acceptance": about,
        "costs": source,
        "rows": [{**asdict(row), "best": asdict(best) if best else None} for row, best in rows],
    }
    if as_json:
        output.write_json(answer)
    else:
        _show(rows, about, source)


Rows = list[tuple["Prediction", "Prediction | None"]]
"""For each batch size what was asked for, and the best (None where only the run is known)."""


@dataclass(frozen=True)
class _Costs:
    """The options that say what passes cost."""

    curve: str | None
    parameters: float | None
    bytes_per_parameter: float
    bandwidth_gb_s: float | None
    tflops: float | None
    kv_bytes_per_token: float
    context: int
    draft_cost: float | None
    other: float | None

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
        for name, default in _OF_A_ROOFLINE.items():
            if vars(self)[name] != default:
                raise ForetokenError(
                    f"--{name.replace('_', '-')} is of a roofline; add --parameters, "
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


@dataclass(frozen=True)
class _Rates:
    """The options that say what is accepted, and what to draft."""

    acceptance: str | None
    ranks: str | None
    run: Run | None
    draft_length: int | None
    nodes: int | None

    def predictions(self, machine: Machine, sizes: Seq[int]) -> tuple[Rows, str]:
        """A row for each batch size, and a phrase on where the rates come from."""
        if sum(x is not None for x in (self.acceptance, self.ranks, self.run)) != 1:
            raise ForetokenError(
                "Give acceptance rates in one way: --acceptance for chains, --ranks for trees, or "
                "--from with --method for those of a run."
            )
        if self.nodes is not None and self.ranks is None:
            raise ForetokenError("--nodes is of a tree; give --ranks with it, or leave it out.")
        if self.acceptance is not None:
            return self._chain(machine, sizes, self.acceptance), f"entered: {self.acceptance}"
        if self.ranks is not None:
            return self._tree(machine, sizes, self.ranks), f"entered by rank: {self.ranks}"
        assert self.run is not None
        about = f"measured: {self.run['method']}, temperature {self.run['temperature']:g}"
        return self._again(machine, sizes, self.run), about

    def _chain(self, machine: Machine, sizes: Seq[int], acceptance: str) -> Rows:
        from foretoken.bench.measure.simulate import LONGEST, best_chain, chain_of_rates, predict

        length = self.draft_length or 4
        rates = _numbers(acceptance, float, "--acceptance")
        chain = chain_of_rates(rates, max(length, LONGEST))
        asked = chain.drafting(length)
        return [(predict(asked, machine, n, length), best_chain(chain, machine, n)) for n in sizes]

    def _tree(self, machine: Machine, sizes: Seq[int], ranks: str) -> Rows:
        from foretoken.bench.measure.simulate import LONGEST, best_tree_for, predict, tree

        rates = _numbers(ranks, float, "--ranks")
        asked, depth = tree(rates, self.nodes or _NODES, self.draft_length or LONGEST)
        best = {n: best_tree_for(rates, machine, n) for n in sizes}
        return [(predict(asked, machine, n, depth), best[n]) for n in sizes]

    def _again(self, machine: Machine, sizes: Seq[int], run: Run) -> Rows:
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
            for size in sizes
        ]


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


def _numbers(text: str, kind: type[_Number], name: str) -> list[_Number]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise ForetokenError(
            f"{name} is {shown(text)}; give numbers with commas between them."
        ) from error


def _show(rows: Rows, about: str, source: str) -> None:
    from rich.table import Table

    console = output.console()
    shown = Table(
        box=None,
        header_style="bold",
        pad_edge=False,
        title_justify="left",
        title="Predicted speedups over plain decoding",
    )
    heads = ("batch", "drafted", "tokens/step", "ms/step", "tokens/s", "speedup", "best", "speedup")
    for name in heads:
        shown.add_column(name, justify="right")
    for row, best in rows:
        then = ["–", "–"] if best is None else [_size(best), f"{best.speedup:.2f}"]
        shown.add_row(
            str(row.batch_size),
            _size(row),
            f"{row.tokens_per_step:.2f}",
            f"{row.step_ms:{'.3g' if row.step_ms < 100 else ',.1f'}}",
            f"{row.tokens_per_second:,.1f}",
            f"{row.speedup:.2f}",
            *then,
        )
    console.print(shown)
    console.print(f"\nAcceptance: {about}. Costs: {source}.")


def _size(row: Prediction) -> str:
    """How much is drafted; of a tree also how deep it is."""
    tree = row.nodes > row.depth
    return f"{row.nodes:.3g} deep {row.depth}" if tree else f"{row.nodes:.3g}"
