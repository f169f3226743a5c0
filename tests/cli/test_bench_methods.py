"""Which methods a benchmark measures, and what each drafts with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretoken import ForetokenError, zoo
from foretoken.cli.bench_methods import (
    Drafts,
    _own_configs,
    bundled_drafters,
    configs,
    drafts,
)
from foretoken.cli.bench_options import BenchOptions
from foretoken.cli.options import ModelOptions
from foretoken.trainable.checkpoint import method_of


def chosen(methods: str, own: Drafts, inflated: bool = False) -> dict[str, dict[str, object]]:
    return configs(BenchOptions(methods=methods), ModelOptions(), own, inflated)[0]


def test_a_draft_model_for_all_and_others_by_name(tmp_path: Path) -> None:
    """One for all models, or one each; NAME=MODEL is the method's own, by an alias too."""
    one, two = drafts("small, sps = tiny,eagle=e", ["a", "b"])
    assert one == two == Drafts("small", {"sps": "tiny", "eagle": "e"}, {})
    assert [own.small for own in drafts("x,y", ["a", "b"])] == ["x", "y"]
    assert drafts("draft_model=d", ["a"]) == [Drafts(None, {"sps": "d"}, {})]
    folder = tmp_path / "lr=0.1"
    folder.mkdir()
    assert drafts(str(folder), ["a"]) == [Drafts(str(folder), {}, {})]
    with pytest.raises(ForetokenError, match="3 draft models for 2 models"):
        drafts("x,y,z,sps=s", ["a", "b"])


def test_bundled_drafters_are_found() -> None:
    """Of the bundled target, every row of the table that can draft with one; of others none."""
    [own] = drafts(None, ["mini"])
    assert own.small == "mini-draft" and own.named == {}
    assert own.bundled["eagle2"] == "mini-eagle" and own.bundled["dflash_tree"] == "mini-dflash"
    there = {name for name in zoo.names() if name.startswith("mini-")} - {"mini-draft"}
    assert {*own.bundled.values()} == there
    assert method_of(zoo.path("mini-mtp")) == "mtp" and own.bundled["mtp"] == "mini-mtp"
    assert bundled_drafters("smollm2-135m-instruct")["eagle3"] == "smollm2-eagle3"
    assert bundled_drafters("other") == {}


def test_methods_get_their_drafters() -> None:
    """What the user names wins over what is bundled; an inflated target has none."""
    own = Drafts("small", {"eagle": "mine"}, {"eagle": "mini-eagle", "medusa": "mini-medusa"})
    found = chosen("suffix+sps,eagle,medusa,eagle+sps", own)
    assert found == {
        "suffix+sps": {"method": "suffix+sps", "model": "small"},
        "eagle": {"method": "eagle", "model": "mine"},
        "medusa": {"method": "medusa", "model": "mini-medusa"},
        "eagle+sps": {
            "method": "eagle+sps",
            "eagle": {"model": "mine"},
            "sps": {"model": "small"},
        },
    }
    bundled = Drafts("small", {}, {"eagle": "mini-eagle"})
    settings = BenchOptions()
    every, reasons = configs(settings, ModelOptions(), bundled, False)
    assert every["eagle"]["model"] == "mini-eagle" and "medusa" in reasons
    every, reasons = configs(settings, ModelOptions(), bundled, True)
    assert "eagle" in reasons and every["sps"]["model"] == "small"


def test_what_a_tuned_name_stands_for(tmp_path: Path) -> None:
    """In a run's plan there are the options, as the file may say others when it is resumed."""
    config = {"method": "pld", "num_speculative_tokens": 3}
    tuned = tmp_path / "tuned.json"
    tuned.write_text(json.dumps({"schema": 1, "speculative_config": config}))
    given = json.dumps({"tuned": str(tuned)})
    mine = json.dumps({"mine": {"tuned": str(tuned), "prompt_lookup_max": 2}})
    settings = BenchOptions(methods="suffix", method_config=mine)
    running = ModelOptions(speculative_config=given)
    found, _ = configs(settings, running, Drafts(None, {}, {}), False)
    assert found["pld"] == config and found["mine"] == {**config, "prompt_lookup_max": 2}


def test_single_options_go_with_a_config() -> None:
    """The length wins over its own, where its method has one; its draft model is the one for all
    where it names none."""
    settings = BenchOptions(methods="pld", num_speculative_tokens=8)
    for given, expected in (
        ({"method": "pld"}, {"method": "pld", "num_speculative_tokens": 8}),
        (
            {"method": "pld", "num_assistant_tokens": 3},
            {"method": "pld", "num_speculative_tokens": 8},
        ),
        ({"method": "jacobi"}, {"method": "jacobi", "num_speculative_tokens": 8}),
        (
            {"method": "sps"},
            {"method": "sps", "model": "small", "num_speculative_tokens": 8},
        ),
        (
            {"method": "sps", "model": "mine"},
            {"method": "sps", "model": "mine", "num_speculative_tokens": 8},
        ),
    ):
        running = ModelOptions(speculative_config=json.dumps(given))
        found, _ = configs(settings, running, Drafts("small", {}, {}), False)
        assert found[given["method"]] == expected


@pytest.mark.parametrize("as_file", [True, False])
def test_own_configs_are_json(as_file: bool, tmp_path: Path) -> None:
    """With numbers and tabs that YAML reads otherwise, and with a mark before it."""
    options = '"method": "bild", "model": "x", "assistant_confidence_threshold": 5e-1'
    text = f'{{\n\t"mine": {{{options}}}}}'
    file = tmp_path / "mine.json"
    file.write_text("\ufeff" + text, encoding="utf-8")
    settings = BenchOptions(methods="pld", method_config=str(file) if as_file else text)
    found, _ = configs(settings, ModelOptions(), Drafts(None, {}, {}), False)
    assert found["mine"]["assistant_confidence_threshold"] == 0.5


def test_own_configs_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(b"mine: {method: pld} # \xff")
    settings = BenchOptions(methods="pld", method_config=str(file))
    with pytest.raises(ForetokenError, match=r"--method-config can't be read: .*utf-8"):
        configs(settings, ModelOptions(), Drafts(None, {}, {}), False)


@pytest.mark.parametrize(
    ("given", "methods", "inflated", "message"),
    [
        ("pld=x", "pld", False, "'pld', which drafts with none"),
        ("spss=x", "sps", False, "--draft-model 'spss=x': .*Did you mean 'sps'"),
        ("=", "sps", False, "--draft-model '='"),
        ("sps=", "sps", False, "'sps=' names no model"),
        ("sps=x", "pld", False, "'sps', which is not measured"),
        ("eagle=x", "eagle", True, "'eagle' are of the target as it is"),
    ],
)
def test_names_that_would_be_ignored(
    given: str, methods: str, inflated: bool, message: str
) -> None:
    """A model that nothing would draft with is refused."""
    with pytest.raises(ForetokenError, match=message):
        chosen(methods, drafts(given, ["a"])[0], inflated)


def test_labels_are_texts() -> None:
    """Also where YAML has a number."""
    assert _own_configs("{1: {method: pld}}") == {"1": {"method": "pld"}}
