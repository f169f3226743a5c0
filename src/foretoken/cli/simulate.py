"""`foretoken simulate`: predicts the speedup on other hardware and at other batch sizes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from foretoken.cli import options, output
from foretoken.cli.simulate_options import Asked, Costs, Rates, Rows

if TYPE_CHECKING:
    from foretoken.bench.measure.simulate import Prediction


@options.grouped
def simulate(
    *,
    rates: Rates,
    costs: Costs,
    asked: Asked,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead.")] = False,
) -> None:
    """Predict the speedup for acceptance rates and a cost curve, and the best draft length.

    Rates are entered or a run's; costs are a run's, an entered curve, or the roofline of a machine.
    Whatever was entered is called so, and every speedup here is predicted.

    Example: [bold]foretoken simulate --acceptance 0.8 --draft-cost 0.1 --curve 1:30,64:60[/bold]
    """
    measured, run = rates.read()
    machine, source = costs.machine(measured, run, rates.temperature or 0.0)
    rows, about = rates.predictions(machine, run, asked)
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


def _show(rows: Rows, about: str, source: str) -> None:
    console = output.console()
    heads = ("batch", "drafted", "tokens/step", "ms/step", "tokens/s", "speedup", "best", "speedup")
    shown = output.table(*heads, right=heads, title="Predicted speedups over plain decoding")
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
