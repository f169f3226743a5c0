"""Chats, by OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from foretoken import SamplingParams
from served import VOCAB, Served, Spaced, serving, toy

SAID: Any = [{"role": "user", "content": "hello"}]
FIXED: dict[str, Any] = {"model": "toy", "messages": SAID, "seed": 5, "max_completion_tokens": 12}


def offline(served: Served, **options: Any) -> Any:
    params = SamplingParams(**{"seed": 5, "max_tokens": 12} | options)
    return served.llm.chat(SAID, params)[0]


def streamed(client: OpenAI, **options: Any) -> list[Any]:
    return list(client.chat.completions.create(**FIXED, stream=True, **options))


def test_an_answer_is_the_offline_text(client: OpenAI, served: Served) -> None:
    answer = client.chat.completions.create(**FIXED)
    [choice] = answer.choices
    assert choice.message.content == offline(served).text
    assert (choice.message.role, choice.finish_reason, choice.index) == ("assistant", "length", 0)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.model == "toy" and answer.choices[0].logprobs is None
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.prompt_tokens == len(served.llm.chat_prompt(SAID))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_a_stream_is_the_offline_text(client: OpenAI, served: Served) -> None:
    chunks = streamed(client)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    text = "".join(chunk.choices[0].delta.content for chunk in chunks)
    assert text == offline(served).text
    assert [c.choices[0].finish_reason for c in chunks].count("length") == 1
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_of_a_stream(client: OpenAI) -> None:
    chunks = streamed(client, stream_options={"include_usage": True})
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 12
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert all("usage" in chunk.model_fields_set for chunk in chunks)


def test_usage_in_every_chunk(client: OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [c.usage.completion_tokens for c in streamed(client, stream_options=options)]
    assert counts == sorted(counts) and counts[-1] == 12
    assert counts[0] == 0 < counts[1]  # the role comes before the first text


def test_several_samples(client: OpenAI, served: Served) -> None:
    texts = [sample.text for sample in offline(served, n=3).outputs]
    answer = client.chat.completions.create(**FIXED, n=3)
    assert [choice.message.content for choice in answer.choices] == texts
    parts = ["", "", ""]
    for chunk in streamed(client, n=3):
        parts[chunk.choices[0].index] += chunk.choices[0].delta.content
    assert parts == texts


def test_logprobs(client: OpenAI, served: Served) -> None:
    [choice] = client.chat.completions.create(**FIXED, logprobs=True, top_logprobs=3).choices
    expected = offline(served, logprobs=3).outputs[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    values = [entry.logprob for entry in choice.logprobs.content]
    known = [
        entry[token].logprob
        for token, entry in zip(expected.token_ids, expected.logprobs, strict=True)
    ]
    assert values == pytest.approx(known, abs=1e-9)
    for entry in choice.logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.bytes is None or bytes(entry.bytes).decode() == entry.token
    chunks = streamed(client, logprobs=True, top_logprobs=3)
    parts = [c.choices[0].logprobs.content for c in chunks if c.choices[0].logprobs]
    assert [entry.logprob for part in parts for entry in part] == values


@pytest.mark.parametrize("place", [slice(12, 14), slice(1, 13)], ids=["short", "long"])
def test_a_stop_string_is_never_seen(client: OpenAI, served: Served, place: slice) -> None:
    whole = offline(served, temperature=0, max_tokens=40).text
    stop = whole[place]
    options = {"stop": stop, "temperature": 0, "max_completion_tokens": 40}
    answer = client.chat.completions.create(**FIXED | options).choices[0]
    assert answer.finish_reason == "stop"
    assert answer.message.content == whole[: whole.index(stop)]
    chunks = list(client.chat.completions.create(**FIXED | options, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == answer.message.content
    assert answer.model_extra and answer.model_extra["stop_reason"] == stop
    assert chunks[-1].choices[0].model_extra["stop_reason"] == stop


def test_without_a_bound_it_writes_to_the_end_of_the_context(client: OpenAI) -> None:
    body = {**FIXED, "max_completion_tokens": None}
    answer = client.chat.completions.create(**body, extra_body={"ignore_eos": True})
    assert answer.usage is not None and answer.usage.total_tokens == 256
    newer = client.chat.completions.create(**FIXED, max_tokens=3)  # of two bounds the newer name's
    assert newer.usage is not None and newer.usage.completion_tokens == 12


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 0.7, "top_p": 0.9},
        {"top_k": 5},
        {"min_p": 0.1},
        {"repetition_penalty": 1.3},
        {"presence_penalty": 1.0},
        {"frequency_penalty": 0.5},
        {"logit_bias": {"65": 50.0}},
        {"stop_token_ids": [65, 66, 67, 68, 69, 70]},
        {"allowed_token_ids": [65, 66, 67]},
        {"ignore_eos": True},
        {"min_tokens": 5},
        {"bad_words": ["a", "b"]},
        {"skip_special_tokens": False},
    ],
    ids=lambda options: next(iter(options)) + str(len(options)),
)
def test_sampling_fields(client: OpenAI, served: Served, options: dict[str, Any]) -> None:
    answer = client.chat.completions.create(**FIXED, extra_body=options)
    bias = options.get("logit_bias")
    own = options | ({"logit_bias": {int(k): v for k, v in bias.items()}} if bias else {})
    assert answer.choices[0].message.content == offline(served, **own).text


def test_null_is_the_default(client: OpenAI, served: Served) -> None:
    extra = {"temperature": None, "stop": None, "n": None, "tools": None, "top_k": None}
    answer = client.chat.completions.create(**FIXED, extra_body=extra)
    assert answer.choices[0].message.content == offline(served).text


def test_acceptance_is_told(client: OpenAI) -> None:
    answer: Any = client.chat.completions.create(**FIXED)
    told = answer.metrics["speculative_decoding"]
    histogram = told["acceptance_histogram"]
    assert sum(histogram) == told["num_spec_steps"] > 0
    kept = sum(place * count for place, count in enumerate(histogram))
    assert kept == told["num_accepted_draft_tokens"]
    assert told["mean_acceptance_length"] == pytest.approx(1 + kept / sum(histogram))
    assert client.chat.completions.create(**FIXED, n=2).model_extra["metrics"] is None


def test_token_ids(client: OpenAI, served: Served) -> None:
    answer: Any = client.chat.completions.create(**FIXED, extra_body={"return_token_ids": True})
    assert answer.choices[0].token_ids == offline(served).token_ids
    assert answer.prompt_token_ids == served.llm.chat_prompt(SAID)
    chunks = streamed(client, extra_body={"return_token_ids": True})
    parts = [chunk.choices[0].model_extra.get("token_ids", []) for chunk in chunks]
    assert [token for part in parts for token in part] == answer.choices[0].token_ids


def test_ids(client: OpenAI) -> None:
    given = client.chat.completions.create(
        **FIXED, extra_body={"request_id": "mine"}, extra_headers={"X-Request-Id": "theirs"}
    )
    assert given.id == "chatcmpl-theirs" and given._request_id == "theirs"
    own = client.chat.completions.create(**FIXED, extra_body={"request_id": "mine"})
    assert own.id == "chatcmpl-mine"
    assert client.chat.completions.create(**FIXED)._request_id


def test_parts_of_text(client: OpenAI, served: Served) -> None:
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    answer = client.chat.completions.create(**FIXED | {"messages": parts})
    assert answer.choices[0].message.content == offline(served).text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"messages": []}, "conversation"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"max_completion_tokens": 300}, "maximum context length"),
        ({"max_completion_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 2}, "logprobs"),
        ({"n": 0}, "n is 0"),
        ({"n": 129}, "n is 129"),
        ({"temperature": -1.0}, "temperature"),
        ({"stream_options": {"include_usage": True}}, "stream_options needs stream"),
        ({"messages": [*SAID, {"role": "user", "content": "x", "audio": {"id": "a"}}]}, "audio"),
        ({"echo": True}, "echo"),
        ({"prediction": {"type": "content", "content": 3}}, "prediction is"),
        ({"functions": [{"name": "f"}]}, "functions isn't served"),
        ({"response_format": {"type": "yaml"}}, "response_format.type is"),
        ({"response_format": {"type": "json_schema"}}, "json_schema has no schema"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "exactly one"),
        ({"guided_json": {}}, "guided_json isn't served"),
        ({"temprature": 1}, "Did you mean 'temperature'"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_refusals(client: OpenAI, body: dict[str, Any], says: str) -> None:
    with pytest.raises(openai.BadRequestError, match=says) as caught:
        client.chat.completions.create(**FIXED, extra_body=body)
    error = caught.value
    assert error.type == "BadRequestError" and isinstance(error.body, dict)
    assert error.body["code"] == 400 and error.body["message"]


def test_harmless_fields(client: OpenAI) -> None:
    client.chat.completions.create(
        **FIXED, user="me", tool_choice="none", response_format={"type": "text"}, store=False
    )


def test_a_prediction_is_drafted_and_counted(client: OpenAI, served: Served) -> None:
    text = offline(served, temperature=0).text
    guess: Any = {"type": "content", "content": [{"type": "text", "text": text}]}
    asked: Any = FIXED | {"temperature": 0, "prediction": guess}
    answer = client.chat.completions.create(**asked)
    assert answer.choices[0].message.content == text
    told = answer.usage.completion_tokens_details if answer.usage else None
    assert told is not None and told.accepted_prediction_tokens is not None
    assert told.accepted_prediction_tokens + (told.rejected_prediction_tokens or 0) > 0
    stream = client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    assert list(stream)[-1].usage.completion_tokens_details == told


def test_the_second_turn_says_what_was_cached(client: OpenAI) -> None:
    said: Any = [{"role": "user", "content": "a prompt that nobody else in these tests sends"}]
    for cached in (False, True):
        answer = client.chat.completions.create(**FIXED | {"messages": said})
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        count = answer.usage.prompt_tokens_details.cached_tokens or 0
        assert (count == answer.usage.prompt_tokens - 1) == cached
    salted = client.chat.completions.create(
        **FIXED | {"messages": said}, extra_body={"cache_salt": "mine"}
    )
    assert salted.usage and salted.usage.prompt_tokens_details
    assert salted.usage.prompt_tokens_details.cached_tokens == 0


def test_the_async_client(served: Served) -> None:
    async def ask() -> tuple[str, str]:
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="any") as client:
            stream = await client.chat.completions.create(**FIXED, stream=True)
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            answer = await client.chat.completions.create(**FIXED)
            return "".join(parts), answer.choices[0].message.content or ""

    assert asyncio.run(ask()) == (offline(served).text,) * 2


def test_a_raw_stream_ends_with_done(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", json=FIXED | {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: ") for event in events[:-1])


def test_what_is_told_of_the_prompt(http: httpx.Client, served: Served) -> None:
    """As in vLLM beside the choices, in a stream with the first chunk."""
    body = {**FIXED, "prompt_logprobs": 1, "return_token_ids": True}
    whole = http.post("/v1/chat/completions", json=body).json()
    ids = served.llm.chat_prompt(SAID)
    assert whole["prompt_token_ids"] == ids and len(whole["prompt_logprobs"]) == len(ids)
    first, *others = whole["prompt_logprobs"]
    expected = offline(served, prompt_logprobs=1).prompt_logprobs
    assert first is None
    for token, told, known in zip(ids[1:], others, expected[1:], strict=True):
        assert told[str(token)]["logprob"] == pytest.approx(known[token].logprob)
        assert told[str(token)]["rank"] == known[token].rank
    with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
        lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: {")]
    opening, *rest = map(json.loads, lines)
    told = {name: whole[name] for name in ("prompt_token_ids", "prompt_logprobs")}
    assert {name: opening[name] for name in told} == told
    assert not any(name in chunk for chunk in rest for name in told)


def test_an_answer_goes_on_from_a_message_that_is_continued() -> None:
    """With the space between the two, which an answer that is a text of its own has no use for."""
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "so"}]
    body: dict[str, Any] = {"messages": said, "add_generation_prompt": False, "max_tokens": 6}
    body |= {"temperature": 0, "ignore_eos": True, "logit_bias": {str(VOCAB - 1): -1000}}
    texts = []
    with serving(toy(tokenizer=Spaced(VOCAB))) as served:
        for goes_on in (False, True):
            asked = body | {"continue_final_message": goes_on}
            answer = httpx.post(f"{served.url}/v1/chat/completions", json=asked).json()
            texts.append(answer["choices"][0]["message"]["content"])
    alone, continued = texts
    assert continued == f" {alone}" and len(alone.split()) == 6


def test_what_a_server_tells_beside_every_answer() -> None:
    """The usage of each stream, though nobody asks for it; and no times."""
    prompts: dict[str, Any] = {
        "chat/completions": {"messages": SAID},
        "completions": {"prompt": "a"},
    }
    with serving(toy(), force_include_usage=True, request_metrics="none") as served:
        for route, prompt in prompts.items():
            url, body = f"{served.url}/v1/{route}", prompt | {"max_tokens": 3, "ignore_eos": True}
            lines = httpx.post(url, json=body | {"stream": True}).text.splitlines()
            last = json.loads([line for line in lines if line[:7] == "data: {"][-1][6:])
            assert last["usage"]["completion_tokens"] == 3 and last["choices"] == []
            whole = httpx.post(url, json=body).json()
            assert "metrics" not in whole and "metrics" not in last
