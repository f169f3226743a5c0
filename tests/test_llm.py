"""The front door: checkpoints, texts, chats, streams; one clear sentence for what is wrong."""

from __future__ import annotations

import copy
import json
import pickle
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from safetensors.torch import load_file, save_file

from foretoken import LLM, ForetokenError, RequestOutput, SamplingParams
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.engine.engine import Engine
from foretoken.testing import (
    ByteTokenizer,
    Pair,
    logits_after,
    native,
    related,
    tiny_transformers,
)

VOCAB = 97
TOKENIZER = ByteTokenizer(VOCAB)
PROMPTS = ["hello hello", "a b a b a", "the cat", "x"]
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_transformers(VOCAB)


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ordinary checkpoint folder, without a tokenizer."""
    path = tmp_path_factory.mktemp("checkpoint")
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def llm(folder: Path, model: Any) -> LLM:
    config = {"method": "sps", "model": native(related(model, 0.02))}
    return LLM(folder, speculative_config=config, tokenizer=TOKENIZER, dtype="float64")


def generated(model: Any, prompt: str, tokens: int = 16) -> list[int]:
    ids = torch.tensor([TOKENIZER.encode(prompt)])
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False)
    return out[0, ids.shape[1] :].tolist()


# --- what works ---


def test_generate(llm: LLM, model: Any) -> None:
    """Texts and ids in the prompts' order, equal to transformers' own, with statistics."""
    outputs = llm.generate(PROMPTS, GREEDY)
    assert [o.prompt for o in outputs] == PROMPTS
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert output.token_ids == generated(model, prompt)
        assert output.text == TOKENIZER.decode(output.token_ids, skip_special_tokens=True)
        assert output.prompt_token_ids == TOKENIZER.encode(prompt)
        assert output.finished and output.outputs[0].finish_reason == "length"
        assert output.stats.tokens == 16
    assert sum(o.stats.accepted for o in outputs) > 0
    assert llm.method == "sps"


def test_prompts_in_every_form(llm: LLM) -> None:
    """One string, one list of ids, several of either; parameters for all or for each."""
    [text] = llm.generate("hello hello", GREEDY)
    [ids] = llm.generate(TOKENIZER.encode("hello hello"), GREEDY)
    both = llm.generate(["hello hello", TOKENIZER.encode("hello hello")], [GREEDY, GREEDY])
    assert len({tuple(o.token_ids) for o in (text, ids, *both)}) == 1
    assert text.prompt == "hello hello" and ids.prompt is None
    assert llm.generate([], GREEDY) == []
    assert len(llm.generate("x")[0].token_ids) <= 16
    with pytest.raises(ForetokenError, match="2 prompts and 1 sampling_params"):
        llm.generate(["a", "b"], [GREEDY])


def test_model_objects(model: Any) -> None:
    """A loaded transformers model, or one of ours, is served as it is."""
    pytest.importorskip("foretoken.models.hf.adapter", reason="the adapter is not there")
    for given in (model, native(model)):
        own = LLM(given, tokenizer=TOKENIZER, speculative_config={"method": PromptLookup()})
        assert own.generate(PROMPTS[0], GREEDY)[0].token_ids == generated(model, PROMPTS[0])
        assert own.method == "PromptLookup"


@pytest.mark.parametrize("implementation", ["native", "transformers"])
def test_a_checkpoint_either_way(folder: Path, model: Any, implementation: str) -> None:
    """Natively or through transformers' code, and with another checkpoint to draft."""
    if implementation == "transformers":
        pytest.importorskip("foretoken.models.hf.adapter", reason="the adapter is not there")
    own = LLM(
        str(folder),
        dtype="float64",
        model_impl=implementation,
        tokenizer=TOKENIZER,
        speculative_config={"model": str(folder), "num_speculative_tokens": 3},
    )
    [output] = own.generate(PROMPTS[1], GREEDY)
    assert output.token_ids == generated(model, PROMPTS[1])
    assert output.stats.mean_acceptance_length == 4.0  # it drafts for itself


