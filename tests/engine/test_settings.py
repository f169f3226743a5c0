"""What an LLM is loaded with: types, ranges, and what a loaded model can't be any more."""

from __future__ import annotations

import logging
import re
from typing import Any

import numpy as np
import pytest
import torch

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.testing import ByteTokenizer, Pair, native, tiny_transformers


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0; it must be at least 1."),
        ({"max_num_seqs": 10**12}, "The cache of 1000000000000 sequences"),
        ({"max_num_seqs": 10**30}, "sequences of 321 positions needs"),
        ({"max_num_seqs": 10**400}, "which is not there; lower max_model_len or max_num_seqs."),
        ({"max_num_seqs": 1.5}, "max_num_seqs is 1.5; it must be a whole number or None."),
        ({"max_num_seqs": torch.tensor([1.5])}, "max_num_seqs is a value of type Tensor"),
        ({"max_num_batched_tokens": -1}, "max_num_batched_tokens is -1"),
        ({"max_num_batched_tokens": None}, "max_num_batched_tokens is None"),
        ({"max_model_len": 0}, "max_model_len is 0"),
        ({"max_model_len": "64"}, "max_model_len is '64'"),
        ({"max_model_len": 10**6}, "max_model_len is 1000000 and the model's context is 256, as"),
        ({"max_queued": 1.5}, "max_queued is 1.5"),
        ({"max_queued": -1}, "max_queued is -1"),
        ({"seed": {}}, "seed is {}"),
        ({"backend": [""]}, "backend is ['']; it must be a text."),
        ({"backend": "int8"}, "backend is 'int8' and the model is loaded already"),
        ({"model_impl": "native"}, "model_impl is 'native' and the model is loaded already"),
        ({"device": "cuda"}, "device is 'cuda' and the model is loaded already"),
        ({"dtype": torch.float16}, "dtype is a value of type dtype and the model is loaded"),
        ({"trust_remote_code": "yes"}, "trust_remote_code is 'yes'; it must be True or False."),
        ({"eos_ids": 5}, "eos_ids is 5; it must be a list of whole numbers or None."),
        ({"eos_ids": ["a"]}, "eos_ids is ['a']"),
        ({"eos_ids": {97}}, "eos_ids has 97, which is outside the model's vocabulary of 97"),
        ({"eos_ids": [-1]}, "eos_ids has -1"),
        ({"enforce_eager": 1}, "enforce_eager is 1"),
        ({"enforce_eager": True, "backend": "compiled+plain"}, "compiles passes"),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else "",
)
def test_what_no_llm_can_be_loaded_with(pair: Pair, given: dict[str, Any], said: str) -> None:
    """One sentence each, that names the keyword."""
    with pytest.raises(ForetokenError, match=re.escape(said)):
        LLM(pair.target, **given)


def test_numbers_of_other_libraries_and_what_is_so_anyway(pair: Pair) -> None:
    """numpy's whole numbers are taken, and what a loaded model is already may be said."""
    with LLM(
        pair.target,
        max_num_seqs=np.int64(2),  # type: ignore[arg-type]
        max_model_len=16.0,  # type: ignore[arg-type]
        eos_ids={3, 4},
        dtype="float64",
        device="cpu",
    ) as llm:
        assert llm.engine.target.free == 2 and llm.engine.eos_ids == {3, 4}
        [output] = llm.generate([[1] * 10], SamplingParams(max_tokens=99, ignore_eos=True))
        assert len(output.token_ids) == 6


def test_a_tokenizers_end_that_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A model's files name another: the log says which, and what makes it one."""
    model, tokenizer = native(tiny_transformers(97, eos_token_id=5)), ByteTokenizer(97)
    caplog.set_level(logging.WARNING, "foretoken")
    said = (
        "The tokenizer's end of text, 96, ends no text, as the model's files name [5]; give "
        "eos_ids=[5, 96] where it should."
    )
    ends: tuple[tuple[dict[str, Any], set[int], list[str]], ...] = (
        ({}, {5}, [said]),
        ({"eos_ids": [5, 96]}, {5, 96}, []),
        ({"eos_ids": []}, set(), []),
    )
    for given, expected, warned in ends:
        caplog.clear()
        with LLM(model, tokenizer=tokenizer, **given) as llm:
            assert llm.engine.eos_ids == expected
        assert [record.getMessage() for record in caplog.records] == warned
