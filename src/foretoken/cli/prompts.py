"""Prompts for commands that need some: the user's, or the bundled ones, as token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretoken.errors import ForetokenError

if TYPE_CHECKING:
    from foretoken.llm import LLM


def has_chat_template(llm: LLM) -> bool:
    return bool(getattr(llm.tokenizer, "chat_template", None))


def prompt_ids(llm: LLM, text: str) -> list[int]:
    """A prompt's token ids, through the chat template if there is one."""
    from foretoken.engine.prompts import text_ids

    if llm.tokenizer is None:
        raise ForetokenError("The target has no tokenizer; name one with --tokenizer.")
    if has_chat_template(llm):
        return llm.chat_prompt([{"role": "user", "content": text}])
    return text_ids(text, llm.tokenizer)


def given_or_bundled(llm: LLM, given: list[str] | None, limit: int) -> list[tuple[int, ...]]:
    """The user's prompts, or `limit` of the bundled ones."""
    from foretoken import zoo
    from foretoken.bench.suites.suite import load_suite

    bundled = load_suite(zoo.prompts_path(), "bundled").round_robin()[:limit]
    texts = given or [prompt.turns[0] for prompt in bundled]
    return [tuple(prompt_ids(llm, text)) for text in texts]
