"""Turns of conversations as token ids: what a model reads before its own turn, and that turn."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from typing import Any

from foretoken.engine.conversations import tool_options, written
from foretoken.engine.prompts import chat_ids, ids_after, text_ids
from foretoken.errors import ForetokenError
from foretoken.llm import LLM
from foretoken.spellings import ASSISTANT, Conversation, Message
from foretoken.train.records import Records

_MARK = "\u2042 foretoken \u2042"
"""A text that no template writes by itself."""

_log = logging.getLogger(__name__)

Pair = tuple[list[int], list[int]]


def fixed(llm: LLM, conversations: Seq[Conversation], length: int) -> Records:
    """The file's own texts and answers, every turn of an assistant with what was said before it,
    each record cut to `length` tokens. Where that leaves none of the answer, where it is empty, or
    the template can't write it as its own turn, the turn is left out, and so are conversations that
    the template can't write at all; the log says how many. Raises `ForetokenError` where it can
    write none."""
    ends = {raw: end_of_turn(llm, raw) for raw in {each.raw for each in conversations}}
    pairs: list[Pair] = []
    unwritten: list[ForetokenError] = []
    long = strange = empty = 0
    for each in conversations:
        try:
            answers = _answers(llm, each, ends[each.raw])
        except ForetokenError as error:
            unwritten.append(error)
            continue
        for prompt, answer in answers:
            if answer is None:
                strange += 1
            elif all(token in llm.engine.eos_ids for token in answer):
                empty += 1
            elif len(prompt) >= length:
                long += 1
            else:
                pairs.append((prompt, answer[: length - len(prompt)]))
    for count, reason in (
        (long, f"what is before them has {length} tokens or more"),
        (strange, "the chat template writes them in another way than it begins an answer"),
        (empty, "they have neither a text nor a call"),
    ):
        if count:
            _log.warning("%d answers are left out: %s", count, reason)
    if unwritten and not pairs:
        raise unwritten[0]
    if unwritten:
        _log.warning(
            "%d conversations are left out, the first as: %s", len(unwritten), unwritten[0]
        )
    # A tokenizer may have tokens that the model lacks.
    highest = max((token for prompt, answer in pairs for token in (*prompt, *answer)), default=0)
    return Records.of(pairs, length, max(llm.model.vocab_size, highest + 1))


def _answers(
    llm: LLM, conversation: Conversation, end: Seq[int]
) -> list[tuple[list[int], list[int] | None]]:
    """What is read before each turn of the assistant, and that turn; None for one that can't be
    written. An assistant that speaks first is a template's greeting, and no answer; nor is a turn
    of weight 0, as files for OpenAI's fine-tuning have it."""
    found = []
    turns = conversation.whole
    for i, turn in enumerate(turns):
        learned = turn["role"] == ASSISTANT and turn.get("weight", 1) != 0
        if learned and (conversation.raw or _asked(turns[:i])):
            prompt = prompt_ids(llm, conversation, turns[:i])
            answer = _answer(llm, conversation, turns[: i + 1], end, prompt)
            found.append((prompt, answer))
    return found


def _asked(turns: Seq[Message]) -> bool:
    return any(turn["role"] not in (ASSISTANT, "system", "developer") for turn in turns)


def _answer(
    llm: LLM, conversation: Conversation, turns: Seq[Message], end: Seq[int], prompt: list[int]
) -> list[int] | None:
    """The last of the turns, as its model would write it after the prompt. What is more than a text
    (calls of tools, reasoning) is what the template writes after the beginning of an answer."""
    said = {name for name, value in turns[-1].items() if value not in ("", [], {})}
    if said <= {"role", "content", "weight"}:
        ids = _said(llm, conversation, turns, prompt)
        return ids if end and ids[-1:] == [*end] else [*ids, *end]
    options = tool_options(llm.tokenizer, conversation.tools)
    before = written(turns[:-1], llm.tokenizer, options=options)
    whole = written(turns, llm.tokenizer, reply=False, options=options)
    if not whole.startswith(before):
        return None
    ids = _going_on(prompt, before, whole[len(before) :], llm.tokenizer)
    # Some templates end a turn that calls a tool otherwise, as Llama 3.1's by <|eom_id|>.
    ends = end if any(token in end for token in ids) else llm.engine.eos_ids
    last_end = max((i for i, token in enumerate(ids) if token in ends), default=None)
    return [*ids, *end] if last_end is None else ids[: last_end + 1]


