"""How long checkpoints take to load, and how much memory, each in a process of its own.

    python benchmarks/loading.py model.gguf other.gguf --rounds 3

A first process reads the file, so that all find it in the page cache. `seconds` is the call of
`LLM(…)`; the imports that it makes first for transformers' configurations are in it, those before
it are `import_seconds`. `peak_mib` is the process's, with everything; `weights_mib` what a pass
reads and the embedding, where that isn't the head too and is in memory. `resident_mib` is what
the process holds when all is loaded, imports included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

CONTEXT = 512  # tokens


def main() -> None:
    import shared

    parser = shared.options(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    given = shared.of_several(parser)
    rows = [["model", "import s", "load s", "peak MiB", "resident", "imports", "weights"]]
    results = []
    for model in given.models:
        measured(model)  # the file is in the page cache, and the loops are built
        runs = [measured(model) for _ in range(given.rounds)]
        result = {key: middle([run[key] for run in runs]) for key in runs[0]}
        results.append(result | {"rounds": [run["seconds"] for run in runs]})
        keys = (
            "import_seconds",
            "seconds",
            "peak_mib",
            "resident_mib",
            "imports_mib",
            "weights_mib",
        )
        rows.append([result["name"], *(f"{result[key]:.1f}" for key in keys)])
    shared.table(rows)
    shared.save("loading", given, {"context": CONTEXT, "models": results})


def middle(values: list[Any]) -> Any:
    return values[0] if isinstance(values[0], str | None) else median(values)


def measured(model: str) -> dict[str, Any]:
    """What `child` prints in a fresh process."""
    command = [sys.executable, __file__, "--child", model]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    read: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return read


def child(model: str) -> None:
    began = perf_counter()
    import torch

    from foretoken import LLM
    from foretoken.bench.measure.memory import PeakMemory

    imported, memory = perf_counter(), PeakMemory(torch.device("cpu"))
    imports = memory.mib()
    ready = perf_counter()
    llm = LLM(model, max_num_seqs=1, max_model_len=CONTEXT, device="cpu")
    seconds, peak = perf_counter() - ready, memory.mib()
    embedding = llm.model.embed(torch.tensor([0]))
    stored = getattr(llm.model, "embedding", embedding)
    result = {
        "name": Path(model).stem,
        "backend": llm.model.backend,
        "import_seconds": imported - began,
        "seconds": seconds,
        "peak_mib": peak,
        "imports_mib": imports,
        "resident_mib": resident(),
        "file_mib": Path(model).stat().st_size / 2**20 if Path(model).is_file() else None,
        "weights_mib": (llm.model.bytes_read + stored.nbytes) / 2**20,
    }
    print(json.dumps(result))


def resident() -> float:
    """MiB of the process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    else:
        main()
