"""How long texts may be, and that a longer context is transformers' own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as tf

from foretoken import LLM, SamplingParams
from foretoken.errors import ForetokenError
from foretoken.models.context import context, lengthen
from foretoken.models.load import load_model, wrapped
from foretoken.testing import logits_after

VOCAB = 61
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 2.5, 3.0, 3.5],
    "original_max_position_embeddings": 24,
}
IDS = [(7 * place) % VOCAB for place in range(60)]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 64}, 64),
        ({"n_positions": 32, "n_ctx": 16}, 32),
        ({"seq_length": 8192}, 8192),
        ({"model_max_length": 4096}, 4096),
        ({"max_position_embeddings": 64, "max_sequence_length": 256}, 64),
        ({"max_position_embeddings": 64, "rope_parameters": LONG}, 24),
        ({"max_position_embeddings": 64, "rope_parameters": LINEAR}, 64),
        ({}, 2048),
    ],
    ids=str,
)
def test_the_longest_context(config: dict[str, Any], expected: int) -> None:
    """By whatever name; of longrope what its short factors serve."""
    assert context(SimpleNamespace(**config)) == expected


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"factor": 4.0}, 256),
        ({"factor": 1.5}, 96),
        ({"factor": 0.5}, 64),
        ({"factor": 4.0, "original_max_position_embeddings": 32}, 128),
        ({"factor": 4.0, "rope_type": "linear"}, 64),
        *(({"factor": factor}, 64) for factor in (None, "x", True, float("nan"), float("inf"))),
        ({"factor": 4.0, "original_max_position_embeddings": None}, 64),
    ],
)
def test_the_context_that_a_scaling_is_for(rope: dict[str, Any], length: int) -> None:
    """Of YaRN's alone, where it is longer than what a configuration names."""
    known = {"rope_type": "yarn", "original_max_position_embeddings": 64}
    config = SimpleNamespace(max_position_embeddings=64, rope_parameters=known | rope)
    assert context(config) == length


def test_no_longer_than_it_can_be() -> None:
    """What is no more than the usual changes nothing. Linear scaling reaches as far as its factor;
    where no number is named there is no bound; dynamic scaling names another remedy."""
    linear = SimpleNamespace(max_position_embeddings=64, rope_parameters=LINEAR)
    for asked, length in ((None, 64), (40, 64), (100, 100)):
        lengthen(linear, asked)
        assert context(linear) == length
    linear.max_position_embeddings = 64
    with pytest.raises(ForetokenError, match=r"is 257 and the model's context is 256; lower max"):
        lengthen(linear, 257)
    unnamed = SimpleNamespace()
    lengthen(unnamed, 5000)
    assert context(unnamed) == 5000
    rope = {"rope_type": "dynamic", "factor": 4.0}
    dynamic = SimpleNamespace(max_position_embeddings=64, rope_parameters=rope)
    with pytest.raises(ForetokenError, match=r"context is 64, beyond which .* 'linear' or 'yarn'"):
        lengthen(dynamic, 65)


def test_long_factors_that_are_not_the_configurations_alone() -> None:
    """Code that comes with a model may look elsewhere, and PhiMoE's scales by a text's length."""
    mscales = {"short_mscale": 1.1, "long_mscale": 1.2}
    phimoe = tf.PhimoeConfig(max_position_embeddings=64, rope_parameters=LONG | mscales)
    foreign = SimpleNamespace(max_position_embeddings=64, rope_parameters=dict(LONG))
    for config in (phimoe, foreign):
        with pytest.raises(ForetokenError, match="context is 24, beyond which its rotary scaling"):
            lengthen(config, 25)


def saved(config: Any, folder: Path) -> Any:
    torch.manual_seed(0)
    made: Any = tf.AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim > 1:
                weight.mul_(8)
    made.save_pretrained(folder)
    return made


@torch.inference_mode()
def test_all_positions_get_the_long_factors(tmp_path: Path) -> None:
    """Those that transformers turns a long text by, from its first token on; without a longer
    `max_model_len` the short ones' part is served, by them."""
    config = tf.Phi3Config(**SMALL, rope_parameters=LONG, original_max_position_embeddings=24)
    whole = saved(config, tmp_path)
    expected = whole(torch.tensor([IDS])).logits[0]
    short = load_model(tmp_path, dtype="float64", device="cpu")
    long = load_model(tmp_path, dtype="float64", device="cpu", max_model_len=60)
    assert (short.max_length, long.max_length) == (24, 64)
    for place in (9, 23, 24, 59):
        torch.testing.assert_close(logits_after(long, IDS[: place + 1]), expected[place])
    alone = whole(torch.tensor([IDS[:10]])).logits[0, -1]
    torch.testing.assert_close(logits_after(short, IDS[:10]), alone)
    assert not torch.allclose(alone, expected[9])


def test_a_text_that_the_long_factors_serve(tmp_path: Path) -> None:
    config = tf.Phi3Config(**SMALL, rope_parameters=LONG, original_max_position_embeddings=24)
    whole = saved(config, tmp_path)
    given, prompt = {"dtype": "float64", "device": "cpu"}, torch.tensor([IDS[:30]])
    theirs = whole.generate(prompt, max_new_tokens=20, do_sample=False)[0, 30:].tolist()
    drafting = {"method": "pld", "num_speculative_tokens": 4}
    with LLM(tmp_path, max_model_len=64, speculative_config=drafting, **given) as llm:  # type: ignore[arg-type]
        [output] = llm.generate([IDS[:30]], SamplingParams(temperature=0, max_tokens=20))
    assert output.token_ids == theirs
    with pytest.raises(ForetokenError, match=r"is 65 and the model's context is 64; lower"):
        LLM(tmp_path, max_model_len=65, **given)  # type: ignore[arg-type]
    assert wrapped(whole).max_length == 24
    with pytest.raises(ForetokenError, match=r"is 60 and .* 24, as it was loaded; .* its folder"):
        LLM(whole, max_model_len=60)


@pytest.mark.parametrize("impl", ["native", "transformers"])
@torch.inference_mode()
def test_as_far_as_linear_scaling_reaches(tmp_path: Path, impl: str) -> None:
    """By default as far as before."""
    whole = saved(tf.LlamaConfig(**SMALL, rope_parameters=LINEAR), tmp_path)
    ids = IDS * 3
    given: dict[str, Any] = {"dtype": "float64", "device": "cpu", "model_impl": impl}
    assert load_model(tmp_path, **given).max_length == 64
    model = load_model(tmp_path, **given, max_model_len=200)
    assert model.max_length == 200
    torch.testing.assert_close(logits_after(model, ids), whole(torch.tensor([ids])).logits[0, -1])
    with pytest.raises(ForetokenError, match="is 300 and the model's context is 256"):
        load_model(tmp_path, **given, max_model_len=300)
