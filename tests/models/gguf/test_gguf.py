"""A GGUF file wherever a checkpoint can be given: the text is transformers' with `gguf_file=`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    StableLmConfig,
    StableLmForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

import gguf_files
import stored_models
from foretoken import LLM, SamplingParams
from foretoken.errors import ForetokenError
from foretoken.models.gguf import config_of, reader, weights_of
from foretoken.models.hf.adapter import HFModel
from foretoken.models.load import find, generation_ends, load_model
from foretoken.models.placement import pick_dtype
from foretoken.testing import logits_after

IDS = [3, 50, 7, 7, 21, 90, 0, 13, 44, 8, 15, 91]


def theirs(path: Path) -> torch.Tensor:
    """[V] transformers' logits after `IDS`."""
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([IDS])).logits[0, -1]
    return logits


def close(ours: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return bool((ours - expected).abs().max() <= tolerance * expected.abs().max())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("impl", ["native", "transformers"])
@pytest.mark.parametrize("architecture", gguf_files.ARCHITECTURES)
def test_logits_are_those_of_the_model_that_was_written(
    architecture: str, impl: str, tied: bool, tmp_path: Path
) -> None:
    """With a head of its own, and with none in the file."""
    path = gguf_files.written(tmp_path / "a.gguf", architecture, tie_word_embeddings=tied)
    made = load_model(path, device="cpu", model_impl=impl)
    model = gguf_files.model(architecture, tie_word_embeddings=tied)
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0, -1]
    assert close(logits_after(made, IDS), expected)
    assert isinstance(made, HFModel) == (impl == "transformers")


@pytest.mark.parametrize("fields", [["attention_bias"], ["mlp_bias", "attention_bias"]])
def test_biases_of_a_llama(fields: list[str], tmp_path: Path) -> None:
    """Granite's code models have them; a configuration says of none by itself."""
    numbers = dict.fromkeys(fields, True)
    path = gguf_files.written(tmp_path / "a.gguf", "llama", **numbers)
    with torch.inference_mode():
        expected = gguf_files.model("llama", **numbers)(torch.tensor([IDS])).logits[0, -1]
    assert close(logits_after(load_model(path, device="cpu"), IDS), expected)


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_1, Kind.Q5_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_logits_are_transformers_of_the_same_blocks(
    architecture: str, kind: Kind, tmp_path: Path
) -> None:
    path = gguf_files.written(tmp_path / "a.gguf", architecture, kind, head_dim=16)
    expected = theirs(path)
    exact = load_model(path, device="cpu", dtype="float32")
    assert close(logits_after(exact, IDS), expected)
    assert close(logits_after(load_model(path, device="cpu", backend="plain"), IDS), expected)
    narrow = load_model(path, device="cpu", backend="half")
    assert close(logits_after(narrow, IDS), expected, 1e-2)
    assert narrow.bytes_read < exact.bytes_read


LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
YARN = {**LINEAR, "rope_type": "yarn", "original_max_position_embeddings": 32}
TURNING: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("llama", LINEAR),
    "yarn": ("qwen2", YARN),
    "gemma's": (
        "gemma3",
        {
            "full_attention": LINEAR,
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
}


@pytest.mark.parametrize("impl", ["native", "transformers"])
@pytest.mark.parametrize("case", TURNING)
def test_logits_under_rotary_scaling(case: str, impl: str, tmp_path: Path) -> None:
    architecture, rope = TURNING[case]
    scaled = rope.get("full_attention", rope)
    also = {"type": scaled["rope_type"], "factor": scaled["factor"]}
    if context := scaled.get("original_max_position_embeddings"):
        also["original_context_length"] = context
    named = {f"{architecture}.rope.scaling.{key}": value for key, value in also.items()}
    path = gguf_files.written(tmp_path / "a.gguf", architecture, also=named, rope_parameters=rope)
    plain, model = (gguf_files.model(architecture, **r) for r in ({}, {"rope_parameters": rope}))
    with torch.inference_mode():
        unscaled, expected = (m(torch.tensor([IDS])).logits[0, -1] for m in (plain, model))
    assert not close(unscaled, expected, 1e-3)
    made = load_model(path, device="cpu", model_impl=impl)
    assert close(logits_after(made, IDS), expected)


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_file_of_floats_has_no_blocks(architecture: str, kind: Kind, tmp_path: Path) -> None:
    """Its matrices are multiplied as they are, in float32."""
    path = gguf_files.written(tmp_path / "a.gguf", architecture, kind, head_dim=16)
    expected = theirs(path)
    asked: list[dict[str, Any]] = [{}, {"dtype": "float32"}, {"backend": "plain"}]
    for options in asked:
        made = load_model(path, device="cpu", **options)
        assert made.backend != "blocks" and close(logits_after(made, IDS), expected)


def test_loading_parses_the_header_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf_files.written(tmp_path / "a.gguf")
    parsed: list[Path] = []
    whole = reader.GGUFFile.__init__

    def counted(file: reader.GGUFFile, path: Path) -> None:
        parsed.append(path)
        whole(file, path)

    monkeypatch.setattr(reader.GGUFFile, "__init__", counted)
    LLM(path, device="cpu")
    assert parsed == [path]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_files.written(tmp_path_factory.mktemp("gguf") / "a.gguf", kind=Kind.Q8_0)


def generated(model: str | Path, **options: Any) -> tuple[list[int], LLM]:
    llm = LLM(model, max_num_seqs=1, device="cpu", **options)
    [out] = llm.generate(["the cat in"], SamplingParams(temperature=0, max_tokens=12))
    return list(out.outputs[0].token_ids), llm


def test_target_and_draft_model(served: Path) -> None:
    plain, llm = generated(served)
    drafted, other = generated(served, speculative_config={"model": str(served)})
    assert drafted == plain and other.method == "sps"
    assert llm.engine.eos_ids == {gguf_files.VOCAB - 2, gguf_files.VOCAB - 1}
    [parts] = other.engine.drafter.small_models
    assert parts.backend == llm.model.backend
    assert llm.chat([{"role": "user", "content": "the"}], SamplingParams(max_tokens=2))


def test_a_file_in_a_folder_or_a_repository(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`gguf_file=` beside the name, as transformers has it."""
    plain, _ = generated(served)
    assert generated(served.parent, gguf_file=served.name)[0] == plain
    asked: list[tuple[str, str]] = []

    def download(repository: str, file: str) -> str:
        asked.append((repository, file))
        return str(served)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert generated("org/name", gguf_file="x/a.gguf")[0] == plain
    assert find("org/name/b.gguf") == served
    assert asked == [("org/name", "x/a.gguf"), ("org/name", "b.gguf")]
    with pytest.raises(ForetokenError, match=r"gguf_file is 'a.bin'; give the name of a \.gguf"):
        LLM(served.parent, gguf_file="a.bin")
    with pytest.raises(ForetokenError, match="gguf_file goes with a folder or a hub id"):
        LLM(HFModel.__new__(HFModel), gguf_file="a.gguf")


@pytest.mark.parametrize("name", ["none.gguf", "/none/a.gguf", "./a.gguf", "org/none.gguf"])
def test_a_file_that_is_not_there(name: str) -> None:
    with pytest.raises(ForetokenError, match=f"There is no GGUF file '{name}'"):
        find(name)


def test_the_package_is_asked_for(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretoken.models.gguf.reader.find_spec", lambda name: None)
    with pytest.raises(ForetokenError, match=r"pip install 'foretoken\[gguf\]'"):
        LLM(served)
    with pytest.raises(ForetokenError, match=r"pip install 'foretoken\[gguf\]'"):
        LLM("org/name/file.gguf")


def test_an_incomplete_file_is_refused(tmp_path: Path) -> None:
    path = gguf_files.written(tmp_path / "a.gguf", also={"llama.block_count": 3})
    for impl in ("native", "transformers"):
        with pytest.raises(ForetokenError, match=r"has no tensor 'model.layers.2"):
            load_model(path, device="cpu", model_impl=impl)
    other = gguf_files.written(tmp_path / "b.gguf", also={"llama.feed_forward_length": 64})
    with pytest.raises(ForetokenError, match=r"b\.gguf: .*mlp.*has the shape"):
        load_model(other, device="cpu")


def other_architecture(path: Path) -> Any:
    """A GPT-2, as llama.cpp's converter writes one; the model."""
    sizes = {"vocab_size": gguf_files.VOCAB, "n_positions": 1024, "n_embd": 32, "n_layer": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, n_head=2)).eval()
    writer = gguf.GGUFWriter(path, "gpt2")
    numbers = {"context_length": 1024, "embedding_length": 32, "block_count": 2}
    pairs = {f"gpt2.{key}": value for key, value in numbers.items()}
    pairs |= {"gpt2.attention.head_count": 2, "gpt2.attention.layer_norm_epsilon": 1e-5}
    for key, value in (pairs | gguf_files.VOCABULARY).items():
        gguf_files.add(writer, key, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, 2)
    for name, weight in model.named_parameters():
        if name == "lm_head.weight":
            continue
        module, _, part = name.rpartition(".")
        linear = weight.ndim == 2 and ".h." in name
        numbers_ = (weight.T if linear else weight).detach().numpy()
        gguf_files.put(writer, f"{names.get_name(module)}.{part}", numbers_, Kind.F32)
    gguf_files.finish(writer)
    return model


def test_another_architecture_goes_through_transformers(tmp_path: Path) -> None:
    model = other_architecture(tmp_path / "a.gguf")
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0, -1]
    made = load_model(tmp_path / "a.gguf", device="cpu")
    assert isinstance(made, HFModel) and close(logits_after(made, IDS), expected)
    assert generation_ends(tmp_path / "a.gguf") == {gguf_files.VOCAB - 2, gguf_files.VOCAB - 1}
    ids, _ = generated(tmp_path / "a.gguf")
    assert len(ids) > 0


