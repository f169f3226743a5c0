"""From a folder or a name to a model: what is read, and what is refused in one sentence."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file
from transformers import dynamic_module_utils

from case_names import case_name
from foretoken import LLM
from foretoken.errors import ForetokenError
from foretoken.models.checkpoint import Checkpoint
from foretoken.models.hf.adapter import HFModel
from foretoken.models.load import (
    fetched,
    find,
    generation_ends,
    load_model,
    load_tokenizer,
    read_config,
    wrapped,
)
from foretoken.models.native.check import CYCLE
from foretoken.testing import logits_after, native, tiny_transformers
from models.drafting.test_draft_model import with_code
from stored_models import (
    FAMILIES,
    IDS,
    VOCAB,
    change_config,
    change_tensors,
    original,
    theirs,
    written,
)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny float32 checkpoint."""
    path = tmp_path_factory.mktemp("checkpoint")
    tiny_transformers(dtype=torch.float32).save_pretrained(path)
    return path


def test_a_folder_is_read_by_either_implementation(folder: Path) -> None:
    """Both know where the weights are from; the native one names its backend."""
    ours = load_model(folder, device="cpu", backend="plain")
    theirs = load_model(folder, device="cpu", model_impl="transformers")
    assert (ours.backend, ours.source) == ("plain", folder)
    assert isinstance(theirs, HFModel) and theirs.source is theirs.model
    assert ours.vocab_size == theirs.vocab_size and ours.layers == theirs.layers


def test_a_loaded_model_is_wrapped_once() -> None:
    """One of ours stays as it is; one of transformers' comes in the adapter."""
    model = tiny_transformers()
    ours = native(model)
    assert wrapped(ours) is ours
    assert isinstance(wrapped(model), HFModel)


@pytest.mark.parametrize("name", ["nowhere", "/nowhere/at/all", "./nowhere", "a/b/c"])
def test_where_there_is_no_checkpoint(name: str) -> None:
    """Nothing is fetched for a name that can't be a hub id; what may be given is said."""
    with pytest.raises(ForetokenError, match=r"There is no checkpoint .*'openai-community/gpt2'"):
        find(name)


def test_a_path_is_no_name_of_what_was_fetched(cache: Path) -> None:
    """Though it ends with one."""
    file = fetched("nowhere")
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    assert find("nowhere") == file
    with pytest.raises(ForetokenError, match="There is no checkpoint"):
        find("./nowhere")


