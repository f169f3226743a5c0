"""The models in each engine's format, made once from the bundled ones and kept in the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from environments import CACHE, HERE, python
from protocol import Failed

from foretoken.errors import unknown
from foretoken.models.load import find
from foretoken.zoo.shape import SHAPES

TARGETS = ("mini", *SHAPES)


def pair(name: str) -> tuple[Path, Path]:
    """Checkpoint folders of a target and its drafter: mini's, as they are or inflated."""
    if name not in TARGETS:
        raise unknown("target", name, TARGETS)
    target, draft = find("mini"), find("mini-draft")
    if name == "mini":
        return target, draft
    from foretoken.cli.zoo import write

    return (
        once(home() / name / "target", lambda out: write(target, out, name, None)),
        once(home() / name / "draft", lambda out: write(draft, out, name, target)),
    )


def converted(environment: str | None, folder: Path, name: str, part: str) -> Path:
    """A checkpoint as the engines of an environment read it; `part` is "target" or "draft"."""
    made = home() / name
    if environment == "openvino":
        return once(made / f"{part}-openvino", lambda out: _to_openvino(folder, out))
    if environment == "llama.cpp":
        return once(made / f"{part}.gguf", lambda out: to_gguf(folder, out))
    return folder


def home() -> Path:
    """A folder for exactly these weights: models that are trained again are converted again."""
    digest = hashlib.sha256()
    for name in ("mini", "mini-draft"):
        digest.update((find(name) / "model.safetensors").read_bytes())
    return CACHE / "models" / digest.hexdigest()[:12]


def once(path: Path, make: Callable[[Path], object]) -> Path:
    """`path`, made under another name first, so that an interrupted one is made again."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"unfinished-{path.name}")
        shutil.rmtree(draft, ignore_errors=True)
        make(draft)
        draft.rename(path)
    return path


def _to_openvino(folder: Path, out: Path) -> None:
    convert(
        str(python("openvino").with_name("optimum-cli")),
        "export",
        "openvino",
        "--model",
        str(folder),
        "--task",
        "text-generation-with-past",
        "--weight-format",
        "fp32",
        str(out),
    )


def to_gguf(folder: Path, out: Path) -> None:
    """Write a checkpoint as one file in GGUF."""
    convert(str(python("llama.cpp")), str(HERE / "to_gguf.py"), str(folder), str(out))


def convert(*command: str) -> None:
    """Run a converter. Raises `Failed` with its last line where it fails."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise Failed(f"{Path(command[0]).name} could not convert the model: {' '.join(last)}")
