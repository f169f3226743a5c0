"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from foretoken.engine.outputs import CompletionOutput, RequestOutput
from foretoken.serve.blocks import Blocks
from foretoken.serve.conversation import conversation_ids
from foretoken.serve.errors import ApiError
from foretoken.serve.logprobs import Spelling
from foretoken.serve.schema import ChatBody, params
from foretoken.serve.server import Answering, Server, checked
from foretoken.serve.streaming import Delta, Told, event, last, merged, respond, while_there
from foretoken.serve.usage import usage


async def chat(request: Request) -> Response:
    """Answers a conversation."""
    server: Server = request.app.state.server
    body = await server.read(request, ChatBody)
    answering = await while_there(request, _submit(server, body))
    answer = _Answer(answering, body)
    silence = server.settings.keep_alive_interval
    return await respond(request, answer, body.stream, silence, answering.close)


async def _submit(server: Server, body: ChatBody) -> Answering:
    if body.echo:
        raise ApiError(400, "echo isn't served in chats; ask /v1/completions.", "echo")
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs; set it to true.", "top_logprobs")
    asked = body.max_completion_tokens
    asked = body.max_tokens if asked is None else asked
    wanted = body.top_logprobs if body.logprobs else None
    most = server.settings.defaults.get("max_tokens") if asked is None else asked
    chosen = params(body, dict(server.settings.defaults), wanted, most)
    ids = await asyncio.to_thread(_ids, server, body)
    given = await server.encoded({"prompt_token_ids": ids}, chosen, asked)
    return await server.submit("chatcmpl", [given], body)


def _ids(server: Server, body: ChatBody) -> list[int]:
    return conversation_ids(body, body.messages, server.tokenizer, body.add_special_tokens)


class _Answer:
    """One answer, whole or in parts."""

    def __init__(self, answering: Answering, body: ChatBody) -> None:
        self._answering, self._body = answering, body
        server = answering.server
        self._settings = server.settings
        self._spelling = Spelling(server.tokenizer, body.return_tokens_as_token_ids)
        self._blocks = Blocks(server.tokenizer, body)

    async def whole(self) -> dict[str, Any]:
        """The answer's JSON."""
        output = checked(await last(self._answering.streams[0]))
        whole = self._answering.opening("chat.completion")
        whole["choices"] = [
            {
                "index": sample.index,
                "message": {
                    "role": self._settings.response_role,
                    "content": sample.text,
                    "refusal": None,
                },
                "logprobs": self._logprobs(sample.token_ids, sample.logprobs),
                "finish_reason": sample.finish_reason,
                "stop_reason": sample.stop_reason,
                **({"token_ids": sample.token_ids} if self._body.return_token_ids else {}),
                **self._blocks.more(sample.index, sample),
            }
            for sample in output.outputs
        ]
        if self._body.return_token_ids:
            whole["prompt_token_ids"] = output.prompt_token_ids
        return whole | self._answering.totals([output])

    def _logprobs(self, tokens: list[int], entries: Any) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        return self._spelling.chat(tokens, entries, self._body.top_logprobs)

    async def events(self) -> AsyncGenerator[str]:
        """The answer's chunks."""
        options = self._body.stream_options
        samples = [Told() for _ in range(self._body.n)]
        output = None
        async with aclosing(merged(self._answering.streams)) as outputs:
            async for _, output in outputs:
                checked(output)
                for sample, known in zip(output.outputs, samples, strict=True):
                    delta = known.more(sample)
                    for choice in [] if delta is None else self._choices(sample, delta):
                        yield event(self._chunk([choice], output, options.continuous_usage_stats))
        assert output is not None  # a request has one at least
        if options.include_usage or self._settings.force_include_usage:
            yield event(self._chunk([], output, False) | self._answering.totals([output]))

    def _choices(self, sample: CompletionOutput, delta: Delta) -> list[dict[str, Any]]:
        """The role alone before the first text, then the text."""
        opening = {"role": self._settings.response_role, "content": ""}
        end = {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
        logprobs = self._logprobs(delta.tokens, delta.logprobs)
        index = sample.index
        own: dict[str, Any] = {"token_ids": delta.tokens} if self._body.return_token_ids else {}
        own |= self._blocks.more(index, sample)
        text = {"index": index, "delta": {"content": delta.text}, "logprobs": logprobs}
        if not delta.opens:
            return [text | own | end]
        first = {"index": index, "delta": opening, "logprobs": None, "finish_reason": None}
        return [first, text | own | end]

    def _chunk(self, choices: list[Any], output: RequestOutput, with_usage: bool) -> dict[str, Any]:
        chunk = self._answering.opening("chat.completion.chunk") | {"choices": choices}
        if with_usage:
            chunk["usage"] = usage([output])
        elif self._body.stream_options.include_usage:
            chunk["usage"] = None
        return chunk
