"""Counts the code and checks its imports: run it to see what test_structure.py bounds.

    python tests/structure.py

A line of code is a line with a token that is neither a comment nor a docstring's.
"""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "foretoken"
CORE = ("tree", "draws", "sampling", "protocols", "access", "step")
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
_LAYOUT |= {tokenize.ENCODING, tokenize.ENDMARKER}


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def code_lines(path: Path) -> set[int]:
    """The numbers of a file's lines of code."""
    text = path.read_text(encoding="utf-8")
    documented = {line for node in ast.walk(ast.parse(text)) for line in _docstring(node)}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - documented


def _docstring(node: ast.AST) -> range:
    """The lines of a node's docstring, and of strings that stand alone after an assignment."""
    text = node.value if isinstance(node, ast.Expr) else None
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        return range(text.lineno, (text.end_lineno or text.lineno) + 1)
    return range(0)


def core_size() -> dict[str, int]:
    """Lines of code of the loop and of what it is made of."""
    return {
        name: sum(
            len(code_lines(path))
            for module, path in modules().items()
            if module.split(".")[1:2] == [name]
        )
        for name in CORE
    }


def function_sizes() -> list[int]:
    """Lines of code of every function's body, signature included."""
    sizes = []
    for path in modules().values():
        code = code_lines(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                sizes.append(len(code & set(range(node.lineno, (node.end_lineno or 0) + 1))))
    return sizes


def imports() -> dict[str, set[str]]:
    """Which of the package's modules each of them imports, inside functions and for types too."""
    known = modules()
    edges: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        for target in _imported(ast.parse(path.read_text(encoding="utf-8")), set(known)):
            if target != name:
                edges[name].add(target)
    return edges


def _imported(tree: ast.AST, known: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if (module := full if full in known else node.module) in known:
                    yield module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def circle(edges: dict[str, set[str]]) -> list[str]:
    """A ring of modules, its first one again at the end, or none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        ring: list[str] = error.args[1]
        return ring
    return []


def skips() -> int:
    """`fmt: skip` comments in the project's Python files."""
    root = SOURCE.parents[1]
    folders = [root / name for name in ("src", "tests", "benchmarks", "recipes")]
    mark = "# fmt" + ": skip"
    return sum(
        path.read_text(encoding="utf-8").count(mark)
        for folder in folders
        for path in folder.rglob("*.py")
    )


def main() -> None:
    sizes = function_sizes()
    core = core_size()
    print(f"top level: {len(list(SOURCE.glob('*.py')))} files")
    print(f"core: {sum(core.values())} lines of code ({core})")
    print(
        f"functions: {len(sizes)}, median {statistics.median(sizes):g}, "
        f"p90 {statistics.quantiles(sizes, n=10)[-1]:g}, "
        f"over 50 lines {100 * sum(n > 50 for n in sizes) / len(sizes):.2f} %"
    )
    print(f"fmt: skip: {skips()}")
    print(f"import circle: {' '.join(circle(imports())) or 'none'}")


if __name__ == "__main__":
    main()
