"""Text with retrieval every few tokens (RaLMSpec): documents are guessed, and verified together.

`ralm.py` has the loop, `text.py` the text that is written in pieces, `stride.py` how many pieces
are verified together, `retriever.py` what a retriever offers and the cache that guesses, `factors`
what guessing documents and drafting tokens gain; the other files are retrievers.
"""

from foretoken.apps.ralm.bm25 import Bm25
from foretoken.apps.ralm.dense import Dense
from foretoken.apps.ralm.factors import factors
from foretoken.apps.ralm.hnsw import Hnsw
from foretoken.apps.ralm.ralm import Ralm

__all__ = ["Bm25", "Dense", "Hnsw", "Ralm", "factors"]
