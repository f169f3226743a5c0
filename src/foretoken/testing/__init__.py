"""Tools for testing drafters, also those written elsewhere: tiny exact models and checks.

    from foretoken.testing import check_drafter
    check_drafter(lambda pair: MyDrafter(model=pair.draft))

`models.py` has float64 targets that are built in milliseconds, `enumeration.py` follows every
random outcome, `distributions.py` computes the exact distribution of a method's texts,
`drafters.py` has drafters that force a case, `checks.py` puts them together, `faults.py` raises at
every call of a step, which `calls.py` counts.
"""

from foretoken.testing.checks import (
    check_distribution,
    check_drafter,
    check_greedy,
    check_independence,
    check_seeded,
    serve,
)
from foretoken.testing.distributions import (
    chi_square,
    distance,
    joint_distribution,
    reference_distribution,
    sampled_counts,
    target_distribution,
)
from foretoken.testing.drafters import Drawn, Oracle, Scripted
from foretoken.testing.enumeration import EnumeratedDraws
from foretoken.testing.faults import check_faults
from foretoken.testing.grammars import automaton
from foretoken.testing.models import (
    ByteTokenizer,
    Pair,
    TableModel,
    logits_after,
    native,
    related,
    table_pair,
    tiny_pair,
    tiny_transformers,
)

__all__ = [
    "ByteTokenizer",
    "Drawn",
    "EnumeratedDraws",
    "Oracle",
    "Pair",
    "Scripted",
    "TableModel",
    "automaton",
    "check_distribution",
    "check_drafter",
    "check_faults",
    "check_greedy",
    "check_independence",
    "check_seeded",
    "chi_square",
    "distance",
    "joint_distribution",
    "logits_after",
    "native",
    "reference_distribution",
    "related",
    "sampled_counts",
    "serve",
    "table_pair",
    "target_distribution",
    "tiny_pair",
    "tiny_transformers",
]
