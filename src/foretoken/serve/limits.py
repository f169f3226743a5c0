"""What is too much: bodies, prompts, and requests that wait."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from starlette.requests import Request

from foretoken.engine.prompts import FAR
from foretoken.errors import Overloaded
from foretoken.serve.errors import RETRY, ApiError


async def body_of(request: Request, most: int) -> bytes:
    """The body of a JSON request. Raises `ApiError` for another type, and for too long a body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "The body must be JSON; send Content-Type: application/json.")
    return await whole_body(request, most)


async def whole_body(request: Request, most: int) -> bytes:
    """A body of any type. Raises `ApiError` for one of more than `most` bytes."""
    read = bytearray()
    async for chunk in request.stream():
        read += chunk
        if len(read) > most:
            raise ApiError(413, f"The body is longer than {most:,} bytes; send less.")
    return bytes(read)


def check_length(
    prompt: Seq[int], asked: int | None, context: int, opening: Seq[int], field: str
) -> None:
    """Raise `ApiError` where a prompt and the tokens asked for are more than the context. opening:
    of an encoder–decoder's answers, which the context bounds apart from their prompts; field: of
    the body, from which the prompt is. Clients know a text that is too long by how the sentence of
    OpenAI and of vLLM begins."""
    if not prompt:
        raise ApiError(400, "The prompt is empty; give at least one token.", field)
    before = len(opening or prompt)
    if len(prompt) > context or before >= context or before + (asked or 0) > context:
        more = f", and {asked} more were asked for" if asked else ""
        far = FAR * context  # of more, not all may have been read
        count = len(prompt) if len(prompt) <= far else f"more than {far}"
        raise ApiError(
            400,
            f"This model's maximum context length is {context} tokens. However, your prompt has "
            f"{count}{more}; shorten the prompt or lower max_tokens.",
            field,
        )


def busy(error: Overloaded) -> ApiError:
    """A full queue, as clients are told of it."""
    return ApiError(503, str(error), headers=RETRY)
