"""POST /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from collections.abc import Sequence as Seq
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from foretoken.engine.outputs import CompletionOutput, RequestOutput
from foretoken.engine.prompts import text_ids
from foretoken.engine.stopping import decoded
from foretoken.serve.blocks import Blocks
from foretoken.serve.errors import ApiError
from foretoken.serve.logprobs import Entry, Spelling
from foretoken.serve.schema import CompletionBody, params
from foretoken.serve.server import Answering, Server, checked
from foretoken.serve.streaming import Delta, Told, event, last, merged, respond, while_there
from foretoken.serve.usage import usage

DEFAULT_TOKENS = 16  # OpenAI's, for completions


async def completions(request: Request) -> Response:
    """Continues texts."""
    server: Server = request.app.state.server
    body = await server.read(request, CompletionBody)
    answering = await while_there(request, _submit(server, body))
    answer = _Answer(answering, body)
    silence = server.settings.keep_alive_interval
    return await respond(request, answer, body.stream, silence, answering.close)


async def _submit(server: Server, body: CompletionBody) -> Answering:
    most = body.max_tokens
    if most is None:
        most = server.settings.defaults.get("max_tokens", DEFAULT_TOKENS)
    defaults = dict(server.settings.defaults)
    if body.echo and body.logprobs is not None:
        defaults["prompt_logprobs"] = body.logprobs
    chosen = params(body, defaults, body.logprobs, most)
    prompts = _prompts(body.prompt)
    if not prompts:
        raise ApiError(400, "prompt is an empty list; give at least one.", "prompt")
    encoded = []
    for prompt in prompts:
        given = await asyncio.to_thread(_as_asked, prompt, server, body)
        encoded.append(await server.encoded(given, chosen, body.max_tokens))
    return await server.submit("cmpl", encoded, body)


def _prompts(given: Any) -> list[Any]:
    """The prompts of a body: texts, or lists of token ids."""
    if isinstance(given, str):
        return [given]
    alone = bool(given) and isinstance(given[0], int)
    return [given] if alone else list(given)


def _as_asked(prompt: Any, server: Server, body: CompletionBody) -> Any:
    """A prompt for the engine, its text without special tokens where none are asked for."""
    if isinstance(prompt, str) and not body.add_special_tokens:
        ids = text_ids(prompt, server.tokenizer, special=False)
        return {"prompt": prompt, "prompt_token_ids": ids}
    return {"prompt_token_ids": prompt} if isinstance(prompt, list) else {"prompt": prompt}


class _Answer:
    """One answer to one prompt or several, whole or in parts."""

    def __init__(self, answering: Answering, body: CompletionBody) -> None:
        self._answering, self._body = answering, body
        self._settings = answering.server.settings
        self._tokenizer = answering.server.tokenizer
        self._spelling = Spelling(self._tokenizer, body.return_tokens_as_token_ids)
        self._blocks = Blocks(self._tokenizer, body)
        self._lengths: dict[int, int] = {}  # of what choices' texts begin with, in characters

    async def whole(self) -> dict[str, Any]:
        """The answer's JSON."""
        outputs = [checked(await last(stream)) for stream in self._answering.streams]
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
            async for place, output in outputs:
                newest[place] = checked(output)
                for sample, seen in zip(output.outputs, known[place], strict=True):
                    delta = seen.more(sample)
                    if delta is not None:
                        choice = self._choice(place, output, sample, delta)
                        stats = options.continuous_usage_stats
                        yield event(self._chunk([choice], [output] if stats else None))
        if options.include_usage or self._settings.force_include_usage:
            done = [newest[place] for place in sorted(newest)]
            yield event(self._chunk([], None) | self._answering.totals(done))

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
        text = (self._echo(output) if echoed else "") + delta.text
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(index, tokens, entries),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        if self._body.prompt_logprobs is not None and delta.opens:
            choice["prompt_logprobs"] = self._spelling.prompt(output.prompt_logprobs or [])
        if self._body.return_token_ids:
            choice["token_ids"] = delta.tokens
            choice |= {"prompt_token_ids": output.prompt_token_ids} if delta.opens else {}
        return choice | self._blocks.more(index, sample)

    def _echo(self, output: RequestOutput) -> str:
        if output.prompt is not None or self._tokenizer is None:
            return output.prompt or ""
        return decoded(self._tokenizer, output.prompt_token_ids, self._body.skip_special_tokens)

    def _logprobs(self, index: int, tokens: list[int], entries: list[Entry]) -> Any:
        top = self._body.logprobs
        if top is None:
            return None
        spelt = self._spelling.completion(tokens, entries, top, self._lengths.get(index, 0))
        if tokens:
            self._lengths[index] = spelt["text_offset"][-1] + len(spelt["tokens"][-1])
        return spelt
