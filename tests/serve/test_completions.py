"""Completions, by OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from foretoken import SamplingParams
from served import VOCAB, Served, Spaced, serving, toy

FIXED: dict[str, Any] = {"model": "toy", "seed": 5, "max_tokens": 10}


def offline(served: Served, prompts: Any, **options: Any) -> list[Any]:
    return served.llm.generate(prompts, SamplingParams(**{"seed": 5, "max_tokens": 10} | options))


@pytest.mark.parametrize("prompt", ["ab", ["ab", "cd"], [1, 2, 3], [[1, 2], [3]]], ids=str)
@pytest.mark.parametrize("n", [1, 2])
def test_prompts_and_samples(client: OpenAI, served: Served, prompt: Any, n: int) -> None:
    expected = [s.text for output in offline(served, prompt, n=n) for s in output.outputs]
    answer = client.completions.create(**FIXED, prompt=prompt, n=n)
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == list(range(len(expected)))
    parts = [""] * len(expected)
    for chunk in client.completions.create(**FIXED, prompt=prompt, n=n, stream=True):
        parts[chunk.choices[0].index] += chunk.choices[0].text
    assert parts == expected


def test_sixteen_tokens_by_default(client: OpenAI) -> None:
    answer = client.completions.create(model="other", prompt="ab", extra_body={"ignore_eos": True})
    assert answer.usage is not None and answer.usage.completion_tokens == 16
    assert answer.id.startswith("cmpl-") and answer.object == "text_completion"


def test_as_many_tokens_as_the_server_says() -> None:
    """In chats, too, where nothing is asked for."""
    said: dict[str, Any] = {"messages": [{"role": "user", "content": "ab"}]}
    with serving(toy(), defaults={"max_tokens": 3}) as served:
        for route, body in (("completions", {"prompt": "ab"}), ("chat/completions", said)):
            for more, count in (({}, 3), ({"max_tokens": 5}, 5)):
                asked = body | more | {"ignore_eos": True}
                answer = httpx.post(f"{served.url}/v1/{route}", json=asked).json()
                assert answer["usage"]["completion_tokens"] == count


def test_echo_and_logprobs(client: OpenAI, served: Served) -> None:
    [output] = offline(served, ["ab"], logprobs=2, prompt_logprobs=2)
    answer = client.completions.create(**FIXED, prompt="ab", echo=True, logprobs=2)
    [choice] = answer.choices
    told = choice.logprobs
    assert choice.text == "ab" + output.text and told is not None
    assert told.tokens is not None and told.tokens[:2] == ["a", "b"]
    assert told.token_logprobs is not None and told.top_logprobs is not None
    assert told.token_logprobs[0] is None and told.top_logprobs[0] is None
    places = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
    tokens = [66, *output.outputs[0].token_ids]
    known = [place[token].logprob for place, token in zip(places, tokens, strict=True)]
    assert told.token_logprobs[1:] == pytest.approx(known, abs=1e-9)
    assert told.text_offset is not None
    for token, offset in zip(told.tokens, told.text_offset, strict=True):
        assert choice.text[offset : offset + len(token)] == token
    chunks = list(
        client.completions.create(**FIXED, prompt="ab", echo=True, logprobs=2, stream=True)
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    parts = [chunk.choices[0].logprobs for chunk in chunks]
    assert [offset for part in parts for offset in part.text_offset] == told.text_offset
    assert [token for part in parts for token in part.tokens] == told.tokens


def test_what_ended_a_text(client: OpenAI, served: Served) -> None:
    stop = offline(served, ["ab"])[0].text[3:5]
    answer = client.completions.create(**FIXED, prompt="ab", stop=stop).choices[0]
    assert answer.finish_reason == "stop"
    assert answer.model_extra and answer.model_extra["stop_reason"] == stop


def test_a_stream_of_several_prompts(client: OpenAI, served: Served) -> None:
    """All of them are counted, and each one's ids are told once."""
    *chunks, last = client.completions.create(
        **FIXED,
        prompt=["ab", "c"],
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (3, 20)
    assert all(c.usage is None and "usage" in c.model_fields_set for c in chunks)
    told = [c.choices[0].model_extra for c in chunks]
    ids = [more["prompt_token_ids"] for more in told if "prompt_token_ids" in more]
    assert sorted(ids) == [[65, 66], [67]] and len(chunks) > 2


def test_a_prompt_as_its_special_tokens_spell_it(client: OpenAI) -> None:
    options: Any = {"echo": True, "max_tokens": 0}
    for skipped, text in ((True, "a"), (False, "<eos>a")):
        answer = client.completions.create(
            model="toy",
            prompt=[VOCAB - 1, 65],
            extra_body={"skip_special_tokens": skipped},
            **options,
        )
        assert answer.choices[0].text == text


def test_prompt_logprobs(client: OpenAI) -> None:
    answer = client.completions.create(
        **FIXED, prompt="abc", extra_body={"prompt_logprobs": 0, "return_tokens_as_token_ids": True}
    )
    [choice] = answer.choices
    told = choice.model_extra["prompt_logprobs"]
    assert told[0] is None and [list(entry) for entry in told[1:]] == [["66"], ["67"]]
    assert told[1]["66"]["decoded_token"] == "token_id:66"
    chunks = client.completions.create(
        **FIXED, prompt="abc", stream=True, extra_body={"prompt_logprobs": 0}
    )
    first, *rest = (chunk.choices[0].model_extra or {} for chunk in chunks)
    assert len(first["prompt_logprobs"]) == 3
    assert rest and not any("prompt_logprobs" in more for more in rest)  # once is enough


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": []},
        {"prompt": ""},
        {"prompt": [[]]},
        {"prompt": [1, "a"]},
        {"prompt": {"a": 1}},
        {"prompt": [999]},
        {"prompt": "a", "max_tokens": 256},
        {"prompt": "a", "max_tokens": 0},
        {"prompt": "a", "max_tokens": "5"},
        {"prompt": "a", "suffix": "b"},
        {"prompt": "a", "best_of": 3},
        {"prompt": "a", "logprobs": 21},
        {"prompt": "a", "stop": [1]},
        {"prompt": "a", "stop": [""]},
        {"prompt": "a", "seed": 2**63},
        {"prompt": "a", "logit_bias": {"x": 1}},
        {"prompt": "a", "logit_bias": {"500": 1}},
        {"prompt": "a", "stream_options": {"include": True}},
        {"prompt": "a" * 300},
    ],
    ids=str,
)
def test_refusals(client: OpenAI, body: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/completions", body={"model": "toy", **body}, cast_to=object)
    assert isinstance(caught.value.body, dict) and caught.value.body["message"]


def test_more_texts_than_one_answer_has(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="129 prompts with n 128; ask for at most"):
        client.completions.create(**FIXED, prompt=[[1]] * 129, n=128)


def test_one_prompt_that_is_refused_leaves_nothing_running(client: OpenAI, served: Served) -> None:
    with pytest.raises(openai.BadRequestError):
        client.completions.create(**FIXED, prompt=[[1, 2], [999]])
    assert not served.llm.worker.call(lambda engine: engine.busy)


@pytest.mark.parametrize("prompt", ["ab", [VOCAB - 1, 65, 66]], ids=["text", "ids"])
def test_a_text_goes_on_from_its_prompt(prompt: Any) -> None:
    """With the space between the two, which is a part of what was written; so that tokens begin
    where they are said to begin."""
    own: dict[str, Any] = {"prompt": prompt, "logprobs": 1, "foretoken": {"blocks": True}}
    own |= {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    own |= {"logit_bias": {str(VOCAB - 1): -1000}}
    with serving(toy(tokenizer=Spaced(VOCAB))) as served:
        url = f"{served.url}/v1/completions"
        [plain] = httpx.post(url, json=own).json()["choices"]
        [echoed] = httpx.post(url, json=own | {"echo": True}).json()["choices"]
        lines = httpx.post(url, json=own | {"stream": True}).text.splitlines()
    words = [f" {token[1:]}" for token in plain["logprobs"]["tokens"]]
    assert plain["text"] == "".join(words)
    blocks = plain["foretoken"]["blocks"]
    assert [token for block in blocks for token in block["tokens"]] == words
    given = "ab" if isinstance(prompt, str) else "65 66"
    assert echoed["text"] == given + plain["text"]
    places = plain["logprobs"]["text_offset"]
    after = [len(given) + at for at in places]
    assert echoed["logprobs"]["text_offset"] == [0, 0, 2, *after]
    assert [plain["text"][at:][: len(w)] for w, at in zip(words, places, strict=True)] == words
    parts = [json.loads(line[6:])["choices"][0] for line in lines if line[:7] == "data: {"]
    assert "".join(part["text"] for part in parts) == plain["text"]
    assert [at for part in parts for at in part["logprobs"]["text_offset"]] == places


def test_where_tokens_begin(client: OpenAI) -> None:
    """All of a character's where it begins."""
    answer = client.completions.create(
        **FIXED, prompt="aé€b", echo=True, logprobs=0, extra_body={"allowed_token_ids": [65]}
    )
    told = answer.choices[0].logprobs
    assert told is not None and told.text_offset == [0, 1, 1, 2, 2, 2, 3, *range(4, 14)]
    assert answer.choices[0].text == "aé€b" + 10 * "a"


@pytest.mark.parametrize("prompt", ["abc", [65, 66, 67]], ids=["text", "ids"])
def test_a_prompt_is_scored_alone(client: OpenAI, served: Served, prompt: Any) -> None:
    """With `echo`, no token may be asked for: none is told, nor counted."""
    asked: dict[str, Any] = {"model": "toy", "prompt": prompt, "echo": True, "logprobs": 2, "n": 2}
    [one, two] = client.completions.create(**asked, max_tokens=0).choices
    longer = client.completions.create(**asked, max_tokens=1).choices[0].logprobs
    assert one.text == two.text == "abc" and one.finish_reason == "length"
    for choice in (one, two):
        assert choice.logprobs is not None and choice.logprobs.tokens == ["a", "b", "c"]
        assert longer is not None and longer.token_logprobs is not None
        assert choice.logprobs.token_logprobs == longer.token_logprobs[:3]
    any_ends = {"stop_token_ids": [*range(VOCAB)]}  # what is written unasked says nothing
    ended = client.completions.create(**asked, max_tokens=0, extra_body=any_ends).choices[0]
    assert ended.finish_reason == "length" and ended.text == "abc"
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    *parts, last = client.completions.create(**asked, max_tokens=0, **options)
    assert sorted(part.choices[0].index for part in parts) == [0, 1]
    assert all(part.choices[0].text == "abc" for part in parts)
    assert last.usage.completion_tokens == 0 and last.usage.prompt_tokens == 3
