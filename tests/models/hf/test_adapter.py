"""Trees, ragged rows and commits through two models of one checkpoint: transformers' and ours.

Whatever is asked of a served model is compared with transformers' own forward of each path alone,
in float64, on tiny random models whose weights are large enough for attention to matter.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor

from architectures import softmax_of_its_dtype
from foretoken.errors import ForetokenError
from foretoken.models import load
from foretoken.models.feed import chain_feed, tree_feed
from foretoken.models.hf.adapter import HFModel
from foretoken.models.model import CausalLM
from foretoken.models.target import ModelTarget
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence
from foretoken.tree import empty
from foretoken.trees.from_lists import from_paths

VOCAB, CPU = 61, torch.device("cpu")
GREEDY = SamplingParams(temperature=0)

SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 1,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 2.1, 2.2, 2.3],
    "original_max_position_embeddings": 48,
}
MULTIHEAD = {k: v for k, v in SMALL.items() if k != "num_key_value_heads"}

FAMILIES: dict[str, Any] = {
    "gpt2": lambda: tf.GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=3, n_head=4, n_positions=64, eos_token_id=1
    ),
    "gpt-neox": lambda: tf.GPTNeoXConfig(**MULTIHEAD),
    "gemma3": lambda: tf.Gemma3TextConfig(**SMALL, head_dim=8, sliding_window=5, layer_types=MIXED),
    "gemma2": lambda: tf.Gemma2Config(
        **SMALL,
        head_dim=8,
        sliding_window=5,
        layer_types=MIXED,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=9.0,
    ),
    "gemma": lambda: tf.GemmaConfig(**SMALL, head_dim=8),
    "phi3": lambda: tf.Phi3Config(**SMALL, sliding_window=5),
    "phi3-longrope": lambda: tf.Phi3Config(
        **SMALL, rope_parameters=LONGROPE, original_max_position_embeddings=48
    ),
    "opt": lambda: tf.OPTConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        ffn_dim=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
        eos_token_id=1,
    ),
    "falcon": lambda: tf.FalconConfig(**MULTIHEAD, alibi=False, multi_query=True),
    "mixtral": lambda: tf.MixtralConfig(**SMALL, num_local_experts=4),
    "granite": lambda: tf.GraniteConfig(**SMALL, logits_scaling=3.0, embedding_multiplier=2.0),
    "cohere": lambda: tf.CohereConfig(**SMALL, logit_scale=0.3),
    "llama": lambda: tf.LlamaConfig(**SMALL),
    "llama-tied": lambda: tf.LlamaConfig(**SMALL, tie_word_embeddings=True),
    "llama-bias": lambda: tf.LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "llama-rope3": lambda: tf.LlamaConfig(**SMALL, rope_parameters=LLAMA3),
    "llama-yarn": lambda: tf.LlamaConfig(**SMALL, rope_parameters=YARN),
    "mistral": lambda: tf.MistralConfig(**SMALL, sliding_window=5),
    "qwen2": lambda: tf.Qwen2Config(**SMALL),
    "qwen2-window": lambda: tf.Qwen2Config(
        **SMALL, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen3": lambda: tf.Qwen3Config(**SMALL, head_dim=16),
}

NATIVE = [name for name in FAMILIES if name.startswith(("llama", "mistral", "qwen", "gemma"))]
SERVED = [(name, "transformers") for name in FAMILIES] + [(name, "native") for name in NATIVE]
NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm")


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


@cache
def original(name: str) -> Any:
    """The family's tiny model with weights that make attention matter."""
    torch.manual_seed(0)
    config = FAMILIES[name]()
    config._experts_implementation = "eager"
    model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.copy_(noise * 0.2 if weight.dim() > 1 else weight + noise * 0.1)
    return model


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(name, kind) -> the model as the library loads it, built once."""

    @cache
    def get(name: str, kind: str) -> CausalLM:
        if kind == "transformers":
            return HFModel(original(name))
        folder = tmp_path_factory.mktemp(name)
        original(name).save_pretrained(folder, max_shard_size="20KB")
        assert (folder / "model.safetensors.index.json").is_file()
        return load.load_model(
            folder, dtype=torch.float64, device="cpu", model_impl="native", backend="plain"
        )

    return get


@pytest.fixture(autouse=True)
def whole_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """See `softmax_of_its_dtype`."""
    monkeypatch.setattr(torch.nn.functional, "softmax", softmax_of_its_dtype)


@pytest.fixture(autouse=True)
def inference() -> Any:
    with torch.inference_mode():
        yield


def own(name: str, text: list[int]) -> Tensor:
    """[T, V] the logits of transformers for this text alone."""
    logits: Tensor = original(name)(input_ids=torch.tensor([text]), use_cache=False).logits
    return logits[0]


def texts(*lengths: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(2, VOCAB) for _ in range(length)] for length in lengths]


def started(target: ModelTarget, prompts: list[list[int]], chunk: int = 4) -> list[Sequence]:
    sequences = [Sequence.start(prompt, GREEDY) for prompt in prompts]
    for sequence in sequences:
        target.begin(sequence)
    while waiting := [s for s in sequences if target.pending(s)]:
        target.prefill(waiting, chunk)
    return sequences


def branches(rng: random.Random) -> list[list[int]]:
    """A few random paths that share prefixes now and then; sometimes none."""
    return [
        [rng.randrange(2, 5) for _ in range(rng.randrange(1, 5))] for _ in range(rng.randrange(4))
    ]


def check_scores(name: str, target: ModelTarget, rows: list[Sequence], paths: Any) -> Any:
    """Score trees; every slot's logits must be those of its path alone."""
    trees = from_paths(paths, CPU)
    scores = target.score(rows, trees)
    for b, (sequence, contexts) in enumerate(zip(rows, trees.contexts(), strict=True)):
        for slot in range(trees.counts[b] + 1):
            close(scores.logits[b, slot], own(name, sequence.tokens + contexts[slot])[-1])
    return trees


