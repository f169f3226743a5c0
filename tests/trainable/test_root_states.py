"""States that roots were read from."""

from __future__ import annotations

import pytest
import torch

from foretoken import SamplingParams
from foretoken.protocols import Scores, Step
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.root_states import LastStates, drafting, kept_slots
from foretoken.tree import empty


def test_forks_start_after_the_prompt() -> None:
    """A sample that is admitted late drafts from the prompt, however far the first one is."""
    states, none = LastStates(), torch.empty(1, 0)
    first, copy = (Sequence.start([1, 2, 3], SamplingParams()) for _ in range(2))
    for read, path in ((2, []), (0, [3])):
        hidden = {-1: torch.arange(4.0)[None, :, None] + 10 * len(path)}
        scores = Scores(none, none, none, hidden)
        step = Step([], path, 3, 0, empty(1, none.device), scores, read=read)
        states.observe([first], [step])
    states.fork(first, copy)
    rows, held = states.available([first, Sequence.start([1], SamplingParams()), copy])
    assert rows == [0, 2] and held is not None and held.tolist() == [[13.0], [1.0]]


@pytest.mark.parametrize("source", [0, 3])
def test_forks_of_a_text_that_started_again(source: int) -> None:
    """Its output was read like a prompt, in chunks of two, and isn't the prompt's end. What the
    first chunk has of a source are no tokens of the text."""
    states, none = LastStates(), torch.empty(1, 0)
    first, copy = (Sequence.start([1, 2, 3, 4], SamplingParams()) for _ in range(2))
    first.tokens += [5, 6, 7]
    for read in range(0, 6, 2):
        more = 0 if read else source
        hidden = {-1: torch.arange(read - more, read + 2.0)[None, :, None]}
        scores = Scores(none, none, none, hidden)
        chunk = {"read": 2 + more, "source": more}
        states.observe([first], [Step([], [], 0, 0, empty(1, none.device), scores, **chunk)])
    states.fork(first, copy)
    _, held = states.available([first, copy])
    assert held is not None and held.tolist() == [[5.0], [2.0]]


def test_each_text_has_a_row_of_its_own() -> None:
    """A drafter may be asked for some texts of a pass, in another order; one that was never read
    as a prompt has no state of it to begin a copy with."""
    states, none, device = LastStates(), torch.empty(1, 0), torch.device("cpu")
    read, written, copy, silent = (Sequence.start([1, 2, 3], SamplingParams()) for _ in range(4))
    scores = Scores(none, none, none, {-1: torch.arange(12.0).view(3, 4, 1)})
    chunk = Step([], [], 0, 2, empty(1, device), scores, read=3)
    step = Step([7, 8, 9], [1, 3], 3, 0, empty(1, device), scores)
    states.observe([read, written], [chunk, step])
    states.fork(written, copy)
    rows, held = states.available([read, written, copy])
    assert rows == [0, 1] and held is not None and held.tolist() == [[10.0], [3.0]]
    rows, held = drafting(states, [read, silent, written], [0, 5, 5])
    assert rows == [2] and held is not None and held.tolist() == [[3.0]]
    assert drafting(states, [silent, read], [5, 0]) == ([], None)
    states.fork(read, silent)
    assert states.available([silent])[1] == torch.tensor([[10.0]])
    chunk.source = 1
    assert kept_slots(chunk) == [1, 2] and kept_slots(step) == [0, 1, 3]
