"""The transformers hook: every argument means what it means in plain `generate`.

Tiny random float64 models; batches with left padding unless a test says otherwise.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from torch import Tensor

import foretoken
from foretoken import ForetokenError, assisted
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.length import Fixed
from foretoken.models.hf import generate
from foretoken.zoo import names, path

LETTERS = "0123abcdefghijklmnopqrstuvwxyz.!"
VOCAB, PAD, EOS = len(LETTERS), 0, 3
PROMPTS = [[5, 6, 7, 5, 6], [9, 8, 7, 6, 5, 4, 9, 8, 7], [11, 12]]


def llama(seed: int, vocab: int = VOCAB, context: int = 128) -> Any:
    """A tiny model whose text repeats itself enough to be looked up."""
    torch.manual_seed(seed)
    config = tf.LlamaConfig(
        vocab_size=vocab,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=PAD,
        initializer_range=0.4,
    )
    return tf.LlamaForCausalLM(config).double().eval()


def gpt2(seed: int) -> Any:
    torch.manual_seed(seed)
    config = tf.GPT2Config(
        vocab_size=VOCAB,
        n_embd=16,
        n_layer=2,
        n_head=4,
        n_positions=128,
        initializer_range=0.4,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    return tf.GPT2LMHeadModel(config).double().eval()


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {"llama": llama(1), "gpt2": gpt2(2)}


@pytest.fixture(scope="module")
def model(models: dict[str, Any]) -> Any:
    return models["llama"]


@pytest.fixture(scope="module")
def draft() -> Any:
    """Nearly the target, so that its drafts are accepted and rejected."""
    near = llama(1)
    with torch.no_grad():
        near.lm_head.weight += 0.1 * torch.randn(near.lm_head.weight.shape).double()
    return near


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One letter a token."""
    inner = Tokenizer(BPE({letter: i for i, letter in enumerate(LETTERS)}, []))
    inner.decoder = Fuse()
    return tf.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="0", eos_token="3")


def left_padded(prompts: list[list[int]], pad: int = PAD) -> dict[str, Tensor]:
    width = max(map(len, prompts))
    ids = [[pad] * (width - len(p)) + p for p in prompts]
    mask = [[0] * (width - len(p)) + [1] * len(p) for p in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


INPUTS = left_padded(PROMPTS)


def hooks(draft: Any, **more: Any) -> dict[str, Any]:
    return {
        "pld": assisted("pld", num_speculative_tokens=4, **more),
        "sps": assisted(draft_model=draft, num_speculative_tokens=3, **more),
    }


def check_equal(model: Any, draft: Any, inputs: dict[str, Tensor], **arguments: Any) -> Tensor:
    """Both methods write what plain decoding writes; that."""
    want = model.generate(**inputs, **arguments)
    for name, hook in hooks(draft).items():
        got = model.generate(**inputs, custom_generate=hook, **arguments)
        assert got.tolist() == want.tolist(), name
        assert got.dtype == want.dtype
    return want


# --- greedy decoding equals transformers' own


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("rows", [1, 3])
def test_greedy_is_plain_decoding(
    models: dict[str, Any], draft: Any, family: str, rows: int
) -> None:
    inputs = left_padded(PROMPTS[:rows])
    check_equal(models[family], draft, inputs, max_new_tokens=40, do_sample=False)


def test_drafts_are_accepted(model: Any, draft: Any) -> None:
    """What is equal above is not equal because nothing was drafted."""
    for hook in hooks(draft).values():
        model.generate(**INPUTS, max_new_tokens=60, custom_generate=hook, eos_token_id=None)
        assert hook.stats.accepted > 0
        assert hook.stats.drafted > hook.stats.accepted


def test_a_backend_of_the_draft_model(tmp_path: Path) -> None:
    """Of one that is named: the same text, by layers of 8 bits."""
    model = llama(1).float()
    model.save_pretrained(tmp_path)
    hook = assisted(draft_model=str(tmp_path), draft_backend="int8", num_speculative_tokens=3)
    given = {"input_ids": INPUTS["input_ids"][:1], "max_new_tokens": 9, "do_sample": False}
    assert torch.equal(model.generate(**given, custom_generate=hook), model.generate(**given))
    [drafting] = [made for state, made in hook._wrapped.values() if state is None]
    assert drafting.backend.endswith("int8")


def test_without_a_mask(model: Any, draft: Any) -> None:
    """transformers finds the padding by the padding token, and so do we."""
    check_equal(model, draft, {"input_ids": INPUTS["input_ids"]}, max_new_tokens=20)


ARGUMENTS: dict[str, dict[str, Any]] = {
    "max_length": {"max_length": 21},
    "max_new_tokens of one": {"max_new_tokens": 1},
    "min_new_tokens": {"min_new_tokens": 25, "max_new_tokens": 30, "eos_token_id": [5, 6, 7, 8]},
    "min_length": {"min_length": 25, "max_new_tokens": 30, "eos_token_id": [5, 6, 7, 8]},
    "eos list": {"eos_token_id": [4, 9, 20, 28], "max_new_tokens": 40},
    "no eos": {"eos_token_id": None, "max_new_tokens": 30},
    "pad": {"pad_token_id": 17, "eos_token_id": [4, 9, 20, 28], "max_new_tokens": 40},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2, "max_new_tokens": 30},
    "bad_words_ids": {"bad_words_ids": [[31], [28, 27], [9, 8, 7, 5]], "max_new_tokens": 30},
    "sequence_bias": {"sequence_bias": [[[5], 2.0], [[7, 8], 9.0]], "max_new_tokens": 30},
    "suppress_tokens": {"suppress_tokens": [5, 9], "max_new_tokens": 30},
    "begin_suppress_tokens": {"begin_suppress_tokens": list(range(16)), "max_new_tokens": 20},
    "forced_eos_token_id": {"forced_eos_token_id": EOS, "max_new_tokens": 12},
    "exponential_decay": {"exponential_decay_length_penalty": (4, 1.5), "max_new_tokens": 30},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.5, "max_new_tokens": 30},
    "encoder_no_repeat": {"encoder_no_repeat_ngram_size": 1, "max_new_tokens": 30},
    "prefix_allowed_tokens_fn": {
        "prefix_allowed_tokens_fn": lambda row, ids: range(4 + 8 * row, 12 + 8 * row),
        "max_new_tokens": 20,
    },
    "remove_invalid_values": {"remove_invalid_values": True, "max_new_tokens": 20},
    "renormalize_logits": {"renormalize_logits": True, "max_new_tokens": 20},
    "watermark": {
        "watermarking_config": tf.WatermarkingConfig(bias=4.0, seeding_scheme="lefthash"),
        "max_new_tokens": 20,
    },
    "max_time": {"max_time": 600.0, "max_new_tokens": 20},
    "cache_implementation": {"cache_implementation": "static", "max_new_tokens": 20},
    "use_cache": {"use_cache": False, "max_new_tokens": 20},
    "generation_config": {
        "generation_config": tf.GenerationConfig(
            max_new_tokens=25, eos_token_id=[4, 9, 20], pad_token_id=PAD, no_repeat_ngram_size=3
        )
    },
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(model: Any, draft: Any, name: str) -> None:
    """Greedy text is transformers' own under every argument, in a padded batch."""
    check_equal(model, draft, INPUTS, **{"do_sample": False, **ARGUMENTS[name]})