def test_ends_come_from_the_checkpoint(folder: Path, model: Any, tmp_path: Path) -> None:
    """generation_config.json's end-of-text ids count, then config.json's, then the tokenizer's."""
    text = generated(model, PROMPTS[0])
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)

    def end_of(**options: Any) -> int:
        own = LLM(copy, dtype="float64", **options)
        params = SamplingParams(temperature=0, max_tokens=16)
        [output] = own.generate(TOKENIZER.encode(PROMPTS[0]), params)
        return len(output.token_ids)

    # The file that counts names the latest end: neither another file's nor a sum of both will do.
    early, middle, late = sorted(
        {token: text.index(token) + 1 for token in text}.items(), key=itemgetter(1)
    )[-3:]
    tokenizer = ByteTokenizer(VOCAB)
    tokenizer.eos_token_id = early[0]
    (copy / "generation_config.json").unlink(missing_ok=True)
    assert end_of(tokenizer=tokenizer) == early[1]
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "eos_token_id": middle[0]}))
    assert end_of(tokenizer=tokenizer) == middle[1]
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [late[0]]}))
    assert end_of(tokenizer=tokenizer) == late[1]


def test_chat(llm: LLM) -> None:
    """A conversation goes through the tokenizer's template; several are several."""
    talk = [{"role": "user", "content": "hi"}]
    [one] = llm.chat(talk, GREEDY)
    assert TOKENIZER.decode(one.prompt_token_ids) == "user: hi\nassistant: "
    assert [o.token_ids for o in llm.chat([talk, talk], GREEDY)] == [one.token_ids] * 2


class Calling(ByteTokenizer):
    """Its template reads functions, and a variable."""

    chat_template = "{mood} {tools} {role}: {content}"

    def apply_chat_template(
        self, conversation: Any, *, tools: Any = (), mood: str = "", **options: Any
    ) -> Any:
        names = " ".join(tool["function"]["name"] for tool in tools)
        return f"{mood} {names}\n{super().apply_chat_template(conversation, **options)}"


def test_what_a_template_reads_beside_messages(llm: LLM, model: Any) -> None:
    """Functions and variables of its own; what it doesn't read is refused."""
    talk = [{"role": "user", "content": "hi"}]
    tools = [{"type": "function", "function": {"name": "look"}}]
    with LLM(native(model), tokenizer=Calling(VOCAB)) as calling:
        given: dict[str, Any] = {"tools": tools, "chat_template_kwargs": {"mood": "calm"}}
        for output in calling.chat([talk, talk], GREEDY, **given):
            text = TOKENIZER.decode(output.prompt_token_ids)
            assert text == "calm look\nuser: hi\nassistant: "
        [plain] = calling.chat(talk, GREEDY)
        assert TOKENIZER.decode(plain.prompt_token_ids) == " \nuser: hi\nassistant: "
    with pytest.raises(ForetokenError, match="doesn't read tools"):
        llm.chat(talk, GREEDY, tools=tools)
    with pytest.raises(ForetokenError, match="chat_template_kwargs has tokenize, which is no"):
        llm.chat(talk, GREEDY, chat_template_kwargs={"tokenize": True})
    with pytest.raises(ForetokenError, match="tools is 'look'; it must be"):
        llm.chat(talk, GREEDY, tools="look")  # type: ignore[arg-type]


def test_stream(llm: LLM, model: Any) -> None:
    """Each piece is a longer beginning of the final text, which is what `generate` gives."""
    [whole] = llm.generate(PROMPTS[0], GREEDY)
    pieces = list(llm.stream(PROMPTS[0], GREEDY))
    assert pieces[-1].text == whole.text and pieces[-1].token_ids == whole.token_ids
    assert len(pieces) == whole.stats.passes
    for early, late in pairwise(pieces):
        assert late.text.startswith(early.text)
        assert late.token_ids[: len(early.token_ids)] == early.token_ids
        assert len(early.token_ids) < len(late.token_ids)
    talk = [{"role": "user", "content": "hi"}]
    assert list(llm.stream(talk, GREEDY))[-1].text == llm.chat(talk, GREEDY)[0].text


