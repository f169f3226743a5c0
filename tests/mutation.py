"""Mistakes in the source: each replaces a piece of one function, and names the tests that notice.

The piece is found in the function's syntax tree, so that neither line breaks nor quotes nor
comments matter; where it isn't found exactly once, `MutantError` says so. The changed function is
compiled and its code put into the function that is there, so that whoever holds it runs the
mistake. `conftest.py` runs each named test once more with each of its mistakes, and that run must
fail.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any

import pytest


class MutantError(Exception):
    """A mistake that can't be put into the code any more, since the code has changed."""


@dataclass(frozen=True)
class Mutant:
    """where: "module:function" or "module:Class.function"; old, new: an expression or a statement;
    tests: "path.py::function" of those in this folder that must fail."""

    where: str
    old: str
    new: str
    tests: tuple[str, ...]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The mistake is in the code."""
        function, code = _function(self.where), self.code()
        own = function.__code__
        function.__code__ = code
        try:
            yield
        finally:
            function.__code__ = own

    def code(self) -> CodeType:
        """The function's code with the mistake in it."""
        name, _, path = self.where.partition(":")
        module = import_module(name)
        change = _Change(path.split("."), _parsed(self.old), _parsed(self.new))
        tree = ast.parse(inspect.getsource(module))
        changed = ast.fix_missing_locations(change.visit(tree))
        if change.count != 1:
            raise MutantError(f"{self.where} has {self.old!r} {change.count} times, and not once.")
        return _find(compile(changed, inspect.getfile(module), "exec"), path)


@contextmanager
def noticed(name: str, mutant: Mutant) -> Iterator[None]:
    """What runs inside must fail by an assertion, with the mistake in the code."""
    with mutant.applied():
        try:
            yield
        except (AssertionError, pytest.fail.Exception):
            return
    pytest.fail(f"The test passes with the mistake {name!r} in the code.")


def _parsed(text: str) -> ast.AST:
    """One expression or one statement."""
    [statement] = ast.parse(text).body
    return statement.value if isinstance(statement, ast.Expr) else statement


class _Change(ast.NodeTransformer):
    """Replaces `old` inside of the function at `path`, and counts how often."""

    def __init__(self, path: list[str], old: ast.AST, new: ast.AST) -> None:
        self.path, self.new, self.count = path, new, 0
        self._old, self._inside = ast.dump(old), list[str]()

    def visit(self, node: ast.AST) -> Any:
        named = isinstance(node, (ast.ClassDef, ast.FunctionDef))
        if self._inside[: len(self.path)] == self.path and ast.dump(node) == self._old:
            self.count += 1
            return self.new
        if named:
            self._inside.append(node.name)
        changed = self.generic_visit(node)
        if named:
            self._inside.pop()
        return changed


def _find(code: CodeType, path: str) -> CodeType:
    """The code of one function among all that a module's code defines."""
    found, todo = list[CodeType](), [code]
    while todo:
        inner = [constant for constant in todo.pop().co_consts if isinstance(constant, CodeType)]
        found += [one for one in inner if one.co_qualname == path]
        todo += inner
    if len(found) != 1:
        raise MutantError(f"{path} is defined {len(found)} times, and not once.")
    return found[0]


@cache
def _function(where: str) -> FunctionType:
    """The function that is run, whatever decorates it."""
    name, _, path = where.partition(":")
    found: Any = import_module(name)
    for part in path.split("."):
        found = inspect.getattr_static(found, part, None)
        if isinstance(found, property):
            found = found.fget
        elif isinstance(found, (staticmethod, classmethod)):
            found = found.__func__
    found = inspect.unwrap(found) if found is not None else None
    if not isinstance(found, FunctionType):
        raise MutantError(f"{where} is no function.")
    return found
