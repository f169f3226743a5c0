"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from foretoken.engine.outputs import CompletionOutput, RequestOutput
from foretoken.engine.stopping import decoded
from foretoken.serve.blocks import Blocks
from foretoken.serve.calling import named, with_calls, wrong_part
from foretoken.serve.conversation import conversation_ids
from foretoken.serve.errors import ApiError
from foretoken.serve.logprobs import Spelling
from foretoken.serve.request_ids import answer_id
from foretoken.serve.schema import ChatBody, params
from foretoken.serve.server import Answering, Server, checked
from foretoken.serve.settings import ServerSettings
from foretoken.serve.streaming import Delta, Told, event, last, merged, respond, while_there
from foretoken.serve.tools import TAGS, format_named, message
from foretoken.serve.tools import Told as ToldCalls
from foretoken.serve.usage import usage


async def chat(request: Request) -> Response:
    """Answers a conversation."""
    server: Server = request.app.state.server
    given = await server.read(request, ChatBody)
    body = await asyncio.to_thread(_with_choice, given, server.settings, server.tokenizer)
    answering = await while_there(request, _submit(request, body))
    answer = _Answer(answering, body, given)
    silence = server.settings.keep_alive_interval
    return await respond(request, answer, body.stream, silence, answering.close)


async def _submit(request: Request, body: ChatBody) -> Answering:
    server: Server = request.app.state.server
    if body.echo:
        raise ApiError(400, "echo isn't served in chats; ask /v1/completions.", "echo")
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs; set it to true.", "top_logprobs")
    asked = body.max_completion_tokens
    asked = body.max_tokens if asked is None else asked
    wanted = body.top_logprobs if body.logprobs else None
    most = server.settings.defaults.get("max_tokens") if asked is None else asked
    most = server.settings.bounded(most)
    chosen = params(body, dict(server.settings.defaults), wanted, most)
    prompt = await asyncio.to_thread(_prompt, server, body)
    given = await server.encoded(prompt, chosen, asked, "messages")
    name = answer_id("chatcmpl", request.headers, body.request_id)
    return await server.submit(name, [given], body.arrived)


def _prompt(server: Server, body: ChatBody) -> dict[str, Any]:
    """The conversation's token ids; and its text, where the answer goes on from that instead of
    being one of its own."""
    special = body.add_special_tokens
    ids = conversation_ids(body, body.messages, server.tokenizer, special, server.context)
    goes_on = body.continue_final_message
    text = decoded(server.tokenizer, ids, body.skip_special_tokens) if goes_on else None
    return {"prompt_token_ids": ids, "prompt": text}


def _with_choice(body: ChatBody, settings: ServerSettings, tokenizer: Any) -> ChatBody:
    """The body, without tools where none may be called, and with the grammar of those that must
    be called, are strict, or stand beside a format of the answer."""
    choice = ("auto" if body.tools else "none") if body.tool_choice is None else body.tool_choice
    must = named(choice) is not None or choice == "required"
    if must and not body.tools:
        raise ApiError(400, "tool_choice makes the model call, and there are no tools.", "tools")
    if choice == "none" or not body.tools:
        return body.model_copy(update={"tools": []})
    if settings.tool_call_parser is None:
        raise ApiError(
            400,
            "tools need a server that was started with --enable-auto-tool-choice and "
            '--tool-call-parser; or set tool_choice to "none".',
            "tools",
        )
    made = with_calls(body, settings.tool_call_parser, tokenizer)
    added = getattr(tokenizer, "added_tokens_decoder", {})  # not only those that have a name
    if not any(token.special and token.content in TAGS for token in added.values()):
        return made
    return made.model_copy(update={"skip_special_tokens": False})  # or no call could be found