def test_a_stream_never_shows_a_stop_string(llm: LLM) -> None:
    """What may still become one is held back, and the text ends before it."""
    [whole] = llm.generate(PROMPTS[0], GREEDY)
    stop = whole.text[5:9]
    params = SamplingParams(temperature=0, max_tokens=16, stop=stop, ignore_eos=True)
    pieces = list(llm.stream(PROMPTS[0], params))
    assert pieces[-1].text == whole.text[: whole.text.index(stop)]
    assert pieces[-1].outputs[0].stop_reason == stop
    assert all(pieces[-1].text.startswith(piece.text) for piece in pieces)
    kept = SamplingParams(temperature=0, stop=stop, include_stop_str_in_output=True)
    assert llm.generate(PROMPTS[0], kept)[0].text.endswith(stop)


def test_a_stream_holds_back_the_longest_stop_string(llm: LLM) -> None:
    """A short one that never comes doesn't let the beginning of a long one through."""
    [whole] = llm.generate(PROMPTS[0], GREEDY)
    long, never = whole.text[5:9], "\n"
    assert never not in whole.text
    params = SamplingParams(temperature=0, max_tokens=16, stop=[never, long], ignore_eos=True)
    pieces = [piece.text for piece in llm.stream(PROMPTS[0], params)]
    assert pieces[-1] == whole.text[: whole.text.index(long)]
    assert all(pieces[-1].startswith(piece) for piece in pieces)


def at_rest(llm: LLM) -> bool:
    """Whether nothing runs, waits or holds a slot, once everything posted so far is done."""
    return llm._worker.call(lambda engine: not engine.busy and engine.target.free == 8)


def test_closing_a_stream_cancels_it(llm: LLM) -> None:
    """Nothing is left running, and a stream and other requests share the engine."""
    stream = llm.stream(PROMPTS[0], SamplingParams(temperature=0, max_tokens=200, ignore_eos=True))
    next(stream)
    [other] = llm.generate(PROMPTS[1], GREEDY)
    assert len(other.token_ids) == 16
    stream.close()
    assert at_rest(llm)


def test_statistics(llm: LLM) -> None:
    """Totals since the last reset."""
    llm.reset_stats()
    outputs = llm.generate(PROMPTS, GREEDY)
    assert llm.stats.tokens == 64 == sum(o.stats.tokens for o in outputs)
    assert llm.stats.mean_acceptance_length == 64 / llm.stats.passes
    assert llm.stats.verify_time > 0 and llm.stats.draft_time > 0
    llm.reset_stats()
    assert llm.stats.tokens == 0


def test_an_error_in_a_processor_leaves_nothing_running(llm: LLM) -> None:
    """What a user's own code raises ends its own request; the engine serves as before."""

    def fails(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] > len(PROMPTS[0]) + 3:
            raise ZeroDivisionError("no")
        return scores

    [before] = llm.generate(PROMPTS[0], GREEDY)
    bad = SamplingParams(logits_processors=[fails], temperature=0)
    out, fine = llm.generate([PROMPTS[0], PROMPTS[0]], [bad, GREEDY])
    assert out.outputs[0].finish_reason == "error" and len(out.outputs[0].token_ids) == 4
    with pytest.raises(ForetokenError, match="A logits processor raised ZeroDivisionError: no"):
        _ = out.text
    assert fine.token_ids == before.token_ids
    with pytest.raises(ForetokenError) as raised:
        llm.generate(PROMPTS[0], bad)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert at_rest(llm)
    assert llm.generate(PROMPTS[0], GREEDY)[0].token_ids == before.token_ids


# --- what is wrong ---