def test_why_the_hub_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own words say what helps: another setting, or to log in."""

    def refuse(*_: Any, **__: Any) -> str:
        raise OSError("Offline mode is enabled; unset HF_HUB_OFFLINE.")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(ForetokenError, match=r"'org/name' on disk .*; unset HF_HUB_OFFLINE\)"):
        find("org/name")


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_a_tokenizer_is_fetched_without_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str
) -> None:
    """Its own files alone, as transformers fetches them."""
    there, here = tmp_path / "there", tmp_path / "here"
    shutil.copytree(find("mini"), there, ignore=shutil.ignore_patterns("*.safetensors"))
    (there / weights).touch()
    here.mkdir()

    def download(name: str, **patterns: Any) -> str:
        for file in filter_repo_objects([path.name for path in there.iterdir()], **patterns):
            shutil.copy(there / file, here / file)
        return str(here)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    tokenizer = load_tokenizer("org/name")
    assert tokenizer.get_vocab() == load_tokenizer("mini").get_vocab()
    assert not (here / weights).exists()


def test_a_drafter_is_no_model() -> None:
    """The sentence says where it goes; its files are whole."""
    with pytest.raises(ForetokenError, match=r"is no language model .*'method': 'eagle'"):
        read_config(find("mini-eagle"))


def test_what_is_fetched_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that comes with a model too, which runs where it may; weights that are there again for
    other programs are left where they are."""
    there, here = with_code(tmp_path / "there"), tmp_path / "here"
    shutil.copy(there / "model.safetensors", there / "consolidated.safetensors")
    (there / "original").mkdir()
    shutil.copy(there / "model.safetensors", there / "original" / "model.safetensors")

    def download(name: str, **patterns: Any) -> str:
        files = [str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()]
        for file in filter_repo_objects(files, **patterns):
            (here / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(there / file, here / file)
        return str(here)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    with pytest.raises(ForetokenError, match="code that comes with it, which may not run"):
        load_model("org/own", device="cpu")
    assert isinstance(load_model("org/own", device="cpu", trust_remote_code=True), HFModel)
    assert [path.name for path in here.rglob("*.safetensors")] == ["model.safetensors"]


def test_code_that_comes_with_a_native_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it may run, it runs, as transformers would run it; else the family's own."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    own = written(tmp_path / "own")
    plain = theirs(own)
    (own / "own.py").write_text(
        "from transformers import LlamaForCausalLM\n\n"
        "class OwnModel(LlamaForCausalLM):\n"
        "    def forward(self, *given, **more):\n"
        "        out = super().forward(*given, **more)\n"
        "        out.logits = -out.logits\n"
        "        return out\n"
    )
    change_config(own, auto_map={"AutoModelForCausalLM": "own.OwnModel"})
    trusted = load_model(own, device="cpu", trust_remote_code=True)
    torch.testing.assert_close(logits_after(trusted, IDS), -plain, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        logits_after(load_model(own, device="cpu"), IDS), plain, atol=1e-4, rtol=1e-4
    )


def test_tokens_that_see_those_after_them(tmp_path: Path) -> None:
    """By either name of it, no family runs natively."""
    own = written(tmp_path, "qwen3")
    change_config(own, is_causal=False)
    with pytest.raises(ForetokenError, match="its tokens see those after them"):
        load_model(own, device="cpu", model_impl="native")


@pytest.mark.parametrize("impl", ["native", "transformers"])
def test_the_file_of_weights_that_a_configuration_names(tmp_path: Path, impl: str) -> None:
    """Where another one has the usual name."""
    own = written(tmp_path)
    expected = theirs(own)
    shutil.copy(own / "model.safetensors", own / "theirs.safetensors")
    change_tensors(own, lambda x: x.update({"lm_head.weight": x["lm_head.weight"].flip(0)}))
    change_config(own, transformers_weights="theirs.safetensors")
    found = logits_after(load_model(own, device="cpu", model_impl=impl), IDS)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    for name, said in (
        ("none.safetensors", "it isn't there"),
        ("../a.safetensors", "of the folder itself"),
    ):
        change_config(own, transformers_weights=name)
        with pytest.raises(ForetokenError, match=said):
            load_model(own, device="cpu", model_impl=impl)


def pickled(folder: Path) -> Path:
    """A checkpoint as they were saved before safetensors."""
    file = written(folder) / "model.safetensors"
    torch.save(load_file(file), folder / "pytorch_model.bin")
    file.unlink()
    return folder


@pytest.mark.parametrize("impl", ["native", "transformers"])
def test_pickled_weights(tmp_path: Path, impl: str) -> None:
    """Vicuna's, for one."""
    model = load_model(pickled(tmp_path), device="cpu", model_impl=impl)
    torch.testing.assert_close(logits_after(model, IDS), theirs(tmp_path), atol=1e-3, rtol=1e-3)
    if impl == "native":
        with pytest.raises(ForetokenError, match="can't be read layer by layer, as it is pickled"):
            load_model(tmp_path, device="cpu", weights_memory=2**20)


def test_pickled_weights_are_fetched_where_there_are_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = pickled(tmp_path / "there"), tmp_path / "here"
    here.mkdir()
    (there / "head.safetensors").touch()  # a name that transformers doesn't look for

    def download(name: str, **patterns: Any) -> str:
        files = [path.name for path in there.iterdir()]
        for file in filter_repo_objects(files, **patterns):
            shutil.copy(there / file, here / file)
        return str(here)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert load_model("org/old", device="cpu").layers == 2
    shutil.copy(here / "pytorch_model.bin", there / "model.safetensors")  # whatever is in it
    (here / "pytorch_model.bin").unlink()
    assert find("org/old") == here and not (here / "pytorch_model.bin").exists()


def test_a_backend_that_would_not_run_is_refused(folder: Path) -> None:
    """Where transformers runs the layers: it had been left out without a word."""
    for backend in ("auto", "plain"):
        load_model(folder, device="cpu", backend=backend, model_impl="transformers")
    for backend in ("q4", "blocks", "compiled+int8", "nonesuch"):
        with pytest.raises(ForetokenError, match=r"runs by transformers' code .*backend='auto'"):
            load_model(folder, device="cpu", backend=backend, model_impl="transformers")


def test_a_folder_of_gguf_files_names_one(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    with pytest.raises(
        ForetokenError, match=r"no config\.json; give the GGUF file in it, 'a\.gguf'"
    ):
        read_config(tmp_path)


def test_a_repository_of_gguf_files_wants_one_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which nothing was fetched but what lies beside them."""
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(ForetokenError, match=r"give .* a GGUF file, as org/name/model\.gguf\.$"):
        load_model("org/name", device="cpu")


def test_shards_and_what_is_missing(folder: Path, tmp_path: Path) -> None:
    """An index names each tensor's file; a missing or damaged one is named."""
    source = (folder / "model.safetensors").read_bytes()
    (tmp_path / "one.safetensors").write_bytes(source)
    index: dict[str, Any] = {"weight_map": {"model.embed_tokens.weight": "one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    name = "model.embed_tokens.weight"
    assert torch.equal(Checkpoint(tmp_path)(name), Checkpoint(folder)(name))
    with pytest.raises(KeyError):
        Checkpoint(tmp_path)("no.such.tensor")
    (tmp_path / "one.safetensors").write_bytes(source[: len(source) // 2])
    with pytest.raises(ForetokenError, match=r"one\.safetensors is truncated"):
        Checkpoint(tmp_path)
    (tmp_path / "one.safetensors").unlink()
    with pytest.raises(ForetokenError, match=r"Shard one\.safetensors .* is missing"):
        Checkpoint(tmp_path)


def test_a_folder_without_a_part(tmp_path: Path, folder: Path) -> None:
    """No configuration, no weights, no tokenizer: each is one sentence."""
    with pytest.raises(ForetokenError, match=r"has no config\.json"):
        read_config(tmp_path)
    with pytest.raises(ForetokenError, match=r"holds no \*\.safetensors"):
        Checkpoint(tmp_path)
    with pytest.raises(ForetokenError, match="has no tokenizer"):
        load_tokenizer(folder)
    with pytest.raises(ForetokenError, match="model_impl is 'onnx'"):
        load_model(folder, model_impl="onnx")


def test_layers_that_differ_are_no_cycle(tmp_path: Path) -> None:
    """A config that says so of other weights is refused, and names the layers."""
    model = tiny_transformers(layers=4, dtype=torch.float32)
    setattr(model.config, CYCLE, 2)
    model.save_pretrained(tmp_path)
    with pytest.raises(ForetokenError, match="layer 2 isn't that of layer 0"):
        LLM(tmp_path)


def check_both(folder: Path) -> torch.Tensor:
    """Either implementation says what transformers says of the same files."""
    expected = theirs(folder)
    for impl in ("native", "transformers"):
        model = load_model(folder, device="cpu", model_impl=impl)
        torch.testing.assert_close(logits_after(model, IDS), expected, atol=1e-3, rtol=1e-3)
    return expected


HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def test_a_tied_model_with_a_head_of_its_own(tmp_path: Path) -> None:
    """The stored head is used where it is another one than the embedding, as transformers does; the
    embedding is both where it is alone or the same, and a head that is alone is both."""
    written(tmp_path, tie_word_embeddings=True)
    alone = check_both(tmp_path)
    change_tensors(tmp_path, lambda x: x.update({HEAD: x[EMBEDDING]}))
    assert torch.equal(check_both(tmp_path), alone)
    tied = load_model(tmp_path, device="cpu").parameters
    change_tensors(tmp_path, lambda x: x.update({HEAD: x[EMBEDDING].flip(0)}))
    torch.testing.assert_close(check_both(tmp_path), alone.flip(0), atol=1e-3, rtol=1e-3)
    assert load_model(tmp_path, device="cpu").parameters == tied + VOCAB * 64
    change_tensors(tmp_path, lambda x: x.pop(EMBEDDING))
    check_both(tmp_path)


@pytest.mark.parametrize("stored", ["embedding", "both"])
def test_the_progress_counts_each_stored_tensor_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: str
) -> None:
    """A tied matrix is looked for under two names, and read twice where both have it."""
    written(tmp_path, tie_word_embeddings=True)
    if stored == "both":
        change_tensors(tmp_path, lambda x: x.update({HEAD: x[EMBEDDING]}))
    steps = list[int]()

    @contextmanager
    def counted(what: str, total: int) -> Iterator[Callable[[], None]]:
        yield lambda: steps.append(total)

    monkeypatch.setattr("foretoken.models.load.track_late", counted)
    load_model(tmp_path, device="cpu", model_impl="native")
    assert steps == [len(Checkpoint(tmp_path).headers)] * len(Checkpoint(tmp_path).headers)


def test_a_model_that_is_not_tied_needs_its_head(tmp_path: Path) -> None:
    """And a tied one either; transformers would make one up."""
    change_tensors(written(tmp_path), lambda x: x.pop(HEAD))
    for impl in ("native", "transformers"):
        with pytest.raises(ForetokenError, match=r"has no tensor 'lm_head\.weight'"):
            load_model(tmp_path, device="cpu", model_impl=impl)
    change_config(tmp_path, tie_word_embeddings=True)
    check_both(tmp_path)
    change_tensors(tmp_path, lambda x: x.pop(EMBEDDING))
    for impl in ("native", "transformers"):
        with pytest.raises(ForetokenError, match="has no tensor"):
            load_model(tmp_path, device="cpu", model_impl=impl)


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_without_the_prefix(tmp_path: Path, family: str) -> None:
    """A base model's checkpoint, with and without a head, and one with a prefix too many."""
    model = original(family)
    model.save_pretrained(tmp_path)
    usual = check_both(tmp_path)

    def bare(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    change_tensors(tmp_path, bare)
    assert torch.equal(check_both(tmp_path), usual)
    change_tensors(tmp_path, lambda x: x.update({f"model.{HEAD}": x.pop(HEAD)}))
    assert torch.equal(check_both(tmp_path), usual)
    model.config.tie_word_embeddings = True
    model.config.save_pretrained(tmp_path)
    change_tensors(tmp_path, lambda x: x.pop(f"model.{HEAD}"))
    check_both(tmp_path)


def test_a_llama_has_no_window(tmp_path: Path) -> None:
    """Whatever its configuration says: transformers' model doesn't read it."""
    change_config(written(tmp_path), sliding_window=2)
    check_both(tmp_path)


@pytest.mark.parametrize("impl", ["native", "transformers"])
def test_a_damaged_tensor_is_refused_before_any_is_read(
    tmp_path: Path, impl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shapes and dtypes stand in the files' headers."""
    name = "model.layers.1.self_attn.k_proj.weight"
    change_tensors(written(tmp_path), lambda x: x.update({name: x[name][:, :60]}))
    monkeypatch.setattr(Checkpoint, "__call__", None)
    with pytest.raises(ForetokenError, match=r"k_proj|transformers can't load"):
        load_model(tmp_path, device="cpu", model_impl=impl)
    change_tensors(tmp_path, lambda x: x.update({name: torch.zeros(64, 64, dtype=torch.int16)}))
    with pytest.raises(ForetokenError, match="is stored as I16"):
        load_model(tmp_path, device="cpu", model_impl=impl)


@pytest.mark.parametrize("impl", ["native", "transformers"])
def test_layers_that_would_be_left_out(tmp_path: Path, impl: str) -> None:
    change_config(written(tmp_path), num_hidden_layers=1)
    with pytest.raises(ForetokenError, match="hold weights of layer 1, and num_hidden_layers"):
        load_model(tmp_path, device="cpu", model_impl=impl)


def test_biases_that_are_left_out_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As transformers leaves them out, which says so too."""
    load_model(written(tmp_path, attention_bias=True), device="cpu")
    assert "doesn't call for" not in caplog.text
    change_config(tmp_path, attention_bias=False)
    model = load_model(tmp_path, device="cpu")
    assert "has 8 tensors that its configuration doesn't call for, such as" in caplog.text
    torch.testing.assert_close(logits_after(model, IDS), theirs(tmp_path), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("impl", ["native", "transformers"])
def test_the_context_that_yarn_is_for(tmp_path: Path, impl: str) -> None:
    """Qwen's pages have the scaling alone put into config.json, whose longest context stays."""
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    written(tmp_path, "qwen2", max_position_embeddings=32, rope_parameters=None)
    change_config(tmp_path, rope_parameters=None, rope_theta=10000.0, rope_scaling=rope)
    model, ids = load_model(tmp_path, device="cpu", model_impl=impl), IDS * 10
    assert model.max_length == 128
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.inference_mode():
        expected = whole(torch.tensor([ids])).logits[0, -1]
    torch.testing.assert_close(logits_after(model, ids), expected, atol=1e-3, rtol=1e-3)


def test_absurd_numbers_take_no_memory(tmp_path: Path) -> None:
    """Layers are counted before transformers lists something for each; a context of any length is
    fine, as nothing is made for it."""
    change_config(written(tmp_path, "qwen2"), num_hidden_layers=10**9, layer_types=None)
    with pytest.raises(ForetokenError, match=r"num_hidden_layers .* must be a whole number"):
        read_config(tmp_path)
    for family, name in (("gpt2", "n_layer"), ("xlm", "n_layers"), ("t5", "num_layers")):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": family, name: 10**9}))
        with pytest.raises(ForetokenError, match=rf"{name} .* must be a whole number"):
            read_config(tmp_path)
    change_config(written(tmp_path), max_position_embeddings=10**8)
    model = load_model(tmp_path, device="cpu")
    assert model.max_length == 10**8
    torch.testing.assert_close(logits_after(model, IDS), theirs(tmp_path), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '"x"', "[" * 100_000])
def test_json_that_is_no_object(tmp_path: Path, text: str) -> None:
    """In either file; the sentence names it."""
    written(tmp_path)
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ForetokenError, match=r"generation_config\.json can't be read as"):
        LLM(tmp_path, device="cpu")
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ForetokenError, match=r"config\.json can't be read as a model's conf"):
        load_model(tmp_path)


def test_the_reason_of_a_type_error_is_told(tmp_path: Path) -> None:
    """transformers puts it on its second line."""
    change_config(written(tmp_path), hidden_size="64")
    with pytest.raises(ForetokenError, match="expected int, got str") as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value) and "fetch the checkpoint again" in str(caught.value)


def test_ends_of_a_generation_config(tmp_path: Path) -> None:
    """One id, a list, or none; a file that is not there names none."""
    folder = written(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    assert generation_ends(tmp_path) == frozenset()
    file = tmp_path / "generation_config.json"
    for given, ends in ((7, {7}), ([7, 8], {7, 8}), (None, set())):
        file.write_text(json.dumps({"eos_token_id": given}))
        assert generation_ends(tmp_path) == ends
    for wrong in ("x", -1, [1, "x"], 1.5, True, {}, [[1]]):
        file.write_text(json.dumps({"eos_token_id": wrong}))
        with pytest.raises(ForetokenError, match=r"eos_token_id is .* must be a token id"):
            generation_ends(tmp_path)
    for impl in ("native", "transformers"):
        with pytest.raises(ForetokenError, match=r"eos_token_id is .* must be a token id"):
            load_model(folder, device="cpu", model_impl=impl)


@pytest.mark.parametrize("impl", ["native", "transformers"])
def test_a_loaded_model_ends_texts_where_its_folder_does(tmp_path: Path, impl: str) -> None:
    """Gemma's turns end at a token that generation_config.json alone names."""
    written(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    model = load_model(tmp_path, device="cpu", model_impl=impl)
    with LLM(tmp_path, device="cpu", model_impl=impl) as llm, LLM(model) as loaded:
        assert loaded.engine.eos_ids == llm.engine.eos_ids == {7, 8}
    (tmp_path / "generation_config.json").unlink()
    assert load_model(tmp_path, device="cpu", model_impl=impl).eos_ids == {5}


def test_no_files_no_tokenizer(tmp_path: Path) -> None:
    """transformers makes one of nothing for some families; its id 0 would end every text."""
    llm = LLM(written(tmp_path, "qwen2", eos_token_id=None), device="cpu", max_model_len=32)
    assert llm.tokenizer is None and not llm.engine.eos_ids
    with pytest.raises(ForetokenError, match="has no tokenizer: no file of a vocabulary"):
        load_tokenizer(tmp_path)
    with pytest.raises(ForetokenError, match="There is no tokenizer"):
        llm.generate(["a text"])[0].text  # noqa: B018
    assert load_tokenizer("mini").vocab_size > 256


def test_a_tokenizer_that_cannot_be_read_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of Mistral's repositories some have tekken.json alone."""
    (written(tmp_path, "mistral") / "tekken.json").write_text("{}")
    assert LLM(tmp_path, device="cpu", max_model_len=32).tokenizer is None
    assert "has no tokenizer that transformers can read" in caplog.text


@pytest.mark.parametrize("model", [None, 5, [], {}, b"mini", object(), int, HFModel], ids=case_name)
def test_what_is_no_model(model: Any) -> None:
    """Neither as a target nor as a draft model."""
    ours = native(tiny_transformers(VOCAB))
    with pytest.raises(ForetokenError, match=r"^A model is .*; give a checkpoint folder"):
        LLM(model)
    if model is not None:  # then the option is missing
        with pytest.raises(ForetokenError, match=r"^A model is .*; give a checkpoint folder"):
            LLM(ours, speculative_config={"method": "sps", "model": model})


def test_an_adapter_beside_a_model_is_refused(tmp_path: Path) -> None:
    """transformers would apply it, and the native reader wouldn't."""
    folder = written(tmp_path / "model")
    (folder / "adapter_config.json").write_text("{}")
    for model_impl in ("auto", "native", "transformers"):
        with pytest.raises(ForetokenError, match="holds an adapter beside a model; merge it"):
            load_model(folder, model_impl=model_impl)


@pytest.mark.parametrize(("named", "said"), [("org/name", "'org/name'"), (None, "a model")])
def test_an_adapter_alone_is_refused(tmp_path: Path, named: str | None, said: str) -> None:
    """By what it is of: a configuration is not what it lacks."""
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": named}))
    with pytest.raises(ForetokenError, match=f"holds an adapter of {said} and no model; merge it"):
        load_model(tmp_path)


@pytest.mark.parametrize("impl", ["native", "transformers"])
def test_a_model_larger_than_the_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, impl: str
) -> None:
    """One sentence, whoever's code had asked for more than there is."""

    def full(*given: Any, **options: Any) -> Any:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("foretoken.models.native.build.Transformer", full)
    monkeypatch.setattr("foretoken.models.hf.adapter.HFModel", full)
    with pytest.raises(ForetokenError, match="doesn't fit into the memory of cpu; take a smaller"):
        load_model(folder, device="cpu", model_impl=impl)
