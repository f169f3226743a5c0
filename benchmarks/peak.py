"""Peak memory of loading one checkpoint with one backend and running one pass, as JSON.

A separate process, so that nothing else that is loaded counts; what Python and its libraries
take is subtracted. Weights are those that a pass reads, and the embedding, where it is not the head
too. Called by passes.py:

    python benchmarks/peak.py FOLDER BACKEND
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from foretoken.bench.measure.memory import PeakMemory
from foretoken.models.feed import chain_feed
from foretoken.models.load import load_model, read_config

LENGTH = 512  # of the cache


def main(folder: str, backend: str) -> None:
    config = read_config(Path(folder))  # imports transformers
    memory = PeakMemory(torch.device("cpu"))
    memory.reset()
    before = memory.mib()
    model = load_model(folder, backend=backend, dtype="float32")
    cache = model.new_cache(1, LENGTH)
    with torch.inference_mode():
        model.forward(chain_feed(cache, [cache.acquire(0)], [list(range(16))]), cache)
    after = memory.mib()
    assert before is not None and after is not None
    shared = config.tie_word_embeddings and not model.backend.endswith("int8")
    table = 0 if shared else model.embed(torch.tensor([0])).nbytes * model.vocab_size
    results = {
        "backend": model.backend,
        "peak_mib": after - before,
        "weights_mib": (model.bytes_read + table) / 2**20,
        "cache_mib": cache.written / 2**20,
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