def test_one_bad_request_of_several(llm: LLM) -> None:
    """It comes back with its error, which reading its text raises; the others are served."""
    long, params = "x" * 256, [GREEDY] * 3 + [SamplingParams(logit_bias={VOCAB: 1.0})]
    prompts = [long, "", PROMPTS[0], PROMPTS[1]]
    outputs = llm.generate(prompts, params)
    assert [output.prompt for output in outputs] == prompts
    said = ["256 tokens and the context is 256", "empty", None, "vocabulary of 97"]
    for output, words in zip(outputs, said, strict=True):
        assert output.finished
        if words is None:
            assert len(output.token_ids) == 16
            continue
        assert words in str(output.error) and output.outputs[0].finish_reason == "error"
        with pytest.raises(ForetokenError, match=words):
            _ = output.text


def test_calls_that_cant_be_served(llm: LLM) -> None:
    for count in (1, 3):
        with pytest.raises(ForetokenError, match=f"are 2 prompts and {count} sampling_params"):
            llm.generate([[1], [2]], [GREEDY] * count)
    with pytest.raises(ForetokenError, match="use_tqdm is 0; it must be True or False"):
        llm.generate([1], GREEDY, use_tqdm=0)  # type: ignore[arg-type]


def test_nan_weights_fail_the_request_not_the_program(model: Any) -> None:
    """A checkpoint with a NaN row: who never meets it is served."""
    broken = related(model, 0.0)
    end = TOKENIZER.encode("x")[0]
    with torch.no_grad():
        broken.model.embed_tokens.weight[end] = torch.nan
    own = LLM(native(broken), tokenizer=TOKENIZER)
    fine, bad = own.generate(
        ["a b", "x"], SamplingParams(bad_token_ids=[end], max_tokens=5, ignore_eos=True)
    )
    assert len(fine.token_ids) == 5 and fine.error is None
    assert "NaN" in str(bad.error) and bad.outputs[0].token_ids == []


def test_text_without_a_tokenizer(folder: Path) -> None:
    """Ids are served; text, chats and stop strings say what is missing."""
    own = LLM(folder)
    assert len(own.generate([1, 2, 3], GREEDY)[0].token_ids) == 16
    assert own.generate([1, 2, 3], GREEDY)[0].text == ""
    [output] = own.generate(["hello"], GREEDY)
    assert "tokenizer" in str(output.error) and output.prompt == "hello"
    with pytest.raises(ForetokenError, match="tokenizer"):
        own.chat([{"role": "user", "content": "hi"}])
    with pytest.raises(ForetokenError, match="tokenizer"):
        own.generate([1], SamplingParams(stop="x"))


