"""What Prometheus reads."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from foretoken import AsyncLLM, SamplingParams
from foretoken.async_llm import Load
from foretoken.bench.remote import openai
from foretoken.engine.outputs import CompletionOutput, RequestOutput
from foretoken.engine.stats import RequestStats
from foretoken.serve.metrics import Metrics
from served import serving, toy

BODY = {"prompt": "ab", "max_tokens": 20, "ignore_eos": True, "seed": 1}


def read(url: str, prefix: str = "foretoken") -> dict[str, float]:
    """Name, with a label's value behind it where it has one that varies -> value."""
    answer = httpx.get(f"{url}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            own = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            assert sample.labels["model_name"] == "toy" and sample.labels["engine"] == "0"
            name = sample.name.removeprefix(f"{prefix}:")
            found[" ".join([name, *own.values()])] = sample.value
    return found


def test_counts_and_times() -> None:
    with serving(toy()) as served:
        before = read(served.url)
        assert before["generation_tokens_total"] == 0
        httpx.post(f"{served.url}/v1/completions", json=BODY | {"n": 2})
        now, stats = read(served.url), served.llm.stats
        assert now["prompt_tokens_total"] == 2 and now["generation_tokens_total"] == 40
        assert now["request_success_total length"] == 1
        assert "request_success_total abort" not in now
        told = httpx.get(f"{served.url}/metrics").text
        assert "prompt_tokens_total Tokens of prompts, cached ones too." in told
        assert now["num_requests_running"] == now["num_requests_waiting"] == 0
        assert now["spec_decode_num_drafts_total"] == stats.drafts > 0
        assert now["spec_decode_num_draft_tokens_total"] == stats.drafted
        assert now["spec_decode_num_accepted_tokens_total"] == stats.accepted > 0
        at = "spec_decode_num_accepted_tokens_per_pos_total"
        assert [now[f"{at} {place}"] for place in range(3)] == stats.accepted_at
        assert now["time_to_first_token_seconds_count"] == 1
        assert now["request_params_n_sum"] == 2 and now["request_generation_tokens_sum"] == 40
        # a gap a block, and a share of it for each of its tokens: the sums are the same
        blocks, tokens = (now[f"inter_{x}_latency_seconds_count"] for x in ("block", "token"))
        assert blocks == stats.passes - 2 and blocks < tokens < 40
        assert now["inter_block_latency_seconds_sum"] == pytest.approx(
            now["inter_token_latency_seconds_sum"]
        )
        parts = sum(now[f"request_{part}_time_seconds_sum"] for part in ("queue", "inference"))
        assert parts == pytest.approx(now["e2e_request_latency_seconds_sum"])


def test_a_requests_time_per_token() -> None:
    """After the first one, by the longest sample: all of them are written side by side."""
    samples = [
        CompletionOutput(i, token_ids=[7] * size, finish_reason="length")
        for i, size in enumerate((5, 2))
    ]
    stats = RequestStats(queue_time=0.5, time_to_first_token=1.0, total_time=3.0)
    labels = {"model_name": "toy", "engine": "0"}
    with toy() as llm:
        metrics = Metrics(AsyncLLM(llm), "toy", "foretoken", 256)
        metrics.watch(SamplingParams(n=2)).see(RequestOutput(1, None, [1], samples, stats))

        def told(name: str) -> float | None:
            return metrics.registry.get_sample_value(f"foretoken:{name}_seconds_sum", labels)

        assert told("request_time_per_output_token") == (3.0 - 1.0) / 4
        assert told("e2e_request_latency") == 3.0 and told("request_queue_time") == 0.5
        assert told("request_prefill_time") == 0.5 and told("request_decode_time") == 2.0
        assert told("request_inference_time") == 2.5


@pytest.mark.parametrize(("context", "last"), [(199, 100), (200, 200), (256, 200), (1, 1)])
def test_buckets_of_tokens(context: int, last: int) -> None:
    """As vLLM's: 1, 2, 5, 10 … up to the context."""
    with toy() as llm:
        page = Metrics(AsyncLLM(llm), "toy", "foretoken", context).text().decode()
    bounds = re.findall(r'request_prompt_tokens_bucket{.*?le="(.+?)"', page)
    series = ["1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "100.0", "200.0"]
    assert bounds == [*series[: series.index(f"{last}.0") + 1], "+Inf"]


def test_how_a_request_ended() -> None:
    """Also one without a bound of its tokens, and one that has failed."""
    with toy() as llm:
        metrics = Metrics(AsyncLLM(llm), "toy", "foretoken", 256)
        for reason in ("stop", "timeout", "error"):
            sample = CompletionOutput(0, token_ids=[7], finish_reason=reason)
            output = RequestOutput(1, None, [1], [sample], RequestStats())
            metrics.watch(SamplingParams(max_tokens=None)).see(output)
        page = metrics.text().decode()
    for told in ("stop", "abort", "error"):
        assert f'request_success_total{{engine="0",finished_reason="{told}"' in page
    assert 'request_params_max_tokens_count{engine="0",model_name="toy"} 0.0' in page


def test_what_runs_and_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncLLM, "load", Load(1, 2))
    with toy() as llm:
        page = Metrics(AsyncLLM(llm), "toy", "foretoken", 256).text().decode()
    for name, count in (("running", 1.0), ("waiting", 2.0)):
        assert f'num_requests_{name}{{engine="0",model_name="toy"}} {count}' in page


def test_what_the_caches_hold() -> None:
    """A share of what they may."""
    with toy() as llm:
        budget = llm.engine.target.budget
        budget.limit, budget._reserved = 1000, {0: 250}
        page = Metrics(AsyncLLM(llm), "toy", "foretoken", 256).text().decode()
    assert 'kv_cache_usage_perc{engine="0",model_name="toy"} 0.25' in page


def test_an_answer_that_is_still_to_be_read_is_no_request() -> None:
    """The engine is done with it."""

    async def ask() -> None:
        async with AsyncLLM(toy()) as llm:
            stream = await llm.submit("ab", SamplingParams(max_tokens=4, ignore_eos=True))
            while llm.llm.worker.call(lambda engine: engine.busy):
                await asyncio.sleep(0.01)
            page = Metrics(llm, "toy", "foretoken", 256).text().decode()
            for name in ("running", "waiting"):
                told = f'foretoken:num_requests_{name}{{engine="0",model_name="toy"}} 0.0'
                assert told in page
            assert [output async for output in stream][-1].finished

    asyncio.run(ask())


def test_under_vllms_names() -> None:
    with serving(toy(), metrics_prefix="vllm") as served:
        httpx.post(f"{served.url}/v1/completions", json=BODY)
        assert read(served.url, "vllm")["generation_tokens_total"] == 20
        counted = openai.Endpoint(f"{served.url}/v1", "toy").counters()
        assert counted is not None


def test_a_counter_never_falls() -> None:
    with serving(toy()) as served:
        httpx.post(f"{served.url}/v1/completions", json=BODY)
        assert read(served.url)["generation_tokens_total"] == 20
        at = "spec_decode_num_accepted_tokens_per_pos_total 0"
        before = read(served.url)[at]
        served.llm.stats.tokens -= 5
        served.llm.stats.accepted_at[0] -= 1
        assert read(served.url)["generation_tokens_total"] == 20
        assert read(served.url)[at] == before > 0
