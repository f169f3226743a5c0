"""A race in the terminal: one answer, written plainly and with drafts.

Each way writes alone, as two at once would share the processor. Then both are shown side by side,
every token at the moment at which it came, or all of it slower, where it would be over too soon.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from foretoken.llm import LLM
    from foretoken.sampling.params import SamplingParams

_PICTURES = 20  # a second
_LEAST_SECONDS = 6.0
_LINES = 18  # of an answer and its frame, while it grows


@dataclass(frozen=True)
class Written:
    """An answer as it came: of each token its text, whether it was drafted and accepted, and the
    seconds since the prompt was handed in."""

    name: str
    pieces: list[str]
    accepted: list[bool]
    moments: list[float]

    @property
    def seconds(self) -> float:
        return self.moments[-1] if self.moments else 0.0

    def by(self, seconds: float) -> int:
        """The tokens that are there by then."""
        return sum(moment <= seconds for moment in self.moments)


def written(llm: LLM, name: str, messages: list[dict[str, str]], params: SamplingParams) -> Written:
    """The model's answer to a conversation, with the moments of its tokens."""
    from foretoken.bench.run.answers import pieces

    moments: list[float] = []
    began = perf_counter()
    for out in llm.stream(messages, params):
        now = perf_counter() - began
        moments += [now] * (len(out.token_ids) - len(moments))
    return Written(name, pieces(llm.tokenizer, out.token_ids), out.outputs[0].accepted, moments)


def slowed(racers: Seq[Written]) -> int:
    """How many times slower a race is shown, so that it takes a few seconds."""
    last = max(racer.seconds for racer in racers)
    return max(1, round(_LEAST_SECONDS / last)) if last else 1


def show(console: Console, racers: Seq[Written]) -> None:
    """Both answers as they grow, `slowed`; through a pipe as they ended."""
    from foretoken.bench.report.terminal import in_colour

    last, times = max(racer.seconds for racer in racers), slowed(racers)
    coloured = in_colour(console)
    if not console.is_terminal:
        console.print(picture(racers, last, coloured, None))
        return
    began = perf_counter()
    with Live(picture(racers, 0.0, coloured), console=console, auto_refresh=False) as live:
        while (now := (perf_counter() - began) / times) < last:
            live.update(picture(racers, now, coloured), refresh=True)
            time.sleep(1 / _PICTURES)
        live.update(picture(racers, last, coloured), refresh=True)


def picture(
    racers: Seq[Written], seconds: float, coloured: bool, height: int | None = _LINES
) -> RenderableType:
    """The answers as they stood after so many seconds, side by side; of long ones the end."""
    grid = Table.grid(expand=True)
    for _ in racers:
        grid.add_column(ratio=1)
    grid.add_row(*(_panel(racer, seconds, coloured, height) for racer in racers))
    return grid


@dataclass(frozen=True)
class _Tail:
    """A text's last lines, as many as there is room for."""

    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        lines = self.text.wrap(console, options.max_width)
        yield Text("\n").join(lines[-(options.height or 0) :])


def _panel(racer: Written, seconds: float, coloured: bool, height: int | None) -> Panel:
    from foretoken.bench.report.terminal import written

    count = racer.by(seconds)
    text = written(racer.pieces[:count], racer.accepted[:count], coloured)
    text.overflow = "fold"
    ended = count == len(racer.moments)
    clock = f"{min(seconds, racer.seconds):.2f} s" + " – done" * ended
    return Panel(
        _Tail(text),
        title=racer.name,
        subtitle=f"{count} tokens · {clock}",
        height=height,
        border_style="green" if ended else "dim",
    )
