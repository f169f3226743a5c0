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