def gemma2(path: Path, **metadata: Any) -> Any:
    """A Gemma 2, as llama.cpp's converter writes one; the model."""
    sizes = {"vocab_size": gguf_files.VOCAB, "tie_word_embeddings": True, "sliding_window": 8}
    model = stored_models.original(
        "gemma2",
        **sizes,
        query_pre_attn_scalar=32,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=9.0,
    )
    writer = gguf.GGUFWriter(path, "gemma2")
    own: dict[str, Any] = {"attention.sliding_window": 8}
    own |= {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 9.0, **metadata}
    pairs = gguf_files.metadata("gemma2", model.config) | gguf_files.VOCABULARY
    for key, value in (pairs | {f"gemma2.{key}": value for key, value in own.items()}).items():
        gguf_files.add(writer, key, value)
    for name, weight in model.named_parameters():  # whose names are Gemma 3's
        place, numbers = gguf_files.stored("gemma3", model.config, name, weight)
        gguf_files.put(writer, place, numbers, Kind.F32)
    gguf_files.finish(writer)
    return model


def test_a_family_that_only_folders_of_run_natively(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    model = gemma2(path)
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0, -1]
    made = load_model(path, device="cpu")
    assert isinstance(made, HFModel) and close(logits_after(made, IDS), expected, 1e-4)
    with pytest.raises(ForetokenError, match="can't be served natively: GGUF files of its family"):
        load_model(path, device="cpu", model_impl="native")
    with pytest.raises(ForetokenError, match="weights of gemma2 models are read by transformers"):
        weights_of(path, narrow=True)


@pytest.mark.parametrize(("layers", "scale"), [(26, 32), (46, 16)])
def test_the_scale_of_gemma_2(layers: int, scale: int, tmp_path: Path) -> None:
    """The width of a head, and in the 27 B model, whose file doesn't say so either, another."""
    gemma2(tmp_path / "a.gguf", block_count=layers)
    assert config_of(tmp_path / "a.gguf").query_pre_attn_scalar == scale