def test_a_damaged_tokenizer_is_no_missing_one(
    checkpoints: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning says what is wrong with it; token ids are served. Where there is none, none is
    missed."""
    folder = shutil.copytree(checkpoints[0], tmp_path / "target")
    (folder / "tokenizer.json").write_text("{")
    llm = LLM(folder)
    assert re.search(r"no tokenizer that transformers can read .*token ids", caplog.text)
    assert llm.tokenizer is None and llm.generate([[1, 2]], SamplingParams(max_tokens=1))
    for file in folder.glob("*token*"):
        file.unlink()
    caplog.clear()
    assert LLM(folder).tokenizer is None and "tokenizer" not in caplog.text


def test_a_chat_without_a_template(model: Any) -> None:
    """It is said, with the way round it."""
    plain = ByteTokenizer(VOCAB)
    plain.chat_template = None  # type: ignore[assignment]
    with pytest.raises(ForetokenError, match="no chat template"):
        LLM(native(model), tokenizer=plain).chat([{"role": "user", "content": "hi"}])
    with pytest.raises(ForetokenError, match="no chat template"):
        LLM(native(model), tokenizer=plain).chat(
            [{"role": "user", "content": "hi"}], tools=[{"type": "function"}]
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "float61"}, "float61"),
        ({"backend": "pakced"}, "Did you mean 'packed'"),
        ({"backend": "packed", "dtype": "float64"}, "use backend='plain'"),
        ({"model_impl": "nativ"}, "'auto', 'native' or 'transformers'"),
        ({"max_model_len": 257}, "context is 256"),
        ({"speculative_config": {"method": "eagel"}}, "Unknown method 'eagel'"),
        ({"speculative_config": {"model": "no/such/folder"}}, "no checkpoint folder"),
        ({"tokenizer": "no/such/folder"}, "no checkpoint folder"),
    ],
    ids=str,
)
def test_wrong_options(folder: Path, options: dict[str, Any], said: str) -> None:
    """What was given and what to give instead."""
    with pytest.raises(ForetokenError) as error:
        LLM(folder, **options)
    assert said in str(error.value)


def test_a_draft_model_of_another_vocabulary(model: Any) -> None:
    """Refused at load, with both sizes."""
    other = native(tiny_transformers(VOCAB + 300))
    with pytest.raises(ForetokenError, match="397 tokens and the target's 97"):
        LLM(native(model), speculative_config={"model": other})


def test_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    """A missing folder, a file, an empty folder, a folder without weights, an unreadable config."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    bare, odd = tmp_path / "bare", tmp_path / "odd"
    tiny_transformers(VOCAB).config.save_pretrained(bare)
    odd.mkdir()
    (odd / "config.json").write_text("{ not json")
    for path, said in (
        (tmp_path / "none", "no checkpoint folder"),
        ("./none", "no checkpoint"),
        (tmp_path / "file", "no checkpoint folder"),
        (tmp_path / "empty", "no config.json"),
        (bare, "safetensors"),
        (odd, "can't be read"),
        ("no-such-model", "no checkpoint"),
    ):
        with pytest.raises(ForetokenError, match=said):
            LLM(path)


def test_damaged_weights(folder: Path, tmp_path: Path) -> None:
    """Truncated, incomplete, or a shard that is missing: named, with what to do."""
    weights = load_file(folder / "model.safetensors")

    def copy(name: str) -> Path:
        shutil.copytree(folder, tmp_path / name)
        return tmp_path / name

    cut = copy("cut") / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:1000])
    some = copy("some")
    save_file(
        {k: v for k, v in weights.items() if "layers.1.mlp.up" not in k}, some / "model.safetensors"
    )
    shards = copy("shards")
    (shards / "model.safetensors").unlink()
    index = {"weight_map": dict.fromkeys(weights, "model-00001-of-00001.safetensors")}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    for path, said in (
        (cut.parent, "truncated"),
        (some, "model.layers.1.mlp.up_proj.weight"),
        (shards, "Shard model-00001-of-00001.safetensors"),
    ):
        with pytest.raises(ForetokenError, match=said) as error:
            LLM(path)
        assert "fetch" in str(error.value) and "\n" not in str(error.value)


def test_outputs_say_what_they_are(llm: LLM) -> None:
    """The public classes, and a sample's own fields."""
    [output] = llm.generate(
        "x", SamplingParams(n=2, seed=1, max_tokens=3, logprobs=1, ignore_eos=True)
    )
    assert isinstance(output, RequestOutput)
    assert [sample.index for sample in output.outputs] == [0, 1]
    for sample in output.outputs:
        assert len(sample.token_ids) == 3 == len(sample.logprobs or ())
        assert sample.text == TOKENIZER.decode(sample.token_ids, skip_special_tokens=True)


