"""The bundled models load, stop and stay small; the recipe that made them does what it says."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from foretoken import zoo
from foretoken.bench.suites import data
from foretoken.zoo.inflate import Shape, parameters_read

transformers = pytest.importorskip("transformers")
RECIPES = Path(__file__).parents[2] / "recipes" / "zoo"
SIX = {"chat", "translation", "summarization", "qa", "math", "rag"}


@pytest.fixture(autouse=True)
def recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe's files are scripts beside one another, not a package."""
    monkeypatch.syspath_prepend(str(RECIPES))
    yield
    ours = {p.stem for p in RECIPES.glob("*.py")}
    for name in ours & set(sys.modules):
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(RECIPES)):
            del sys.modules[name]


def prompts() -> list[dict]:
    return [json.loads(line) for line in zoo.prompts_path().read_text("utf-8").splitlines()]


def test_names_and_paths() -> None:
    assert zoo.names() == [
        "mini",
        "mini-dflash",
        "mini-draft",
        "mini-eagle",
        "mini-eagle3",
        "mini-hydra",
        "mini-medusa",
        "mini-mtp",
    ]
    assert (zoo.path("mini") / "model.safetensors").exists()
    with pytest.raises(ValueError, match="Did you mean 'mini-draft'"):
        zoo.path("mini_draft")


def test_bundle_is_small_and_names_no_machine() -> None:
    files = [f for f in zoo.path("mini").parent.rglob("*") if f.is_file()]
    assert sum(f.stat().st_size for f in files) <= 40 * 2**20
    for file in files:
        if file.suffix in {".json", ".md", ".jinja"} and file.name != "tokenizer.json":
            text = file.read_text("utf-8")
            assert "/tmp/" not in text and "/work" not in text and "/home/" not in text


def test_every_card_names_its_licence_and_sources() -> None:
    """Each bundled model's card names its licence and every text that it was made from."""
    sources = (Path(__file__).parents[2] / "zoo" / "ATTRIBUTION.md").read_text("utf-8").strip()
    for name in zoo.names():
        card = (zoo.path(name) / "README.md").read_text("utf-8")
        assert "\nlicense: cc-by-sa-4.0\n" in card.split("---")[1], name
        assert "## Licence\n" in card and sources in card, name


def test_bundling_puts_the_licence_in_place_of_the_note() -> None:
    """What `foretoken train` writes in a card on licences gives way to the bundled models' own."""
    import bundle

    from foretoken.train.card import licence_lines

    written = ["# x", "", *licence_lines("mini"), "", "## Recipe", "", "    steps: 1", ""]
    card = bundle.bundled_card("\n".join(written), "mini-x")
    assert card.count("## Licence\n") == 1 and "before it is shared" not in card
    assert "## Recipe\n\n    steps: 1\n" in card and "CC BY-SA" in card


def test_drafter_fits_its_target() -> None:
    draft, target = (zoo.path(n) for n in ("mini-draft", "mini"))
    assert (draft / "tokenizer.json").read_bytes() == (target / "tokenizer.json").read_bytes()
    read = [
        parameters_read(Shape.of(json.loads((f / "config.json").read_text())))
        for f in (draft, target)
    ]
    assert read[0] <= read[1] / 10


def test_target_answers_and_stops() -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(zoo.path("mini"))
    model = transformers.AutoModelForCausalLM.from_pretrained(zoo.path("mini"), dtype=torch.float32)
    assert len(tokenizer) == model.config.vocab_size == 8192
    asked = [p["turns"][0] for p in prompts() if p["task"] in ("chat", "translation")][:24:2]
    stopped = 0
    for text in asked:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_tensors="pt"
        )["input_ids"]
        said = model.generate(ids, max_new_tokens=48, do_sample=False)[0, ids.shape[1] :]
        stopped += int(said[-1] == tokenizer.eos_token_id)
    assert stopped >= len(asked) - 1


def test_chat_template_holds_several_turns() -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(zoo.path("mini"))
    turns = [("user", "Hi"), ("assistant", "Hello."), ("user", "Bye")]
    text = tokenizer.apply_chat_template(
        [{"role": r, "content": c} for r, c in turns], tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "<|startoftext|><|user|>Hi<|assistant|>Hello.<|endoftext|><|user|>Bye<|assistant|>"
    )
    assert tokenizer.decode(tokenizer.encode("Größe 123\n  def f(x):")) == "Größe 123\n  def f(x):"


