"""Mistakes of retrieval with guessed documents; each with its tests."""

from __future__ import annotations

from mutation import Mutant

RUN, TEXT = "foretoken.apps.ralm.ralm:_Run", "foretoken.apps.ralm.text:Text"
SAME = "apps/ralm/test_ralm.py::test_the_plain_loops_text"

RETRIEVAL: dict[str, Mutant] = {
    "guessed documents are not verified": Mutant(
        f"{RUN}._settle", "guess.document != best", "False", (SAME,)
    ),
    "only the last guess is verified": Mutant(
        f"{RUN}._settle",
        "guess.document != best",
        "i == len(todo) - 1 and guess.document != best",
        (SAME,),
    ),
    "the corrected piece gets the wrong document": Mutant(
        f"{RUN}._settle", "right[matched]", "todo[matched].document", (SAME,)
    ),
    "what was written meanwhile stays": Mutant(
        f"{RUN}._settle",
        "len(todo) - matched + len(self.guesses)",
        "len(todo) - matched",
        (SAME,),
    ),
    "what was written meanwhile is never verified": Mutant(
        f"{RUN}.settled", "self.text.ended and not self.guesses", "self.text.ended", (SAME,)
    ),
    "a text stays ended": Mutant(
        f"{TEXT}.take_back",
        "self.ending = None",
        "self.ending = self.ending",
        (
            "apps/ralm/test_ralm.py::test_texts_that_end_early",
            "apps/ralm/test_text.py::test_a_stop_string_across_pieces",
        ),
    ),
    "all pieces share noise": Mutant(
        f"{TEXT}.write",
        "stream_key(self._seed, place)",
        "stream_key(self._seed, 0)",
        ("apps/ralm/test_text.py::test_a_pieces_noise_is_its_places",),
    ),
    "a piece's stop is looked for in it alone": Mutant(
        f"{TEXT}.write",
        "self._checker().check(self.output)",
        "self._checker().check(written.token_ids)",
        ("apps/ralm/test_text.py::test_a_stop_string_across_pieces",),
    ),
    "documents are ordered by a product that rounds": Mutant(
        "foretoken.apps.ralm.dense:Dense._best",
        "self.scores(query, ids)",
        "roughly[ids]",
        ("apps/ralm/test_dense.py::test_the_order_is_exact",),
    ),
    "near ties are left out": Mutant(
        "foretoken.apps.ralm.dense:Dense._best",
        "contenders(roughly, k, error)",
        "contenders(roughly, k)",
        ("apps/ralm/test_dense.py::test_the_order_is_exact",),
    ),
    "of equals the last document": Mutant(
        "foretoken.apps.ralm.retriever:ranked",
        "np.lexsort((ids, -scores))",
        "np.lexsort((-ids, -scores))",
        ("apps/ralm/test_retriever.py::test_equals_are_ordered_by_id",),
    ),
    "asynchronous rounds are priced as synchronous ones": Mutant(
        "foretoken.apps.ralm.stride:asynchronous_rate",
        "max(a, b)",
        "a + b",
        ("apps/ralm/test_stride.py::test_by_hand",),
    ),
    "guesses after a wrong one count": Mutant(
        f"{RUN}._settle",
        "self.stats.matched += matched",
        "self.stats.matched += len(todo)",
        ("apps/ralm/test_ralm.py::test_what_is_counted",),
    ),
}
"""Documents that are guessed, verified and ordered."""
