"""Requests on their way into the engine, and many at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from foretoken import SamplingParams
from foretoken.engine.outputs import CompletionOutput, RequestOutput
from foretoken.engine.stats import RequestStats
from foretoken.serve.errors import ApiError
from foretoken.serve.server import checked
from served import Served, toy


def test_the_text_of_a_seed_whoever_else_asks(served: Served) -> None:
    """Eight clients at four slots, temperatures mixed; an engine of its own is the reference."""
    jobs = [(f"text {i}", i, 0.0 if i % 3 == 0 else 0.8) for i in range(24)]
    with toy() as alone:
        expected = [
            alone.generate(prompt, SamplingParams(seed=s, temperature=t, max_tokens=30))[0].text
            for prompt, s, t in jobs
        ]

    def ask(job: tuple[str, int, float]) -> str:
        prompt, seed, temperature = job
        body = {"prompt": prompt, "seed": seed, "temperature": temperature, "max_tokens": 30}
        url = f"{served.url}/v1/completions"
        text: str = httpx.post(url, json=body, timeout=30).json()["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, jobs)) == expected


def test_what_failed_is_told() -> None:
    sample = CompletionOutput(0, finish_reason="error")
    output = RequestOutput(0, None, [1], [sample], RequestStats(), error="It broke.")
    for begun, status in ((0.1, 500), (None, 400)):
        output.stats.queue_time = begun
        with pytest.raises(ApiError, match="It broke") as caught:
            checked(output)
        assert caught.value.status == status
    sample.finish_reason, output.error = "cancelled", None
    with pytest.raises(ApiError) as caught:
        checked(output)
    assert caught.value.status == 503
