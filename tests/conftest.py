"""One thread a process, the same examples in every run, and the tiny models that tests share."""

from __future__ import annotations

import gc
import string
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import hypothesis
import pytest
import torch

from browsing import started
from foretoken.machine import CACHE_VARIABLE, cache_folder
from foretoken.testing import Pair, native, related, tiny_pair, tiny_transformers
from mutation import noticed
from source_mutants import BY_TEST, MUTANTS

pytest_plugins = ["run_report"]

torch.set_num_threads(1)

hypothesis.settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("fixed")

TEMPLATE = "{% for m in messages %}{{ m['role'][0] }}: {{ m['content'] }}\n{% endfor %}a: "


@pytest.fixture(autouse=True)
def mutant(request: pytest.FixtureRequest) -> str | None:
    """The name of the mistake that is put into the code for this run of the test, if any is."""
    return getattr(request, "param", None)


@pytest.fixture(scope="module")
def browser() -> Generator[Any]:
    with started() as chromium:
        yield chromium


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that must notice mistakes runs once without them, and once more with each."""
    file = metafunc.definition.path.relative_to(Path(__file__).parent).as_posix()
    names = BY_TEST.get(f"{file}::{metafunc.function.__name__}", [])
    if names:
        runs = [pytest.param(None, id=pytest.HIDDEN_PARAM), *names]
        metafunc.parametrize("mutant", runs, indirect=True)


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the garbage collector needn't walk it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """With a mistake in the code (not while fixtures are made), the test must fail."""
    name = pyfuncitem.funcargs["mutant"]
    if name is None:
        return (yield)
    with noticed(name, MUTANTS[name]):
        yield
    return True


@pytest.fixture(scope="session")
def pair() -> Pair:
    """A native float64 target of 97 tokens, a related draft model, the target in transformers."""
    return tiny_pair()


@pytest.fixture(scope="session")
def deep() -> Pair:
    """A target of four layers whose upper ones change little, so that a part of it agrees with it
    now and then."""
    model = tiny_transformers(layers=4)
    with torch.no_grad():
        for layer in model.model.layers[1:]:
            layer.self_attn.o_proj.weight *= 0.2
            layer.mlp.down_proj.weight *= 0.2
    return Pair(native(model), native(model), model)


def letters() -> Any:
    """A transformers tokenizer with a token for each printable ASCII character."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {
        letter: i for i, letter in enumerate(["<unk>", "\n", " ", *string.printable[:94]])
    }
    inner = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=TEMPLATE)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of a tiny target and a related draft model, with a tokenizer and no end of text."""
    tokenizer, folder = letters(), tmp_path_factory.mktemp("checkpoints")
    target = tiny_transformers(len(tokenizer), max_length=4096, dtype=torch.float32)
    paths = folder / "target", folder / "draft"
    for path, model in zip(paths, (target, related(target, 0.02)), strict=True):
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
    return paths


@pytest.fixture(autouse=True)
def drawn_alike() -> None:
    """A test draws the same numbers in every run, and others than those that have a seed."""
    torch.manual_seed(20_260)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """A cache folder that begins empty, and leaves the user's own as it is; what was compiled is
    shared with it."""
    users, folder = cache_folder(), tmp_path_factory.mktemp("cache")
    for compiled in ("kernels", "inductor"):
        with suppress(OSError):  # where nothing can be shared, it is compiled once a process
            (users / compiled).mkdir(parents=True, exist_ok=True)
            (folder / compiled).symlink_to((users / compiled).absolute(), target_is_directory=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(folder))
        yield


@pytest.fixture(scope="session")
def beliefs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("beliefs")


@pytest.fixture(autouse=True)
def rates(monkeypatch: pytest.MonkeyPatch, beliefs: Path) -> Path:
    """Where the test's acceptance rates are kept: nothing is believed from another test, and the
    user's own files stay as they are."""
    folder = beliefs / uuid4().hex
    monkeypatch.setattr("foretoken.control.knowledge.cache_folder", lambda: folder)
    return folder / "rates"


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
