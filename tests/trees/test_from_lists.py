"""Trees from lists: prefixes are merged."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.trees.from_lists import from_paths

CPU = torch.device("cpu")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=4), max_size=3))
def test_from_paths_merges_prefixes(paths: list[list[list[int]]]) -> None:
    """The tree holds exactly the prefixes of the paths, each once."""
    if not paths:
        return
    tree = from_paths(paths, CPU)
    for row, count, branches in zip(tree.contexts(), tree.counts, paths, strict=True):
        prefixes = {tuple(p[:end]) for p in branches for end in range(1, len(p) + 1)}
        found = [tuple(context) for context in row[1 : count + 1]]
        assert len(found) == len(set(found)) and set(found) == prefixes
