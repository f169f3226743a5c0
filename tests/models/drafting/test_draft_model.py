"""A model that drafts: every pass of it against a pass over the whole text from scratch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor
from transformers import BartConfig, BartForConditionalGeneration, dynamic_module_utils

import gguf_files
import seq2seq_models
import stored_models
from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.small_lm import SmallLM
from foretoken.models.budget import CacheBudget
from foretoken.models.drafting.draft_model import UNUSED, DraftModel, as_causal_lm
from foretoken.models.hf.adapter import HFModel
from foretoken.models.load import load_model
from foretoken.models.model import CausalLM
from foretoken.protocols import Step
from foretoken.sampling.sequence import Sequence
from foretoken.testing import (
    TableModel,
    logits_after,
    native,
    related,
    serve,
    tiny_transformers,
)
from foretoken.tree import empty
from foretoken.trees.from_lists import from_paths
from foretoken.trees.grow import Grower
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly
from stored_models import original, with_code

CPU = torch.device("cpu")
TEXTS = [[5, 9, 2, 5, 9, 2, 5], [40, 3, 3], [11, 7, 7, 1, 2]]


def windowed(length: int = 64, heads: int = 4) -> Any:
    """A model in which a token sees the last four places only."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=-(-heads // 2),
        max_position_embeddings=length,
        sliding_window=4,
    )
    return MistralForCausalLM(config).double().eval()


MODELS = {
    "native": lambda: native(tiny_transformers()),
    "window": lambda: native(windowed()),
    "adapter": lambda: HFModel(tiny_transformers()),
    "table": lambda: TableModel.random(97, 3),
}


def started(model: CausalLM, texts: list[list[int]] = TEXTS) -> tuple[DraftModel, list[Sequence]]:
    """A draft model that serves these texts, in other slots than their order."""
    access: Any = SimpleNamespace(
        vocab_size=97, max_length=60, slots=3, backend="plain", budget=CacheBudget(), opening=()
    )
    drafting = DraftModel(model, access)
    sequences = [Sequence.start(text, SamplingParams()) for text in texts]
    for sequence in reversed(sequences):
        drafting.begin(sequence)
    return drafting, sequences


@pytest.mark.parametrize("kind", MODELS)
@torch.inference_mode()
def test_a_level_is_a_pass_over_its_paths(kind: str) -> None:
    """Each frontier's logits, in ragged rows, are those of the path from scratch; twice over."""
    model = MODELS[kind]()
    drafting, sequences = started(model)
    passes = 0
    forward = drafting.lm.forward

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal passes
        passes += 1
        return forward(*args, **options)

    drafting.lm.forward = counted  # type: ignore[method-assign]
    for _ in range(2):
        grower = Grower(len(sequences), CPU)
        for widths in ([2], [1, 2], [2, 0, 1], [1, 1, 1]):
            grower.only([place for place, width in enumerate(widths) if width])
            frontier = grower.frontier
            logits = drafting.level(sequences, frontier)
            for b, paths in enumerate(frontier.contexts()):
                for m, path in enumerate(paths):
                    whole = logits_after(model, [*sequences[b].tokens, *path])
                    passes -= 1
                    torch.testing.assert_close(logits[b, m], whole, atol=1e-9, rtol=0)
            grower.choose(logits.softmax(-1), [width for width in widths if width])
        assert passes == 4
        passes = 0
        for sequence in sequences:
            sequence.tokens += [3, 8]
            tree: Any = None
            drafting.follow([sequence], [Step([3, 8], [], 9, 0, tree, tree)])


@pytest.mark.parametrize("kind", MODELS)
@torch.inference_mode()
def test_scores_of_trees_behind_ragged_texts(kind: str) -> None:
    """As a target: rows that lack unlike numbers of tokens, a tree, a chain, and the next step."""
    model = MODELS[kind]()
    drafting, sequences = started(model)
    drafting.prefill(sequences[:1], 9)
    drafting.prefill(sequences[2:], 2)
    for paths in ([[4, 6], [4, 7], [8]], [[1, 2, 3]]):
        trees = from_paths([paths, paths[:1], [[9]]], CPU)
        logits = drafting.score(sequences, trees).logits
        assert logits is not None and logits.shape[1] == trees.nodes + 1
        for b, contexts in enumerate(trees.contexts()):
            for slot in range(trees.counts[b] + 1):
                whole = logits_after(model, [*sequences[b].tokens, *contexts[slot]])
                torch.testing.assert_close(logits[b, slot], whole, atol=1e-9, rtol=0)
        path = [1, 2] if len(paths) == 1 else [3]
        for b, sequence in enumerate(sequences):
            kept = path if b == 0 else [1]
            sequence.tokens += [*(int(trees.tokens[b, slot - 1]) for slot in kept), 50]
        drafting.commit(sequences, [path, [1], [1]])
        sequences[2].tokens.append(12)  # written by somebody else
    assert drafting.score(sequences, empty(3, CPU)).logits is not None


