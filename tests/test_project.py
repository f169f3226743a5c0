"""What holds for the project as a whole: exports, imports, sizes, and that its pages are true."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

import command_line
import foretoken
import page_code
import structure
from foretoken.bench.suites.suite import find_suite
from foretoken.protocols import Drafter
from foretoken.sampling.sequence import Sequence
from foretoken.testing import check_drafter

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "foretoken"
MAX_LINES = 400

# Training data and tokenizers quote other people's text; every other text file is our own.
TEXT = {"", ".css", ".html", ".j2", ".js", ".json", ".md", ".py", ".sh", ".toml", ".txt", ".yaml"}
QUOTED = {"tokenizer.json", "LICENSE"}
# The leading part keeps relative paths and web addresses out.
MACHINE_PATH = re.compile(r"(?<![\w.~:/-])/(?:Users|home|mnt|opt|root|srv|work)/\w")
PUBLIC_HOSTS = {
    "127.0.0.1",
    "aclanthology.org",
    "arxiv.org",
    "creativecommons.org",
    "doi.org",
    "download.pytorch.org",
    "github.com",
    "huggingface.co",
    "keepachangelog.com",
    "localhost",
    "openreview.net",
    "proceedings.mlr.press",
    "raw.githubusercontent.com",
    "semver.org",
    "www.apache.org",
    "www.w3.org",
}


def run_python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def project_files() -> list[Path]:
    """Tracked files and those about to be; all files where there is no git."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    if shutil.which("git") and (ROOT / ".git").exists():
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        folders = ("src", "tests", "docs", "site", "recipes", "benchmarks", "zoo")
        found = [path for name in folders for path in (ROOT / name).rglob("*")]
    return sorted(path for path in found if path.is_file())


def our_text() -> list[tuple[Path, str]]:
    """(relative path, content) of every text file that the project wrote itself."""
    return [
        (path.relative_to(ROOT), path.read_text(encoding="utf-8"))
        for path in project_files()
        if path.suffix in TEXT and path.name not in QUOTED and "__pycache__" not in path.parts
    ]


def test_every_public_name_resolves() -> None:
    """Each name in `__all__` exists, and stands there once."""
    assert len(foretoken.__all__) == len(set(foretoken.__all__))
    for name in foretoken.__all__:
        assert getattr(foretoken, name) is not None, name


def test_nothing_else_is_public() -> None:
    """No object of ours stands in the package's namespace without being in `__all__`."""
    for name in foretoken.__all__:
        getattr(foretoken, name)
    public = {name: value for name, value in vars(foretoken).items() if not name.startswith("_")}
    ours = {
        name
        for name, value in public.items()
        if str(getattr(value, "__module__", "")).startswith("foretoken")
    }
    assert ours <= set(foretoken.__all__), sorted(ours - set(foretoken.__all__))


def test_version_is_the_installed_one() -> None:
    """The version has one source."""
    assert foretoken.__version__ == importlib.metadata.version("foretoken")


def test_import_is_light() -> None:
    """`import foretoken` loads no model library, no server, no terminal and no plotting."""
    heavy = {"fastapi", "plotly", "rich", "scipy", "starlette", "tokenizers", "torch"}
    heavy |= {"transformers", "typer", "uvicorn"}
    loaded = run_python("import sys, foretoken; print('\\n'.join(sys.modules))").split()
    assert not heavy & set(loaded), sorted(heavy & set(loaded))


def test_imports_go_down() -> None:
    """The layers and the independence contracts of pyproject.toml hold."""
    command = Path(sys.executable).with_name("lint-imports")
    if not command.exists():
        pytest.skip("needs import-linter beside this interpreter (pip install -e .[dev])")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_scripts_import_what_exists() -> None:
    """Benchmarks and recipes, which no test runs, name modules and objects that the library has."""
    scripts = [
        p
        for p in project_files()
        if p.suffix == ".py" and p.parts[len(ROOT.parts)] in ("benchmarks", "recipes")
    ]
    for path in scripts:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("foretoken"):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    exists = hasattr(module, alias.name) or whole in structure.modules()
                    assert exists, f"{path.name}: {whole}"


def test_no_source_file_is_long() -> None:
    """A file that grows past the limit wants to be two files."""
    lengths = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in SOURCE.rglob("*.py")}
    long = {str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > MAX_LINES}
    assert not long, long


def test_no_machine_paths() -> None:
    """No file names a folder or a host of the machine that it was written on."""
    here = [str(ROOT), str(Path.home()), socket.gethostname()]
    own = [re.escape(name) for name in here if len(name) > 5 and re.search(r"[/.\d]", name)]
    mine = re.compile(rf"(?<![\w.-])(?:{'|'.join(own)})(?![\w-])") if own else None
    for path, text in our_text():
        for number, line in enumerate(text.splitlines(), 1):
            found = MACHINE_PATH.search(line) or (mine and mine.search(line))
            assert not found, f"{path}:{number}: {line.strip()[:120]}"