@pytest.mark.parametrize(("name", "kind"), SERVED)
def test_every_path_of_a_tree_equals_it_alone(served: Any, name: str, kind: str) -> None:
    target = ModelTarget(served(name, kind), slots=3, max_length=48, nodes=9)
    rows = started(target, texts(9, 2, 14))
    paths = [[[3, 4, 5], [3, 6], [7]], [[2, 2]], [[9, 8], [9, 7, 4, 3]]]
    check_scores(name, target, rows, paths)  # neighbouring slots, read as views
    check_scores(name, target, [rows[2], rows[0]], [paths[2], paths[0]])  # not neighbours
    check_scores(name, target, [rows[1]], [paths[1]])  # one row after others
    deep = [[7], [6], [3, 4, 5, 3, 4, 5, 6]]  # cells run ahead of positions: a window's edge
    check_scores(name, target, [rows[0], rows[1]], [deep, [[2]]])
    check_scores(name, target, rows, [[], [], []])  # plain decoding
    check_scores(name, target, rows[2:], [[]])  # a pass that may need no mask


@pytest.mark.parametrize(("name", "kind"), SERVED)
def test_commits_leave_the_cache_of_a_fresh_prefill(served: Any, name: str, kind: str) -> None:
    rng = random.Random(3)
    target = ModelTarget(served(name, kind), slots=3, max_length=48, nodes=16)
    rows = started(target, texts(6, 1, 11))
    for turn in range(5):
        asked = rng.sample(rows, rng.randrange(1, len(rows) + 1))
        trees = check_scores(name, target, asked, [branches(rng) for _ in asked])
        chosen = []
        for b, sequence in enumerate(asked):
            path: list[int] = []
            while children := [
                i + 1
                for i in range(trees.counts[b])
                if trees.parent_slots[b, i] == (path[-1] if path else 0) and rng.random() < 0.7
            ]:
                path.append(rng.choice(children))
            chosen.append(path)
            accepted = [int(trees.tokens[b, slot - 1]) for slot in path]
            sequence.tokens += [*accepted, rng.randrange(2, VOCAB)]
        target.commit(asked, chosen)
        if turn == 2:  # a hole is filled by the last slot, a newcomer takes a used one
            target.end(rows.pop(0))
            rows += started(target, texts(7, seed=5))
    fresh = ModelTarget(served(name, kind), slots=3, max_length=48, nodes=16)
    again = started(fresh, [s.tokens for s in rows], chunk=50)
    close(target.score(rows, empty(3, CPU)).logits, fresh.score(again, empty(3, CPU)).logits)
    for old, new in zip(rows, again, strict=True):
        for layer in (0, target.layers - 1):
            for mine, theirs in zip(target.kv(old, layer), fresh.kv(new, layer), strict=True):
                close(mine, theirs)


