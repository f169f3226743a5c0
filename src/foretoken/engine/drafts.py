"""What a step drafted, for people who look at it."""

from __future__ import annotations

from foretoken.engine.outputs import Draft
from foretoken.protocols import Step


def drafted(done: Step, written: int, accepted: int, seconds: float) -> Draft:
    """A step's draft. written, accepted: its tokens that count, and how many of them had been
    drafted. Auxiliary nodes are left out. Costs a transfer to the host."""
    tree, row = done.tree, done.row
    columns = (tree.tokens[row], tree.parent_slots[row], tree.valid[row])
    nodes = list(zip(*(column.tolist() for column in columns), strict=True))
    slots = {0: 0}  # in the tree -> among those that are told
    for slot, (_, parent, valid) in enumerate(nodes, 1):
        if valid and parent in slots:
            slots[slot] = len(slots)
    kept = [(token, slots[parent]) for s, (token, parent, _) in enumerate(nodes, 1) if s in slots]
    return Draft(
        tokens=[token for token, _ in kept],
        parents=[parent for _, parent in kept],
        path=[slots[slot] for slot in done.path[:accepted]],
        written=written,
        seconds=seconds,
    )