def test_arguments_matter(model: Any) -> None:
    """The arguments above change the text, or they would test nothing."""
    plain = model.generate(**INPUTS, max_new_tokens=30).tolist()
    idle = {"remove_invalid_values", "renormalize_logits", "max_time", "no eos"}
    idle |= {"cache_implementation", "use_cache"}
    idle |= {"max_length", "max_new_tokens of one"}  # they change nothing but the length
    for name in sorted(ARGUMENTS.keys() - idle):
        text = model.generate(**INPUTS, **ARGUMENTS[name]).tolist()
        assert text != [row[: len(text[0])] for row in plain], name


@pytest.mark.parametrize("more", [{}, {"no_repeat_ngram_size": 3}, {"no_repeat_ngram_size": 1}])
def test_built_in_processors_do_not_see_the_padding(
    model: Any, draft: Any, more: dict[str, Any]
) -> None:
    """Each row as if it ran alone, where the padding token is one that the model writes.

    (Plain decoding differs by transformers' version in whether it penalises padding in a batch.)
    """
    arguments = {"repetition_penalty": 1.4, "max_new_tokens": 18, "eos_token_id": None, **more}
    alone = [model.generate(torch.tensor([p]), **arguments)[0, len(p) :].tolist() for p in PROMPTS]
    inputs = left_padded(PROMPTS, pad=28)
    assert 28 in alone[0] + alone[2]  # the rows that have padding
    for hook in hooks(draft).values():
        got = model.generate(**inputs, custom_generate=hook, pad_token_id=28, **arguments)
        assert got[:, inputs["input_ids"].shape[1] :].tolist() == alone


class Climb(tf.LogitsProcessor):
    """Looks at the length, the last token and the row's place in the batch."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        for row, ids in enumerate(input_ids):
            wanted = (int(ids[-1]) + row + input_ids.shape[1]) % VOCAB
            scores[row, wanted] += 20.0 if input_ids.shape[1] % 3 else 0.0
        return scores


def test_custom_processor(model: Any, draft: Any) -> None:
    """A user's processor sees what plain decoding shows it, and may write in place."""
    processors = tf.LogitsProcessorList([Climb()])
    check_equal(model, draft, INPUTS, logits_processor=processors, max_new_tokens=30)