@pytest.mark.parametrize(("name", "kind"), SERVED)
def test_states_head_and_embedding(served: Any, name: str, kind: str) -> None:
    model: CausalLM = served(name, kind)
    rows = texts(5, 8)
    memory = model.new_cache(2, 32)
    slots = [memory.acquire(0), memory.acquire(1)]
    layers = (0, 1, model.layers, -1)
    out = model.forward(chain_feed(memory, slots, rows), memory, layers)
    assert out.logits is not None and set(out.hidden) == set(layers)
    assert out.logits.shape == (2, 1, model.vocab_size) and model.vocab_size == VOCAB
    for b, row in enumerate(rows):
        close(out.logits[b, 0], own(name, row)[-1])
        close(model.head(out.hidden[-1][b, : len(row)]), own(name, row))
        theirs = original(name)(input_ids=torch.tensor([row]), output_hidden_states=True)
        for layer in (0, 1):
            close(out.hidden[layer][b, : len(row)], theirs.hidden_states[layer][0])
        close(out.hidden[-1][b, : len(row)], theirs.hidden_states[-1][0])
    decoder = original(name).get_decoder()
    norm = next(m for key in NORMS if (m := getattr(decoder, key, None)) is not None)
    close(norm(out.hidden[model.layers]), out.hidden[-1])
    assert not torch.equal(out.hidden[model.layers], out.hidden[-1])
    assert out.hidden[-1].shape == (2, 8, model.width)

    silent = model.forward(chain_feed(memory, slots, rows, logits=False), memory)
    assert silent.logits is None and not silent.hidden


@pytest.mark.parametrize(("name", "kind"), SERVED)
def test_an_embedding_in_place_of_a_token(served: Any, name: str, kind: str) -> None:
    model: CausalLM = served(name, kind)
    memory = model.new_cache(1, 16)
    feed = tree_feed(memory, [memory.acquire(0)], [5], from_paths([[[6, 7]]], CPU))
    feed.replaced = (torch.tensor([[False, True, False]]), model.embed(torch.full((1, 3), 9)))
    out = model.forward(feed, memory)
    assert out.logits is not None
    close(out.logits[0], own(name, [5, 9, 7]))


@pytest.mark.parametrize(("name", "kind"), SERVED)
def test_a_context_may_be_full(served: Any, name: str, kind: str) -> None:
    """Nodes beyond the longest context are scored to no purpose, but must not break the pass."""
    model: CausalLM = served(name, kind)
    target = ModelTarget(model, slots=2, max_length=model.max_length, nodes=4)
    rows = started(target, texts(model.max_length, 5), chunk=100)
    scores = target.score(rows, from_paths([[[2, 3, 4]], [[2, 3]]], CPU))
    close(scores.logits[0, 0], own(name, rows[0].tokens)[-1])
    close(scores.logits[1, 2], own(name, [*rows[1].tokens, 2, 3])[-1])


@pytest.mark.parametrize(("name", "kind"), SERVED)
def test_what_it_says_of_itself(served: Any, name: str, kind: str) -> None:
    model: CausalLM = served(name, kind)
    assert model.levels >= set("abcdf") and model.layers == 3 and model.width == 32
    assert model.dtype == torch.float64 and model.device == CPU
    assert model.max_length == (48 if name == "phi3-longrope" else 64)
    assert model.eos_ids == {1}
    assert model.parameters == sum(p.numel() for p in original(name).parameters())


def test_states_of_another_width_than_embeddings_lose_level_c() -> None:
    config = FAMILIES["opt"]()
    config.word_embed_proj_dim = 16
    model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    served = HFModel(model)
    assert served.levels == set("abdf")
    [row] = started(target := ModelTarget(served, 1, 32), texts(7))
    trees = from_paths([[[3, 4], [5]]], CPU)
    text = torch.tensor([[*row.tokens, 3, 4]])
    want = model(input_ids=text, use_cache=False).logits[0, -3:]
    close(target.score([row], trees).logits[0, :3], want)
    memory = served.new_cache(2, 16)
    slots = [memory.acquire(0), memory.acquire(1)]
    out = served.forward(chain_feed(memory, slots, [text[0, :-2].tolist(), *text.tolist()]), memory)
    assert out.logits is not None
    close(out.logits[:, 0], want[[0, 2]])


def test_experts_that_have_no_float64_are_refused_with_the_remedy() -> None:
    config = FAMILIES["mixtral"]()
    config._experts_implementation = "grouped_mm"
    model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    with pytest.raises(ForetokenError, match="experts_implementation='eager'") as caught:
        HFModel(model)
    assert_sentence(str(caught.value), "MixtralForCausalLM")


