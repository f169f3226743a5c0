"""Full queues, long bodies, long prompts."""

from __future__ import annotations

import time
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from foretoken import LLM
from foretoken.engine.engine import Engine
from foretoken.serve.errors import ApiError
from foretoken.serve.limits import check_length
from seq2seq_models import native_of, tiny
from served import serving, toy


def test_a_full_queue_is_told_and_retried() -> None:
    with serving(toy(max_num_seqs=1, max_queued=0, max_model_len=256)) as served:
        url = f"{served.url}/v1"
        client = OpenAI(base_url=url, api_key="any", max_retries=0)
        stream = client.completions.create(
            model="toy", prompt="a", max_tokens=250, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        with pytest.raises(openai.InternalServerError, match="max_queued") as caught:
            client.completions.create(model="toy", prompt="a", max_tokens=2)
        assert caught.value.status_code == 503
        assert caught.value.response.headers["retry-after"] == "1"
        stream.close()
        patient = OpenAI(base_url=url, api_key="any", max_retries=2)
        assert patient.completions.create(model="toy", prompt="a", max_tokens=2).usage
        page = httpx.get(f"{served.url}/metrics").text
        assert 'admission_rejections_total{engine="0",model_name="toy",reason="queue_full"}' in page


def test_more_than_the_queue_can_ever_take() -> None:
    """Is no matter of waiting."""
    with serving(toy(max_num_seqs=2, max_queued=1)) as served:
        client = OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0)
        asked: dict[str, Any] = {"model": "toy", "max_tokens": 2}
        assert len(client.completions.create(**asked, prompt="a", n=3).choices) == 3
        wrong: list[dict[str, Any]] = [{"prompt": "a", "n": 4}, {"prompt": ["a", "b"], "n": 2}]
        for more, field in zip(wrong, ("n", "prompt"), strict=True):
            with pytest.raises(openai.BadRequestError, match="takes 3 at a time") as caught:
                client.completions.create(**asked, **more)
            assert caught.value.param == field


def test_bodies() -> None:
    with serving(toy(), max_body=1000) as served:
        url = f"{served.url}/v1/completions"
        assert httpx.post(url, json={"prompt": "a" * 2000}).status_code == 413
        assert httpx.post(url, content=b"{}").status_code == 415
        assert httpx.post(url, data={"prompt": "a"}).status_code == 415
        longest = b'{"prompt": "a", "max_tokens": 1}'.ljust(1000)
        kinds = ("application/json", "Application/JSON; charset=utf-8")
        for body, status, kind in ((longest, 200, kinds[1]), (longest + b" ", 413, kinds[0])):
            answer = httpx.post(url, content=body, headers={"content-type": kind})
            assert answer.status_code == status


def test_lengths() -> None:
    """An encoder–decoder's context bounds the prompt and the answer apart."""
    check_length([1] * 9, None, 10, (), "prompt")
    check_length([1] * 5, 5, 10, (), "prompt")
    check_length([1] * 10, 9, 10, (0,), "prompt")
    for prompt, asked, opening in (
        ([1] * 10, None, ()),
        ([1] * 5, 6, ()),
        ([], 1, ()),
        ([], 1, (0,)),
        ([1] * 11, 1, (0,)),
        ([1], 10, (0,)),
    ):
        with pytest.raises(ApiError) as caught:
            check_length(prompt, asked, 10, opening, "prompt")
        assert (caught.value.status, caught.value.param) == (400, "prompt")


def test_a_text_that_is_too_long_is_told_as_others_tell_it() -> None:
    """By the words that clients know it by."""
    with pytest.raises(ApiError) as caught:
        check_length([1] * 5, 6, 10, (), "messages")
    assert caught.value.param == "messages"
    begins = "This model's maximum context length is 10 tokens. However, your prompt has 5, and 6 "
    assert caught.value.message.startswith(begins)


def test_of_what_is_far_too_long_not_all_is_counted() -> None:
    """It may not have been read."""
    for length, told in ((20, "has 20;"), (21, "has more than 20;"), (900, "has more than 20;")):
        with pytest.raises(ApiError, match=told):
            check_length([1] * length, None, 10, (), "prompt")


def test_a_source_and_its_answer() -> None:
    """As long as the engine takes them."""
    body = {"prompt": [5] * 20, "max_tokens": 20, "ignore_eos": True}
    with serving(LLM(native_of(tiny("t5")), max_model_len=24, eos_ids=())) as served:
        answer = httpx.post(f"{served.url}/v1/completions", json=body).json()
        assert answer["usage"]["completion_tokens"] == 20


def test_a_client_that_goes_frees_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of an answer that takes six seconds at least."""
    step = Engine.step
    monkeypatch.setattr(Engine, "step", lambda engine: (time.sleep(0.1), step(engine))[1])
    with serving(toy(max_num_seqs=1, max_model_len=256)) as served:
        for stream in (True, False):
            body = {"prompt": "a", "max_tokens": 250, "ignore_eos": True, "stream": stream}
            before = served.llm.stats.tokens
            url = f"{served.url}/v1/completions"
            if stream:
                with httpx.stream("POST", url, json=body) as answer:
                    next(answer.iter_lines())
            else:
                with pytest.raises(httpx.ReadTimeout):
                    httpx.post(url, json=body, timeout=httpx.Timeout(5, read=0.05))
            end = time.monotonic() + 30
            while served.llm.worker.call(lambda engine: engine.busy):
                assert time.monotonic() < end
            assert served.llm.stats.tokens - before < 200
            assert httpx.get(f"{served.url}/load").json()["server_load"] == 0
        page = httpx.get(f"{served.url}/metrics").text
        assert 'finished_reason="abort",model_name="toy"} 2.0' in page
