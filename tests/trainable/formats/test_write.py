"""Checkpoints of ours written for other programs, which draft as before."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import (
    AutoConfig,
    Gemma3Config,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    dynamic_module_utils,
)
from typer.testing import CliRunner

import architectures
import consumers
import stored_models
from foreign import BLOCK, LAYERS, LLAMA3, SELECTED, VOCAB, WIDTH, Foreign, drafts, eagle3, made
from foretoken import ForetokenError
from foretoken.cli.commands import app
from foretoken.models.checkpoint import Checkpoint
from foretoken.models.load import load_model
from foretoken.testing import Pair, native, tiny_transformers
from foretoken.trainable.block_layers import BlockModule
from foretoken.trainable.checkpoint import Facts, Trained
from foretoken.trainable.eagle3 import NORMS
from foretoken.trainable.formats import recognise, write
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.selected_blocks import SelectedModule
from stored_models import original


def exported(own: Path, to: str, out: Path, *more: str) -> Path:
    done = CliRunner().invoke(app, ["export", str(own), "--to", to, "--out", str(out), *more])
    if done.exit_code:
        raise ForetokenError(done.output)
    return out


WRITTEN = {
    "eagle3": eagle3(rope_theta=500.0, rope_scaling=LLAMA3),
    "eagle3, norms": eagle3(norms=list(NORMS[:1]), qk_norm=True, head_width=12),
    "eagle3, whole vocabulary": eagle3(draft_vocab_size=VOCAB, norms=["fc_norm", "norm_output"]),
    "eagle3, several layers": eagle3(num_layers=2),
    "dflash": lambda facts: BlockModule(facts, **BLOCK),
    "dflash, a window": lambda facts: BlockModule(facts, window=6, **BLOCK),
    "dflash, reduced": lambda facts: BlockModule(facts, draft_vocab_size=11, **BLOCK),
    "dflash2": lambda facts: SelectedModule(facts, **SELECTED),
}
DEEP = 5  # layers
UNWRITTEN = {("dflash, a window", "speculators"), ("dflash2", "speculators")}
UNWRITTEN |= {("dflash, reduced", "vllm")}


def trained(name: str, folder: Path, target: Path, small: Pair) -> Trained:
    """A drafter with random weights, saved as if it had been trained for the target."""
    module = made(Foreign(WRITTEN[name], "", {}), small).float().eval()
    module.save(folder, {"target_name": str(target)})
    return module


@pytest.mark.parametrize("to", ["speculators", "vllm"])
@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_drafts_as_before(
    name: str, to: str, target: Path, small: Pair, tmp_path: Path
) -> None:
    """The exported folder drafts the same trees, with the same acceptances."""
    method = trained(name, tmp_path / "own", target, small).method
    if (name, to) in UNWRITTEN:
        with pytest.raises(ForetokenError, match=r"; write it for '(vllm|specul)"):
            exported(tmp_path / "own", to, tmp_path / "out")
        return
    out, model = exported(tmp_path / "own", to, tmp_path / "out"), load_model(target)
    assert drafts(method, out, model) == drafts(method, tmp_path / "own", model)


def test_an_embedding_is_written_as_the_target_sees_it(tmp_path: Path) -> None:
    """Gemma's is scaled; speculators' has a copy of it, which isn't scaled there."""
    numbers = {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": LAYERS}
    model = original("gemma3_text", **numbers)
    model.save_pretrained(tmp_path / "target")
    small = Pair(native(model), native(model), model)
    method = trained("eagle3", tmp_path / "own", tmp_path / "target", small).method
    out = exported(tmp_path / "own", "speculators", tmp_path / "out")
    served = load_model(tmp_path / "target")
    assert drafts(method, out, served) == drafts(method, tmp_path / "own", served)


def test_a_target_with_other_names(tmp_path: Path) -> None:
    """GPT-2's embedding is not named as Llama's, and a model whose text part is one of several says
    its numbers within."""
    numbers = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 2, "vocab_size": VOCAB}
    model = GPT2LMHeadModel(GPT2Config(**numbers))
    model.save_pretrained(tmp_path / "gpt2")
    facts = Facts(WIDTH, VOCAB, LAYERS)
    eagle3()(facts).save(tmp_path / "own", {"target_name": str(tmp_path / "gpt2")})
    out = exported(tmp_path / "own", "speculators", tmp_path / "out")
    written = load_file(out / "model.safetensors")["embed_tokens.weight"]
    assert torch.equal(written, model.get_input_embeddings().weight.detach())
    inner = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "vocab_size": VOCAB}
    inner |= {"max_position_embeddings": 77, "num_attention_heads": 2}
    config = Gemma3Config(text_config=inner, vision_config={"hidden_size": 8, "image_size": 14})
    config.architectures = ["Gemma3ForConditionalGeneration"]
    config.save_pretrained(tmp_path / "gemma3")
    given = ("--target", str(tmp_path / "gemma3"))
    said = config_of(exported(tmp_path / "own", "vllm", tmp_path / "vllm", *given))
    assert said["max_position_embeddings"] == 77 and said["hidden_size"] == WIDTH
    with pytest.raises(ForetokenError, match=r"holds no .*safetensors"):
        exported(tmp_path / "own", "speculators", tmp_path / "other", *given)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a target with layers enough for what SGLang reads."""
    folder = tmp_path_factory.mktemp("deep")
    tiny_transformers(VOCAB, layers=DEEP, width=WIDTH, dtype=torch.float32).save_pretrained(folder)
    return folder


def config_of(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())


def test_layers_are_counted_as_the_program_counts_them(
    target: Path, small: Pair, tmp_path: Path
) -> None:
    """After how many layers a state is read: EAGLE-3's own count has the embedding as 0, DFlash's
    the first layer, as vLLM and speculators read them."""
    trained("eagle3", tmp_path / "eagle3", target, small)  # captures 0, 1 and 3
    trained("dflash", tmp_path / "dflash", target, small)  # reads layers 0 and 2
    name = "eagle_aux_hidden_state_layer_ids"
    vllm = config_of(exported(tmp_path / "eagle3", "vllm", tmp_path / "vllm"))
    assert vllm[name] == [0, 1, 3] and name not in vllm["eagle_config"]
    theirs = config_of(exported(tmp_path / "eagle3", "speculators", tmp_path / "speculators"))
    assert theirs[name] == [0, 1, 3]
    vllm = config_of(exported(tmp_path / "dflash", "vllm", tmp_path / "vllm2"))
    assert vllm["dflash_config"]["target_layer_ids"] == [0, 2]
    theirs = config_of(exported(tmp_path / "dflash", "speculators", tmp_path / "speculators2"))
    assert theirs["aux_hidden_state_layer_ids"] == [1, 3]


def test_layers_as_sglang_counts_them(deep: Path, tmp_path: Path) -> None:
    """From the first layer's output on in most of its targets, and in some where the list then
    begins with 1; GPT-OSS counts as we do."""
    module = eagle3(capture=[4, 2, 3])(Facts(WIDTH, VOCAB, DEEP))
    module.save(tmp_path / "own", {"target_name": str(deep)})
    out = exported(tmp_path / "own", "sglang", tmp_path / "out")
    assert "eagle_aux_hidden_state_layer_ids" not in config_of(out)
    for counts in ("llama", "deepseek"):
        assert consumers.sglang(out, counts).capture == [2, 3, 4]
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    nothing: Any = None  # neither is read
    target = write.Target("t", {"model_type": "gpt_oss"}, nothing, nothing, False, False, nothing)
    tensors = load_file(tmp_path / "own" / "model.safetensors")
    write.trained(config, tensors, target, "sglang", tmp_path / "gpt-oss")
    assert consumers.sglang(tmp_path / "gpt-oss", "gpt_oss").capture == [2, 3, 4]


PLAIN = {"rope_theta": 500.0}
READ_BY_BOTH = {
    "the usual layers": {"capture": [2, 3, 5]},
    "layers in another order": {"capture": [5, 2, 4]},
    "whole vocabulary": {"draft_vocab_size": VOCAB, "capture": [2, 4, 3]},
    "the target's head": {"draft_vocab_size": None, "capture": [2, 3, 4]},
    "norms of EAGLE-3.1": {"norms": ["fc_norm", "norm_output"], "capture": [2, 5, 3]},
    "several layers": {"num_layers": 3, "norms": ["fc_norm"], "capture": [2, 3, 4]},
    "four states": {"capture": [2, 5, 3, 4]},
    "two states": {"capture": [2, 5]},
}
READ_BY_VLLM = {
    **READ_BY_BOTH,
    "layers from 0 on": {"capture": [0, 1, 3]},
    "norms": {"norms": ["fc_norm", "norm_before_residual"], "capture": [5, 0, 3]},
    "other norms": {"norms": ["norm_before_fc"], "capture": [3, 1, 2]},
    "normed queries": {"qk_norm": True, "head_width": 12},
    "several layers, other norms": {"num_layers": 3, "norms": ["norm_before_fc", "fc_norm"]},
}


@pytest.mark.parametrize(
    ("reader", "shape"),
    [(consumers.vllm, shape) for shape in READ_BY_VLLM.values()]
    + [(consumers.sglang, shape) for shape in READ_BY_BOTH.values()],
    ids=[f"vllm, {name}" for name in READ_BY_VLLM] + [f"sglang, {name}" for name in READ_BY_BOTH],
)
def test_programs_compute_what_we_do(
    reader: Any, shape: dict[str, Any], deep: Path, tmp_path: Path
) -> None:
    """EAGLE-3 by each program's own reading of the folder: captured layers, norms and logits; and
    by ours."""
    made_here: Any = eagle3(**{**PLAIN, **shape})(Facts(WIDTH, VOCAB, DEEP)).float().eval()
    random = torch.Generator().manual_seed(2)
    for weight in made_here.parameters():
        weight.data = torch.randn(weight.shape, generator=random) * 0.3
    made_here.save(tmp_path / "own", {"target_name": str(deep)})
    out = exported(tmp_path / "own", reader.__name__, tmp_path / "out")
    read = reader(out)
    assert read.capture == sorted(made_here.shape["capture"])  # the order in which states come
    assert read.norms == set(shape.get("norms", ()))
    tokens = torch.randint(0, VOCAB, (1, 9), generator=random)
    states = {i: torch.randn(1, 9, WIDTH, generator=random) for i in range(DEEP + 1)}
    lesson = _lesson(tokens, states, deep)
    with torch.no_grad():
        head = made_here.lm_head or lesson.head
        ours = head(made_here.normed(made_here.outputs(lesson, 1)))[0, :-1, 0]
        following = lesson.embed(tokens.roll(-1, 1))[0].float()
        theirs = consumers.logits(read, {i: x[0] for i, x in states.items()}, following)[:-1]
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-4)
    published = recognise(out)
    assert published is not None and published.shape["num_layers"] == shape.get("num_layers", 1)
    kept = load_file(tmp_path / "own" / "model.safetensors")
    assert published.tensors().keys() >= kept.keys()
    one = shape.get("num_layers", 1) == 1
    assert any(name.startswith("midlayer.") for name in load_file(out / "model.safetensors")) == one


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"norms": ["norm_before_residual"]}, "has norm_before_residual, which SGLang leaves out"),
        ({"norms": ["fc_norm", "norm_before_fc"]}, "has norm_before_fc, which SGLang leaves out"),
        ({"norms": ["fc_norm"], "qk_norm": True}, "has qk_norm, which SGLang leaves out"),
        ({"capture": [3, 1, 2]}, r"layers \[1, 2, 3\], and .* only where they begin with 2"),
        ({"capture": [0, 2, 3]}, r"layers \[0, 2, 3\], and .* only where they begin with 2"),
    ],
)
def test_what_sglang_would_misread(
    shape: dict[str, Any], said: str, target: Path, small: Pair, tmp_path: Path
) -> None:
    """Without an error: drafts would be rejected. vLLM reads the same drafter rightly."""
    eagle3(**shape)(Facts.of(small.target)).save(tmp_path / "own", {"target_name": str(target)})
    with pytest.raises(ForetokenError, match=said):
        exported(tmp_path / "own", "sglang", tmp_path / "out")
    assert consumers.vllm(exported(tmp_path / "own", "vllm", tmp_path / "out"))


def test_a_model_that_drafts_alone(target: Path, tmp_path: Path) -> None:
    """It is copied as it is, into an empty folder only, and not for speculators."""
    out = exported(target, "hf", tmp_path / "hf")
    assert load_model(out).vocab_size == VOCAB
    with pytest.raises(ForetokenError, match="speculators has no type"):
        exported(target, "speculators", tmp_path / "other")
    with pytest.raises(ForetokenError, match="is not an empty folder"):
        exported(target, "vllm", out)


def test_a_mixture_that_drafts_alone(tmp_path: Path) -> None:
    """Is no checkpoint of another project."""
    architectures.tiny("qwen3_moe").save_pretrained(tmp_path / "own")
    out = exported(tmp_path / "own", "vllm", tmp_path / "out")
    assert {file.name for file in out.iterdir()} >= {"config.json", "model.safetensors"}


def test_norms_that_speculators_does_not_take(target: Path, small: Pair, tmp_path: Path) -> None:
    """Its configuration is refused by `speculators` itself."""
    shape = {"norms": ["norm_before_fc", "fc_norm"]}
    eagle3(**shape)(Facts.of(small.target)).save(tmp_path / "own", {"target_name": str(target)})
    with pytest.raises(ForetokenError, match="of which speculators takes one"):
        exported(tmp_path / "own", "speculators", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    exported(tmp_path / "own", "vllm", tmp_path / "out")


def test_what_cannot_be_written(target: Path, small: Pair, tmp_path: Path) -> None:
    """Other programs, other targets and folders that are exported already are refused."""
    trained("eagle3", tmp_path / "own", target, small)
    with pytest.raises(ForetokenError, match="no form of method 'eagle3' for 'hf'"):
        exported(tmp_path / "own", "hf", tmp_path / "out")
    with pytest.raises(ForetokenError, match="must be one of speculators, vllm, sglang, hf"):
        exported(tmp_path / "own", "tgi", tmp_path / "out")
    other = tmp_path / "other"
    tiny_transformers(VOCAB, layers=5, width=WIDTH).save_pretrained(other)
    with pytest.raises(ForetokenError, match=r"layers 3 .* has 5"):
        exported(tmp_path / "own", "vllm", tmp_path / "out", "--target", str(other))
    vllm = exported(tmp_path / "own", "vllm", tmp_path / "out")
    with pytest.raises(ForetokenError, match="another program's format already"):
        exported(vllm, "speculators", tmp_path / "again")


def test_a_drafter_that_is_damaged(target: Path, small: Pair, tmp_path: Path) -> None:
    """Is named, and nothing is written."""
    trained("eagle3", tmp_path / "own", target, small)
    (tmp_path / "own" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ForetokenError, match=r"model\.safetensors is damaged or holds more than"):
        exported(tmp_path / "own", "vllm", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["vllm", "sglang"])
def test_queries_that_are_not_normed(to: str, target: Path, small: Pair, tmp_path: Path) -> None:
    """Both norm DFlash's in any case, with weights of 1 where there are none."""
    module = BlockModule(Facts.of(small.target), **{**BLOCK, "mask_token_id": 3, "qk_norm": False})
    module.save(tmp_path / "own", {"target_name": str(target)})
    with pytest.raises(ForetokenError, match="vLLM and SGLang norm them"):
        exported(tmp_path / "own", to, tmp_path / "out")