def test_the_head_is_read_beside_a_pass() -> None:
    """A drafter that learns on another thread takes nothing from the pass, nor the pass from it."""
    model = HFModel(tf.LlamaForCausalLM(tf.LlamaConfig(**SMALL)).eval())
    states = torch.randn(40, model.width)
    texts = [[3, 4, 5, 6]]

    def passed() -> Any:
        cache = model.new_cache(1, 16)
        return model.forward(chain_feed(cache, [cache.acquire(0)], texts), cache, (0, -1))

    with torch.no_grad():
        want, said = passed(), model.head(states)
        with ThreadPoolExecutor(1) as beside:
            over = Event()

            def reads() -> int:
                many = 0
                with torch.no_grad():
                    while not over.is_set():
                        assert torch.equal(model.head(states), said)
                        many += 1
                return many

            job = beside.submit(reads)
            try:
                for _ in range(300):
                    got = passed()
                    assert torch.equal(got.logits, want.logits)
                    assert all(torch.equal(got.hidden[i], want.hidden[i]) for i in (0, -1))
            finally:
                over.set()
            assert job.result() > 30
    assert "forward" not in vars(model.model.model)


def test_states_of_another_threads_pass_are_not_taken() -> None:
    """Which may be that of a drafter that learns."""
    model = HFModel(tf.LlamaForCausalLM(tf.LlamaConfig(**SMALL)).eval())
    states = dict[int, Tensor]()

    def passed() -> None:
        with torch.inference_mode():
            model.model(torch.tensor([[3, 4]]))

    with model._taps((0, 1, -1), states), ThreadPoolExecutor(1) as beside:
        beside.submit(passed).result()
        assert not states
        passed()
    assert {*states} == {0, 1, -1}


def test_embeddings_that_tokens_are_known_by() -> None:
    """A model that looks for an embedding's token has none for those that are no token's."""
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**SMALL)).eval()
    assert "d" in HFModel(model).levels
    forward, table = model.model.forward, model.get_input_embeddings().weight

    def known(input_ids: Any = None, inputs_embeds: Any = None, **options: Any) -> Any:
        if input_ids is None:
            same = (inputs_embeds[:, :, None] == table).all(-1)
            assert same.any(-1).all()
            input_ids = same.int().argmax(-1)
        return forward(input_ids=input_ids, **options)

    model.model.forward = known
    assert "d" not in HFModel(model).levels


@pytest.mark.parametrize("tied", [False, True])
def test_the_bytes_that_a_pass_reads(tied: bool) -> None:
    """All matrices, but of an embedding a row, unless it is the head too."""
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**SMALL, tie_word_embeddings=tied)).eval()
    matrices = sum(weight.nbytes for weight in model.parameters() if weight.ndim > 1)
    table = model.get_input_embeddings().weight.nbytes
    assert HFModel(model).bytes_read == matrices - (0 if tied else table)


def test_the_users_model_stays_as_it_was() -> None:
    model = tf.AutoModelForCausalLM.from_config(FAMILIES["gpt2"](), dtype=torch.float64)
    model.train()
    model.transformer.h[0].eval()
    before = [m.training for m in model.modules()]
    served = HFModel(model)
    memory = served.new_cache(1, 8)
    feed = chain_feed(memory, [memory.acquire(0)], [[3, 4]])
    first, second = served.forward(feed, memory, (-1,)), served.forward(feed, memory, (-1,))
    assert first.logits is not None and second.logits is not None
    assert torch.equal(first.logits, second.logits), "dropout was on"
    assert [m.training for m in model.modules()] == before
    assert "forward" not in vars(model.transformer)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_is_served(tmp_path: Path, dtype: torch.dtype) -> None:
    original("mixtral").save_pretrained(tmp_path)
    model = load.load_model(tmp_path, dtype=dtype, device="cpu", model_impl="transformers")
    assert model.dtype == dtype and model.new_cache(1, 4).dtype == dtype


@pytest.mark.parametrize("name", ["gpt2", "mixtral", "llama"])
def test_a_checkpoint_folder(tmp_path: Path, name: str) -> None:
    original(name).save_pretrained(tmp_path, max_shard_size="20KB")
    model = load.load_model(tmp_path, dtype="float64", device="cpu", model_impl="transformers")
    assert model.backend == "transformers"
    [row] = started(target := ModelTarget(model, 1, 32), texts(7))
    check_scores(name, target, [row], [[[3, 4], [5]]])


