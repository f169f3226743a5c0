"""An inflated model predicts what the small one does, and costs what the large one costs."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from foretoken import ForetokenError, zoo
from foretoken.zoo.inflate import inflate
from foretoken.zoo.shape import Shape, parameters_read

transformers = pytest.importorskip("transformers")

TINY = {
    "vocab_size": 120,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}


def load(folder: Path) -> torch.nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def tiny(folder: Path, tied: bool) -> Path:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **TINY, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=0
    )
    model = transformers.LlamaForCausalLM(config)
    for p in model.parameters():  # larger weights than at the start, so that logits matter
        p.data = torch.randn_like(p) * 0.3 if p.dim() > 1 else torch.rand_like(p) + 0.5
    model.save_pretrained(folder)
    return folder


def compare(small: Path, large: Path, vocab: int, size: int = 24) -> None:
    a, b = load(small), load(large)
    ids = torch.randint(5, vocab, (3, size), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        x, y = a(ids).logits, b(ids).logits
        texts = [
            m.generate(ids[:1], max_new_tokens=16, do_sample=False, pad_token_id=0) for m in (a, b)
        ]
    assert (y[..., :vocab] - x).abs().max() <= 1e-5 * x.abs().max()
    if y.shape[-1] > vocab:
        assert y[..., vocab:].max() < x.min() - 50
    assert torch.equal(*texts)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(64, 5, 8, 4, 96, 160, 16),  # wider, deeper, more heads, more tokens
        Shape(128, 3, 4, 4, 160, 160, 32),  # wider heads, fewer queries a group
        Shape(48, 2, 4, 2, 80, 120, 16),  # the same shape
    ],
)
def test_logits_are_kept(tmp_path: Path, shape: Shape, tied: bool) -> None:
    """The same logits and greedy text at any larger shape, and the config has it."""
    small = tiny(tmp_path / "small", tied)
    large = inflate(small, tmp_path / "large", shape)
    compare(small, large, TINY["vocab_size"])
    config = json.loads((large / "config.json").read_text())
    assert config["foretoken_inflated"]["from"] == "small"
    assert Shape.of(config) == shape


def test_cost_is_real(tmp_path: Path) -> None:
    """As many numbers as the shape has, and none of them for show."""
    shape = Shape(64, 3, 4, 2, 96, 160, 16)
    large = inflate(tiny(tmp_path / "small", True), tmp_path / "large", shape)
    with safe_open(large / "model.safetensors", "pt") as file:
        numbers = sum(file.get_tensor(k).numel() for k in file.keys())  # noqa: SIM118
        assert numbers == parameters_read(shape) + shape.vocab * shape.hidden
        gate = file.get_tensor("model.layers.0.mlp.gate_proj.weight")
    assert (gate != 0).float().mean() > 0.97  # dense: nothing for a clever kernel to skip


def test_shards_and_half_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several shards hold the same model, and in float16 nothing overflows."""
    monkeypatch.setattr("foretoken.zoo.inflate.SHARD_BYTES", 40_000)
    small = tiny(tmp_path / "small", True)
    shape = Shape(64, 3, 4, 2, 96, 160, 16)
    compare(small, inflate(small, tmp_path / "large", shape), 120)
    index = json.loads((tmp_path / "large" / "model.safetensors.index.json").read_text())
    files = {path.name for path in (tmp_path / "large").glob("*.safetensors")}
    assert files == {*index["weight_map"].values()}
    numbers = parameters_read(shape) + shape.vocab * shape.hidden
    assert (
        index["metadata"]["total_size"] == 4 * numbers and len({*index["weight_map"].values()}) > 1
    )
    half = inflate(small, tmp_path / "half", shape, dtype=torch.float16)
    logits = load(half)(torch.arange(5, 25)[None]).logits
    assert logits.isfinite().all() and logits[..., 120:].max() < -50


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Shapes that the original does not fit into, and unknown names."""
    small = tiny(tmp_path / "small", True)
    with pytest.raises(ValueError, match="would shrink"):
        inflate(small, tmp_path / "x", Shape(64, 1, 4, 2, 96, 160, 16))
    with pytest.raises(ValueError, match="key/value heads"):
        inflate(small, tmp_path / "x", Shape(64, 2, 2, 1, 96, 160, 16))
    with pytest.raises(ValueError, match="no spare dimension"):
        inflate(small, tmp_path / "x", Shape(48, 2, 4, 2, 96, 160, 16))
    with pytest.raises(ValueError, match="shape '2b'"):
        inflate(small, tmp_path / "x", "2b")
    with pytest.raises(ValueError, match="head width 24 is not a multiple of 16"):
        inflate(small, tmp_path / "x", Shape(96, 2, 4, 2, 96, 160, 24))
    config = json.loads((small / "config.json").read_text())
    for change, said in (
        ({"attention_bias": True}, "without biases"),
        ({"mlp_bias": True}, "without biases"),
        ({"model_type": "qwen2"}, "not 'qwen2'"),
    ):
        (small / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ValueError, match=said):
            inflate(small, tmp_path / "x", Shape(64, 3, 4, 2, 96, 160, 16))
    (small / "config.json").write_text(json.dumps(config))
    (small / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no \.safetensors files"):
        inflate(small, tmp_path / "x", Shape(64, 3, 4, 2, 96, 160, 16))


@pytest.mark.parametrize("name", ["mini", "mini-draft"])
def test_bundled_models_inflate(name: str, tmp_path: Path) -> None:
    """The bundled models keep their logits too."""
    config = json.loads((zoo.path(name) / "config.json").read_text())
    old = Shape.of(config)
    shape = Shape(384, old.layers + 2, 6, 3, 1_024, old.vocab + 256, 64)
    compare(zoo.path(name), inflate(zoo.path(name), tmp_path / "large", shape), old.vocab)


def test_a_model_that_cannot_be_written(tmp_path: Path) -> None:
    """A disk that takes no more (here: no larger file) is one sentence with the folder."""
    source = tiny(tmp_path / "source", tied=False)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(ForetokenError, match=f"{tmp_path / 'out'} can't be written"):
            inflate(source, tmp_path / "out", Shape(64, 3, 4, 2, 96, 120, 16))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("there", [False, True])
def test_an_interrupt_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """Neither shards that are written nor a folder that wasn't there; what was there stays, and the
    next call writes the model."""
    monkeypatch.setattr("foretoken.zoo.inflate.SHARD_BYTES", 20_000)
    source, out = tiny(tmp_path / "source", tied=False), tmp_path / "out"
    shape, left = Shape(64, 3, 4, 2, 96, 120, 16), iter(range(20))
    if there:
        out.mkdir()
        (out / "notes.txt").write_text("mine")
    written: list[int] = []

    def interrupted() -> None:
        written.append(len([*out.glob("part-*")]) if out.exists() else 0)
        if next(left, None) is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inflate(source, out, shape, advance=interrupted)
    assert written[-1] > 0
    assert [path.name for path in tmp_path.rglob("*") if path.is_relative_to(out)] == (
        ["out", "notes.txt"] if there else []
    )
    assert (inflate(source, out, shape) / "config.json").is_file()


def test_what_a_killed_process_leaves_is_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration comes last: without it nothing loads the folder."""
    source, out = tiny(tmp_path / "source", tied=False), tmp_path / "out"
    copy, there = shutil.copy, list[bool]()

    def noting(file: Path, place: Path) -> None:
        there.append((out / "config.json").exists())
        copy(file, place)

    monkeypatch.setattr("foretoken.zoo.inflate.shutil.copy", noting)
    inflate(source, out, Shape(64, 3, 4, 2, 96, 120, 16))
    assert there and not any(there) and (out / "config.json").is_file()


def test_what_is_added_is_drawn_by_the_seed(tmp_path: Path) -> None:
    """The same seed adds the same numbers, another one others; the norms' epsilon is scaled with
    the mean that it is added to."""
    small, shape = tiny(tmp_path / "small", tied=True), Shape(64, 2, 4, 2, 80, 120, 16)
    folders = [
        inflate(small, tmp_path / str(place), shape, seed=seed)
        for place, seed in enumerate((5, 5, 6))
    ]
    one, again, other = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert one == again != other
    before, after = (json.loads((p / "config.json").read_text()) for p in (small, folders[0]))
    assert after["rms_norm_eps"] == pytest.approx(before["rms_norm_eps"] * 48 / 64)
