"""A configuration from metadata: applied whole, or refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoConfig

import gguf_files
from foretoken.errors import ForetokenError
from foretoken.models.gguf import config, weights_of
from foretoken.models.gguf.reader import GGUFFile
from foretoken.models.native import check
from foretoken.models.native.build import build_native
from foretoken.models.target import ModelTarget
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence
from foretoken.tree import empty

NOT_STATED = {"architectures", "dtype", "_name_or_path", "transformers_version"}


def read(path: Path, architecture: str = "llama", **given: Any) -> Any:
    return config.read(GGUFFile(gguf_files.written(path / "a.gguf", architecture, **given)))


@pytest.mark.parametrize("architecture", gguf_files.ARCHITECTURES)
def test_it_is_the_configuration_that_was_written(architecture: str, tmp_path: Path) -> None:
    ours, written = read(tmp_path, architecture), gguf_files.model(architecture).config
    ids = {"bos_token_id", "eos_token_id", "pad_token_id"}
    given, expected = ours.to_dict(), written.to_dict()
    for name in expected.keys() - NOT_STATED - ids:
        if name == "rms_norm_eps":
            assert given[name] == pytest.approx(expected[name])
        elif name != "head_dim" or name in given:
            assert given[name] == expected[name], name
    assert (ours.eos_token_id, ours.bos_token_id) == (gguf_files.VOCAB - 2, gguf_files.VOCAB - 2)


@pytest.mark.parametrize("architecture", gguf_files.ARCHITECTURES)
def test_it_is_transformers_own_reading(architecture: str, tmp_path: Path) -> None:
    ours = read(tmp_path, architecture).to_dict()
    theirs = AutoConfig.from_pretrained(tmp_path, gguf_file="a.gguf").to_dict()
    for name in (
        theirs.keys() - NOT_STATED - {"_model_name_or_path", "unk_token_id", "pad_token_id"}
    ):
        if name in ("query_pre_attn_scalar", "head_dim"):  # for which it has defaults
            assert ours[name] == 32
        else:
            assert ours[name] == theirs[name], name


@pytest.mark.parametrize(
    ("kind", "architecture", "dtype"),
    [
        (Kind.F32, "llama", torch.float32),
        (Kind.BF16, "llama", torch.bfloat16),
        (Kind.Q8_0, "llama", torch.float16),
        (Kind.F16, "llama", torch.float16),
        (Kind.Q8_0, "gemma3", torch.bfloat16),
        (Kind.F16, "gemma3", torch.bfloat16),
        (Kind.F32, "gemma3", torch.float32),
    ],
)
def test_the_dtype_on_a_gpu(
    kind: Kind, architecture: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    assert read(tmp_path, architecture, kind=kind).dtype == dtype


def test_rotary_scaling_is_applied(tmp_path: Path) -> None:
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert read(tmp_path, also=linear).rope_parameters["factor"] == 4.0
    yarn = {**linear, "llama.rope.scaling.type": "yarn"}
    yarn["llama.rope.scaling.original_context_length"] = 64
    rope = read(tmp_path, also=yarn).rope_parameters
    assert (rope["rope_type"], rope["original_max_position_embeddings"]) == ("yarn", 64)
    gemma = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    rope = read(tmp_path, "gemma3", also=gemma).rope_parameters
    assert rope["full_attention"]["factor"] == 8.0
    assert rope["sliding_attention"]["rope_type"] == "default"


@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.scale_linear"])
def test_a_factor_without_a_kind_is_linear(key: str, tmp_path: Path) -> None:
    """As llama.cpp takes it; where the file says that there is none, there is none."""
    also = {f"llama.{key}": 4.0}
    rope = read(tmp_path, also=also).rope_parameters
    assert (rope["rope_type"], rope["factor"]) == ("linear", 4.0)
    with pytest.raises(ForetokenError, match="rotary scaling, which transformers leaves out"):
        config.check_rope(GGUFFile(tmp_path / "a.gguf"))
    for none in ({f"llama.{key}": 1.0}, {**also, "llama.rope.scaling.type": "none"}):
        assert read(tmp_path, also=none).rope_parameters["rope_type"] == "default"
        config.check_rope(GGUFFile(tmp_path / "a.gguf"))


@pytest.mark.parametrize(
    ("architecture", "name", "meant"),
    [
        ("llama", "attn_q", "k_proj.bias, self_attn.o_proj.bias, self_attn.q_proj.bias, self_attn"),
        ("llama", "ffn_up", "mlp.down_proj.bias, mlp.gate_proj.bias, mlp.up_proj.bias"),
        ("llama", "attn_norm", "none"),
        ("qwen2", "attn_output", "k_proj.bias, self_attn.q_proj.bias, self_attn.v_proj.bias"),
        ("qwen3", "ffn_down", "none"),
    ],
)
def test_other_biases_than_a_configuration_has(
    architecture: str, name: str, meant: str, tmp_path: Path
) -> None:
    """They would be left out, or made up."""
    extra = {f"blk.{layer}.{name}.bias": [0.5] * 64 for layer in range(2)}
    with pytest.raises(ForetokenError, match=f"its biases are .*, and those of a .*{meant}"):
        read(tmp_path, architecture, extra=extra)


def test_the_rotation_in_windows_has_a_base_of_its_own(tmp_path: Path) -> None:
    """Which transformers' reading leaves out."""
    rope = read(tmp_path, "gemma3", also={"gemma3.rope.freq_base_swa": 5e4}).rope_parameters
    assert rope["sliding_attention"]["rope_theta"] == 5e4


