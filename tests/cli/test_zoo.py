"""`foretoken zoo`: bundled models and inflated copies."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open

from command_line import Pair, run
from foretoken import zoo


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


def test_zoo_list() -> None:
    """Every bundled model, with the parameters that a pass reads; of a drafter all of its own."""
    rows = {row["name"]: row for row in json.loads(run("zoo", "list", "--json").stdout)}
    assert [*rows] == zoo.names() and rows["mini"]["path"] == str(zoo.path("mini"))
    read = {name: row["parameters_read"] for name, row in rows.items()}
    assert 0 < 5 * read["mini-draft"] < read["mini"]
    with safe_open(zoo.path("mini-eagle") / "model.safetensors", "pt") as file:
        tensors = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118
    assert read["mini-eagle"] == sum(each.numel() for each in tensors)
    lines = run("zoo", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == zoo.names()
    assert f" {read['mini'] / 1e6:.1f} M parameters " in lines[zoo.names().index("mini")]
