"""Text by neighbours (KNN-LM) with speculative retrieval (RaLMSpec).

`datastore.py` has the neighbours and their exact search, `model.py` the model whose distribution is
mixed with theirs, `drafter.py` the drafter that looks in a cache of a few of them first.
"""

from foretoken.apps.knn.datastore import Neighbours
from foretoken.apps.knn.drafter import CachedNeighbours
from foretoken.apps.knn.model import KnnModel

__all__ = ["CachedNeighbours", "KnnModel", "Neighbours"]
