"""The environment of each peer: a virtual environment under the cache, with pinned versions.

The pins are in requirements-<environment>.txt; a copy of that file in the environment's folder
marks it as complete. llama.cpp comes as the sources inside llama-cpp-python's source
distribution and is compiled once for this machine: the package then runs on the libraries built for
its server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from protocol import Failed

from foretoken.machine import cache_folder, features

HERE = Path(__file__).parent
CACHE = cache_folder() / "peers"

_UNWANTED = {"openvino": ["torchvision"]}
"""Required by optimum-intel and needed by no language model; beside another build of torch than it
was compiled for, it breaks transformers' imports."""

_PYTHON_PART = {"CMAKE_ARGS": "-DLLAMA_BUILD=OFF", "PIP_NO_CACHE_DIR": "1"}
"""Of llama-cpp-python pip makes the Python part only, as the libraries are built apart; such a
wheel must not stay in pip's cache."""

_SWITCHES = (
    "CMAKE_BUILD_TYPE=Release",
    "LLAMA_BUILD_UI=OFF",
    "LLAMA_USE_PREBUILT_UI=OFF",
    "LLAMA_OPENSSL=OFF",
    "LLAMA_BUILD_TESTS=OFF",
    "LLAMA_BUILD_EXAMPLES=OFF",
    "LLAMA_BUILD_APP=OFF",
)


def python(name: str) -> Path:
    """The interpreter of an environment."""
    return CACHE / name / "bin" / "python"


def libraries() -> Path:
    """The folder that llama.cpp's server and libraries are built into."""
    return CACHE / "llama.cpp" / "build" / "bin"


def prepare(name: str) -> None:
    """Make the environment, unless it is there; raises `Failed` where that can't be done."""
    wanted = (HERE / f"requirements-{name}.txt").read_text(encoding="utf-8")
    folder = CACHE / name
    mark = folder / "installed.txt"
    if mark.is_file() and mark.read_text(encoding="utf-8") == wanted:
        return
    print(f"Making the environment of {name} in {folder} …", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_name(f"{name}.log")
    log.unlink(missing_ok=True)
    _run(log, sys.executable, "-m", "venv", str(folder))
    if name == "llama.cpp":
        _build(folder, wanted, log)
    _pip(log, name, "install", "-r", str(HERE / f"requirements-{name}.txt"))
    if name in _UNWANTED:
        _pip(log, name, "uninstall", "--yes", *_UNWANTED[name])
    mark.write_text(wanted, encoding="utf-8")


def _build(folder: Path, wanted: str, log: Path) -> None:
    """llama-server and the shared libraries, from the source distribution of the Python package."""
    missing = [tool for tool in ("cmake", "c++") if shutil.which(tool) is None]
    if missing:
        raise Failed(f"llama.cpp can't be compiled without {' and '.join(missing)}")
    pin = next(line for line in wanted.splitlines() if line.startswith("llama-cpp-python=="))
    _pip(
        log,
        "llama.cpp",
        "download",
        "--no-deps",
        "--no-binary",
        "llama-cpp-python",
        "--dest",
        str(folder / "download"),
        pin,
    )
    [archive] = (folder / "download").glob("*.tar.gz")
    shutil.unpack_archive(archive, folder / "source")
    [source] = (folder / "source").glob("*/vendor/llama.cpp")
    switches = [f"-D{switch}" for switch in (*_SWITCHES, *_without_amx())]
    _run(log, "cmake", "-S", str(source), "-B", str(folder / "build"), *switches)
    jobs = str(os.cpu_count() or 1)
    _run(log, "cmake", "--build", str(folder / "build"), "--target", "llama-server", "-j", jobs)


def _without_amx() -> list[str]:
    """Built for AMX, the server died at load where it was tried; without, it runs."""
    if not any(name.startswith("amx") for name in features()):
        return []
    flags = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    return [f"CMAKE_C_FLAGS={flags}", f"CMAKE_CXX_FLAGS={flags}"]


def _pip(log: Path, name: str, *words: str) -> None:
    _run(log, str(python(name)), "-m", "pip", "--disable-pip-version-check", *words)


def _run(log: Path, *command: str) -> None:
    env = {**os.environ, **_PYTHON_PART}
    with log.open("a", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=env)
    if done.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = f": {lines[-1]}" if lines else ""
        raise Failed(f"`{Path(command[0]).name} {' '.join(command[1:4])} …` failed{last}")