@torch.inference_mode()
def test_follows_what_is_accepted() -> None:
    """Of a chain the accepted tokens stay, and nothing after them; a prompt comes in chunks."""
    model = MODELS["native"]()
    drafting, [sequence] = started(model, [list(range(1, 40))])
    tree: Any = None
    drafting.follow([sequence], [Step([], [], 0, 0, tree, tree)])
    assert drafting.pending(sequence) == 0
    drafting.root_logits([sequence])
    for token in (7, 8, 9):
        drafting.next_logits([sequence], torch.tensor([token]))
    sequence.tokens += [7, 20]
    drafting.follow([sequence], [Step([7, 20], [1], 4, 0, tree, tree)])
    assert drafting.pending(sequence) == 0
    whole = logits_after(model, sequence.tokens)
    torch.testing.assert_close(drafting.root_logits([sequence])[0, 0], whole, atol=1e-9, rtol=0)


@torch.inference_mode()
def test_a_shorter_context_ends_drafting() -> None:
    """Where the draft model's context ends there is no room, and reading stops."""
    model = TableModel(TableModel.random(97).table, max_length=8)
    drafting, [sequence] = started(model, [list(range(12))])
    assert drafting.room(sequence) == 0
    tree: Any = None
    for _ in range(2):
        drafting.follow([sequence], [Step([], [], 0, 0, tree, tree)])
    assert drafting.pending(sequence) == 3  # of twelve tokens eight were read
    del sequence.tokens[7:]
    assert drafting.room(sequence) == 2


