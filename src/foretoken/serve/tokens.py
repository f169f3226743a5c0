"""POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from foretoken.engine.prompts import text_ids
from foretoken.engine.stopping import decoded
from foretoken.serve.conversation import conversation_ids
from foretoken.serve.errors import ApiError
from foretoken.serve.logprobs import Spelling
from foretoken.serve.schema import DetokenizeBody, TokenizeBody
from foretoken.serve.server import Server


async def tokenize(request: Request) -> Response:
    """The token ids of a text or a conversation."""
    server: Server = request.app.state.server
    body = await server.read(request, TokenizeBody)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "Give a prompt or messages, one of the two.", "prompt")
    ids, texts = await asyncio.to_thread(_read, server, body)
    told = {"count": len(ids), "max_model_len": server.context, "tokens": ids, "token_strs": texts}
    return JSONResponse(told)


def _read(server: Server, body: TokenizeBody) -> tuple[list[int], list[str] | None]:
    """The token ids, and if asked for their texts."""
    special = body.add_special_tokens
    if body.messages is None:
        ids = text_ids(body.prompt or "", server.tokenizer, special is not False)
    else:
        ids = conversation_ids(body, body.messages, server.tokenizer, special is True)
    spelling = Spelling(server.tokenizer)
    return ids, [spelling.token(token) for token in ids] if body.return_token_strs else None


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    server: Server = request.app.state.server
    body = await server.read(request, DetokenizeBody)
    if server.tokenizer is None:
        raise ApiError(400, "The server has no tokenizer, and knows token ids only.")
    size = server.vocab_size
    wrong = next((token for token in body.tokens if token >= size), None)
    if wrong is not None:
        raise ApiError(400, f"{wrong} is outside of the vocabulary of {size} tokens.", "tokens")
    text = await asyncio.to_thread(decoded, server.tokenizer, body.tokens, False)
    return JSONResponse({"prompt": text})