class _Answer:
    """One answer, whole or in parts. given: the body as it came."""

    def __init__(self, answering: Answering, body: ChatBody, given: ChatBody) -> None:
        self._answering, self._body, self._given = answering, body, given
        server = answering.server
        self._settings = server.settings
        self._spelling = Spelling(server.tokenizer, body.return_tokens_as_token_ids)
        parser = server.settings.tool_call_parser
        offered = {tool.function.name for tool in body.tools}
        self._format = format_named(parser, offered) if parser is not None and offered else None
        self._named = named(body.tool_choice) is not None
        self._only_first = self._named or not body.parallel_tool_calls
        self._blocks = Blocks(server.tokenizer, body)

    async def whole(self) -> dict[str, Any]:
        """The answer's JSON."""
        output = await self._checked(await last(self._answering.streams[0]))
        whole = self._answering.opening("chat.completion")
        whole["choices"] = [
            {
                "index": sample.index,
                **self._message(sample),
                "logprobs": self._logprobs(sample.token_ids, sample.logprobs),
                "stop_reason": sample.stop_reason,
                **({"token_ids": sample.token_ids} if self._body.return_token_ids else {}),
                **self._blocks.more(sample.index, sample, output.before),
            }
            for sample in output.outputs
        ]
        return whole | self._of_prompt(output) | self._answering.totals([output])

    def _of_prompt(self, output: RequestOutput) -> dict[str, Any]:
        """What is told of the prompt, as in vLLM beside the choices."""
        told: dict[str, Any] = {}
        if self._body.return_token_ids:
            told["prompt_token_ids"] = output.prompt_token_ids
        if self._body.prompt_logprobs is not None:
            told["prompt_logprobs"] = self._spelling.prompt(output.prompt_logprobs or [])
        return told

    async def _checked(self, output: RequestOutput) -> RequestOutput:
        """`checked`; an error of the grammar of calls names what it comes from."""
        try:
            return checked(output)
        except ApiError as error:
            if error.status != 400 or not self._body.tools:
                raise
            said = await asyncio.to_thread(wrong_part, self._given)
            if said is None:
                raise
            raise said from error

    def _message(self, sample: CompletionOutput) -> dict[str, Any]:
        """A sample's message, and why it ended."""
        parts: dict[str, Any] = {"content": sample.text}
        if self._format is not None:
            parts = message(self._format, sample.text, self._only_first)
        return {
            "message": {"role": self._settings.response_role, "refusal": None, **parts},
            "finish_reason": self._reason(sample.finish_reason, "tool_calls" in parts),
        }

    def _logprobs(self, tokens: list[int], entries: Any) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        return self._spelling.chat(tokens, entries, self._body.top_logprobs)

    async def events(self) -> AsyncGenerator[str]:
        """The answer's chunks."""
        options = self._body.stream_options
        samples = [Told() for _ in range(self._body.n)]
        calls = [self._told_calls() for _ in samples]
        output, first = None, True
        async with aclosing(merged(self._answering.streams)) as outputs:
            async for _, output in outputs:
                await self._checked(output)
                for sample, known, called in zip(output.outputs, samples, calls, strict=True):
                    delta = known.more(sample)
                    parts = [] if delta is None else self._choices(output, sample, delta, called)
                    for choice in parts:
                        opens = "role" in choice["delta"]
                        counted = replace(output, outputs=[]) if opens else output
                        chunk = self._chunk([choice], counted, options.continuous_usage_stats)
                        yield event(chunk | (self._of_prompt(output) if first else {}))
                        first = False
        assert output is not None  # a request has one at least
        if options.include_usage or self._settings.force_include_usage:
            yield event(self._chunk([], output, False) | self._answering.totals([output]))

    def _told_calls(self) -> ToldCalls | None:
        if self._format is None:
            return None
        return ToldCalls(self._format, self._only_first)

    def _choices(
        self,
        output: RequestOutput,
        sample: CompletionOutput,
        delta: Delta,
        calls: ToldCalls | None,
    ) -> list[dict[str, Any]]:
        """The role alone before the first text, then the text and the calls."""
        parts: list[dict[str, Any]] = [{"content": delta.text}]
        if calls is not None:
            parts = calls.more(delta.text, delta.finish_reason is not None)
        told: list[dict[str, Any]] = [
            {"index": sample.index, "delta": part, "logprobs": None, "finish_reason": None}
            for part in parts
        ]
        told[0]["logprobs"] = self._logprobs(delta.tokens, delta.logprobs)
        told[0] |= {"token_ids": delta.tokens} if self._body.return_token_ids else {}
        told[0] |= self._blocks.more(sample.index, sample, output.before)
        called = calls is not None and calls.called
        told[-1]["finish_reason"] = self._reason(delta.finish_reason, called)
        told[-1]["stop_reason"] = delta.stop_reason
        if delta.opens:
            role = {"role": self._settings.response_role, "content": ""}
            first = {"index": sample.index, "delta": role, "logprobs": None, "finish_reason": None}
            told.insert(0, first)
        return told

    def _chunk(self, choices: list[Any], output: RequestOutput, with_usage: bool) -> dict[str, Any]:
        chunk = self._answering.opening("chat.completion.chunk") | {"choices": choices}
        if with_usage:
            chunk["usage"] = usage([output])
        elif self._body.stream_options.include_usage:
            chunk["usage"] = None
        return chunk

    def _reason(self, reason: str | None, called: bool) -> str | None:
        """Why an answer ended. One that was cut off says so, whatever is in it; that of a named
        function stops, as OpenAI's does."""
        return "tool_calls" if called and reason == "stop" and not self._named else reason