def test_repetition_penalty_behind_the_prompt(model: Any, draft: Any) -> None:
    """A user's own processor of a built-in class keeps its settings."""
    process = tf.RepetitionPenaltyLogitsProcessor(1.5, prompt_ignore_length=9)
    processors = tf.LogitsProcessorList([process])
    check_equal(model, draft, INPUTS, logits_processor=processors, max_new_tokens=30)


# --- stopping


class OnSum(tf.StoppingCriteria):
    """Stops at a token that depends on the whole text."""

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        return (input_ids.sum(1) % 7 == 0) & (input_ids.shape[1] > 14)


class OnRow(tf.StoppingCriteria):
    """Every row has its own length."""

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        return input_ids.shape[1] >= torch.tensor([13, 25, 19])


@pytest.mark.parametrize("criterion", [OnSum, OnRow])
def test_stopping_criteria(model: Any, draft: Any, criterion: Callable[[], Any]) -> None:
    criteria = tf.StoppingCriteriaList([criterion()])
    want = check_equal(model, draft, INPUTS, stopping_criteria=criteria, max_new_tokens=40)
    assert want.shape[1] < 9 + 40


def test_a_row_that_a_criterion_ended_is_padded(model: Any, draft: Any) -> None:
    """Also without an end-of-text token, where plain decoding lets it go on until all end."""
    arguments = {"stopping_criteria": [OnRow()], "max_new_tokens": 40, "eos_token_id": None}
    plain = model.generate(**INPUTS, **arguments).tolist()
    ended = [row[:end] + [PAD] * (25 - end) for row, end in zip(plain, (13, 25, 19), strict=True)]
    assert plain != ended
    for hook in hooks(draft).values():
        assert model.generate(**INPUTS, custom_generate=hook, **arguments).tolist() == ended


def test_criterion_is_asked_token_by_token(model: Any, draft: Any) -> None:
    """One row: a criterion that counts its calls sees every prefix, once and in order."""

    class Recorder(tf.StoppingCriteria):
        def __init__(self) -> None:
            self.seen: list[list[int]] = []

        def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
            self.seen += input_ids.tolist()
            return torch.tensor([len(self.seen) == 11])

    inputs = left_padded(PROMPTS[:1])
    plain = Recorder()
    model.generate(**inputs, stopping_criteria=[plain], max_new_tokens=30, eos_token_id=None)
    for hook in hooks(draft).values():
        recorder = Recorder()
        arguments = {"stopping_criteria": [recorder], "max_new_tokens": 30, "eos_token_id": None}
        model.generate(**inputs, custom_generate=hook, **arguments)
        assert recorder.seen == plain.seen


def test_criteria_need_a_padding_token(model: Any) -> None:
    other = llama(1)
    other.generation_config.pad_token_id = other.config.pad_token_id = None
    arguments = {"stopping_criteria": [OnSum()], "max_new_tokens": 4, "eos_token_id": None}
    with pytest.raises(ForetokenError, match="pad_token_id"):
        other.generate(**INPUTS, custom_generate=assisted(), **arguments)


@pytest.mark.parametrize("rows", [1, 3])
def test_stop_strings(model: Any, draft: Any, tokenizer: Any, rows: int) -> None:
    """The output ends with the token that completes the stop string, as in transformers."""
    inputs = left_padded(PROMPTS[:rows])
    arguments = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None}
    plain = tokenizer.batch_decode(model.generate(**inputs, **arguments)[:, -40:])
    stops = [text[9:11] for text in plain] + ["!!!!"]
    arguments["eos_token_id"] = EOS
    want = model.generate(**inputs, stop_strings=stops, tokenizer=tokenizer, **arguments)
    for hook in hooks(draft, stop_strings=stops, tokenizer=tokenizer).values():
        got = model.generate(**inputs, custom_generate=hook, **arguments)
        assert got.tolist() == want.tolist()
    assert want.shape[1] < inputs["input_ids"].shape[1] + 40


def test_the_context_ends(caplog: pytest.LogCaptureFixture) -> None:
    """A row ends where the model's context does, with a warning."""
    short = llama(1, context=16)
    arguments = {"max_new_tokens": 30, "eos_token_id": None}
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8]])}
    got = short.generate(**inputs, custom_generate=assisted(), **arguments)
    assert "context ended" in caplog.text
    assert got.tolist() == short.generate(**inputs, **arguments)[:, :16].tolist()


# --- streaming


