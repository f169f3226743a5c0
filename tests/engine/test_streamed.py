"""What a stream shows of the text; what is held back for a stop string is in test_llm.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest

from foretoken import LLM, SamplingParams
from foretoken.engine.outputs import CompletionOutput, RequestOutput
from foretoken.engine.stats import RequestStats
from foretoken.engine.streamed import Streamed
from foretoken.testing import ByteTokenizer, Pair

PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def fails(*_: Any, **__: Any) -> Any:
    raise KeyError("x")


@pytest.mark.parametrize(
    ("decode", "said"),
    [
        (fails, "The tokenizer raised KeyError: 'x'"),
        (lambda ids, **_: b"x", "The tokenizer's decode gave back b'x'; it must be a text."),
        (lambda ids, **_: None, "The tokenizer's decode gave back None; it must be a text."),
    ],
    ids=["raises", "bytes", "None"],
)
@pytest.mark.parametrize("n", [1, 2])
def test_a_tokenizer_that_cant_decode(
    pair: Pair, decode: Callable[..., Any], said: str, n: int
) -> None:
    """The stream ends with the error in its last output, and every slot is free again."""
    tokenizer: Any = ByteTokenizer(97)
    tokenizer.decode = decode
    with LLM(pair.target, tokenizer=tokenizer) as llm:
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, n=n)
        *_, last = llm.stream([5, 9, 2], params)
        assert last.error == said and last.finished
        [output] = llm.generate([[5, 9, 2]], params)
        assert said in str(output.error) or "tokenizer raised" in str(output.error)
        assert llm.engine.target.free == 8 and not llm.engine.busy


def test_texts_grow(pair: Pair) -> None:
    """Each output's text begins with the one before, and the last is the whole."""
    with LLM(pair.target, tokenizer=ByteTokenizer(97)) as llm:
        texts = [output.text for output in llm.stream([5, 9, 2], PARAMS)]
        assert all(longer.startswith(text) for text, longer in pairwise(texts))
        assert texts[-1] == llm.generate([[5, 9, 2]], PARAMS)[0].text


def test_a_text_that_begins_with_a_stop_string() -> None:
    """Nothing is shown of it, however short the text is beside it."""
    tokenizer, stop = ByteTokenizer(), "bcdefghi"
    stream = Streamed(tokenizer, SamplingParams(stop=["x", stop]))
    shown = []
    for count in range(1, 10):
        sample = CompletionOutput(0, token_ids=tokenizer.encode("a" + stop)[:count])
        output = RequestOutput(0, None, [1], [sample], RequestStats())
        shown.append(stream.read(output).text)
    assert shown == [*[""] * 7, "a", "ab"]  # the engine ends it before the last one is shown


def test_what_a_stream_gave_is_the_callers(pair: Pair) -> None:
    """Outputs, prompts and parameters that are changed meanwhile change nothing."""
    with LLM(pair.target, tokenizer=ByteTokenizer(97)) as llm:
        [expected] = llm.generate([[5, 9, 2]], PARAMS)
        prompt, params = [5, 9, 2], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        written = list[int]()
        for output in llm.stream(prompt, params):
            written = list(output.outputs[0].token_ids)
            prompt.clear()
            object.__setattr__(params, "temperature", "hot")
            output.outputs[0].token_ids.clear()
            output.prompt_token_ids.clear()
            output.outputs.clear()
        assert written == expected.token_ids


class Words(ByteTokenizer):
    """A word a token, with a space before it that a text's first one loses."""

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [int(word[1:]) for word in text.split()]}

    def decode(self, token_ids: Any, *given: Any, **options: Any) -> str:
        return "".join(f" w{token}" for token in token_ids)[1:]


def test_a_text_goes_on_from_its_prompts(pair: Pair) -> None:
    """With the space between them, streamed and whole, and where it is a part of a stop string. A
    prompt of token ids may be a conversation, whose answer stands alone."""
    with LLM(pair.target, tokenizer=Words(97)) as llm:
        [output] = llm.generate(["w5 w9 w2"], PARAMS)
        words = [f" w{token}" for token in output.token_ids]
        assert output.text == "".join(words)
        assert [o.text for o in llm.stream("w5 w9 w2", PARAMS)] == list(accumulate(words))
        [stopped] = llm.generate(["w5 w9 w2"], replace(PARAMS, stop=words[0]))
        assert (stopped.text, stopped.outputs[0].stop_reason) == ("", words[0])
        [alone] = llm.generate([[5, 9, 2]], PARAMS)
        assert " " + alone.text == output.text