TINY = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
REFUSED: dict[str, tuple[Any, str, str]] = {
    "bloom": (
        lambda: tf.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4),
        "ALiBi",
        "rotary or learned positions",
    ),
    "mpt": (
        lambda: tf.MptConfig(vocab_size=VOCAB, d_model=32, n_layers=2, n_heads=4),
        "ALiBi",
        "rotary or learned positions",
    ),
    "falcon-alibi": (
        lambda: tf.FalconConfig(**TINY, alibi=True),
        "ALiBi",
        "rotary or learned positions",
    ),
    "mamba": (
        lambda: tf.MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2),
        "recurrent state|more than keys and values",
        "use a model with",
    ),
    "recurrent-gemma": (
        lambda: tf.RecurrentGemmaConfig(**TINY, intermediate_size=48, lru_width=32),
        "recurrent state|more than keys and values",
        "use a model with",
    ),
    "qwen3-next": (
        lambda: tf.Qwen3NextConfig(
            **SMALL,
            num_experts=2,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
        ),
        "more than keys and values",
        "use a model with full",
    ),
    "gpt-neo": (
        lambda: tf.GPTNeoConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
        ),
        "local attention",
        "use a model with full attention",
    ),
    "openai-gpt": (
        lambda: tf.OpenAIGPTConfig(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4),
        "not every layer puts keys and values",
        "use a model with ordinary attention",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_refused_with_a_sentence(name: str) -> None:
    config, why, instead = REFUSED[name]
    with torch.inference_mode(False):
        model = tf.AutoModelForCausalLM.from_config(config(), dtype=torch.float64)
    with pytest.raises(ForetokenError, match=why) as caught:
        HFModel(model)
    assert_sentence(str(caught.value), type(model).__name__, instead)


def assert_sentence(message: str, *parts: str) -> None:
    assert "\n" not in message and message.endswith(".")
    for part in parts:
        assert part in message


def test_an_encoder_decoder_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    tf.T5Config(vocab_size=VOCAB, d_model=32, num_layers=2).save_pretrained(tmp_path)
    with pytest.raises(ForetokenError, match="encoder-decoder and can't be served") as caught:
        load.load_model(tmp_path, device="cpu", model_impl="transformers")
    assert_sentence(str(caught.value), str(tmp_path))


def test_a_family_without_a_causal_language_model(tmp_path: Path) -> None:
    """Its files are whole, so fetching them again helps nobody."""
    tf.Mistral3Config().save_pretrained(tmp_path)
    with pytest.raises(ForetokenError, match="no causal language model of its family") as caught:
        load.load_model(tmp_path, device="cpu")
    assert_sentence(str(caught.value), str(tmp_path), "'mistral3'", "text alone")


def test_a_package_that_is_missing_is_all_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPTQ, AWQ and others ask for theirs by name."""

    def lacks(*_: Any, **__: Any) -> Any:
        raise ImportError("Loading this requires optimum (`pip install optimum`)")

    original("gpt2").save_pretrained(tmp_path)
    monkeypatch.setattr(tf.GPT2LMHeadModel, "from_pretrained", lacks)
    with pytest.raises(ForetokenError, match=r": .* \(`pip install optimum`\)\.$") as caught:
        load.load_model(tmp_path, device="cpu")
    assert_sentence(str(caught.value), str(tmp_path))


def test_attention_that_ignores_the_mask_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = original("gpt2")
    forward = type(model.transformer).forward

    def deaf(self: Any, *args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(model.transformer), "forward", deaf)
    with pytest.raises(ForetokenError, match="other logits than its paths") as caught:
        HFModel(model)
    assert_sentence(str(caught.value), "GPT2LMHeadModel", "use a model with")


def test_positions_that_are_ignored_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = original("llama")
    forward = type(model.model).forward

    def deaf(self: Any, *args: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(model.model), "forward", deaf)
    with pytest.raises(ForetokenError, match="can't be served") as caught:
        HFModel(model)
    assert_sentence(str(caught.value), "LlamaForCausalLM")


def test_attention_without_a_mask_is_refused() -> None:
    config = FAMILIES["llama"]()
    model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(ForetokenError, match="attn_implementation='sdpa'"):
        HFModel(model)


def test_broken_checkpoints_are_one_sentence(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    original("gpt2").save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    tensors = {name: tensor.clone() for name, tensor in load_file(weights).items()}

    def refused(match: str) -> None:
        with pytest.raises(ForetokenError, match=match) as caught:
            load.load_model(tmp_path, device="cpu")
        assert_sentence(str(caught.value), str(tmp_path))

    weights.write_bytes(whole[: len(whole) // 2])
    refused("fetch it again")
    del tensors["transformer.h.1.mlp.c_fc.weight"]
    save_file(tensors, weights, {"format": "pt"})
    refused("h.1.mlp.c_fc.weight")
    weights.unlink()
    refused("fetch it again")