class Recorder(tf.generation.streamers.BaseStreamer):
    def __init__(self) -> None:
        self.values: list[Tensor] = []
        self.ended = 0

    def put(self, value: Tensor) -> None:
        assert not self.ended
        self.values.append(value)

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("rows", [1, 3])
def test_streamer(model: Any, draft: Any, rows: int) -> None:
    """It gets the prompt and then the result's columns, as from plain decoding."""
    inputs = left_padded(PROMPTS[:rows])
    arguments = {"max_new_tokens": 40, "eos_token_id": [4, 9, 20, 28], "do_sample": False}
    plain = Recorder()
    model.generate(**inputs, streamer=plain, **arguments)
    for method in ("pld", "sps"):
        stream = Recorder()
        hook = hooks(draft, streamer=stream)[method]
        got = model.generate(**inputs, custom_generate=hook, **arguments)
        assert [v.tolist() for v in stream.values] == [v.tolist() for v in plain.values]
        assert torch.cat((stream.values[0], torch.stack(stream.values[1:], 1)), 1).equal(got)
        assert stream.ended == 1


def test_text_streamer(model: Any, tokenizer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """transformers' own streamer prints the same text."""
    inputs = left_padded(PROMPTS[:1])
    streamer = tf.TextStreamer(tokenizer, skip_prompt=True)
    model.generate(**inputs, streamer=streamer, max_new_tokens=20)
    want = capsys.readouterr().out
    hook = assisted(streamer=tf.TextStreamer(tokenizer, skip_prompt=True))
    model.generate(**inputs, custom_generate=hook, max_new_tokens=20)
    assert capsys.readouterr().out == want != ""


@pytest.mark.parametrize("rows", [1, 3])
def test_a_streamer_given_to_generate(model: Any, rows: int) -> None:
    """It gets the same as from `assisted`: the prompt once, and every column."""
    inputs = left_padded(PROMPTS[:rows])
    arguments = {"max_new_tokens": 40, "eos_token_id": [4, 9, 20, 28], "do_sample": False}
    plain, stream = Recorder(), Recorder()
    model.generate(**inputs, streamer=plain, **arguments)
    got = model.generate(**inputs, streamer=stream, custom_generate=assisted(), **arguments)
    assert [v.tolist() for v in stream.values] == [v.tolist() for v in plain.values]
    assert torch.cat((stream.values[0], torch.stack(stream.values[1:], 1)), 1).equal(got)
    assert stream.ended == 1


def test_what_generate_would_keep_to_itself(model: Any, draft: Any) -> None:
    """Two streamers, and a draft model that would not be used, are refused."""
    with pytest.raises(ForetokenError, match="to generate or to assisted, not to both"):
        hook = assisted(streamer=Recorder())
        model.generate(**INPUTS, streamer=Recorder(), custom_generate=hook)
    with pytest.raises(ForetokenError, match=r"pass assisted\(draft_model=…\)"):
        model.generate(**INPUTS, assistant_model=draft, custom_generate=assisted())


def test_streamer_ends_when_something_fails(model: Any) -> None:
    """Whoever waits for the stream's end gets it."""
    stream = Recorder()

    def fail(input_ids: Tensor, scores: Tensor) -> Tensor:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        model.generate(**INPUTS, logits_processor=[fail], custom_generate=assisted(streamer=stream))
    assert stream.ended == 1


# --- sampling


SAMPLING: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7, "top_k": 0},
    "top_k": {"top_k": 5},
    "top_p": {"top_k": 0, "top_p": 0.6},
    "min_p": {"top_k": 0, "min_p": 0.2},
    "top_p and min_p": {"temperature": 1.3, "top_p": 0.9, "min_p": 0.1},
    "typical_p": {"typical_p": 0.6},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "min_new_tokens": 10},
}