def starcoder2(path: Path, base: float) -> Any:
    """A StarCoder 2, as llama.cpp's converter writes one; the model. base: of its rotation."""
    sizes: dict[str, Any] = {"vocab_size": gguf_files.VOCAB, "hidden_size": 32}
    sizes |= {"intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    rope = {"rope_type": "default", "rope_theta": base}
    model = Starcoder2ForCausalLM(Starcoder2Config(**sizes, rope_parameters=rope)).eval()
    writer = gguf.GGUFWriter(path, "starcoder2")
    numbers = {"context_length": 4096, "embedding_length": 32, "feed_forward_length": 48}
    numbers |= {"block_count": 2, "attention.head_count": 2, "attention.head_count_kv": 1}
    own: dict[str, Any] = {**numbers, "attention.layer_norm_epsilon": 1e-5, "rope.freq_base": base}
    pairs = {f"starcoder2.{key}": value for key, value in own.items()}
    for key, value in (pairs | gguf_files.VOCABULARY).items():
        gguf_files.add(writer, key, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.STARCODER2, 2)
    for name, weight in model.named_parameters():
        module, _, part = name.rpartition(".")
        weight.data.mul_(20 if "self_attn" in name else 1)  # so that it counts where a token stands
        gguf_files.put(writer, f"{names.get_name(module)}.{part}", weight.data.numpy(), Kind.F32)
    gguf_files.finish(writer)
    return model


def test_the_base_of_the_rotation_that_transformers_leaves_out(tmp_path: Path) -> None:
    """Of StarCoder 2's files, whose models have other bases than its class."""
    model = starcoder2(tmp_path / "a.gguf", 1e6)
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0, -1]
    made = load_model(tmp_path / "a.gguf", device="cpu")
    assert config_of(tmp_path / "a.gguf").rope_parameters["rope_theta"] == 1e6
    assert isinstance(made, HFModel) and close(logits_after(made, IDS), expected, 1e-4)


def without_layers(path: Path, architecture: str, kind: Kind = Kind.F32, **more: Any) -> Path:
    """A file that has what makes a configuration, with its embedding of this kind."""
    writer = gguf.GGUFWriter(path, architecture)
    numbers = {"context_length": 4096, "embedding_length": 64, "feed_forward_length": 96}
    numbers |= {"block_count": 2, "attention.head_count": 2, "attention.head_count_kv": 2, **more}
    for key, value in numbers.items():
        gguf_files.add(writer, f"{architecture}.{key}", value)
    gguf_files.put(writer, "token_embd.weight", np.zeros((8, 64), np.float32), kind)
    gguf_files.finish(writer)
    return path


@pytest.mark.parametrize(("said", "window"), [(2047, 2047), (0, None), (None, None)])
def test_the_window_that_transformers_leaves_out(
    said: int | None, window: int | None, tmp_path: Path
) -> None:
    """Of Phi 3's files; Phi 4's say 0, as they have none."""
    more = {} if said is None else {"attention.sliding_window": said}
    assert config_of(without_layers(tmp_path / "a.gguf", "phi3", **more)).sliding_window == window


@pytest.mark.parametrize(
    ("architecture", "kind", "dtype"),
    [
        ("phi3", Kind.Q8_0, torch.float16),
        ("phi3", Kind.BF16, torch.bfloat16),
        ("phi3", Kind.F32, torch.float32),
        ("gemma2", Kind.Q8_0, torch.bfloat16),
    ],
)
def test_the_dtype_on_a_gpu_of_what_transformers_reads(
    architecture: str, kind: Kind, dtype: torch.dtype, tmp_path: Path
) -> None:
    """That of the architectures that are read here: two bytes a weight, where four were taken."""
    path = without_layers(tmp_path / "a.gguf", architecture, kind)
    config, gpu, cpu = config_of(path), torch.device("meta"), torch.device("cpu")
    assert pick_dtype("auto", config, gpu, path) == dtype
    assert pick_dtype("auto", config, cpu, path) == torch.float32


