"""Reads conversations in the spellings that people have them in.

{"messages": [{"role", "content", …}]}     as chat templates take them, tools' turns included
{"conversations": [{"from", "value"}]}     ShareGPT's; human, gpt and their other names
{"data": ["a user's turn", "an answer"]}   UltraChat's, in turn
{"turns": ["a user's turn", …]}            prompts alone; or messages
{"instruction", "input", "output"}         Alpaca's
{"prompt", "completion"}                   texts without a chat template; or messages
{"text"}                                   a text to learn as it is

Beside messages of any spelling "tools" are the functions that may be called, and "system" is what
stands before them. Alpaca's may have a "history", the pairs of question and answer before it.
OpenAI's older names ("functions", a turn's "function_call", the role "function") become its newer
ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from foretoken.engine.conversations import texts
from foretoken.errors import ForetokenError, shown

Message = dict[str, Any]
_Form = tuple[set[str], Callable[[Mapping[str, Any]], "Conversation"]]
USER, ASSISTANT = "user", "assistant"
_ASKING = (USER, "tool")
"""Roles that an assistant answers."""
_SPELLINGS = {
    **dict.fromkeys(("human", "user", "prompter"), USER),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model"), ASSISTANT),
    **dict.fromkeys(("tool", "function", "observation", "tool_response"), "tool"),
    "function_call": ASSISTANT,  # whose value is the call as JSON
    "system": "system",
    "developer": "developer",
}
"""What the roles of conversations are called, and what templates call them."""


@dataclass(frozen=True)
class Conversation:
    """A prompt: messages up to a user's or a tool's turn, and the user's later turns.

    whole: all turns that the file has, with the assistant's, which `turns.fixed` learns from. raw:
    texts without a chat template. tools: the functions that may be called, for the template.
    """

    messages: tuple[Message, ...]
    later: tuple[str, ...] = ()
    whole: tuple[Message, ...] = ()
    raw: bool = False
    tools: tuple[dict[str, Any], ...] = ()


def is_spelled(row: Any) -> bool:
    """Whether a row has the keys of one of the spellings above."""
    return isinstance(row, dict) and any(form <= set(row) for form, _ in _FORMS)


def conversation(row: Any) -> Conversation:
    """A row in one of the spellings above. Raises `ForetokenError` for anything else."""
    form = _form_of(row)
    if form is None:
        forms = ", ".join(" and ".join(f'"{key}"' for key in sorted(form)) for form, _ in _FORMS)
        raise ForetokenError(f"it has none of {forms}.")
    needed, read = form
    try:
        found = read(row)
        found = _with_system(found, row["system"]) if row.get("system") else found
        return _with_tools(found, row["tools"]) if row.get("tools") else found
    except ForetokenError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        named = " and ".join(f'"{key}"' for key in sorted(needed))
        raise ForetokenError(f"it doesn't have {named} as they must be.") from error


def _form_of(row: Any) -> _Form | None:
    """The first spelling whose keys a row has. Beside another one "turns" may be their number."""
    keys = set(row) if isinstance(row, dict) else set()
    fitting = [form for form in _FORMS if form[0] <= keys]
    return min(
        fitting,
        key=lambda form: form[0] == {"turns"} and not isinstance(row["turns"], list),
        default=None,
    )


def _with_system(found: Conversation, given: Any) -> Conversation:
    """With a system message that stands beside the turns. A text that is learned as it is has
    none."""
    if not found.messages:
        return found
    if found.raw:
        raise ForetokenError(
            'it has "system" beside "prompt", a text as it is; give "messages" with both, or leave '
            '"system" out.'
        )
    rule = _said("system", given)
    whole = (rule, *found.whole) if found.whole else ()
    return replace(found, messages=(rule, *found.messages), whole=whole)


def _with_tools(found: Conversation, given: Any) -> Conversation:
    """With the functions that may be called, a list or one as JSON text."""
    tools = json.loads(given) if isinstance(given, str) else given
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ForetokenError(
            f'"tools" is {shown(given)}; it must be a list of '
            '{"type": "function", "function": …}.'
        )
    if found.raw:
        raise ForetokenError('it has "tools" and no chat template reads it; leave "tools" out.')
    return replace(found, tools=tuple(tools))


def _of_functions(given: Any) -> list[dict[str, Any]]:
    """What a template reads of OpenAI's older list of functions, or of one as JSON text."""
    functions = _read(given) if isinstance(given, str) else given
    if not isinstance(functions, list) or not all(isinstance(each, dict) for each in functions):
        raise ForetokenError(
            f'"functions" is {shown(given)}; it must be a list of {{"name": …, "parameters": …}}.'
        )
    return [{"type": "function", "function": function} for function in functions]


def _of_messages(turns: Any) -> Conversation:
    """Up to the last turn that asks something; nothing where none does, or where there is none."""
    renewed = [_renewed(turn) for turn in turns] if isinstance(turns, list) else turns
    whole = tuple(texts(renewed)) if turns != [] else ()
    asked = [i for i, turn in enumerate(whole) if turn["role"] in _ASKING]
    return Conversation(whole[: asked[-1] + 1], whole=whole) if asked else Conversation(())