@pytest.mark.parametrize("name", SAMPLING)
def test_sampling_is_repeatable(model: Any, draft: Any, name: str) -> None:
    """One torch seed, one text; with chosen drafts it is plain decoding's text with that seed."""
    arguments = {"do_sample": True, "max_new_tokens": 20, **SAMPLING[name]}

    def sample(hook: Any, seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        ids: list[list[int]] = model.generate(**INPUTS, custom_generate=hook, **arguments).tolist()
        return ids

    plain = assisted("autoregressive")
    methods = hooks(draft)
    assert sample(methods["pld"], 5) == sample(plain, 5)
    for hook in methods.values():
        assert sample(hook, 7) == sample(hook, 7)
    assert sample(plain, 5) != sample(plain, 6)


def test_greedy_takes_no_random_number(model: Any) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    model.generate(**INPUTS, max_new_tokens=3, custom_generate=assisted())
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("name", SAMPLING)
def test_distribution_is_transformers_distribution(model: Any, name: str) -> None:
    """Our own parameters instead of the last processors give the same probabilities."""
    from foretoken.sampling.fold import fold
    from foretoken.sampling.sequence import Sequence

    prepared: list[generate.Prepared] = []

    def take(model: Any, input_ids: Tensor, **given: Any) -> Tensor:
        lists = given.pop("logits_processor"), given.pop("stopping_criteria")
        config = given.pop("generation_config")
        prepared.append(generate.Prepared(model, input_ids, *lists, config, given))
        return input_ids

    model.generate(**INPUTS, do_sample=True, custom_generate=take, **SAMPLING[name])
    batch = prepared[0]
    logits = 3 * torch.randn(3, 1, VOCAB, dtype=torch.float64)
    for row, params in enumerate(batch.params()):
        sequence = Sequence.start(batch.prompt(row), params)
        ours = fold(logits[row : row + 1], [sequence], lambda: [[[]]]).probs[0, 0]
        scores = logits[row].clone()
        for process in batch.processors:
            scores = batch.processor(process, row)(torch.tensor([batch.prompt(row)]), scores)
        assert torch.allclose(ours, scores.softmax(-1)[0], atol=1e-12)


@pytest.mark.parametrize("method", ["pld", "sps"])
def test_num_return_sequences(model: Any, draft: Any, method: str) -> None:
    """Every prompt n times, in order, with texts of their own."""
    torch.manual_seed(0)
    got = model.generate(
        **INPUTS,
        do_sample=True,
        num_return_sequences=4,
        max_new_tokens=12,
        custom_generate=hooks(draft)[method],
    )
    assert got.shape[0] == 12
    assert got[:, :9].equal(INPUTS["input_ids"].repeat_interleave(4, 0))
    assert all(len({tuple(row) for row in got[4 * i : 4 * i + 4].tolist()}) > 1 for i in range(3))


def test_num_return_sequences_with_encoder_processors(model: Any) -> None:
    """Processors that know the prompts by their place find the right one."""
    seen: dict[str, list[list[int]]] = {}
    for name, hook in {"plain": None, "pld": assisted()}.items():
        seen[name] = model.generate(
            **INPUTS,
            do_sample=True,
            top_k=1,
            num_return_sequences=2,
            max_new_tokens=12,
            encoder_no_repeat_ngram_size=1,
            custom_generate=hook,
        ).tolist()
    assert seen["plain"] == seen["pld"]


# --- what comes back


@pytest.mark.parametrize("rows", [1, 3])
def test_return_dict(model: Any, draft: Any, rows: int) -> None:
    """sequences, scores and logits as transformers returns them."""
    arguments: dict[str, Any] = {
        "max_new_tokens": 12,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        "no_repeat_ngram_size": 2,
        "eos_token_id": [4, 9, 20, 28],
    }
    inputs = left_padded(PROMPTS[:rows])
    want = model.generate(**inputs, **arguments)
    for hook in hooks(draft).values():
        got = model.generate(**inputs, custom_generate=hook, **arguments)
        assert type(got) is type(want)
        assert got.sequences.equal(want.sequences)
        for name in ("scores", "logits"):
            ours, theirs = getattr(got, name), getattr(want, name)
            assert isinstance(ours, tuple) and len(ours) == len(theirs)
            assert ours[0].dtype == theirs[0].dtype
            tokens = want.sequences[:, -len(ours) :]
            ended = torch.isin(tokens, torch.tensor([4, 9, 20, 28])).cumsum(1).T  # [T, B]
            running = torch.cat((ended.new_zeros(1, rows), ended[:-1])) == 0
            ours, theirs = torch.stack(ours)[running], torch.stack(theirs)[running]
            assert torch.allclose(ours, theirs, atol=1e-5)


def test_return_dict_with_sequences_only(model: Any) -> None:
    got = model.generate(
        **INPUTS, max_new_tokens=4, return_dict_in_generate=True, custom_generate=assisted()
    )
    assert got.sequences.shape[0] == 3 and got.scores is None and got.logits is None


# --- the method and its options


def test_methods_and_options(draft: Any) -> None:
    """The method follows from what is given; names of other libraries are taken."""
    assert assisted().config["method"] == "pld"
    assert assisted("ngram", prompt_lookup_max=4).config["prompt_lookup_max"] == 4
    assert assisted(draft_model=draft).config["method"] == "sps"
    assert assisted(prompt_lookup_num_tokens=3).config["num_speculative_tokens"] == 3
    config = {"method": "draft_model", "model": draft, "num_speculative_tokens": 2}
    assert assisted(speculative_config=config).config == config
    assert foretoken.assisted is assisted


def test_two_names_of_one_option(draft: Any) -> None:
    """Are refused, whether they are arguments or keys of the config; one value may have both."""
    lengths: list[dict[str, Any]] = [
        {"num_speculative_tokens": 8},
        {"speculative_config": {"num_assistant_tokens": 8}},
    ]
    for given in lengths:
        with pytest.raises(ForetokenError, match="are two names of one option of method 'pld'"):
            assisted(prompt_lookup_num_tokens=5, **given)
        assert assisted(prompt_lookup_num_tokens=8, **given).config["num_speculative_tokens"] == 8
    models: list[dict[str, Any]] = [
        {"assistant_model": "x"},
        {"speculative_config": {"model": "x"}},
    ]
    for given in models:
        with pytest.raises(ForetokenError, match="model are two names of one option"):
            assisted(draft_model=draft, **given)


def test_the_method_of_a_tuned_file(model: Any, tmp_path: Path) -> None:
    """A name of what was tuned stands for its method, too; what is given beside it wins."""
    tuned = {"method": "suffix", "max_spec_factor": 3.0}
    path = tmp_path / "fast.json"
    path.write_text(json.dumps({"schema": 1, "speculative_config": tuned}))
    assert assisted(speculative_config={"tuned": path}).config == tuned
    assert assisted(tuned=path, max_spec_factor=1.0).config == {**tuned, "max_spec_factor": 1.0}
    path.write_text('{"schema": 1, "speculative_config": {"method": "autoregressive"}}')
    hook = assisted(speculative_config={"tuned": path})
    model.generate(**INPUTS, custom_generate=hook, max_new_tokens=20)
    assert hook.stats.drafted == 0 < hook.stats.tokens


def test_a_drafter_object_serves_many_calls(model: Any) -> None:
    hook = assisted(PromptLookup(num_speculative_tokens=3))
    for rows in (3, 1):
        inputs = left_padded(PROMPTS[:rows])
        got = model.generate(**inputs, max_new_tokens=30, custom_generate=hook)
        assert got.tolist() == model.generate(**inputs, max_new_tokens=30).tolist()
        assert hook.stats.drafted > 0


def drafted_at_most(hook: Any) -> int:
    return len(hook.stats.drafted_at)


def test_draft_length_from_generation_configs(model: Any) -> None:
    """num_assistant_tokens and its schedule stand on the draft model, prompt lookup on the call."""
    arguments = {"max_new_tokens": 40, "eos_token_id": None}
    small = llama(1)  # the target itself: everything is accepted
    small.generation_config.num_assistant_tokens = 2
    small.generation_config.num_assistant_tokens_schedule = "constant"
    hook = assisted(draft_model=small)
    model.generate(**INPUTS, custom_generate=hook, **arguments)
    assert drafted_at_most(hook) == 2
    small.generation_config.num_assistant_tokens_schedule = "heuristic_transient"
    model.generate(**INPUTS, custom_generate=hook, **arguments)
    assert drafted_at_most(hook) > 2
    hook = assisted(
        draft_model=small, num_assistant_tokens=3, num_assistant_tokens_schedule="constant"
    )
    model.generate(**INPUTS, custom_generate=hook, **arguments)
    assert drafted_at_most(hook) == 3
    hook = assisted()
    model.generate(**INPUTS, custom_generate=hook, prompt_lookup_num_tokens=1, **arguments)
    assert drafted_at_most(hook) == 1


def test_a_threshold_from_the_generation_config(model: Any) -> None:
    """With a constant length, as in transformers; beside "heuristic" and a rule that is named it
    has no meaning."""
    arguments = {"max_new_tokens": 40, "eos_token_id": None}
    small = llama(1)
    small.generation_config.num_assistant_tokens = 5

    def drafted(**options: Any) -> int:
        hook = assisted(draft_model=small, **options)
        got = model.generate(**INPUTS, custom_generate=hook, **arguments)
        assert got.tolist() == model.generate(**INPUTS, **arguments).tolist()
        return drafted_at_most(hook)

    for schedule in (None, "constant"):
        small.generation_config.num_assistant_tokens_schedule = schedule
        small.generation_config.assistant_confidence_threshold = None
        assert drafted() == 5
        assert drafted(assistant_confidence_threshold=1.0) == 1
        small.generation_config.assistant_confidence_threshold = 1.0
        assert drafted() == 1
        assert drafted(assistant_confidence_threshold=0.0) == 5
        assert drafted(num_assistant_tokens_schedule="constant") == 5
        assert (
            drafted(num_assistant_tokens_schedule="constant", assistant_confidence_threshold=1.0)
            == 1
        )
    small.generation_config.num_assistant_tokens_schedule = "heuristic"
    assert drafted() > 5
    assert drafted(num_assistant_tokens_schedule="heuristic_transient") > 5
    assert drafted(assistant_confidence_threshold=1.0) == 1  # what is given counts


def test_online_is_refused() -> None:
    """Its drafter would be a new one at each call."""
    for method in ("online", "online:medusa"):
        with pytest.raises(ForetokenError, match=r"forget what it learned; use foretoken\.LLM"):
            assisted(method, draft_model="mini-draft")


def test_a_rule_has_its_own_length(model: Any) -> None:
    """Whatever stands on the draft model, where transformers' own assistance leaves it."""
    small = llama(1)
    small.generation_config.num_assistant_tokens = 20
    hook = assisted(draft_model=small, num_assistant_tokens_schedule=Fixed(3))
    model.generate(**INPUTS, custom_generate=hook, max_new_tokens=40, eos_token_id=None)
    assert drafted_at_most(hook) == 3


def test_a_draft_model_from_a_folder(model: Any, draft: Any, tmp_path: Any) -> None:
    draft.save_pretrained(tmp_path)
    hook = assisted(draft_model=str(tmp_path))
    want = model.generate(**INPUTS, max_new_tokens=20)
    for _ in range(2):  # loaded once
        got = model.generate(**INPUTS, max_new_tokens=20, custom_generate=hook)
        assert got.tolist() == want.tolist()
    assert hook.stats.accepted > 0


@pytest.fixture(scope="module")
def mini() -> Any:
    if "mini" not in names():
        pytest.skip("the bundled models are not installed")
    return tf.AutoModelForCausalLM.from_pretrained(path("mini"), dtype=torch.float32)


def check_mini(mini: Any, hook: Any) -> None:
    """Drafts, and writes plain decoding's text."""
    ids = tf.AutoTokenizer.from_pretrained(path("mini"))("The capital of France is")["input_ids"]
    arguments = {"input_ids": torch.tensor([ids]), "max_new_tokens": 16, "do_sample": False}
    got = mini.generate(**arguments, custom_generate=hook)
    assert got.tolist() == mini.generate(**arguments).tolist()
    assert hook.stats.drafted > 0


TRAINED = ("eagle", "eagle3", "medusa", "hydra", "mtp", "dflash")


@pytest.mark.parametrize("method", TRAINED)
def test_trained_drafters(mini: Any, method: str) -> None:
    """Read their own folders; the method is that of the folder unless another one is named."""
    hook = assisted(draft_model=f"mini-{method}")
    assert hook.config["method"] == method
    check_mini(mini, hook)
    if method == "eagle3":
        check_mini(mini, assisted("eagle3", model=path("mini-eagle3")))


def test_the_tokenizer_of_a_draft_models_folder(mini: Any) -> None:
    """Is read from there; one that is given counts, under each of its names."""
    given: dict[str, Any] = {"draft_model": "mini-draft", "tokenizer": path("mini")}
    check_mini(mini, assisted("tli", **given))
    check_mini(mini, assisted("pld+slem", **given))
    with pytest.raises(ForetokenError, match="tokenizer of the draft model"):
        check_mini(mini, assisted("tli", assistant_tokenizer="./nowhere", **given))


def test_the_model_may_change_between_calls(model: Any) -> None:
    """A hook can be kept: it notices another model, dtype or embedding."""
    hook = assisted()
    for other in (model, llama(4), llama(5).float()):
        got = other.generate(**INPUTS, max_new_tokens=12, custom_generate=hook)
        assert got.tolist() == other.generate(**INPUTS, max_new_tokens=12).tolist()
    other.resize_token_embeddings(VOCAB + 8)
    for inputs in (INPUTS, {"input_ids": torch.tensor([[5, VOCAB + 3, 7]])}):  # a new token
        got = other.generate(**inputs, max_new_tokens=12, custom_generate=hook)
        assert got.tolist() == other.generate(**inputs, max_new_tokens=12).tolist()


def test_a_streamer_that_fails_is_ended(model: Any) -> None:
    """As it is by a plain `generate`'s caller, who sees the error."""

    class Failing:
        ended = False

        def put(self, value: Tensor) -> None:
            if value.dim() == 1:  # new tokens
                raise RuntimeError("no more room")

        def end(self) -> None:
            self.ended = True

    streamer = Failing()
    with pytest.raises(RuntimeError, match="no more room"):
        model.generate(**INPUTS, max_new_tokens=4, custom_generate=assisted(streamer=streamer))
    assert streamer.ended


def test_an_attention_that_came_later_is_looked_at() -> None:
    """One that takes no tree's mask is refused, though the model was served before."""
    hook, model = assisted(), llama(4)
    assert hook._wrap(model) is hook._wrap(model)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ForetokenError, match="takes no tree's mask"):
        hook._wrap(model)


