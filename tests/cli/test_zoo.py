"""`foretoken zoo`: bundled models and inflated copies."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import Pair, run


def test_zoo_inflate(checkpoints: Pair, tmp_path: Path) -> None:
    """A larger copy, which says what it was made of; a full folder is refused."""
    found = run(
        "zoo",
        "inflate",
        checkpoints[1],
        "--shape",
        "135m",
        "--for",
        checkpoints[0],
        "--dtype",
        "bfloat16",
        "--out",
        tmp_path / "big",
    )
    assert found.exit_code == 0, found.stderr
    config = json.loads((tmp_path / "big" / "config.json").read_text())
    assert config["foretoken_inflated"]["shape"] == "custom" and "GiB" in found.stdout
    again = run("zoo", "inflate", checkpoints[1], "--shape", "135m", "--out", tmp_path / "big")
    assert again.exit_code == 1 and "not an empty folder" in again.stderr
