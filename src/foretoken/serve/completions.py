"""POST /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from collections.abc import Sequence as Seq
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from foretoken.engine.outputs import CompletionOutput, RequestOutput
from foretoken.engine.prompts import text_ids
from foretoken.engine.stopping import TextTracker, decoded
from foretoken.errors import described
from foretoken.sampling.params import MOST_SAMPLES
from foretoken.serve.blocks import Blocks
from foretoken.serve.errors import ApiError
from foretoken.serve.logprobs import Entry, Spelling
from foretoken.serve.request_ids import answer_id
from foretoken.serve.schema import CompletionBody, params
from foretoken.serve.server import Answering, Server, checked
from foretoken.serve.streaming import Delta, Told, event, last, merged, respond, while_there
from foretoken.serve.usage import usage

DEFAULT_TOKENS = 16  # OpenAI's, for completions


async def completions(request: Request) -> Response:
    """Continues texts."""
    server: Server = request.app.state.server
    body = await server.read(request, CompletionBody)
    answering = await while_there(request, _submit(request, body))
    answer = _Answer(answering, body)
    silence = server.settings.keep_alive_interval
    return await respond(request, answer, body.stream, silence, answering.close)


async def _submit(request: Request, body: CompletionBody) -> Answering:
    server: Server = request.app.state.server
    most = body.max_tokens
    if most is None:
        most = server.settings.defaults.get("max_tokens", DEFAULT_TOKENS)
    most = server.settings.bounded(most)
    if _prompt_alone(body):
        most = 1  # which isn't told
    defaults = dict(server.settings.defaults)
    if body.echo and body.logprobs is not None:
        defaults["prompt_logprobs"] = body.logprobs
    chosen = params(body, defaults, body.logprobs, most)
    prompts = _prompts(body.prompt)
    if not prompts:
        raise ApiError(400, "prompt is an empty list; give at least one.", "prompt")
    if len(prompts) * body.n > MOST_SAMPLES:
        asked = f"{len(prompts):,} prompts with n {body.n}"
        raise ApiError(400, f"There are {asked}; ask for at most {MOST_SAMPLES:,} texts.", "prompt")
    encoded = []
    for prompt in prompts:
        given = await asyncio.to_thread(_as_asked, prompt, server, body)
        encoded.append(await server.encoded(given, chosen, body.max_tokens, "prompt"))
    name = answer_id("cmpl", request.headers, body.request_id)
    return await server.submit(name, encoded, body.arrived)


def _prompt_alone(body: CompletionBody) -> bool:
    """Whether nothing is to be written: the prompt is scored."""
    return body.echo and body.max_tokens == 0


def _prompts(given: Any) -> list[Any]:
    """The prompts of a body: texts, or lists of token ids."""
    if isinstance(given, str):
        return [given]
    alone = bool(given) and isinstance(given[0], int)
    return [given] if alone else list(given)


def _as_asked(prompt: Any, server: Server, body: CompletionBody) -> Any:
    """A prompt for the engine, its text without special tokens where none are asked for, and the
    text of token ids that there are: what is written goes on from it."""
    if isinstance(prompt, list):
        return {"prompt": _text(prompt, server, body), "prompt_token_ids": prompt}
    if body.add_special_tokens:
        return {"prompt": prompt}
    ids = text_ids(prompt, server.tokenizer, special=False, most=server.context)
    return {"prompt": prompt, "prompt_token_ids": ids}


def _text(prompt: list[int], server: Server, body: CompletionBody) -> str | None:
    """The text of token ids; None without a tokenizer, and for ids that the engine will refuse."""
    if server.tokenizer is None or len(prompt) > server.context:
        return None
    if max(prompt, default=0) >= server.vocab_size:
        return None
    try:
        return decoded(server.tokenizer, prompt, body.skip_special_tokens)
    except Exception as error:
        raise described("The tokenizer", error) from error


class _Answer:
    """One answer to one prompt or several, whole or in parts."""

    def __init__(self, answering: Answering, body: CompletionBody) -> None:
        self._answering, self._body = answering, body
        self._settings = answering.server.settings
        self._tokenizer = answering.server.tokenizer
        self._spelling = Spelling(self._tokenizer, body.return_tokens_as_token_ids)
        self._blocks = Blocks(self._tokenizer, body)
        self._trackers: dict[int, TextTracker] = {}  # of choices' texts

    async def whole(self) -> dict[str, Any]:
        """The answer's JSON."""
        outputs = [self._told(await last(stream)) for stream in self._answering.streams]
        whole = self._answering.opening("text_completion")
        whole["choices"] = [
            self._choice(place, output, sample, Told().more(sample))
            for place, output in enumerate(outputs)
            for sample in output.outputs
        ]
        return whole | self._answering.totals(outputs)

    async def events(self) -> AsyncGenerator[str]:
        """The answer's chunks."""
        options = self._body.stream_options
        streams = self._answering.streams
        known = [[Told() for _ in range(self._body.n)] for _ in streams]
        newest: dict[int, RequestOutput] = {}
        async with aclosing(merged(streams)) as outputs:
            async for place, found in outputs:
                output = newest[place] = self._told(found)
                for sample, seen in zip(output.outputs, known[place], strict=True):
                    delta = seen.more(sample)
                    if delta is not None:
                        choice = self._choice(place, output, sample, delta)
                        stats = options.continuous_usage_stats
                        yield event(self._chunk([choice], [output] if stats else None))
        if options.include_usage or self._settings.force_include_usage:
            done = [newest[place] for place in sorted(newest)]
            yield event(self._chunk([], None) | self._answering.totals(done))

    def _told(self, output: RequestOutput) -> RequestOutput:
        """An output, without what was written where the prompt alone is asked for. Raises what
        `checked` does."""
        checked(output)
        if not _prompt_alone(self._body):
            return output
        samples = [
            replace(
                sample.first(0, 0),
                text="",
                finish_reason=sample.finish_reason and "length",
                stop_reason=None,
            )
            for sample in output.outputs
        ]
        return replace(output, outputs=samples)

    def _chunk(self, choices: list[Any], counted: Seq[RequestOutput] | None) -> dict[str, Any]:
        chunk = self._answering.opening("text_completion") | {"choices": choices}
        if counted is not None:
            chunk["usage"] = usage(counted)
        elif self._body.stream_options.include_usage:
            chunk["usage"] = None
        return chunk

    def _choice(
        self, place: int, output: RequestOutput, sample: CompletionOutput, delta: Delta | None
    ) -> dict[str, Any]:
        assert delta is not None  # a sample that has ended has something to tell
        index = place * self._body.n + sample.index
        echoed = self._body.echo and delta.opens
        tokens: list[int] = [*(output.prompt_token_ids if echoed else ()), *delta.tokens]
        entries: list[Entry] = [
            *((output.prompt_logprobs or []) if echoed else ()),
            *delta.logprobs,
        ]
        text = ((output.prompt or "") if echoed else "") + delta.text
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(index, output, delta, tokens, entries),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        if self._body.prompt_logprobs is not None and delta.opens:
            choice["prompt_logprobs"] = self._spelling.prompt(output.prompt_logprobs or [])
        if self._body.return_token_ids:
            choice["token_ids"] = delta.tokens
            choice |= {"prompt_token_ids": output.prompt_token_ids} if delta.opens else {}
        return choice | self._blocks.more(index, sample, output.before)

    def _logprobs(
        self,
        index: int,
        output: RequestOutput,
        delta: Delta,
        tokens: list[int],
        entries: list[Entry],
    ) -> Any:
        """Of the tokens that a choice gains: the delta's, after the prompt's where that is told."""
        top = self._body.logprobs
        if top is None:
            return None
        offsets = [0] * len(tokens)  # without a tokenizer there is no text
        if self._tokenizer is not None:
            if index not in self._trackers:
                self._trackers[index] = self._tracker(output.before)
            given = tokens[: len(tokens) - len(delta.tokens)]
            start = len(output.prompt or "") if self._body.echo else 0
            offsets = [
                *self._places(self._tracker(()), given, 0),
                *self._places(self._trackers[index], delta.tokens, start),
            ]
        return self._spelling.completion(tokens, entries, top, offsets)

    def _tracker(self, before: Seq[int]) -> TextTracker:
        return TextTracker(self._tokenizer, self._body.skip_special_tokens, before)

    def _places(self, tracker: TextTracker, tokens: Seq[int], start: int) -> list[int]:
        """Where each of these tokens begins in a text, of which the tracker's begins at `start`. A
        part of a character begins where that does."""
        places = []
        for token in tokens:
            at, own = len(tracker.text), self._spelling.token(token)
            new = tracker.append(token)
            if own and new.endswith(own):  # perhaps after bytes that are no character
                at = len(tracker.text) - len(own)
            places.append(start + at)
        return places
