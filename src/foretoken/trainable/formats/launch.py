"""How vLLM and SGLang are started with a drafter that was written for them.

Sources: vLLM's `SpeculativeConfig` (0.33); SGLang's server arguments `--speculative-*`.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

_METHODS = {"eagle3": "eagle3", "dflash": "dflash", "dflash2": "dflash", None: "draft_model"}
_ALGORITHMS = {"eagle3": "EAGLE3", "dflash": "DFLASH", "dflash2": "DFLASH", None: "STANDALONE"}

_TRUST = ("--trust-remote-code",)


def command(
    to: str,
    method: str | None,
    drafter: Path,
    target: str,
    tokens: int,
    trust_remote_code: bool = False,
) -> str | None:
    """The line that serves a target with a drafter by the program `to`; None where it isn't one
    that serves.

    method: the trained drafter's, None for a model that drafts alone; drafter: its written folder;
    tokens: drafted in a step, as a chain; trust_remote_code: whether code that comes with a model
    may run.
    """
    if to == "vllm":
        config = {"method": _METHODS[method], "model": str(drafter)}
        options = json.dumps(config | {"num_speculative_tokens": tokens})
        words = ["vllm", "serve", target, "--speculative-config", options]
        return shlex.join([*words, *_TRUST] if trust_remote_code else words)
    if to != "sglang":
        return None
    words = ["python", "-m", "sglang.launch_server", "--model-path", target]
    words += ["--speculative-algorithm", _ALGORITHMS[method]]
    words += ["--speculative-draft-model-path", str(drafter)]
    if _ALGORITHMS[method] != "DFLASH":  # which drafts the block that its configuration names
        words += ["--speculative-num-steps", str(tokens), "--speculative-eagle-topk", "1"]
        words += ["--speculative-num-draft-tokens", str(tokens + 1)]  # the root counts
    return shlex.join([*words, *_TRUST] if trust_remote_code else words)
