"""The toy grammar of the exact checks."""

from __future__ import annotations

import numpy as np
import pytest

from foretoken.testing import automaton


def test_an_automaton_goes_and_comes_back() -> None:
    matcher = automaton(3, {0: {0: 1}, 1: {2: 0, 1: 1}}, whole={0}).start()
    assert matcher.complete and matcher.forced() == []
    assert matcher.accept(0) and not matcher.accept(0) and not matcher.complete
    words = np.zeros(1, np.int32)
    matcher.fill(words)
    assert int(words[0]) == 0b110
    matcher.rollback(1)
    assert matcher.complete and not matcher.accept(2)
    with pytest.raises(AssertionError, match="1 tokens of 0"):
        matcher.rollback(1)