def test_prompts_are_complete() -> None:
    found = prompts()
    assert len({p["id"] for p in found}) == len(found)
    assert set(Counter(p["task"] for p in found)) == {*SIX, "grammar"}
    assert min(Counter(p["task"] for p in found).values()) >= 10
    for p in found:
        assert p["turns"] and all(isinstance(t, str) and t.strip() for t in p["turns"])
        if p["task"] in ("summarization", "rag"):
            assert 80 <= len(p["turns"][0].split()) <= 250


@pytest.mark.skipif(data.folder() is None, reason="FORETOKEN_DATA names no folder of texts")
def test_prompts_are_not_in_the_training_text() -> None:
    import check_prompts
    import corpus

    train = corpus.default_folder() / "train.jsonl.gz"
    assert check_prompts.shared(zoo.prompts_path(), train) == []


def test_shared_runs_are_found(tmp_path: Path) -> None:
    import gzip

    import check_prompts

    text = " ".join(f"word{i}" for i in range(20))
    train = tmp_path / "train.jsonl.gz"
    with gzip.open(train, "wt") as out:
        out.write(json.dumps({"src": "a", "task": "lm", "text": f"before {text} after"}) + "\n")
    line = {"id": "x", "task": "qa", "turns": [text[: text.index("word13")]]}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(line) + "\n")
    assert len(check_prompts.shared(tmp_path / "prompts.jsonl", train)) == 1


def random_llama(seed: int = 0):
    import model

    torch.manual_seed(seed)
    config = model.Config(64, 2, heads=2, kv_heads=1, intermediate=96, vocab=256, head_dim=32)
    net = model.Llama(config)
    for name, p in net.named_parameters():
        p.data = torch.randn_like(p) * (p.shape[-1] ** -0.5) if p.dim() > 1 else p + 0.3
        assert "proj" not in name or p.abs().sum() > 0
    return net


def test_growth_keeps_the_function() -> None:
    import grow
    import model

    old = random_llama()
    new = grow.grow(old, model.Config(96, 5, 4, 2, 160, vocab=256, head_dim=32, eps=1e-6 * 64 / 96))
    ids = torch.randint(256, (3, 20))
    assert (new.logits(ids) - old.logits(ids)).abs().max() < 1e-4
    new.logits(ids).square().mean().backward()
    written = new.layers[0].self_attn.o_proj.weight.grad
    assert written is not None and written[64:].abs().max() > 0  # what is new can learn
    with pytest.raises(ValueError, match="layers shrinks"):
        grow.grow(old, model.Config(96, 1, 4, 2, 160, vocab=256, head_dim=32))


def test_export_is_the_same_function_in_transformers(tmp_path: Path) -> None:
    import model

    ours = random_llama()
    model.save_hf(ours, tmp_path, torch.float32)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.randint(256, (2, 30))
    assert (theirs(ids).logits - ours.logits(ids)).abs().max() < 1e-4
    assert (model.load_hf(tmp_path).logits(ids) - ours.logits(ids)).abs().max() == 0


def test_chunked_loss_is_cross_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    import model

    monkeypatch.setattr(model, "CHUNK", 7)
    hidden = torch.randn(20, 8, requires_grad=True)
    head = torch.randn(30, 8, requires_grad=True)
    goal, weight = torch.randint(30, (20,)), torch.rand(20)
    wanted = (F.cross_entropy(hidden @ head.t(), goal, reduction="none") * weight).sum()
    grads = torch.autograd.grad(wanted, (hidden, head))
    loss, _ = model.chunked_loss(hidden, head, goal, weight)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(torch.autograd.grad(loss, (hidden, head)), grads)


def test_chunked_divergence_is_kl() -> None:
    import distill

    hidden = torch.randn(9, 8, requires_grad=True)
    head = torch.randn(30, 8, requires_grad=True)
    t_hidden, t_head, weight = torch.randn(9, 6), torch.randn(30, 6), torch.rand(9)
    p = (t_hidden @ t_head.t()).log_softmax(-1)
    q = (hidden @ head.t()).log_softmax(-1)
    wanted = (F.kl_div(q, p, log_target=True, reduction="none").sum(-1) * weight).sum()
    grads = torch.autograd.grad(wanted, (hidden, head))
    teacher = t_hidden @ t_head.t()
    everything = torch.arange(30).expand(9, 30)
    for kernel, known in (
        (distill._kl_kernel, [lambda at: (teacher[at],)]),
        (distill._best_kernel, [everything, p.exp()]),
    ):
        loss = distill._Chunked.apply(kernel, hidden, head, weight, *known)
        torch.testing.assert_close(loss, wanted)
        torch.testing.assert_close(torch.autograd.grad(loss, (hidden, head)), grads)