@pytest.mark.parametrize("kind", MODELS)
@torch.inference_mode()
def test_prompts_are_read_together(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of all prompts in one pass, which is bounded; where nothing is missing, no pass."""
    monkeypatch.setattr("foretoken.models.drafting.draft_model._CHUNK", 24)
    model, tree = MODELS[kind](), None
    texts = [list(range(1, 45)), [7, 7, 3], list(range(60, 80)), [11]]
    access: Any = SimpleNamespace(
        vocab_size=97, max_length=60, slots=4, backend="plain", budget=CacheBudget(), opening=()
    )
    drafting = DraftModel(model, access)
    sequences = [Sequence.start(text, SamplingParams()) for text in texts]
    for sequence in reversed(sequences):
        drafting.begin(sequence)
    sizes: list[tuple[int, int]] = []
    forward = drafting.lm.forward

    def counted(feed: Any, *rest: Any) -> Any:
        sizes.append(tuple(feed.tokens.shape))
        return forward(feed, *rest)

    drafting.lm.forward = counted  # type: ignore[method-assign]
    steps: Any = [Step([], [], 0, 0, tree, tree)] * 4  # type: ignore[arg-type]
    drafting.follow(sequences, steps)
    assert sizes == [(3, 6)] and [drafting.pending(s) for s in sequences] == [37, 0, 13, 0]
    logits = drafting.root_logits(sequences)
    assert sizes[1:] == [(1, 24), (4, 14)]  # the first row's missing tokens, and the rest
    drafting.follow(sequences[1:], steps[1:])
    assert len(sizes) == 3
    drafting.lm.forward = forward  # type: ignore[method-assign]
    for row, text in enumerate(texts):
        torch.testing.assert_close(logits[row, 0], logits_after(model, text), atol=1e-9, rtol=0)


@torch.inference_mode()
def test_a_pass_is_as_wide_as_the_budget_has_it() -> None:
    """What a window keeps, and a request reserves, is reckoned for passes of so many tokens."""
    budget = CacheBudget(widest=32)
    access: Any = SimpleNamespace(
        vocab_size=97, max_length=1000, slots=1, backend="plain", budget=budget, opening=()
    )
    drafting = DraftModel(native(windowed(1024, heads=1)), access)
    sequence = Sequence.start([5] * 513, SamplingParams())
    drafting.begin(sequence)
    tree: Any = None
    while drafting.pending(sequence):
        drafting.follow([sequence], [Step([], [], 0, 0, tree, tree)])
        assert budget.written <= budget.needs(513)


@pytest.mark.parametrize("size", [94, 100])
@torch.inference_mode()
def test_logits_have_the_targets_width(size: int) -> None:
    """Of every kind of pass; a token that one of them lacks has no mass or no place, and is read as
    the last one."""
    access: Any = SimpleNamespace(
        vocab_size=97, max_length=60, slots=3, backend="plain", budget=CacheBudget(), opening=()
    )
    model = native(tiny_transformers(size))
    drafting = DraftModel(model, access)
    sequence = Sequence.start([5, 96, 9], SamplingParams())
    drafting.begin(sequence)
    known = min(size, 97)

    def right(logits: Tensor, text: list[int]) -> bool:
        whole = logits_after(model, [min(token, size - 1) for token in text])
        torch.testing.assert_close(logits[:known], whole[:known], atol=1e-9, rtol=0)
        return logits.shape == (97,) and bool((logits[known:] == -torch.inf).all())

    assert right(drafting.root_logits([sequence])[0, 0], [5, 96, 9])
    assert right(drafting.next_logits([sequence], torch.tensor([96]))[0, 0], [5, 96, 9, 96])
    drafting.keep(sequence, 1)
    trees = from_paths([[[96, 4], [3]]], CPU)
    scores = drafting.score([sequence], trees).logits
    assert scores is not None
    for slot, path in enumerate(trees.contexts()[0]):
        assert right(scores[0, slot], [5, 96, 9, *path])
    drafting.keep(sequence, 1)
    blocks = drafting.block([sequence], model.embed(torch.tensor([2, 1])))
    assert right(blocks[0, 0], [5, 96, 9]) and right(blocks[0, 2], [5, 96, 9, 2, 1])


def test_another_vocabulary_is_refused() -> None:
    """Both sizes are named."""
    access: Any = SimpleNamespace(
        vocab_size=354, max_length=60, slots=3, backend="plain", budget=CacheBudget(), opening=()
    )
    with pytest.raises(ForetokenError, match="97 tokens and the target's 354"):
        DraftModel(TableModel.random(97), access)
    access.vocab_size = 97 + UNUSED
    assert DraftModel(TableModel.random(97), access).vocab_size == 353


@pytest.mark.parametrize("method", ["sps", "cs_drafting", "specinfer"])
def test_code_that_comes_with_a_draft_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """It runs where the target's may, and is refused by the option's name where it may not."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder, target = with_code(tmp_path / "draft"), native(original("llama"))
    key = "models" if method == "specinfer" else "model"
    config = {"method": method, key: [folder] if key == "models" else folder}
    with pytest.raises(ForetokenError, match="trust_remote_code=True"):
        LLM(target, speculative_config=config, max_model_len=64)
    llm = LLM(target, speculative_config=config, max_model_len=64, trust_remote_code=True)
    plain = LLM(target, max_model_len=64)
    params = SamplingParams(temperature=0, max_tokens=12)
    [drafted], [expected] = (each.generate([[1, 2, 3]], params) for each in (llm, plain))
    assert drafted.outputs[0].token_ids == expected.outputs[0].token_ids
    assert llm.stats.accepted > 0 and llm.trust_remote_code


def test_how_a_draft_model_runs(tmp_path: Path) -> None:
    """As its target does, where that was asked for; else as `auto` has it for its own file; or as
    it is told. A model that is loaded already isn't loaded again."""
    folder = str(stored_models.written(tmp_path / "a", vocab_size=gguf_files.VOCAB))
    file = str(gguf_files.written(tmp_path / "a.gguf", "llama", GGMLQuantizationType.Q4_0))
    automatic = load_model(folder, device="cpu").backend
    lying = load_model(file, device="cpu").backend
    for model, target, told, expected in (
        (folder, "plain", None, "plain"),
        (folder, "blocks", None, automatic),
        (file, automatic, None, lying),
        (file, "plain", None, "plain"),
        (folder, "plain", "packed", "packed"),
    ):
        access: Any = SimpleNamespace(
            backend=target,
            dtype=torch.float32,
            device=CPU,
            trust_remote_code=False,
            opening=(),
        )
        assert as_causal_lm(model, access, told).backend == expected  # type: ignore[attr-defined]
    with pytest.raises(ForetokenError, match="'packed', and the draft model is loaded already"):
        as_causal_lm(load_model(folder), access, "packed")


@pytest.mark.parametrize("method", ["sps", "specinfer", "cs_drafting", "tli", "slem"])
def test_every_method_with_a_draft_model_takes_its_backend(method: str) -> None:
    config = {"method": method, "model": "mini-draft", "draft_backend": "plain"}
    llm = LLM("mini", speculative_config=config, device="cpu")
    [small] = llm.engine.drafter.small_models
    assert small.backend == "plain" != llm.model.backend


def test_a_source_that_is_longer_than_the_context() -> None:
    """An encoder–decoder's text then goes on without drafts, and those beside it with them."""
    ids: dict[str, Any] = {"vocab_size": seq2seq_models.VOCAB, "eos_token_id": seq2seq_models.EOS}
    ids |= {"pad_token_id": seq2seq_models.PAD, "max_position_embeddings": 16}
    small = BartForConditionalGeneration(BartConfig(**{**seq2seq_models._BART, **ids}))
    small.generation_config.forced_bos_token_id = 2
    made = seq2seq_models.native_of(small.double().eval())
    target = seq2seq_models.native_of(seq2seq_models.tiny("bart"))
    sources = [[5] * 30 + [seq2seq_models.EOS], [5, 6, seq2seq_models.EOS]]
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    plain = serve(target, Nothing(), TargetOnly(), sources, params)
    outs = serve(target, SmallLM(made, 3), Speculative(), sources, params)
    assert [out.error for out in outs] == [None, None]
    assert [out.token_ids for out in outs] == [out.token_ids for out in plain]
    assert [out.stats.drafted > 0 for out in outs] == [False, True]


@pytest.mark.parametrize(("written", "pending"), [(4, 0), (500, 5)])
@torch.inference_mode()
def test_a_copy_has_what_was_read_of_its_prompt(written: int, pending: int) -> None:
    """Nothing of what the other text has gone on with, and nothing at all where the windows have
    passed its prompt."""
    access: Any = SimpleNamespace(
        vocab_size=97, max_length=1000, slots=2, backend="plain", budget=CacheBudget(), opening=()
    )
    model, prompt = native(windowed(1024, heads=1)), [5, 9, 2, 40, 3, 17]
    drafting = DraftModel(model, access)
    one, copy = (Sequence.start(prompt, SamplingParams()) for _ in range(2))
    for sequence in (one, copy):
        drafting.begin(sequence)
    one.tokens += [place % 90 for place in range(written)]
    while drafting.pending(one):
        drafting.prefill([one], 64)
    drafting.fork(one, copy)
    assert drafting.pending(copy) == pending
    whole = logits_after(model, prompt)
    torch.testing.assert_close(drafting.root_logits([copy])[0, 0], whole, atol=1e-9, rtol=0)


@torch.inference_mode()
def test_another_model_reads_texts_anew() -> None:
    """What the one before it has left in the cache isn't its own."""
    text, other = [5, 9, 2, 40], native(related(tiny_transformers(), 0.1))
    drafting, _ = started(MODELS["native"](), [])

    def read() -> tuple[int, Tensor]:
        sequence = Sequence.start(text, SamplingParams())
        sequence.salt, sequence.reusable = "", len(text) - 1
        drafting.begin(sequence)
        pending, logits = drafting.pending(sequence), drafting.root_logits([sequence])[0, 0]
        drafting.end(sequence)
        return pending, logits

    assert [read()[0] for _ in range(2)] == [3, 0]
    drafting.replace(other)
    pending, logits = read()
    assert pending == 3
    torch.testing.assert_close(logits, logits_after(other, text), atol=1e-9, rtol=0)


@torch.inference_mode()
def test_scores_of_a_short_text_beside_one_that_lacks_much() -> None:
    """A row has no more tokens before its root than the shortest text."""
    model = MODELS["native"]()
    drafting, sequences = started(model, [[7], list(range(1, 12))])
    trees = from_paths([[[4, 6]], [[9]]], CPU)
    logits = drafting.score(sequences, trees).logits
    assert logits is not None
    for b, contexts in enumerate(trees.contexts()):
        for slot in range(trees.counts[b] + 1):
            whole = logits_after(model, [*sequences[b].tokens, *contexts[slot]])
            torch.testing.assert_close(logits[b, slot], whole, atol=1e-9, rtol=0)
