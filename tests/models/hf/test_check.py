"""Checkpoints that transformers is to read: sizes are compared before anything is allocated."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig

from architectures import tiny
from foretoken.errors import ForetokenError
from foretoken.models.hf.adapter import HFModel
from foretoken.models.hf.check import check_report
from foretoken.models.load import load_model
from foretoken.testing import logits_after, tiny_transformers
from stored_models import IDS, change_config, change_tensors, theirs, written

IDS_OF_TINY = [3, 9, 7, 7, 21, 40, 2, 13]


def refused(folder: Path, match: str) -> None:
    with pytest.raises(ForetokenError, match=match) as caught:
        load_model(folder, device="cpu", model_impl="transformers")
    assert "\n" not in str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path)


@pytest.mark.parametrize("name", ["vocab_size", "intermediate_size", "hidden_size"])
def test_sizes_that_the_files_do_not_hold(folder: Path, name: str) -> None:
    """Refused before they are allocated: filling them would take all memory."""
    change_config(folder, **{name: 10**7})
    refused(folder, r"calls for \d+ weights, and its files hold \d+ bytes")


@pytest.mark.parametrize("count", [64, 9_999])
def test_more_layers_than_tensors(folder: Path, count: int) -> None:
    change_config(folder, num_hidden_layers=count)
    refused(folder, rf"calls for {count} layers, and its files hold 21 tensors")


@pytest.mark.parametrize(
    ("field", "given"),
    [("num_attention_heads", -1), ("num_key_value_heads", 0), ("sliding_window", -3),
     ("num_hidden_layers", 10**9), ("max_position_embeddings", 10**30)],
)  # fmt: skip
def test_numbers_that_are_no_sizes(tmp_path: Path, field: str, given: Any) -> None:
    change_config(written(tmp_path, "qwen2"), **{field: given})
    if field == "sliding_window":  # which is read only then
        change_config(tmp_path, use_sliding_window=True, layer_types=None)
    refused(tmp_path, f"{field} of the model's configuration is .* must be a whole number")


def test_layers_that_predict_further_tokens(folder: Path) -> None:
    """Ling 2.0's checkpoints, for some, have one after the last, which their models leave out."""
    names = [name for name in load_file(folder / "model.safetensors") if ".layers.1." in name]
    more = {name: name.replace(".layers.1.", ".layers.2.") for name in names}
    change_tensors(folder, lambda x: x.update({new: x[name] for name, new in more.items()}))
    refused(folder, "hold weights of layer 2, and num_hidden_layers")
    change_config(folder, num_nextn_predict_layers=1)
    model = load_model(folder, device="cpu", model_impl="transformers")
    torch.testing.assert_close(logits_after(model, IDS), theirs(folder), atol=1e-3, rtol=1e-3)


def test_shapes_dtypes_and_layers(folder: Path) -> None:
    """What transformers compares itself comes in one sentence; integers it would turn to floats."""
    name = "model.layers.1.self_attn.q_proj.weight"
    change_config(folder, num_hidden_layers=1)
    refused(folder, "hold weights of layer 1, and num_hidden_layers")
    change_config(folder, num_hidden_layers=2)
    change_tensors(folder, lambda x: x.update({name: x[name].to(torch.int32)}))
    refused(folder, "q_proj.* is stored as I32")
    change_tensors(folder, lambda x: x.update({name: torch.cat((x[name].float(),) * 2)}))
    refused(folder, "q_proj.* has the shape .* configuration calls for")


FP8 = {"quant_method": "fp8", "activation_scheme": "static"}


def quantised(folder: Path, method: dict[str, Any], scales: str) -> Path:
    """Its products become float8, with their scales under such a name."""

    def change(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if "proj" in name]:
            scale = tensors[name].abs().max() / 448
            tensors[name] = (tensors[name] / scale).to(torch.float8_e4m3fn)
            tensors[name.replace("weight", scales)] = scale

    change_tensors(written(folder), change)
    change_config(folder, quantization_config=method)
    return folder


def test_a_method_that_transformers_does_not_know(tmp_path: Path) -> None:
    """It would cast the quantised numbers, and multiply nothing by their scales."""
    quantised(tmp_path, {"quant_method": "modelopt", "quant_algo": "FP8"}, "weight_scale")
    refused(tmp_path, "is quantised by 'modelopt', which transformers doesn't read; use the model")


@pytest.mark.parametrize("given", [{"bits": 4, "group_size": 128}, {"quant_method": None}, {}])
def test_a_method_that_has_no_name(folder: Path, given: dict[str, Any]) -> None:
    """A fetch won't bring it: the sentence says what is missing, and shows what is there."""
    change_config(folder, quantization_config=given)
    refused(folder, rf"config\.json, {re.escape(str(given))}, has no quant_method, without which")


def test_scales_under_another_name_than_transformers_reads(tmp_path: Path) -> None:
    """AutoFP8's; those of a part that isn't read are nobody's loss."""
    pytest.importorskip("accelerate")
    refused(quantised(tmp_path, FP8, "weight_scale"), r"proj\.weight_scale', by which transformers")
    report = {"missing_keys": (), "mismatched_keys": ()}
    unread = {"vision.a.weight", "vision.a.weight_scale", "model.layers.0.self_attn.k_scale"}

    def check(*more: str) -> None:
        names = report | {"unexpected_keys": {*unread, *more}}
        check_report(tmp_path, LlamaConfig(num_hidden_layers=2), names, {"lm_head.weight"})

    check("projector.scale", "vision.a.scale")
    with pytest.raises(ForetokenError, match=r"lm_head\.scale', by which transformers"):
        check("lm_head.scale")


def test_a_model_without_safetensors_is_bounded_by_its_files(tmp_path: Path) -> None:
    """An older checkpoint's pickled weights are read; sizes beyond them are not allocated."""
    config = tf.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    model = tf.GPT2LMHeadModel(config)
    config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert load_model(tmp_path, device="cpu").layers == 2
    change_config(tmp_path, vocab_size=10**8)
    refused(tmp_path, "weights, and its files hold")


@pytest.mark.parametrize("family", ["gemma4_text", "qwen2_moe"])
def test_folders_of_families_whose_numbers_are_their_own(family: str, tmp_path: Path) -> None:
    """Gemma 4's layers differ in the width of a head, and Qwen 2's experts have windows of 0, which
    aren't used."""
    model = tiny(family).double().eval()
    model.save_pretrained(tmp_path)
    with torch.inference_mode():
        expected = model(torch.tensor([IDS_OF_TINY])).logits[0, -1]
    found = logits_after(load_model(tmp_path, device="cpu", dtype="float64"), IDS_OF_TINY)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_number_that_the_family_does_not_know(folder: Path) -> None:
    """transformers reads it in places all the same."""
    change_config(folder, sliding_window={})
    refused(folder, "sliding_window of the model's configuration is {} and must be")


@pytest.mark.parametrize(("threshold", "said"), [(6.0, True), (0.0, False)])
def test_eight_bits_by_which_tokens_depend_on_each_other(
    threshold: float, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """bitsandbytes takes a column's numbers apart for all rows of a pass, by its threshold."""
    model = tiny_transformers()
    given = SimpleNamespace(load_in_8bit=True, llm_int8_threshold=threshold)
    model.config.quantization_config = given
    HFModel(model)
    assert ("drafts may change a text" in caplog.text) == said
