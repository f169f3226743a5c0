"""Pieces: their prompts and seeds, where a text ends, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers
from transformers import PreTrainedTokenizerFast

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.apps.ralm.text import Layout, Text, _ids
from foretoken.testing import ByteTokenizer, Pair
from seq2seq_models import native_of, tiny

TOKENIZER = ByteTokenizer(97)
LAYOUT = Layout("<{document}|{prompt}>", 6, 4)
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)


def a_text(llm: LLM, params: SamplingParams = GREEDY, layout: Layout = LAYOUT) -> Text:
    return Text(llm, ["abcdefghi", "xy", "{prompt}"], "the {document}", params, layout)


@pytest.fixture
def asked(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, SamplingParams]]:
    """The prompts and parameters of the pieces."""
    seen: list[tuple[str, SamplingParams]] = []
    generate = llm.generate

    def noting(prompt: Any, params: Any) -> Any:
        seen.append((TOKENIZER.decode(prompt["prompt_token_ids"]), params))
        return generate(prompt, params)

    monkeypatch.setattr(llm, "generate", noting)
    return seen


def test_pieces(llm: LLM, asked: list[tuple[str, SamplingParams]]) -> None:
    """Each has its own document, cut where it is long, in place of the one before; names in
    documents and prompts are plain text."""
    text = a_text(llm)
    for document in (0, 2, 1):
        assert text.pieces_left == 3 - text.pieces
        text.write(document)
    written = TOKENIZER.decode(text.output)
    assert [prompt for prompt, _ in asked] == [
        "<abcdef|the {document}>",
        "<{promp|the {document}>" + written[:4],
        "<xy|the {document}>" + written[:8],
    ]
    assert [params.max_tokens for _, params in asked] == [4, 4, 2]
    assert text.ended and text.ending.finish_reason == "length" and text.final() == written
    assert text.query(None) == "the {document}" + written
    assert text.query(3) == written[-3:]
    assert text.decoding.tokens == 10


def test_a_pieces_noise_is_its_places(llm: LLM, asked: list[tuple[str, SamplingParams]]) -> None:
    """A piece that is written again has the same seed; no two places, or requests, share one."""
    sampled = SamplingParams(seed=7, max_tokens=10, ignore_eos=True)
    text = a_text(llm, sampled)
    for document in (0, 1):
        text.write(document)
    first = list(text.output)
    text.take_back(1)
    assert text.output == first[:4] and text.documents == [0]
    text.write(1)
    assert text.output == first
    seeds = [params.seed for _, params in asked]
    assert seeds[1] == seeds[2] != seeds[0]
    for params in (SamplingParams(seed=8, max_tokens=4), SamplingParams(max_tokens=4)):
        a_text(llm, params).write(0)
    seeds = [params.seed for _, params in asked]
    assert len(set(seeds)) == 4


def test_a_stop_string_across_pieces(llm: LLM) -> None:
    """Found where one piece ends and the next begins; taken back with its piece."""
    whole = a_text(llm)
    whole.write(0)
    whole.write(1)
    written = TOKENIZER.decode(whole.output)
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, stop=written[2:6])
    text = a_text(llm, params)
    text.write(0)
    assert not text.ended
    text.write(1)
    assert text.ended and text.ending.stop_reason == written[2:6]
    assert text.final() == written[:2] and len(text.output) == 6
    text.take_back(1)
    assert not text.ended and text.final() == written[:4]


class Leading(ByteTokenizer):
    """Puts a space before a text, and leaves it out again, as Llama 2's does."""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return super().encode(f" {text}" if text else "")

    def decode(self, *given: Any, **options: Any) -> str:
        return super().decode(*given, **options).removeprefix(" ")


def test_a_text_goes_on_from_its_prompt(pair: Pair) -> None:
    """The space that it begins with is a part of it, and of a stop string."""
    spaces = replace(GREEDY, allowed_token_ids=TOKENIZER.encode(" "))
    with LLM(pair.target, tokenizer=Leading(97)) as own:
        for template in (LAYOUT.template, "{prompt}{document}"):
            text = a_text(own, spaces, Layout(template, 6, 4))
            for document in (1, 0, 0):
                text.write(document)
            assert text.final() == " " * 10
        text = a_text(own, replace(spaces, stop="   "))
        text.write(0)
        assert text.ended and len(text.output) == 3 and text.final() == ""


