"""The lines that start other programs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from foretoken.trainable.formats.launch import command


@pytest.mark.parametrize(
    ("method", "theirs", "algorithm"),
    [
        ("eagle3", "eagle3", "EAGLE3"),
        ("dflash2", "dflash", "DFLASH"),
        (None, "draft_model", "STANDALONE"),
    ],
)
def test_lines(method: str | None, theirs: str, algorithm: str) -> None:
    line = command("vllm", method, Path("my drafter"), "org/target", 4)
    assert line is not None
    *words, options = shlex.split(line)
    assert words == ["vllm", "serve", "org/target", "--speculative-config"]
    expected = {"method": theirs, "model": "my drafter", "num_speculative_tokens": 4}
    assert json.loads(options) == expected
    line = command("sglang", method, Path("my drafter"), "org/target", 4)
    assert line is not None
    words = shlex.split(line)
    assert words[3:9] == [
        "--model-path",
        "org/target",
        "--speculative-algorithm",
        algorithm,
        "--speculative-draft-model-path",
        "my drafter",
    ]
    chain = "--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5"
    assert words[9:] == ([] if algorithm == "DFLASH" else chain.split())


@pytest.mark.parametrize("to", ["hf", "speculators"])
def test_programs_that_do_not_serve(to: str) -> None:
    assert command(to, None, Path("drafter"), "target", 4) is None
