"""The front door of the command line, with and without what it needs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from command_line import SRC, Pair, model

RUN = "import sys; from foretoken.cli import main; main(['methods', '--json'])"


def without(names: list[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process where these modules can't be imported."""
    blocked = f"import sys; sys.modules.update(dict.fromkeys({names!r})); "
    command = [sys.executable, "-c", blocked + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("names", [["typer"], ["rich"], ["typer", "rich", "jinja2", "yaml"]])
def test_without_its_extra_it_names_it(names: list[str]) -> None:
    """One sentence that says what is missing and how to install it, and exit code 1."""
    done = without(names, RUN)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"foretoken: The command line needs {', '.join(names)}; pip install 'foretoken[cli]'.\n"
    )


def test_as_a_module() -> None:
    """`python -m foretoken` is the same command line."""
    command = [sys.executable, "-m", "foretoken", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("foretoken ")


def test_the_library_loads_nothing_of_the_extra() -> None:
    """`import foretoken` needs neither typer, rich, jinja2 nor yaml, and decodes without rich."""
    code = "import foretoken; print(*sys.modules)"
    done = without([], code)
    assert not {"typer", "rich", "jinja2", "yaml", "torch"} & set(done.stdout.split())
    code = (
        "from foretoken import LLM, SamplingParams, ForetokenError; "
        "from foretoken.testing import tiny_pair; llm = LLM(tiny_pair().target); "
        "params = SamplingParams(max_tokens=2); llm.generate([[1, 2]], params)\n"
        "try: llm.generate([[1, 2]], params, use_tqdm=True)\n"
        "except ForetokenError as error: print(error)"
    )
    done = without(["typer", "rich"], code)
    assert done.stdout == "A progress bar needs rich; pip install 'foretoken[cli]'.\n", done.stderr


def test_ctrl_c_while_it_is_loaded() -> None:
    """As at any other moment: exit code 130, and no trace."""
    stop = (
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'foretoken.cli.commands': raise KeyboardInterrupt\n"
    )
    code = f"import sys\n{stop}sys.meta_path.insert(0, Stop())\n{RUN}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def closed(stream: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line with a stream closed, as a shell does it."""
    words = ["sh", "-c", f'exec "$@" {stream}', "sh", sys.executable, "-c", SRC, *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(sys.platform == "win32", reason="has no such shell")
def test_closed_streams(checkpoints: Pair) -> None:
    """Errors and notes go nowhere, and not into what is piped; what would be read is empty."""
    done = closed("2>&-", "generate", "")
    assert (done.returncode, done.stdout) == (1, "")
    done = closed("2>&-", "generate", "Hi", "--json", *model(checkpoints))
    assert done.returncode == 0 and json.loads(done.stdout)["outputs"]
    done = closed("<&-", "generate")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("foretoken: The prompt is empty; ")
    done = closed("<&-", "chat", *model(checkpoints))
    assert (done.returncode, done.stderr) == (0, "")
