"""The conclusion, to paste and to keep."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from foretoken import ForetokenError
from foretoken.config import build
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.models.load import find
from foretoken.recommender.candidates import Candidate
from foretoken.recommender.prediction import Prediction
from foretoken.recommender.recommendation import Recommendation
from foretoken.recommender.served import Cell
from foretoken.recommender.verdict import Row
from foretoken.tuned import read_tuned, tuned_path

GREEDY = Cell(1, 0.0)
CONFIG = {"method": "pld", "num_speculative_tokens": 3}
ROW = Row("pld", CONFIG, GREEDY, 9, 50.0, 2.0, 1.5, 1.4, 1.6)


def found(**more: Any) -> Recommendation:
    given: dict[str, Any] = {
        "model": "mini",
        "sentence": "use pld: 1.50× (1.40–1.60) greedy",
        "config": CONFIG,
        "rows": (ROW,),
        "chosen": (ROW,),
        "screened": (Prediction("sam", Candidate("sam", {"method": "sam"}), {GREEDY: 1.2}),),
        "not_run": {"swift": "It can't."},
        "notes": (),
        "interrupted": False,
    }
    return Recommendation(**{**given, **more})


def test_what_is_pasted_works() -> None:
    """Python, the command line and vLLM, each with the same options."""
    lines = dict(found().usage(ROW))
    llm: Any = eval(lines["Python"], {"LLM": lambda model, **options: (model, options)})
    assert llm == ("mini", {"speculative_config": CONFIG})
    assert json.loads(lines["command line"].partition(" -sc ")[2].strip("'")) == CONFIG
    theirs = json.loads(lines["vLLM"].partition("--speculative-config ")[2].strip("'"))
    assert theirs["method"] == "ngram" and theirs["num_speculative_tokens"] == 3
    auto = Row("auto", {"method": "auto"}, GREEDY, 9, 50.0, 2.0, 1.5, 1.4, 1.6)
    assert "vLLM" not in dict(found().usage(auto))


def test_what_is_pasted_runs_as_it_was_measured() -> None:
    """How the target ran is in every line, as far as it knows it."""
    options = {"dtype": "float32", "backend": "q4", "max_model_len": 512, "trust_remote_code": True}
    given = found(options=options)
    lines = dict(given.usage(ROW))
    llm: Any = eval(lines["Python"], {"LLM": lambda model, **options: (model, options)})
    assert llm == ("mini", {**options, "speculative_config": CONFIG})
    flags = "--dtype float32 --backend q4 --max-model-len 512 --trust-remote-code"
    assert f"--model mini {flags} -sc " in lines["command line"]
    theirs = "--dtype float32 --max-model-len 512 --trust-remote-code"
    place = shlex.quote(str(find("mini")))  # as vLLM doesn't know our names
    assert lines["vLLM"].startswith(f"vllm serve {place} {theirs} --speculative-config ")
    data = given.data()
    assert data["options"] == options and data["use"] == [{"method": "pld", **lines}]


def test_data_is_json() -> None:
    data = json.loads(json.dumps(found().data()))
    assert data["timed"][0]["cell"] == {"batch_size": 1, "temperature": 0.0}
    assert data["screened"] == [
        {"method": "sam", "predicted": [{"batch_size": 1, "temperature": 0.0, "speedup": 1.2}]}
    ]
    assert data["speculative_config"] == CONFIG and data["not_run"] == {"swift": "It can't."}


@pytest.mark.usefixtures("cache")
def test_saved_and_used(tmp_path: Path) -> None:
    """By a name or a path; where nothing pays, what is saved decodes plainly."""
    assert found().save("mine") == tuned_path("mine")
    assert read_tuned("mine") == CONFIG
    drafter = build({"tuned": "mine", "prompt_lookup_max": 5}).drafter
    assert isinstance(drafter, PromptLookup)
    assert (drafter.num_speculative_tokens, drafter.prompt_lookup_max) == (3, 5)
    path = tmp_path / "plain.json"
    found(config=None, sentence="nothing pays").save(str(path))
    assert build({"tuned": str(path)}).name == "autoregressive"
    few = Row("pld", CONFIG, GREEDY, 2, 50.0, 2.0, 1.5, 1.4, 1.6)
    with pytest.raises(ForetokenError, match="Nothing is saved as 'none', as too little"):
        found(config=None, rows=(few,), sentence="too little").save("none")
    assert not tuned_path("none").exists()
