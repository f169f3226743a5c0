"""A text changed by an instruction, where what stays as it is costs few passes.

A model that changes a file writes the whole file again, most of it as it was. So the request's
`prediction` is the block that the prompt shows: whatever the method, unchanged parts are drafted
from it, and the answer is the one that the model would have written without.

    edited = edit(llm, Path("a.py").read_text(), "Rename f to area.")
    print(edited.diff("a.py"))
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from difflib import unified_diff
from typing import TYPE_CHECKING

from foretoken.engine.prompts import text_ids
from foretoken.engine.stopping import decoded
from foretoken.errors import ForetokenError, shown
from foretoken.files import MARK
from foretoken.progress import track
from foretoken.sampling.params import SamplingParams

if TYPE_CHECKING:
    from foretoken.engine.outputs import RequestOutput
    from foretoken.llm import LLM

_SPARE = 512  # tokens beyond twice the text's, after which an answer without max_tokens ends
_PROMPT = """{block}

Change the file above: {instruction}

Answer with the whole changed file in one block between lines of {fence}, with the parts that stay \
as they are, and write nothing else."""


@dataclass(frozen=True)
class Edited:
    """A changed text.

    before, text: the text as it was given and as it is now. complete: whether the answer came to
    its end; otherwise the text lacks what was to follow. predicted: tokens of the prediction.
    output: the request, with the answer as it was written and its statistics.
    """

    before: str
    text: str
    complete: bool
    predicted: int
    output: RequestOutput

    def diff(self, name: str) -> str:
        """What changed, as a unified diff of a file of this name; empty where nothing did."""
        lines = unified_diff(_lines(self.before), _lines(self.text), name, name)
        ended = (x if x.endswith("\n") else f"{x}\n\\ No newline at end of file\n" for x in lines)
        return "".join(ended)


def edit(
    llm: LLM,
    text: str,
    instruction: str,
    params: SamplingParams | None = None,
    *,
    use_tqdm: bool = False,
) -> Edited:
    """The text as the model changes it by the instruction, through its chat template.

    params: how it is sampled, by default greedily; where `max_tokens` is None, the answer may have
    twice the text's tokens and 512 more, as far as the context and the caches' memory reach.
    `use_tqdm` shows how many tokens are written. Lines that end in CR LF stay so, and so do a byte
    order mark and a last line without an end.

    Raises `ForetokenError` for an empty instruction, a text that doesn't fit into the context and
    the caches with an answer as long, a model that is no decoder-only one or has no chat template,
    a method whose rule takes no prediction, parameters with a prediction or several samples, for an
    empty answer, and for one of which no one can say where the file is, as it has several fenced
    blocks.
    """
    params = params or SamplingParams(temperature=0, max_tokens=None)
    _check(llm, instruction, params)
    windows = "\r\n" in text and text.count("\r\n") == text.count("\n")
    mark = MARK if text.startswith(MARK) else ""
    shown = text.removeprefix(mark)
    shown = shown.replace("\r\n", "\n") if windows else shown
    fence = _fence(shown)
    prompt = llm.chat_prompt(messages(shown, instruction))
    predicted = text_ids(_block(shown, fence), llm.tokenizer, special=False)
    room = _room(llm, len(prompt), len(predicted))
    _check_ends(llm, predicted)
    output = _finished(llm, prompt, _bounded(params, predicted, room), len(predicted), use_tqdm)
    if shown.strip():
        _check_answer(output)
    found, closed = _cut(output.text, shown, fence)
    return Edited(
        before=text,
        text=mark + (found.replace("\n", "\r\n") if windows else found),
        complete=closed and output.outputs[0].finish_reason == "stop",
        predicted=len(predicted),
        output=output,
    )


def messages(text: str, instruction: str) -> list[dict[str, str]]:
    """The conversation that asks for the changed text."""
    fence = _fence(text)
    block = _block(text, fence)
    asked = _PROMPT.format(instruction=instruction.strip(), block=block, fence=fence)
    return [{"role": "user", "content": asked}]


def _check(llm: LLM, instruction: str, params: SamplingParams) -> None:
    if not instruction.strip():
        raise ForetokenError("The instruction is empty; say what is to be changed.")
    if params.prediction is not None:
        raise ForetokenError("The text itself is the prediction of an edit; leave prediction out.")
    if params.n != 1:
        raise ForetokenError(f"n is {params.n} and an edit is one text; leave it at 1.")
    if llm.engine.target.opening:
        raise ForetokenError("An encoder–decoder takes no instructions; use a decoder-only model.")


def _room(llm: LLM, prompt: int, predicted: int) -> int:
    """How many tokens fit after the prompt. Raises `ForetokenError` where an answer as long as the
    text doesn't."""
    target = llm.engine.target
    most: int = target.budget.longest(target.max_length)
    if prompt + predicted > most:
        bound, remedy = "the context is", "max_model_len if the model allows it"
        if most < target.max_length:
            bound, remedy = "the caches hold", "kv_cache_memory"
        raise ForetokenError(
            f"The file is too long: with the instruction it takes {prompt} tokens, with an answer "
            f"as long {prompt + predicted}, and {bound} {most}; give a part of it, or raise "
            f"{remedy}."
        )
    return most - prompt


