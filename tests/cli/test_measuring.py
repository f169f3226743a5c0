"""Placing a target for a measurement: its name, its shape, its draft models."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretoken import ForetokenError
from foretoken.cli.measuring import AS_IT_IS, check_shapes, placed, target_name


def test_a_shape_that_there_is_not() -> None:
    """It is refused before anything is measured; "none" is a shape too."""
    check_shapes([AS_IT_IS, "135m"])
    with pytest.raises(ForetokenError, match="135m"):
        check_shapes(["135n"])


def test_results_name_the_shape() -> None:
    """A target as it is has its folder's name; an inflated one its shape's too."""
    assert (target_name("mini", AS_IT_IS), target_name("mini", "135m")) == ("mini", "mini-135m")


def test_a_target_as_it_is_stays_where_it_is() -> None:
    """Nothing is written, and the methods are copies that the caller may change."""
    configs = {"a": {"method": "sps", "model": "mini-draft"}}
    with placed("mini", configs, AS_IT_IS) as (place, methods):
        assert place == "mini" and methods == configs and methods["a"] is not configs["a"]


def test_inflated_models_last_as_long_as_the_block(
    checkpoints: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Target and draft model are written in the shape's proportion and gone afterwards."""
    written = []

    def write(source: Path, out: Path, shape: str, like: Path | None, dtype: str) -> Path:
        written.append((source.name, shape, None if like is None else like.name, dtype))
        out.mkdir()
        return out

    monkeypatch.setattr("foretoken.cli.zoo.write", write)
    target, draft = map(str, checkpoints)
    with placed(target, {"sps": {"method": "sps", "model": draft}}, "135m") as (place, methods):
        kept = [Path(place), Path(str(methods["sps"]["model"]))]
        assert all(path.is_dir() for path in kept)
    assert written == [
        ("target", "135m", None, "float32"),
        ("draft", "135m", "target", "float32"),
    ]
    assert not any(path.exists() for path in kept)