@pytest.mark.parametrize(
    "shape", [{}, {"window": 6}, {"causal": True}, {"window": 6, "causal": True}]
)
def test_blocks_as_each_version_reads_them(
    shape: dict[str, Any], target: Path, small: Pair, tmp_path: Path
) -> None:
    """Whether their places see those before them alone, and how far; as we do."""
    module = BlockModule(Facts.of(small.target), **BLOCK, **shape)
    module.save(tmp_path / "own", {"target_name": str(target)})
    out, causal = exported(tmp_path / "own", "vllm", tmp_path / "out"), bool(shape.get("causal"))
    assert consumers.blocks_causal(out) == {causal}
    published = recognise(out)
    assert published is not None and published.shape.get("causal", False) == causal
    assert published.shape.get("window") == shape.get("window")
    settings = config_of(out)["dflash_config"]  # where TensorRT-LLM looks for a window
    assert settings.get("use_swa", False) == ("window" in shape)
    assert settings.get("swa_window_size") == shape.get("window")


def test_layers_that_differ_in_what_they_see(target: Path, small: Pair, tmp_path: Path) -> None:
    """No program would be told so; nothing is written."""
    module = BlockModule(Facts.of(small.target), **BLOCK, window=[6, None])
    module.save(tmp_path / "own", {"target_name": str(target)})
    with pytest.raises(ForetokenError, match="one by one, which is written for no program"):
        exported(tmp_path / "own", "vllm", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    alike = BlockModule(Facts.of(small.target), **BLOCK, window=[8, 8], causal=[False, False])
    alike.save(tmp_path / "alike", {"target_name": str(target)})
    exported(tmp_path / "alike", "vllm", tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["sliding_window"] == 8 and written["is_causal"] is False


@pytest.mark.parametrize("to", ["vllm", "sglang"])
def test_a_mask_of_its_own(to: str, target: Path, small: Pair, tmp_path: Path) -> None:
    """vLLM and SGLang read it from a file of its own; speculators has no place for it."""
    module = BlockModule(Facts.of(small.target), **{**BLOCK, "mask_token_id": None})
    module.save(tmp_path / "own", {"target_name": str(target)})
    with pytest.raises(ForetokenError, match="mask embedding of its own"):
        exported(tmp_path / "own", "speculators", tmp_path / "other")
    out, model = exported(tmp_path / "own", to, tmp_path / "out"), load_model(target)
    found = consumers.mask_of(out)
    assert found is not None and torch.equal(found, module.mask_embedding.detach().float())
    assert "mask_embedding" not in load_file(out / "model.safetensors")
    assert drafts("dflash", out, model) == drafts("dflash", tmp_path / "own", model)


def test_a_mask_that_sglang_writes_over_a_token(small: Pair, tmp_path: Path) -> None:
    """Where the target's head is its embedding, or its last token is one of its tokenizer's, other
    texts would come; vLLM leaves the target as it is."""
    module = BlockModule(Facts.of(small.target), **{**BLOCK, "mask_token_id": None})
    tied = tiny_transformers(VOCAB, layers=LAYERS, width=WIDTH)
    tied.config.tie_word_embeddings = True
    tied.save_pretrained(tmp_path / "tied")
    used = tiny_transformers(VOCAB, layers=LAYERS, width=WIDTH)
    used.save_pretrained(tmp_path / "used")
    words = Tokenizer(WordLevel({str(i): i for i in range(VOCAB)}, unk_token="0"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "used")
    for name in ("tied", "used"):
        module.save(tmp_path / "own", {"target_name": str(tmp_path / name)})
        with pytest.raises(ForetokenError, match="would write over a token of this target"):
            exported(tmp_path / "own", "sglang", tmp_path / "out")
        exported(tmp_path / "own", "vllm", tmp_path / f"{name} out")


@pytest.mark.parametrize("to", ["vllm", "sglang"])
@pytest.mark.parametrize("name", ["dflash", "dflash2"])
def test_blocks_for_a_target_that_scales_its_embedding(name: str, to: str, tmp_path: Path) -> None:
    """No program would give them the embedding as the target reads it."""
    numbers = {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": LAYERS}
    model = original("gemma3_text", **numbers)
    model.save_pretrained(tmp_path / "target")
    small = Pair(native(model), native(model), model)
    trained(name, tmp_path / "own", tmp_path / "target", small)
    with pytest.raises(ForetokenError, match="multiplies its embedding by a number"):
        exported(tmp_path / "own", to, tmp_path / "out")


def test_numbers_are_the_target_s(small: Pair, tmp_path: Path) -> None:
    """SGLang runs a drafter in its own numbers, float32 as float16, beside a target in others."""
    model = tiny_transformers(VOCAB, layers=LAYERS, width=WIDTH, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "target")
    trained("eagle3", tmp_path / "own", tmp_path / "target", small)
    out = exported(tmp_path / "own", "vllm", tmp_path / "out")
    kinds = {name: x.dtype for name, x in load_file(out / "model.safetensors").items()}
    assert kinds.pop("d2t") == torch.int64 and kinds.pop("t2d") == torch.bool
    assert {*kinds.values()} == {torch.bfloat16} and config_of(out)["torch_dtype"] == "bfloat16"


@pytest.mark.parametrize("to", ["vllm", "sglang"])
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"target_layer_ids": [2, 0]},
        {"mask_token_id": None},
        {"causal": True},
        {"window": 6},
        {"window": 6, "causal": True},
    ],
)
def test_dflash_as_it_is_read(
    shape: dict[str, Any], to: str, target: Path, small: Pair, tmp_path: Path
) -> None:
    """A block's logits, by z-lab's, vLLM's and SGLang's reading of the folder."""
    foreign = Foreign(lambda facts: BlockModule(facts, **{**BLOCK, **shape}), "", {})
    module: Any = made(foreign, small).float().eval()
    module.save(tmp_path / "own", {"target_name": str(target)})
    out, root = exported(tmp_path / "own", to, tmp_path / "out"), 7
    lesson = _random_lesson(module.reads, target)
    with torch.no_grad():
        ours = lesson.head(module.outputs(lesson, torch.tensor([[root]]))[0, 0])
        past = {layer - 1: x[0, :root] for layer, x in lesson.hidden.items()}
        first = int(lesson.tokens[0, root])
        theirs = consumers.dflash(out, to, past, first, lesson.embed, lesson.head)
    torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("to", ["vllm", "sglang"])
@pytest.mark.parametrize("reads", [[0, 2], [2, 0]])
def test_dflash2_as_it_is_read(
    reads: list[int], to: str, target: Path, small: Pair, tmp_path: Path
) -> None:
    """A block's candidates and their scores, by z-lab's, vLLM's and SGLang's reading of the
    folder."""
    shape = {**SELECTED, "target_layer_ids": reads}
    module: Any = SelectedModule(Facts.of(small.target), **shape).float().eval()
    module.save(tmp_path / "own", {"target_name": str(target)})
    out, root = exported(tmp_path / "own", to, tmp_path / "out"), 7
    lesson = _random_lesson(module.reads, target)
    with torch.no_grad():
        block = module.outputs(lesson, torch.tensor([[root]]))[0]
        chain, before = [], lesson.tokens[0, root]
        for place in range(3):
            logits = module.selected(block[0, place], lesson.head(block[0, place]), before)
            before = logits.argmax()
            chain.append((int(before), float(logits.max())))
        past = {layer - 1: x[0, :root] for layer, x in lesson.hidden.items()}
        first = int(lesson.tokens[0, root])
        theirs = consumers.dflash2(out, past, first, lesson.embed, lesson.head)
    assert [token for token, _ in theirs] == [token for token, _ in chain]
    assert [x for _, x in theirs] == pytest.approx([x for _, x in chain], rel=1e-4, abs=1e-4)


def test_a_mask_that_is_a_token(target: Path, small: Pair, tmp_path: Path) -> None:
    """It needs no file."""
    trained("dflash", tmp_path / "own", target, small)
    assert consumers.mask_of(exported(tmp_path / "own", "vllm", tmp_path / "out")) is None


PYTHON = os.environ.get("FORETOKEN_SPECULATORS_PYTHON", "")


@pytest.mark.skipif(not PYTHON, reason="FORETOKEN_SPECULATORS_PYTHON names no Python with it")
@pytest.mark.parametrize("name", [n for n in WRITTEN if (n, "speculators") not in UNWRITTEN])
def test_speculators_says_the_same(name: str, target: Path, small: Pair, tmp_path: Path) -> None:
    """The package itself loads what is written for it, and its logits are ours."""
    module: Any = trained(name, tmp_path / "own", target, small)
    out, length = exported(tmp_path / "own", "speculators", tmp_path / "out"), 12
    random, layers = torch.Generator().manual_seed(1), module.hidden[:-1]
    tokens = torch.randint(0, VOCAB, (1, length), generator=random)
    states = torch.randn(1, length, len(layers) * WIDTH, generator=random)
    lesson = _lesson(tokens, dict(zip(layers, states.split(WIDTH, -1), strict=True)), target)
    if module.method == "eagle3":
        steps, given = 3, {"input_ids": tokens.roll(-1, 1).contiguous()}
        with torch.no_grad():
            ours = module.lm_head(module.normed(module.outputs(lesson, steps)))[0]  # [T, I, R]
        mine = [ours[: length - 1 - step, step] for step in range(steps)]
    else:
        root, steps = 5, 0
        where = torch.zeros(1, length)
        where[0, root] = 1
        goal = states[..., :WIDTH].contiguous()
        given = {"input_ids": tokens, "loss_mask": where, "verifier_last_hidden_states": goal}
        with torch.no_grad():
            block = module.outputs(lesson, torch.tensor([[root]]))
            mine = [module.learning(lesson)[0](block)[0, 0]]
    inputs, outputs = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    save_file({**given, "hidden_states": states, "steps": torch.tensor(steps)}, inputs)
    script = Path(__file__).with_name("speculators_reads.py")
    command = [PYTHON, script, out, inputs, outputs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    for theirs, own in zip(load_file(outputs)["logits"], mine, strict=True):
        if module.method == "dflash":
            theirs = theirs[1:]  # of the masks
        torch.testing.assert_close(theirs[: len(own)], own, atol=1e-4, rtol=1e-4)


def _random_lesson(layers: tuple[int, ...], target: Path) -> Lesson:
    """12 random tokens, and states for them after these layers."""
    random, length = torch.Generator().manual_seed(4), 12
    tokens = torch.randint(0, VOCAB, (1, length), generator=random)
    states = {layer: torch.randn(1, length, WIDTH, generator=random) for layer in layers}
    return _lesson(tokens, states, target)


def _lesson(tokens: Tensor, hidden: dict[int, Tensor], target: Path) -> Lesson:
    """One text that counts throughout, with given states, for what a module makes of it."""
    model, length = load_model(target), tokens.shape[1]
    no_pass: Any = None  # these modules ask for none
    return Lesson(
        tokens,
        torch.arange(length)[None],
        torch.zeros_like(tokens),
        torch.ones(1, length),
        torch.zeros_like(tokens),
        hidden,
        model.head,
        model.embed,
        append=no_pass,
        kv=no_pass,
    )


@pytest.mark.parametrize("to", ["vllm", "sglang"])
def test_a_window_as_the_program_reads_it(
    to: str, target: Path, small: Pair, tmp_path: Path
) -> None:
    """By transformers' class of the configuration, which drops one that isn't said to be used."""
    trained("dflash, a window", tmp_path / "own", target, small)
    read = AutoConfig.from_pretrained(exported(tmp_path / "own", to, tmp_path / "out"))
    assert read.sliding_window == 6 and set(read.layer_types) == {"sliding_attention"}


def test_a_model_without_its_weights(target: Path, tmp_path: Path) -> None:
    """A folder that has none, or lacks a shard, is not written as a model."""
    (folder := tmp_path / "bare").mkdir()
    shutil.copy(target / "config.json", folder)
    with pytest.raises(ForetokenError, match=r"holds no .*safetensors"):
        exported(folder, "vllm", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_code_that_comes_with_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configuration is read by it where it may run, and the code is written too."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    own, out = stored_models.with_code(tmp_path / "own"), tmp_path / "out"
    with pytest.raises(ForetokenError, match="--trust-remote-code"):
        exported(own, "vllm", out)
    done = CliRunner().invoke(
        app, ["export", str(own), "--to", "vllm", "--out", str(out), "--trust-remote-code"]
    )
    assert done.exit_code == 0 and done.output.rstrip().endswith("--trust-remote-code")
    assert (out / "own.py").read_text() == (own / "own.py").read_text()


def renamed(own: Path, kind: str) -> None:
    """The folder's one file of weights, in another form that transformers reads."""
    whole = own / "model.safetensors"
    tensors = load_file(whole)
    index = json.dumps({"weight_map": dict.fromkeys(tensors, "part.safetensors")})
    if kind == "pickled":
        torch.save(tensors, own / "pytorch_model.bin")
        whole.unlink()
        return
    whole.rename(own / "part.safetensors")
    if kind == "named":
        stored_models.change_config(own, transformers_weights="part.safetensors")
    elif kind == "named index":
        stored_models.change_config(own, transformers_weights="own.safetensors.index.json")
        (own / "own.safetensors.index.json").write_text(index)
    elif kind == "index":
        (own / "model.safetensors.index.json").write_text(index)


@pytest.mark.parametrize("kind", ["pickled", "another name", "named", "named index", "index"])
def test_a_model_whatever_its_weights_are_called(kind: str, target: Path, tmp_path: Path) -> None:
    """All that it is read from is written, and no other weights; Mistral's tokenizer too."""
    own = Path(shutil.copytree(target, tmp_path / "own"))
    renamed(own, kind)
    read = {file.name for file in Checkpoint(own).files}
    (own / "tekken.json").write_text("{}")
    (own / "model.left").write_text("")
    out = exported(own, "vllm", tmp_path / "out")
    assert {file.name for file in Checkpoint(out).files} == read
    written = {file.name for file in out.iterdir()}
    assert written == read | {"config.json", "generation_config.json", "tekken.json"}
    assert load_model(out).vocab_size == VOCAB
