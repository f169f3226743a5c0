"""`foretoken chat`: a conversation, on a terminal or through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from foretoken.cli import options, output
from foretoken.cli.prompts import has_chat_template
from foretoken.errors import ForetokenError

if TYPE_CHECKING:
    from foretoken.llm import LLM
    from foretoken.sampling.params import SamplingParams

_HELP = "/reset starts a new conversation, /quit ends."
_KEYS = "Ctrl-C ends an answer, Ctrl-D the conversation."


@options.grouped
def chat(
    *,
    model: options.Model = "mini",
    tokenizer: options.Tokenizer = None,
    model_impl: options.ModelImpl = "auto",
    drafting: options.Drafting,
    running: options.ModelOptions,
    sampling: options.SamplingOptions,
    seed: options.Seed = None,
    max_tokens: options.MaxTokens = 256,
    system: Annotated[
        str | None, typer.Option("--system", help="A system message to begin with.")
    ] = None,
) -> None:
    """Talk to a model, a line a turn. /reset starts a new conversation, /quit ends.

    At a terminal, Ctrl-C ends an answer; what there is of it stays in the conversation.

    On a terminal control characters are shown as escapes; a pipe gets the text as it is.

    Example: [bold]foretoken chat --method sps --draft-model mini-draft[/bold]
    """
    config = running.config(drafting)
    params = sampling.params(
        seed=seed,
        max_tokens=max_tokens,
    )
    llm = running.llm(model, config, tokenizer=tokenizer, model_impl=model_impl, max_num_seqs=1)
    if not has_chat_template(llm):
        raise ForetokenError(
            f"{model} has no chat template; use 'foretoken generate --raw', or name a tokenizer "
            "that has one with --tokenizer."
        )
    _Conversation(llm, params, system).run()


class _Conversation:
    """Reads lines, writes answers, keeps the history."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm, self._params = llm, params
        self._start = [{"role": "system", "content": system}] if system else []
        self._history = list(self._start)
        self._seconds = 0.0
        self._answered = self._failed = 0

    def run(self) -> None:
        """Until the lines end. Exits with 1 where they come by a pipe and none was answered."""
        try:
            for line in _lines():
                if line == "/quit":
                    break
                if line == "/reset":
                    self._history = list(self._start)
                elif line == "/help":
                    _note(f"{_HELP} {_KEYS}")
                elif line.startswith("/"):
                    _note(f"There is no command {line.split()[0]!r}; {_HELP}")
                elif line:
                    self._turn(line)
        finally:
            stats = self._llm.stats
            if stats.tokens:
                _note(f"In all: {options.acceptance(stats, self._seconds)}")
        if self._failed and not self._answered and not sys.stdin.isatty():
            raise typer.Exit(1)

    def _turn(self, line: str) -> None:
        messages = [*self._history, {"role": "user", "content": line}]
        try:
            answer = self._answer(messages)
        except ForetokenError as error:
            _note(f"{error} ({_HELP})")
            self._failed += 1
            return
        self._answered += 1
        self._history = [*messages, {"role": "assistant", "content": answer}]

    def _answer(self, messages: list[dict[str, str]]) -> str:
        """Print the answer as it comes, then one line on the drafting."""
        began, text = perf_counter(), ""
        request, interrupted = None, False
        try:
            for request in self._llm.stream(messages, self._params):
                new = request.outputs[0].text
                output.write(new[len(text) :], end="")
                text = new
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            interrupted = True
        finally:
            output.write("")
            seconds = perf_counter() - began
            self._seconds += seconds
        if request is not None and request.error is not None:
            raise ForetokenError(request.error)
        told = ["interrupted"] if interrupted else []
        if request is not None:
            told.insert(0, options.acceptance(request.stats, seconds))
        _note(" · ".join(told))
        return text


def _lines() -> Iterator[str]:
    """What the user types, line by line; with a prompt where there is a terminal."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            yield line.strip()
        return
    with suppress(ImportError):  # which Windows lacks
        import readline  # noqa: F401  (gives `input` its line editing)

    _note(f"{_HELP} {_KEYS}")
    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            output.write("")
            return


def _note(text: str) -> None:
    """A dim line on standard error."""
    output.note(text, "2")