def _renewed(turn: Any) -> Any:
    """A turn with what has an older name in OpenAI's form under the newer one."""
    if not isinstance(turn, dict):
        return turn
    renewed = dict(turn)
    if turn.get("role") == "function":
        renewed["role"] = "tool"
    if turn.get("function_call") and not turn.get("tool_calls"):
        call = renewed.pop("function_call")
        renewed["tool_calls"] = [{"type": "function", "function": call}]
    return renewed


def _said(role: str, content: Any) -> Message:
    if not isinstance(content, str):
        raise ForetokenError(f"A turn is {shown(content)}; it must be a text.")
    return {"role": role, "content": content}


def _from_messages(row: Mapping[str, Any]) -> Conversation:
    found, functions = _of_messages(row["messages"]), row.get("functions")
    return _with_tools(found, _of_functions(functions)) if functions else found


def _from_sharegpt(row: Mapping[str, Any]) -> Conversation:
    return _of_messages([_spelled(turn) for turn in row["conversations"]])


def _spelled(turn: Mapping[str, Any]) -> Message:
    if "from" not in turn:
        return dict(turn)
    if turn["from"] not in _SPELLINGS:
        raise ForetokenError(
            f"A turn is from {shown(turn['from'])}; it must be from one of {', '.join(_SPELLINGS)}."
        )
    said = _said(_SPELLINGS[turn["from"]], turn["value"])
    calls = _calls(turn["value"]) if turn["from"] == "function_call" else []
    said |= {"content": None, "tool_calls": calls} if calls else {}
    return said | ({"weight": turn["weight"]} if "weight" in turn else {})


def _calls(text: str) -> list[dict[str, Any]]:
    """The calls in a text of JSON, which has one or a list of them; none in any other text, which
    stays what it is."""
    read = _read(text)
    calls = read if isinstance(read, list) else [read]
    if not all(map(_is_call, calls)):
        return []
    return [{"type": "function", "function": call} for call in calls]


def _is_call(read: Any) -> bool:
    """Whether it is a call, with nothing in it that templates wouldn't write."""
    if not isinstance(read, dict) or not read.keys() <= {"name", "arguments", "id"}:
        return False
    given = read.get("arguments", {})
    arguments = _read(given) if isinstance(given, str) else given
    return isinstance(read.get("name"), str) and isinstance(arguments, dict)


def _read(text: str) -> Any:
    """What a text of JSON has; None for another text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _from_ultrachat(row: Mapping[str, Any]) -> Conversation:
    turns = row["data"]
    if not isinstance(turns, list):
        raise ForetokenError(f'"data" is {shown(turns)}; it must be a list of texts.')
    return _of_messages([_said((USER, ASSISTANT)[i % 2], turn) for i, turn in enumerate(turns)])


def _from_turns(row: Mapping[str, Any]) -> Conversation:
    """The user's turns, or messages."""
    turns = row["turns"]
    if not isinstance(turns, list) or not turns:
        raise ForetokenError(f"the turns are {shown(turns)}; they must be a list of one or more.")
    if all(isinstance(turn, dict) for turn in turns):
        return _of_messages(turns)
    first, *later = (_said(USER, turn) for turn in turns)
    return Conversation((first,), tuple(turn["content"] for turn in later))


def _from_alpaca(row: Mapping[str, Any]) -> Conversation:
    asked = "\n\n".join(filter(None, (row["instruction"], row.get("input"))))
    history = row.get("history") or []
    if not isinstance(history, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in history
    ):
        raise ForetokenError(
            f'"history" is {shown(history)}; it must be a list of pairs, question and answer.'
        )
    pairs = [*history, (asked, row["output"])]
    return _of_messages(
        [turn for said, answer in pairs for turn in (_said(USER, said), _said(ASSISTANT, answer))]
    )


def _from_pair(row: Mapping[str, Any]) -> Conversation:
    """Raw texts, or messages."""
    prompt, answer = row["prompt"], row.get("completion", row.get("response"))
    if isinstance(prompt, list):
        answers = [_said(ASSISTANT, answer)] if isinstance(answer, str) else answer or []
        return _of_messages([*prompt, *answers])
    asked = _said(USER, prompt)
    whole = () if answer is None else (asked, _said(ASSISTANT, answer))
    return Conversation((asked,), whole=whole, raw=True)


def _from_text(row: Mapping[str, Any]) -> Conversation:
    return Conversation((), whole=(_said(ASSISTANT, row["text"]),), raw=True)


_FORMS: tuple[_Form, ...] = (
    ({"turns"}, _from_turns),
    ({"messages"}, _from_messages),
    ({"conversations"}, _from_sharegpt),
    ({"data"}, _from_ultrachat),
    ({"instruction", "output"}, _from_alpaca),
    ({"prompt"}, _from_pair),
    ({"text"}, _from_text),
)