def _said(
    llm: LLM, conversation: Conversation, turns: Seq[Message], prompt: list[int]
) -> list[int]:
    """The last turn's text; where nothing is read before it, it begins as a prompt does."""
    tokenizer, text = llm.tokenizer, turns[-1]["content"]
    if not prompt:
        return text_ids(text, tokenizer)
    if conversation.raw:
        return _going_on(prompt, turns[0]["content"], text, tokenizer, special=True)
    if not _begins_otherwise(tokenizer):
        return text_ids(text, tokenizer, special=False)
    options = tool_options(tokenizer, conversation.tools)
    before = written(turns[:-1], tokenizer, options=options)
    whole = written(turns, tokenizer, reply=False, options=options)
    if not whole.startswith(before + text):
        return text_ids(text, tokenizer, special=False)
    return _going_on(prompt, before, text, tokenizer)


def _going_on(
    prompt: list[int], before: str, text: str, tokenizer: Any, special: bool = False
) -> list[int]:
    """A text's tokens after what stands before it, `before`, whose ids are the prompt's.

    Tokenizers like Llama 2's begin every text with a space. A model writes none where its template
    has none, so with these the text's tokens are those that it has there. special: whether the
    prompt has the special tokens that the tokenizer adds.
    """
    if _begins_otherwise(tokenizer):
        there = ids_after(prompt, before, text, tokenizer, special)
        if there is not None:
            return there
    return text_ids(text, tokenizer, special=False)


def _begins_otherwise(tokenizer: Any) -> bool:
    """Whether a text has other tokens at the beginning than after a new line."""
    alone, after = (text_ids(text, tokenizer, special=False) for text in ("a", "\na"))
    return after[-len(alone) :] != alone


def end_of_turn(llm: LLM, raw: bool = False) -> list[int]:
    """The token after an answer: of a chat, the one that its template writes, as `<|im_end|>`; of a
    raw text, the tokenizer's own. None where texts have no end."""
    ends, tokenizer = llm.engine.eos_ids, llm.tokenizer
    found: list[int] = []
    if not raw:
        turns = [{"role": "user", "content": "?"}, {"role": ASSISTANT, "content": _MARK}]
        after = written(turns, tokenizer, reply=False).rpartition(_MARK)[2]
        found = text_ids(after, tokenizer, special=False)
    own = getattr(tokenizer, "eos_token_id", None)
    return [token for token in (*found, own, *sorted(ends)) if token in ends][:1]


def prompt_ids(llm: LLM, conversation: Conversation, messages: Seq[Message]) -> list[int]:
    """The messages as token ids, in the chat template unless the conversation is raw; nothing where
    there are none. Raises `ForetokenError` for what the template can't write."""
    if not messages:
        return []
    if not conversation.raw:
        options = tool_options(llm.tokenizer, conversation.tools)
        return chat_ids(list(messages), llm.tokenizer, options=options)
    return text_ids(messages[0]["content"], llm.tokenizer)


def whole_ids(llm: LLM, conversation: Conversation) -> list[int]:
    """All that is said in a conversation as one text. Raises `ForetokenError` for what the template
    can't write."""
    turns = conversation.whole or conversation.messages
    if conversation.raw:
        return text_ids("".join(turn["content"] for turn in turns), llm.tokenizer)
    reply, options = turns[-1]["role"] != ASSISTANT, tool_options(llm.tokenizer, conversation.tools)
    return chat_ids(list(turns), llm.tokenizer, reply=reply, options=options)