def test_given_ends_are_used(pair: Pair) -> None:
    """`eos_ids` replaces what the model's files name; a text ends at the first of them."""
    params = SamplingParams(temperature=0, max_tokens=6)
    [plain] = LLM(pair.target, eos_ids=()).generate([[1, 2, 3]], params)
    tokens = plain.outputs[0].token_ids
    assert len(tokens) == 6
    [ended] = LLM(pair.target, eos_ids={tokens[2]}).generate([[1, 2, 3]], params)
    end = tokens.index(tokens[2])
    assert ended.outputs[0].token_ids == tokens[: end + 1]
    assert ended.outputs[0].finish_reason == "stop"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_llm_is_not_copied(model: Any, copied: Any) -> None:
    """One sentence, and it goes on serving; parameters and outputs are copied as one pleases."""
    params = SamplingParams(temperature=0, max_tokens=3, stop=["x"])
    with LLM(native(model), tokenizer=ByteTokenizer(VOCAB)) as llm:
        with pytest.raises(ForetokenError, match="An LLM can't be copied or pickled"):
            copied(llm)
        [output] = llm.generate([[1, 2]], params)
        copied(output)
        if copied is copy.deepcopy:
            assert llm.generate([[1, 2]], copied(params))[0].token_ids == output.token_ids


def test_a_request_that_cant_be_added(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever adding one raises is its own error; the others of the call are served."""
    add = Engine.add

    def fails(self: Engine, prompt: Any, *given: Any, **more: Any) -> Any:
        if prompt == [7]:
            raise KeyError("seven")
        return add(self, prompt, *given, **more)

    monkeypatch.setattr(Engine, "add", fails)
    with LLM(native(model)) as llm:
        outputs = llm.generate([[1], [7], [2]], SamplingParams(max_tokens=2))
        assert [o.error for o in outputs] == [None, "The request raised KeyError: 'seven'", None]
        assert [o.prompt_token_ids for o in outputs] == [[1], [7], [2]]


def test_a_failed_output_keeps_no_model(model: Any) -> None:
    """Though its error was raised deep inside of the engine."""

    def fails(ids: Any, scores: Any) -> Any:
        raise KeyError("seven")

    params = SamplingParams(max_tokens=2, logits_processors=[fails])
    with LLM(native(model)) as llm:
        engine = ref(llm.engine)
        [output] = llm.generate([[1]], params)
    del llm
    assert isinstance(output.cause, KeyError) and engine() is None
    assert "in fails" in output.cause.__notes__[0]


def test_a_module_that_is_no_language_model() -> None:
    with pytest.raises(ForetokenError, match="A model is a Linear; give a causal language model"):
        LLM(torch.nn.Linear(2, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("config", [None, {"method": "pld"}, {"method": "sps"}])
def test_scores(pair: Pair, config: dict[str, Any] | None) -> None:
    """Each token's own log-probability under the raw logits, whatever the method, for pairs of
    several lengths in one batch; one pair alone gives one list."""
    config = {**config, "model": pair.draft} if config == {"method": "sps"} else config
    prompts, texts = [[1, 2, 3], [4], [5, 6] * 9], [[7, 8], [9, 9, 9, 9], [11]]
    with LLM(pair.target, speculative_config=config, max_num_batched_tokens=7) as llm:
        found = llm.score(prompts, texts)
        assert llm.score(prompts[1], texts[1]) == pytest.approx(found[1], abs=1e-9)
        with pytest.raises(ForetokenError, match="outside the vocabulary"):
            llm.score(prompts, [[7], [97], [8]])
        with pytest.raises(ForetokenError, match="256 tokens and the context is 256"):
            llm.score([1] * 250, [2] * 6)
    for prompt, text, scores in zip(prompts, texts, found, strict=True):
        logits = [logits_after(pair.target, prompt + text[:i]) for i in range(len(text))]
        expected = [float(x.log_softmax(-1)[token]) for x, token in zip(logits, text, strict=True)]
        assert scores == pytest.approx(expected, abs=1e-9)


def test_an_interrupted_call_leaves_nothing_running(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here as its first text has ended, of which the other one is far."""

    @contextmanager
    def interrupted(*_: Any) -> Iterator[Any]:
        def advance() -> None:
            raise KeyboardInterrupt

        yield advance

    monkeypatch.setattr("foretoken.llm.track", interrupted)
    llm = LLM(pair.target, eos_ids=())
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[1], [2]], [SamplingParams(max_tokens=many) for many in (1, 200)])
    assert not llm.worker.call(lambda engine: engine.busy)