def _check_ends(llm: LLM, predicted: Seq[int]) -> None:
    """Raise `ForetokenError` for a file in which the model would end."""
    for token in predicted:
        if token in llm.engine.eos_ids:
            raise ForetokenError(
                f"The file holds {shown(decoded(llm.tokenizer, [token], False))}, at which this "
                "model's texts end; give a part of the file without it."
            )


def _check_answer(output: RequestOutput) -> None:
    """Raise `ForetokenError` where the model ended at once: taken for the file, it would empty
    it."""
    if output.outputs[0].finish_reason == "stop" and not output.text.strip():
        raise ForetokenError(
            "The answer is empty where the whole file was asked for; word the instruction "
            "otherwise, or sample with another seed."
        )


def _bounded(params: SamplingParams, predicted: Seq[int], room: int) -> SamplingParams:
    """The parameters with the prediction, and with a bound on the answer. room: what there is."""
    most = params.max_tokens or min(2 * len(predicted) + _SPARE, room)
    most = max(most, params.min_tokens)
    # Special tokens that the file spells out are a part of it.
    return replace(params, prediction=predicted, max_tokens=most, skip_special_tokens=False)


def _finished(
    llm: LLM, prompt: list[int], params: SamplingParams, expected: int, show: bool
) -> RequestOutput:
    """The request when it has ended. expected: about how many tokens it will write."""
    told = 0
    with track("Writing", expected, show) as advance:
        for output in llm.stream(prompt, params):
            written = min(expected, len(output.outputs[0].token_ids))
            for _ in range(written - told):
                advance()
            told = max(told, written)
    output.raise_error()
    return output


def _fence(text: str) -> str:
    """Backticks, more than any that the text has in a row."""
    return "`" * max(3, 1 + max(map(len, re.findall("`{3,}", text)), default=0))


def _block(text: str, fence: str) -> str:
    end = "" if text.endswith("\n") or not text else "\n"
    return f"{fence}\n{text}{end}{fence}"


def _cut(answer: str, before: str, fence: str) -> tuple[str, bool]:
    """The file in an answer: what its fence encloses, or all of it where it has none; and whether
    the fence, if any, is closed."""
    marks = [*re.finditer(rf"^ {{0,3}}{fence}`*([^`\n]*)$", answer, re.MULTILINE)]
    if not marks:
        return _ended(_unwrapped(answer.strip("\n"), before), before), True
    closing = marks[1:]
    if len(closing) > 1 or any(mark[1].strip() for mark in closing):
        raise ForetokenError(
            f"The answer has {len(marks)} lines that begin with {fence} where one block was asked "
            "for, so it isn't clear which is the file; word the instruction otherwise, or sample "
            "with another seed."
        )
    start, end = marks[0].end() + 1, closing[0].start() if closing else len(answer)
    return _ended(answer[start:end], before), bool(closing)


def _unwrapped(answer: str, before: str) -> str:
    """A bare answer, without a fence around all of it that is shorter than the one asked for."""
    first, *inside, last = answer.split("\n") if "\n" in answer else ["", answer, ""]
    wrapped = first.startswith("```") and last.strip() == "```" and not before.startswith("```")
    return "\n".join(inside) if wrapped else answer


def _ended(text: str, before: str) -> str:
    """The text with an end of its last line, unless the one before had none."""
    if before and not before.endswith("\n"):
        return text.removesuffix("\n")
    return text if not text or text.endswith("\n") else f"{text}\n"


def _lines(text: str) -> list[str]:
    """Lines with their ends, which are line feeds only, as in files."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
