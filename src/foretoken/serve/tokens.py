"""POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from foretoken.engine.prompts import text_ids
from foretoken.engine.stopping import decoded
from foretoken.errors import described
from foretoken.serve.conversation import conversation_ids
from foretoken.serve.errors import ApiError
from foretoken.serve.schema import DetokenizeBody, TokenizeBody
from foretoken.serve.server import Server

_CONTEXTS = 4  # how many times the context is counted


async def tokenize(request: Request) -> Response:
    """The token ids of a text or a conversation."""
    server: Server = request.app.state.server
    body = await server.read(request, TokenizeBody)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "Give a prompt or messages, one of the two.", "prompt")
    ids, pieces = await asyncio.to_thread(_read, server, body)
    told = {"count": len(ids), "max_model_len": server.context, "tokens": ids, "token_strs": pieces}
    return JSONResponse(told)


def _read(server: Server, body: TokenizeBody) -> tuple[list[int], list[str] | None]:
    """The token ids, and if asked for the tokens. Raises `ApiError` for a text that is far too
    long for the model: reading it would keep everybody waiting."""
    special, most = body.add_special_tokens, _CONTEXTS * server.context
    if body.messages is None:
        ids = text_ids(body.prompt or "", server.tokenizer, special is not False, most)
    else:
        ids = conversation_ids(body, body.messages, server.tokenizer, special is True, most)
    if len(ids) > most:
        told = f"The text has more than {most} tokens, {_CONTEXTS} times the model's context"
        raise ApiError(400, f"{told}; give it in parts.", "prompt" if body.prompt else "messages")
    return ids, _pieces(server.tokenizer, ids) if body.return_token_strs else None


def _pieces(tokenizer: Any, ids: list[int]) -> list[str]:
    """Tokens as the vocabulary spells them, as vLLM tells them."""
    try:
        return list(tokenizer.convert_ids_to_tokens(ids))
    except Exception as error:
        raise described("The tokenizer", error) from error


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    server: Server = request.app.state.server
    body = await server.read(request, DetokenizeBody)
    if server.tokenizer is None:
        raise ApiError(400, "The server has no tokenizer, and knows token ids only.")
    size, most = server.vocab_size, _CONTEXTS * server.context
    if len(body.tokens) > most:
        told = f"There are more than {most} tokens, {_CONTEXTS} times the model's context"
        raise ApiError(400, f"{told}; give them in parts.", "tokens")
    wrong = next((token for token in body.tokens if token >= size), None)
    if wrong is not None:
        raise ApiError(400, f"{wrong} is outside of the vocabulary of {size} tokens.", "tokens")
    text = await asyncio.to_thread(decoded, server.tokenizer, body.tokens, False)
    return JSONResponse({"prompt": text})