def test_no_private_hosts() -> None:
    """Addresses in the project's own text lead to public places, never to a package index."""
    for path, text in our_text():
        hosts = {host.lower() for host in re.findall(r"\b(?:https?|file|ssh)://([\w.-]*)", text)}
        assert hosts <= PUBLIC_HOSTS, f"{path}: {sorted(hosts - PUBLIC_HOSTS)}"


def test_links_between_pages() -> None:
    """Every relative link of a page leads to a file that exists."""
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for page in pages + sorted((ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_links_for_a_package_index() -> None:
    """The descriptions that a package index shows hold no relative link."""
    for name in ("pyproject.toml", "zoo/pyproject.toml"):
        project = tomllib.loads((ROOT / name).read_text(encoding="utf-8"))["project"]
        page = (ROOT / name).parent / project["readme"]
        links = re.findall(r"\]\(([^)\s]+)", page.read_text(encoding="utf-8"))
        assert links and all(urlsplit(link).scheme == "https" for link in links), page
        for link in links:
            inside = re.fullmatch(r"/foretoken/foretoken/\w+/main/(.*)", urlsplit(link).path)
            assert inside is None or (ROOT / inside[1]).exists(), link


def test_declared_requirements() -> None:
    """What the core imports is required, and the command line's libraries are no requirement."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.split(r"[^\w-]", line)[0] for line in project["dependencies"]}
    assert required == {"huggingface-hub", "numpy", "safetensors", "torch", "transformers"}
    extras = project["optional-dependencies"]
    whole = set(re.findall(r"[\w-]+", extras["all"][0].partition("[")[2]))
    assert whole == set(extras) - {"all", "dev", "docs", "hnsw", "quant", "xgrammar"}


def test_the_wheel_is_small() -> None:
    """What the wheel is made of, unpacked, is under 3.5 MB: the models are elsewhere."""
    files = [path for path in project_files() if SOURCE in path.parents]
    assert sum(path.stat().st_size for path in files) < 3.5 * 2**20


def test_both_distributions_have_one_version() -> None:
    """The models are released together with the library that finds them."""
    texts = [(ROOT / name).read_text("utf-8") for name in ("pyproject.toml", "zoo/pyproject.toml")]
    library, models = (tomllib.loads(text)["project"]["version"] for text in texts)
    assert library == models
    assert f"## [{library}] - " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_drafter_page_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter of docs/writing-a-drafter.md is one, proposes what the page says and is exact."""
    page: Any = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)
    exec(page_code.python_blocks(ROOT / "docs" / "writing-a-drafter.md"), vars(page))
    drafter = page.LastSeen()
    assert isinstance(drafter, Drafter)
    drafter.bind(SimpleNamespace(device="cpu"))
    params = foretoken.SamplingParams()
    sequences = [Sequence.start(tokens, params) for tokens in ([7, 1, 2, 7], [1, 2, 3])]
    tree = drafter.draft(sequences, [2, 2], None)
    assert (tree.counts, tree.tokens[0].tolist()) == ([2, 0], [1, 2])
    check_drafter(lambda pair: page.LastSeen())


CODE = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "```python" in page.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("page", CODE, ids=lambda page: page.stem)
def test_pages_code(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's Python blocks run, in order, as one script, but for those that say why they don't;
    these are Python at least."""
    monkeypatch.chdir(tmp_path)
    page_code.compiled(page)
    page_code.run(page)


def test_the_way_to_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of docs/training.md, as written, end with the line that starts vLLM."""
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    texts = [prompt.turns[0] for prompt in find_suite("bundled").round_robin()[:32]]
    lines = [json.dumps({"prompt": text}) + "\n" for text in texts]
    (tmp_path / "prompts.jsonl").write_text("".join(lines))
    commands = page_code.commands(ROOT / "docs" / "training.md", "## From your prompts to vLLM")
    trained, generated, exported = (command_line.run(*words) for words in commands)
    for done in (trained, generated, exported):
        assert done.exit_code == 0, done.output
    assert "mean acceptance length" in generated.stderr and "\nvllm serve " in exported.stdout
    assert '"model": "my-eagle3-vllm"' in exported.stdout
    assert (tmp_path / "my-eagle3-vllm" / "config.json").is_file()


def test_a_block_that_fails_is_found(tmp_path: Path) -> None:
    """Unless it is said, with a reason, that it doesn't run; it has to compile even so."""
    page = tmp_path / "page.md"
    block = "```python\nraise KeyError\n```\n"
    page.write_text(f"<!-- not run: needs a GPU -->\n{block}")
    page_code.run(page)
    for before in ("", "Text.\n", "<!-- not run: -->\n", "<!-- not run: needs a GPU -->\n\n"):
        page.write_text(f"{before}{block}")
        with pytest.raises(KeyError):
            page_code.run(page)
    page.write_text(f"<!-- not run: needs a GPU -->\n{block}{block}")
    with pytest.raises(KeyError):
        page_code.run(page)
    page.write_text(f"<!-- not run: needs a GPU -->\n{block.replace('raise', 'raise raise')}")
    with pytest.raises(SyntaxError):
        page_code.compiled(page)
