"""A drafter's linear layers beside a target in blocks: 8 bits, and the target's text."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretoken import LLM, SamplingParams
from foretoken.drafters.hydra import HydraHeads
from foretoken.drafters.medusa import MedusaHeads
from foretoken.drafters.mlp_speculator import MlpSpeculatorStages
from foretoken.models.native.backends import blocks
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.narrow import NarrowLinear, loaded, narrowed

PROMPTS = ["Translate to German: the cat sleeps.", "What is 12 + 30?"]
DRAFTERS = ("eagle3", "eagle", "mtp", "dflash", "medusa", "hydra")
pytestmark = pytest.mark.skipif(not blocks.has_loops(), reason="this machine can't build the loops")


def served(backend: str, method: str) -> LLM:
    """The bundled target with a bundled drafter."""
    config = {"method": method, "model": f"mini-{method}"}
    return LLM("mini", backend=backend, dtype="float32", speculative_config=config)


def narrow(llm: LLM) -> int:
    """How many of the drafter's layers are in blocks."""
    drafter: Any = llm.engine.drafter
    holders = (drafter, *vars(drafter).values())
    found = {id(held): held for x in holders for held in (x, *getattr(x, "__dict__", {}).values())}
    modules = [each for each in found.values() if isinstance(each, torch.nn.Module)]
    layers = {id(part): part for module in modules for part in module.modules()}
    return sum(isinstance(layer, NarrowLinear) for layer in layers.values())


@pytest.mark.parametrize("method", DRAFTERS)
def test_beside_blocks_the_text_is_the_targets(method: str) -> None:
    """Greedy, and drafts are accepted as before."""
    params = SamplingParams(temperature=0, max_tokens=24)
    plain = LLM("mini", backend="q8", dtype="float32").generate(PROMPTS, params)
    llm = served("q8", method)
    assert narrow(llm) > 0
    outputs = llm.generate(PROMPTS, params)
    assert [x.token_ids for x in outputs] == [x.token_ids for x in plain]


@pytest.mark.parametrize(
    "kind", [MedusaHeads, HydraHeads, MlpSpeculatorStages], ids=lambda k: k.method
)
def test_heads_of_their_own_are_used(kind: Any, tmp_path: Path) -> None:
    """Language-model heads of a drafter's own propose what they did, and not the target's head."""
    plain = LLM("mini", backend="q8", dtype="float32")
    torch.manual_seed(0)
    module = kind(Facts.of(plain.model), num_heads=2)
    module.save(tmp_path, {})
    config = {"method": kind.method, "model": str(tmp_path)}
    llm = LLM("mini", backend="q8", dtype="float32", speculative_config=config)
    served: Any = llm.engine.drafter
    state = torch.randn(1, 2, module.language_model_heads()[0].shape[1])
    wanted = module.logits(state, plain.model.head)
    found = served._heads.logits(state, plain.model.head)
    assert (found - wanted).norm() < 0.02 * wanted.norm()
    params = SamplingParams(temperature=0, max_tokens=12)
    outputs, texts = (x.generate(PROMPTS, params) for x in (llm, plain))
    assert [x.token_ids for x in outputs] == [x.token_ids for x in texts]


def test_beside_other_weights_nothing_is_rounded() -> None:
    """A target that isn't in blocks has a drafter with the weights of its file."""
    assert narrow(served("plain", "eagle3")) == 0
    assert narrow(served("auto", "medusa")) == 0


def test_products_are_close() -> None:
    """Rounding to 8 bits moves a product by less than a hundredth of its size."""
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(96, 64), torch.randn(2, 3, 96)
    wanted, found = layer(x), NarrowLinear(layer)(x)
    assert found.shape == wanted.shape
    assert (found - wanted).norm() < 0.01 * wanted.norm()


class Nested(torch.nn.Module):
    """Linear layers of its own and of its parts, one of which fills no block."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.slim = torch.nn.Linear(32, 8), torch.nn.Linear(31, 8)
        self.parts = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(64, 4))])


def beside(backend: str) -> Any:
    """What a drafter is told of a target that runs so."""
    return SimpleNamespace(backend=backend, dtype=torch.float32)


def rounded(module: torch.nn.Module) -> list[str]:
    """The names of the layers that are in blocks."""
    return [name for name, part in module.named_modules() if isinstance(part, NarrowLinear)]


def test_which_layers_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that fill a block, wherever they are, beside blocks of a file and beside blocks that
    were asked for; none where the loops can't be built."""
    asked = ("blocks", "q4", "compiled+q4", "plain", "compiled+plain")
    for has_loops, fitting in ((True, asked[:3]), (False, ())):
        monkeypatch.setattr(blocks, "has_loops", lambda has_loops=has_loops: has_loops)
        for backend in asked:
            module = Nested()
            narrowed(module, beside(backend))
            assert rounded(module) == (["wide", "parts.0.0"] if backend in fitting else [])


def test_a_module_that_is_given_keeps_its_weights() -> None:
    """It may be in training; one that is read from a folder is rounded."""
    given = Nested()
    kind: Any = SimpleNamespace(load=lambda source, access: Nested() if source == "a" else source)
    assert loaded(kind, given, beside("q8")) is given and not rounded(given)
    assert rounded(loaded(kind, "a", beside("q8")))
