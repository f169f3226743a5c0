"""What files hold, as a run's plan names it."""

from __future__ import annotations

from pathlib import Path

from foretoken.bench.run.contents import contents
from foretoken.files import fingerprint


def test_what_configs_name(tmp_path: Path) -> None:
    """Models by any of their names, in parts too; what is no file is left to be refused later."""
    draft, store = tmp_path / "draft", tmp_path / "store.npz"
    draft.mkdir()
    (draft / "config.json").write_text("{}")
    store.write_bytes(b"store")
    configs = [
        {"method": "sps", "draft_model": str(draft)},
        {"method": "pld|rest", "rest": {"datastore": store}, "pld": {"max_ngram_size": 3}},
        {"method": "hydra", "model": str(tmp_path / "nowhere")},
    ]
    assert contents("mini", configs) == {
        "contents of mini": contents("mini", [])["contents of mini"],
        f"contents of {draft}": fingerprint(draft),
        f"contents of {store}": fingerprint(store),
    }


def test_lists_of_models_and_checkpoints(tmp_path: Path) -> None:
    """Each of several models counts, and what a method makes its model of."""
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    configs = [
        {"method": "specinfer", "models": [str(folder) for folder in folders[:2]]},
        {"method": "pruned", "checkpoint": str(folders[2])},
        {"method": "swift", "skip": [3, 4]},
    ]
    assert contents("mini", configs) == contents("mini", []) | {
        f"contents of {folder}": fingerprint(folder) for folder in folders
    }