def test_another_architecture_in_half_precision(tmp_path: Path) -> None:
    model = other_architecture(tmp_path / "a.gguf")
    made = load_model(tmp_path / "a.gguf", device="cpu", dtype="float16")
    assert {weight.dtype for weight in made.model.parameters()} == {torch.float16}  # type: ignore[attr-defined]
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0, -1]
    assert close(logits_after(made, IDS).float(), expected, 1e-2)


def stablelm(path: Path, turned: int = 4, extra: tuple[str, ...] = ()) -> Any:
    """A StableLM 2, as llama.cpp's converter writes one; the model. turned: how many numbers of a
    head it says that the rotation turns; extra: tensors that it has besides."""
    sizes: dict[str, Any] = {"vocab_size": gguf_files.VOCAB, "hidden_size": 32}
    sizes |= {"intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "use_qkv_bias": True}
    model = StableLmForCausalLM(StableLmConfig(**sizes)).eval()
    writer = gguf.GGUFWriter(path, "stablelm")
    own: dict[str, Any] = {"context_length": 4096, "embedding_length": 32, "block_count": 2}
    own |= {"feed_forward_length": 48, "attention.head_count": 2, "attention.head_count_kv": 2}
    own |= {"attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": turned}
    pairs = {f"stablelm.{key}": value for key, value in own.items()}
    for key, value in (pairs | gguf_files.VOCABULARY).items():
        gguf_files.add(writer, key, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.STABLELM, 2)
    for name, weight in model.named_parameters():
        module, _, part = name.rpartition(".")
        weight.data.mul_(20 if "self_attn" in name else 1)
        gguf_files.put(writer, f"{names.get_name(module)}.{part}", weight.data.numpy(), Kind.F32)
    for name in extra:
        gguf_files.put(writer, name, np.ones((2, 16), np.float32), Kind.F32)
    gguf_files.finish(writer)
    return model


def test_tensors_that_transformers_leaves_out(tmp_path: Path) -> None:
    """StableLM 2 12B's file has norms of queries and keys, which its reader drops: another text."""
    model = stablelm(tmp_path / "a.gguf")
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0, -1]
    assert close(logits_after(load_model(tmp_path / "a.gguf", device="cpu"), IDS), expected, 1e-4)
    stablelm(tmp_path / "b.gguf", extra=("blk.0.attn_q_norm.weight", "blk.0.attn_k_norm.weight"))
    with pytest.raises(
        ForetokenError, match=r"stablelm models have no tensor 'blk\.0\.attn_q_norm\.weight'"
    ):
        load_model(tmp_path / "b.gguf", device="cpu")


def test_a_part_of_the_heads_that_transformers_does_not_read(tmp_path: Path) -> None:
    """It takes what its class turns, whatever the file says."""
    stablelm(tmp_path / "a.gguf", turned=8)
    with pytest.raises(ForetokenError, match="turn 8 of 16 numbers, and transformers reads 4"):
        load_model(tmp_path / "a.gguf", device="cpu")


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "nonesuch")
    gguf_files.put(writer, "a.weight", np.zeros((2, 2), np.float32), Kind.F32)
    gguf_files.finish(writer)
    with pytest.raises(
        ForetokenError, match="architecture 'nonesuch', which transformers can't read"
    ):
        load_model(tmp_path / "a.gguf")


def test_what_else_is_called_so_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_text("not one")
    with pytest.raises(ForetokenError, match=r"a\.gguf is no GGUF file"):
        LLM(tmp_path / "a.gguf")
    os.mkdir(tmp_path / "b.gguf")
    with pytest.raises(ForetokenError, match=r"b\.gguf"):
        LLM(tmp_path / "b.gguf")