def test_the_largest_gemma_scales_its_scores_by_another_width(tmp_path: Path) -> None:
    """That of the states for each head."""
    for layers, width in ((62, 16), (61, 32)):
        found = read(tmp_path, "gemma3", also={"gemma3.block_count": layers})
        assert found.query_pre_attn_scalar == width


def test_padding_by_a_token_that_there_is_not(tmp_path: Path) -> None:
    for token, kept in ((gguf_files.VOCAB, None), (gguf_files.VOCAB - 1, gguf_files.VOCAB - 1)):
        also = {"tokenizer.ggml.padding_token_id": token}
        assert read(tmp_path, also=also).pad_token_id == kept


def completed(path: Path, made: dict[str, Any], also: dict[str, Any]) -> Any:
    pairs = {f"llama.{name}": value for name, value in also.items()}
    file = GGUFFile(gguf_files.written(path / "a.gguf", also=pairs))
    return config.completed(file, SimpleNamespace(**made))


def test_what_transformers_leaves_at_its_defaults(tmp_path: Path) -> None:
    """Phi 3's window, of which 0 is none, Gemma 2's soft caps, and the scale of its scores."""
    for window, kept in ((0, None), (8, 8)):
        phi = {"model_type": "phi3", "sliding_window": 2047}
        made = completed(tmp_path, phi, {"attention.sliding_window": window})
        assert made.sliding_window == kept
    gemma = {"model_type": "gemma2", "hidden_size": 64, "num_attention_heads": 4, "head_dim": 32}
    gemma |= {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    for layers, width in ((46, 16), (42, 32)):
        given = {**gemma, "num_hidden_layers": layers}
        made = completed(tmp_path, given, {"attn_logit_softcapping": 20.0})
        assert made.query_pre_attn_scalar == width
        assert (made.attn_logit_softcapping, made.final_logit_softcapping) == (20.0, 30.0)


def test_a_part_of_each_head_that_transformers_would_not_turn(tmp_path: Path) -> None:
    rope = {"rope_theta": 1e4, "partial_rotary_factor": 0.5}
    made = {"model_type": "stablelm", "rope_parameters": rope, "head_dim": 32}
    assert completed(tmp_path, made, {"rope.dimension_count": 16}).dtype == torch.float32
    with pytest.raises(ForetokenError, match="turn 32 of 32 numbers, and transformers reads 16"):
        completed(tmp_path, made, {"rope.dimension_count": 32})


def test_factors_of_llama_3_are_recognised(tmp_path: Path) -> None:
    """As llama.cpp's converter writes them: what each frequency is divided by."""
    from foretoken.models.native.rope import scaled

    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    theta = 500_000.0
    plain = 1 / theta ** (torch.arange(0, 32, 2) / 32)
    factors = plain / scaled(32, theta, scaling)[0]
    also = {"llama.rope.freq_base": theta}
    found = read(tmp_path, also=also, extra={"rope_freqs.weight": factors.numpy()})
    assert found.rope_parameters == {"rope_theta": theta, **scaling}
    huge = also | {
        f"llama.{name}": 2**32 - 1
        for name in ("attention.key_length", "attention.value_length", "rope.dimension_count")
    }
    with pytest.raises(ForetokenError, match=r"rope_freqs\.weight is no scaling of Llama 3's"):
        read(tmp_path, also=huge, extra={"rope_freqs.weight": factors.numpy()})
    with pytest.raises(ForetokenError, match="rotary scaling, which transformers leaves out"):
        config.check_rope(GGUFFile(tmp_path / "a.gguf"))
    both = also | {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    with pytest.raises(ForetokenError, match="two kinds of rotary scaling"):
        read(tmp_path, also=both, extra={"rope_freqs.weight": factors.numpy()})
    for off in (1.01, 2):
        factors[5] *= off
        with pytest.raises(ForetokenError, match=r"rope_freqs\.weight is no scaling of Llama 3's"):
            read(tmp_path, also=also, extra={"rope_freqs.weight": factors.numpy()})


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "experts": ({"llama.expert_count": 8}, "asks for llama.expert_count = 8"),
    "texts read both ways": ({"llama.attention.causal": False}, "embeds texts"),
    "another scale": ({"llama.attention.scale": 0.5}, "asks for llama.attention.scale = 0.5"),
    "longrope": ({"llama.rope.scaling.type": "longrope"}, "rotary scaling is 'longrope'"),
    "part of each head": ({"llama.rope.dimension_count": 16}, "rotate 16 of 32 numbers"),
    "values of another width": ({"llama.attention.value_length": 16}, "values of another width"),
    "a width by the layer": (
        {
            f"llama.{name}": [32]
            for name in ("attention.key_length", "attention.value_length", "rope.dimension_count")
        },
        r"its heads have a width of \[32\]",
    ),
    "no width": ({"llama.attention.key_length": 0}, "its heads have a width of 0"),
    "no heads": ({"llama.attention.head_count": 0}, "it has 0 heads"),
    "heads by the layer": ({"llama.attention.head_count": [4, 4]}, r"it has \[4, 4\] heads"),
    "an epsilon that is whole": (
        {"llama.attention.layer_norm_rms_epsilon": 64},
        "its norms' epsilon is 64",
    ),
    "another vocabulary": ({"llama.vocab_size": 99}, "has 99 tokens, and its embedding 263"),
    "vocabularies": ({"llama.vocab_size": [263, 1]}, r"has \[263, 1\] tokens"),
    "a beginning that is none": (
        {"tokenizer.ggml.bos_token_id": True},
        "bos_token_id is True and must be a token id",
    ),
    "a local base": ({"llama.rope.freq_base_swa": 1e6}, "asks for llama.rope.freq_base_swa"),
    "a base that is none": ({"llama.rope.freq_base": ["x"]}, "must be a number above 0"),
    "a base of nothing": ({"llama.rope.freq_base": -1.0}, r"rope.freq_base is -1.0 and must be"),
    "no layers": ({"llama.block_count": None}, "its metadata has no llama.block_count"),
    "an end that is none": ({"tokenizer.ggml.eos_token_id": "x"}, "can't be read"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_applied_is_refused(case: str, tmp_path: Path) -> None:
    also, message = REFUSED[case]
    file = GGUFFile(gguf_files.written(tmp_path / "a.gguf", also=also))
    with pytest.raises(ForetokenError, match=message):
        config.read(file)
        config.ends(file)


def test_a_key_without_effect_is_no_reason(tmp_path: Path) -> None:
    assert read(tmp_path, also={"llama.expert_count": 0}).num_hidden_layers == 2


def test_ends_of_the_text_and_of_a_turn(tmp_path: Path) -> None:
    path = gguf_files.written(tmp_path / "a.gguf")
    assert config.ends(GGUFFile(path)) == {gguf_files.VOCAB - 2, gguf_files.VOCAB - 1}


ENDS = ("<end_of_turn>", "<|endoftext|>", "<|end_of_text|>")


@pytest.mark.parametrize("text", ["<eos>", "</s>"])
@pytest.mark.parametrize("kind", [3, 1])
def test_the_end_of_the_text_beside_that_of_a_turn(text: str, kind: int, tmp_path: Path) -> None:
    """Files of Gemma 3 and of models with ChatML name the turn's alone; in Gemma's vocabulary
    `</s>` is a tag of HTML and no control token."""
    tokens = [*gguf_files.tokens()[:-1], text]
    also: dict[str, Any] = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.eot_token_id": None}
    also["tokenizer.ggml.token_type"] = [1] * (len(tokens) - 1) + [kind]
    path = gguf_files.written(tmp_path / "a.gguf", "gemma3", also=also)
    ends = {gguf_files.VOCAB - 2, *([gguf_files.VOCAB - 1] if kind == 3 else [])}
    assert config.ends(GGUFFile(path)) == ends


@pytest.mark.parametrize(("text", "known"), [*((text, True) for text in ENDS), ("<turn>", False)])
def test_the_end_of_a_turn_that_the_file_does_not_name(
    text: str, known: bool, tmp_path: Path
) -> None:
    """It is known by its text, as in llama.cpp, and so is the end of the whole text beside it, by
    which Qwen's and Llama's models for chats end what is no chat; where the file names one, that
    is the one."""
    tokens = [*gguf_files.tokens()[:-1], text]
    also = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.eot_token_id": None}
    path = gguf_files.written(tmp_path / "a.gguf", "gemma3", also=also)
    ends = {gguf_files.VOCAB - 2, *([gguf_files.VOCAB - 1] if known else [])}
    assert config.ends(GGUFFile(path)) == ends
    also["tokenizer.ggml.eot_token_id"] = 3
    path = gguf_files.written(tmp_path / "b.gguf", "gemma3", also=also)
    assert config.ends(GGUFFile(path)) == {gguf_files.VOCAB - 2, 3}


@pytest.mark.parametrize(
    ("texts", "ends"),
    [
        (("<|return|>", "<|end|>", "<|call|>"), ("<|return|>", "<|call|>")),
        (("<|flush|>", "<|end|>", "<|calls|>"), ("<|flush|>", "<|calls|>")),
        (("<|end|>", "<|call|>"), ("<|end|>", "<|call|>")),
        (("<|end|>", "<|return|>"), ("<|end|>", "<|return|>")),
        (("[EOT]", "<turn|>", "<|tool_response>"), ("[EOT]", "<turn|>", "<|tool_response>")),
    ],
)
def test_ends_of_models_that_write_several_messages(
    texts: tuple[str, ...], ends: tuple[str, ...], tmp_path: Path
) -> None:
    """gpt-oss ends its analysis by what ends a whole turn elsewhere, and then answers; a call or
    the answer ends its text."""
    tokens = [*gguf_files.tokens()[: -len(texts)], *texts]
    also: dict[str, Any] = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.eot_token_id": None}
    also["tokenizer.ggml.eos_token_id"] = tokens.index(ends[-1])
    found = config.ends(GGUFFile(gguf_files.written(tmp_path / "a.gguf", also=also)))
    assert found == {tokens.index(text) for text in ends}


def test_scaling_that_transformers_would_leave_out_is_refused(tmp_path: Path) -> None:
    also = {"llama.rope.scaling.type": "yarn"}
    with pytest.raises(
        ForetokenError, match="rotary scaling, which transformers leaves out of llama"
    ):
        config.check_rope(GGUFFile(gguf_files.written(tmp_path / "a.gguf", also=also)))
    config.check_rope(GGUFFile(gguf_files.written(tmp_path / "b.gguf")))


@pytest.mark.parametrize("architecture", gguf_files.ARCHITECTURES)
def test_the_native_configuration_is_the_same(architecture: str, tmp_path: Path) -> None:
    """In everything that both have; what the class of transformers adds is a default that the
    native model doesn't read, as both make the same model."""
    whole = read(tmp_path, architecture).to_dict()
    file = GGUFFile(tmp_path / "a.gguf")
    ours = config.read_native(file)
    assert ours.model_type == whole["model_type"] and {*config._UNSAID[ours.model_type]} <= {*whole}
    for name, value in ours.to_dict().items():
        assert name == "model_type" or name not in whole or value == whole[name], name
    assert check.shape_of(ours) == check.shape_of(config.read(file))
    first, second = (_logits(file.path, made) for made in (ours, config.read(file)))
    assert torch.equal(first, second)


def _logits(path: Path, made: Any) -> torch.Tensor:
    weights = weights_of(path, False)
    model = build_native(made, weights, torch.float32, torch.device("cpu"), "plain")
    target = ModelTarget(model, 1, 32)
    sequence = Sequence.start([*range(1, 20)], SamplingParams())
    target.begin(sequence)
    target.prefill([sequence], 18)
    return target.score([sequence], empty(1, torch.device("cpu"))).logits


def test_numbers_that_make_no_model(tmp_path: Path) -> None:
    path = gguf_files.written(tmp_path / "a.gguf", also={"llama.attention.head_count": 5})
    for reading in (config.read, config.read_native):
        with pytest.raises(ForetokenError, match=r"a\.gguf"):
            reading(GGUFFile(path))


def test_a_start_without_modelling_code(tmp_path: Path) -> None:
    """transformers' activations, and with them torch.distributed and sympy, take over a second."""
    path = gguf_files.written(tmp_path / "a.gguf", "llama")
    program = "import sys; from foretoken import LLM; LLM(sys.argv[1]); print(*sys.modules)"
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "transformers" in done.stdout.split()
    assert {"transformers.activations", "torch._dynamo"}.isdisjoint(done.stdout.split())