def test_the_parts_of_a_prompt_are_one_text(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its beginning has a space before it."""
    seen: list[list[int]] = []
    with LLM(pair.target, tokenizer=Leading(97)) as own:
        generate = own.generate
        monkeypatch.setattr(
            own, "generate", lambda p, x: (seen.append(p["prompt_token_ids"]), generate(p, x))[1]
        )
        a_text(own).write(0)
        a_text(own, layout=Layout("{document}|{prompt}>", 6, 4)).write(0)
    assert [TOKENIZER.decode(ids) for ids in seen] == [
        " <abcdef|the {document}>",
        " abcde|the {document}>",
    ]


@pytest.mark.parametrize("text", ["bout", "a", "\nbout", "\n", ""])
def test_a_word_goes_on_after_a_letter_or_a_line(text: str) -> None:
    """Where the tokenizer has tokens of several letters, and of several lines, it has no space
    either."""
    parts = ["\u2581", "\n", *"abotu", "ab", "bo", "abo", "out", "ou", "\n\n"]
    pairs = [("a", "b"), ("b", "o"), ("ab", "o"), ("o", "u"), ("ou", "t"), ("\n", "\n")]
    inner = Tokenizer(models.BPE({part: i for i, part in enumerate(parts)}, pairs))
    inner.normalizer = normalizers.Prepend("\u2581")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    found = _ids(text, tokenizer, goes_on=True)
    assert "".join(tokenizer.convert_ids_to_tokens(found)) == text
    alone = tokenizer.convert_ids_to_tokens(_ids("bout", tokenizer, goes_on=False))
    assert "".join(alone) == "\u2581bout"


def test_an_encoder_decoder_is_refused() -> None:
    """Each piece would begin its text anew."""
    with (
        LLM(native_of(tiny("t5")), tokenizer=ByteTokenizer(61)) as own,
        pytest.raises(ForetokenError, match="use a decoder-only model"),
    ):
        Text(own, ["A"], "B", GREEDY, Layout("{document}{prompt}", 6, 4))


def test_a_stop_token(llm: LLM) -> None:
    whole = a_text(llm)
    whole.write(0)
    params = SamplingParams(temperature=0, max_tokens=10, stop_token_ids=[whole.output[1]])
    text = a_text(llm, params)
    text.write(0)
    ids = whole.output[: whole.output.index(whole.output[1]) + 1]
    assert text.ended and text.output == ids
    assert text.final() == TOKENIZER.decode(ids[:-1])
    shown = a_text(llm, replace(params, include_stop_str_in_output=True))
    shown.write(0)
    assert shown.final() == TOKENIZER.decode(ids)


def test_up_to_the_context(llm: LLM) -> None:
    """Without max_tokens as much as fits with the longest document that is read."""
    text = a_text(llm, SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
    assert text.pieces_left == -(-(256 - len("<|the {document}>") - 6) // 4)
    with pytest.raises(ForetokenError, match="max_tokens is 240 and the context is 256; lower"):
        a_text(llm, SamplingParams(max_tokens=240))


@pytest.mark.parametrize(
    "options",
    [
        {"n": 2},
        {"presence_penalty": 1.0},
        {"frequency_penalty": 1.0},
        {"bad_words": ["a"]},
        {"min_tokens": 2},
        {"structured_outputs": {"regex": "a"}},
        {"logits_processor_factories": [lambda: None]},
        {"logprobs": 1},
        {"prompt_logprobs": 0},
        {"prediction": [1, 2]},
        {"timeout": 1.0},
    ],
)
def test_what_pieces_cant_have(llm: LLM, options: dict[str, Any]) -> None:
    [name] = options
    with pytest.raises(ForetokenError, match=f"^{name} is .* leave it out"):
        a_text(llm, SamplingParams(max_tokens=10, **options))


@pytest.mark.parametrize("template", ["{prompt}", "{document}", "{document}{prompt}{document}"])
def test_templates(template: str) -> None:
    with pytest.raises(ForetokenError, match="each once"):
        Layout(template, 6, 4)


class Loud(ByteTokenizer):
    """Shows special tokens by writing all in capitals."""

    def decode(self, ids: Any, skip_special_tokens: bool = False, **options: Any) -> str:
        text = super().decode(ids, skip_special_tokens, **options)
        return text if skip_special_tokens else text.upper()


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_are_shown_where_they_are_wanted(pair: Pair, skip: bool) -> None:
    params = replace(GREEDY, allowed_token_ids=TOKENIZER.encode("abc"), skip_special_tokens=skip)
    with LLM(pair.target, tokenizer=Loud(97)) as own:
        text = a_text(own, params)
        for document in (0, 1, 1):
            text.write(document)
        written = TOKENIZER.decode(text.output)
        assert len(written) == 10 and text.final() == (written if skip else written.upper())