def test_own_answers_come_with_their_guesses(tmp_path: Path) -> None:
    import own
    import tokenizer

    data = {task: packed(task, [20] * 9, i) for i, task in enumerate(sorted(SIX))}
    for source in data.values():
        source.tokens[source.starts[:-1] + 6] = tokenizer.ASSISTANT_ID
    own.write(random_llama(), data, 12).save(tmp_path / "own.npz")
    found = own.Own.load(tmp_path / "own.npz")
    assert len(found.starts) == 13 and found.starts[-1] == len(found.tokens)
    ids, best, chance, weight = own.OwnSampler(found, 64, seed=0).batch(3)
    assert ids.shape == weight.shape == (3, 64) and best.shape == chance.shape == (3, 64, 16)
    assert float(weight.sum()) == pytest.approx(1.0, abs=1e-4)
    asked = weight[0] < weight[0].max() / 2  # a prompt's places hold their own token alone
    assert bool((chance[0, asked][:, 0] == 1).all())
    assert torch.equal(best[0, :-1, 0][asked[:-1]], ids[0, 1:][asked[:-1]])


def test_corruptor_always_breaks_and_keeps_the_answer() -> None:
    import grammar

    rng = random.Random(0)
    clean = "The children are playing in the garden with their old friends."
    broken = [grammar.corrupt(clean, rng) for _ in range(200)]
    assert clean not in broken and len(set(broken)) > 50
    for record in grammar.pairs([clean, "Too short.", "no capital here at all, is there now."], 5):
        asked, answer = (m["content"] for m in record["messages"])
        assert answer == clean and clean not in asked


def packed(task: str, lengths: list[int], seed: int):
    import corpus

    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    tokens = rng.integers(5, 100, starts[-1]).astype(np.uint16)
    answer = np.zeros(starts[-1], np.uint8)
    for lo, hi in pairwise(starts):
        tokens[lo], tokens[hi - 1], answer[hi - 3 : hi] = 1, 0, 1
    return corpus.Packed(task, tokens, answer, starts)


def test_batches_are_full_and_weighted() -> None:
    import batches

    sources = {"a": packed("qa", [20] * 50, 0), "b": packed("lm", [300] * 3, 1)}
    sampler = batches.Sampler(sources, {"qa": 0.7, "lm": 0.3}, 128, seed=0)
    share = []
    for _ in range(30):
        ids, goal, weight = sampler.batch(4)
        assert ids.shape == goal.shape == weight.shape == (4, 128)
        assert torch.equal(ids[:, 1:], goal[:, :-1])
        assert float(weight.sum()) == pytest.approx(1.0, abs=1e-5) and bool((weight > 0).all())
        share.append(float((ids == 1).sum()) * 20 / ids.numel())
    assert 0.5 < sum(share) / len(share) < 0.9  # about the 0.7 asked for


def test_long_records_keep_both_ends() -> None:
    import batches

    source = packed("rag", [500], 0)
    piece = batches.Sampler({"a": source}, {"rag": 1.0}, 99, seed=0)._next("a")
    assert len(piece.tokens) == 100
    assert (
        piece.tokens[0] == 1 and piece.tokens[-1] == 0 and piece.weight[-1] == batches.ENDING_WEIGHT
    )


def test_chain_counts_tokens_and_passes() -> None:
    import evaluate

    assert evaluate.chain([True] * 10, gamma=4) == (10, 2)
    assert evaluate.chain([False] * 3, gamma=4) == (3, 3)
    assert evaluate.chain([True, False, True, True, False], gamma=4) == (5, 2)


def test_cached_answers_follow_the_model() -> None:
    import sample

    net = random_llama()
    asked = [[1, 7, 8, 9], [1, 5], [1, 9, 9, 9, 9, 9, 9]]
    for prompt, (answer, best, _) in zip(asked, sample.generate(net, asked, 6), strict=True):
        assert best[:, 0].tolist() == answer
        logits = net.logits(torch.tensor([prompt + answer]))[0, len(prompt) - 1 : -1]
        said = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        assert (logits.amax(-1) - said).max() < 0.15  # the first choice, but for bfloat16