def test_training_mode_is_kept(models: dict[str, Any]) -> None:
    """A model in training mode decodes without dropout and stays in training mode."""
    model = models["gpt2"]
    want = model.generate(**INPUTS, max_new_tokens=12).tolist()
    try:
        model.train()
        got = model.generate(**INPUTS, max_new_tokens=12, custom_generate=assisted())
        assert model.training and got.tolist() == want
    finally:
        model.eval()


# --- what is refused, in one sentence


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 2}, "beam search"),
    "contrastive": ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive"),
    "attentions": (
        {"output_attentions": True, "return_dict_in_generate": True},
        "output_attentions",
    ),
    "hidden states": (
        {"output_hidden_states": True, "return_dict_in_generate": True},
        "output_hidden_states",
    ),
    "guidance": ({"guidance_scale": 1.5}, "Guidance"),
    "mask with a hole": ({"attention_mask": torch.tensor([[1, 0, 1]])}, "left padding"),
    "right padding": ({"attention_mask": torch.tensor([[1, 1, 0]])}, "padding_side='left'"),
    "positions": ({"position_ids": torch.tensor([[4, 5, 6]])}, "position_ids"),
    "an odd input": ({"cu_seq_lens_q": torch.tensor([0, 3])}, "cu_seq_lens_q"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(model: Any, name: str) -> None:
    arguments, message = REFUSED[name]
    with pytest.raises(ForetokenError, match=message) as caught:
        model.generate(
            **{"input_ids": torch.tensor([[5, 6, 7]]), "max_new_tokens": 4, **arguments},
            custom_generate=assisted(),
        )
    assert "\n" not in str(caught.value)


def test_a_filled_cache_is_refused(model: Any) -> None:
    ids = torch.tensor([[5, 6, 7, 8]])
    cache = tf.DynamicCache()
    model(ids[:, :2], past_key_values=cache, use_cache=True)
    with pytest.raises(ForetokenError, match="past_key_values"):
        model.generate(ids, past_key_values=cache, custom_generate=assisted())


def test_encoder_decoders_are_refused() -> None:
    config = tf.T5Config(
        vocab_size=VOCAB,
        d_model=16,
        d_kv=4,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    model = tf.T5ForConditionalGeneration(config).eval()
    with pytest.raises(ForetokenError, match="encoder-decoder"):
        model.generate(torch.tensor([[5, 6]]), max_new_tokens=4, custom_generate=assisted())


def test_wrong_vocabulary_is_refused(model: Any) -> None:
    hook = assisted(draft_model=llama(1, vocab=VOCAB + 300))
    with pytest.raises(ForetokenError, match="vocabulary"):
        model.generate(**INPUTS, max_new_tokens=4, custom_generate=hook)


def test_wrong_options_are_refused_at_once(draft: Any, tokenizer: Any) -> None:
    with pytest.raises(ForetokenError, match="Did you mean 'pld'"):
        assisted("pldd")
    with pytest.raises(ForetokenError, match="num_speculative_tokens"):
        assisted(num_speculative_token=3)
    with pytest.raises(ForetokenError, match="small model"):
        assisted("sps")
    with pytest.raises(ForetokenError, match="not both"):
        assisted(draft_model=draft, prompt_lookup_num_tokens=3)
    with pytest.raises(ForetokenError, match="tokenizer"):
        assisted(stop_strings=["ab"])
    with pytest.raises(ForetokenError, match="speculative_config is 'pld'; give a mapping"):
        assisted(speculative_config="pld")  # type: ignore[arg-type]
    with pytest.raises(ForetokenError, match="streamer is 5; give one"):
        assisted(streamer=5)
    with pytest.raises(ForetokenError, match="tokenizer is 5; give a loaded tokenizer"):
        assisted(tokenizer=5)
    with pytest.raises(ForetokenError, match="nowhere"):
        assisted(tokenizer="./nowhere")


def test_no_distribution_is_an_error(model: Any) -> None:
    """Where every token is forbidden, the error says so."""

    def forbid(input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores + (-torch.inf if input_ids.shape[1] > 12 else 0.0)

    with pytest.raises(ForetokenError, match="forbidden"):
        model.generate(
            **INPUTS, logits_processor=[forbid], max_new_tokens=9, custom_generate=assisted()
        )


def test_a_tuned_prompt_is_refused(model: Any) -> None:
    """Its tokens come by another way, that a method doesn't see; LoRA's weights are the model's."""
    peft = pytest.importorskip("peft")
    ids = torch.tensor([[5, 9, 2, 7]])
    own = copy.deepcopy(model)
    options: Any = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    options["custom_generate"] = assisted()
    tuned = peft.get_peft_model(
        own, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    )
    with pytest.raises(ForetokenError, match="prompt or prefix tuning"):
        tuned.generate(input_ids=ids, **options)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"])
    adapted = peft.get_peft_model(copy.deepcopy(model), config)
    assert adapted.generate(input_ids=ids, **options).shape == (1, 8)
