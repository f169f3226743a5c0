"""Names of vLLM: served where they ask for nothing new, else refused with what to use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.config import build
from foretoken.errors.vllm_names import (
    CONFIG_NAMES,
    LLM_NAMES,
    check_keywords,
    without_vllm_names,
)
from foretoken.testing import Pair, tiny_pair
from foretoken.trainable.eagle3 import Eagle3Module
from lessons import seeded

GREEDY = SamplingParams(temperature=0, max_tokens=60)


@pytest.mark.parametrize("names", [LLM_NAMES, CONFIG_NAMES], ids=["LLM", "config"])
def test_every_name_is_refused_with_a_remedy_or_means_nothing(names: dict[str, Any]) -> None:
    """The values that are served go through; any other is named, and so is what to use."""
    for words, (served, remedy) in names.items():
        for name in words.split():
            for value in served:
                assert without_vllm_names({name: value, "model": 1}, names, "x") == {"model": 1}
            with pytest.raises(ForetokenError) as error:
                without_vllm_names({name: "another"}, names, "x")
            assert f"{name} of x is 'another'" in str(error.value) and remedy in str(error.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tensor_parallel_size": 4}, "tensor_parallel_size of LLM is 4, and only 1 and None"),
        ({"num_gpu_blocks_override": 80}, "kv_cache_memory"),
        ({"quantization": "awq"}, "backend='q4'"),
        ({"max_modell_len": 9}, "Did you mean 'max_model_len'"),
        ({"othres": 9}, r"'othres'\.(?! Did you mean 'others')(?!.*\breturn\b)"),
        ({"method": "pld"}, "LLM has no method: it is .* put it into speculative_config"),
        ({"draft_model": "x"}, "LLM has no draft_model: it is an option of the method"),
        ({"enforce_eager": True, "backend": "compiled+plain"}, "compiles passes"),
        ({"speculative_config": {"method": "pld", "disable_by_batch_size": 4}}, "'auto'"),
        ({"speculative_config": {"method": "pld", "draft_tensor_parallel_size": 2}}, "only 1"),
        ({"speculative_config": {"method": "sps", "model": "x", "quantization": "fp8"}}, "draft_b"),
    ],
    ids=str,
)
def test_values_that_are_not_served(pair: Pair, options: dict[str, Any], said: str) -> None:
    """One sentence each."""
    with pytest.raises(ForetokenError, match=said):
        LLM(pair.target, **options)


def test_a_seed_for_all_requests(pair: Pair) -> None:
    """The same calls bring the same texts; a request's own seed still counts."""
    params = SamplingParams(max_tokens=12)

    def texts(seed: int | None) -> list[list[int]]:
        llm = LLM(pair.target, eos_ids=(), seed=seed, enforce_eager=True, tensor_parallel_size=1)
        return [out.token_ids for out in llm.generate([[1], [1], [2]], params)]

    assert texts(3) == texts(3) != texts(4)
    assert texts(None) != texts(None)
    first, second, _ = texts(3)
    assert first != second


def test_a_snippet_for_vllm(tmp_path: Path) -> None:
    """EAGLE-3 as vLLM's page has it, with a checkpoint's folder; the method may be left out."""
    small = tiny_pair(23)
    module = seeded(Eagle3Module, small)
    module.save(tmp_path / "drafter", {})
    config = {
        "method": "eagle3",
        "model": str(tmp_path / "drafter"),
        "num_speculative_tokens": 2,
        "draft_tensor_parallel_size": 1,
        "tree": "paper",
    }
    llm = LLM(small.target, eos_ids=(), tensor_parallel_size=1, speculative_config=config)
    [out] = llm.generate([[5, 9, 2, 5]], GREEDY)
    assert len(out.stats.drafted_at) == 2 and llm.method == "eagle3"
    del config["method"]
    assert build(config).name == "eagle3"


@pytest.mark.parametrize(
    "value",
    [np.zeros(2), torch.zeros(2), np.array([]), object()],
    ids=["np", "torch", "0", "object"],
)
def test_values_that_have_no_truth(value: object) -> None:
    """An array answers a comparison by an array; it is one of the values that aren't served."""
    with pytest.raises(ForetokenError, match="tensor_parallel_size of LLM is a value of type"):
        check_keywords({"tensor_parallel_size": value}, [])
    check_keywords({"tensor_parallel_size": np.int64(1)}, [])
