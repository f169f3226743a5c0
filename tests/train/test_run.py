"""Training end to end on a tiny target: resume after a kill, early stop, what is refused, cards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.cli import main
from foretoken.train.data import read_conversations, write
from foretoken.train.loop import Progress, train
from foretoken.train.recipe import Recipe, read_recipe, recipes
from foretoken.train.records import Records
from foretoken.train.run import Trial, make, same_run, trainable

pytest.importorskip("accelerate")

WORDS = ["the sea", "a house", "one night", "red wine", "cold bread", "my friend", "so long"]
SMALL: dict[str, Any] = {
    "length": 96,
    "max_tokens": 32,
    "held": 3,
    "rows": 2,
    "steps": 8,
    "evaluate_every": 3,
    "patience": 9,
    "matrix_lr": 0.01,
}


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows: list[dict[str, Any]] = [{"turns": [word, f"more of {word}"]} for word in WORDS]
    rows += [{"prompt": word} for word in WORDS]
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "what now"}]
    rows += [{"messages": said}, {"text": "a text that stands for itself"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def run(target: Path, prompts: Path, out: Path, **changes: Any) -> tuple[Trial, list[int]]:
    """A training of Medusa's heads, and the steps that it took."""
    steps: list[int] = []
    trial = make(
        "medusa",
        str(target),
        read_conversations(prompts),
        read_recipe("medusa", {**SMALL, **changes}),
        out,
        every=0.0,
        show=False,
        say=lambda now: steps.append(now.step),
    )
    return trial, steps


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from train import test_run
test_run.run(Path({target!r}), Path({prompts!r}), Path({out!r}))
"""


@pytest.mark.slow
def test_killed_and_gone_on_with(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    """kill -9 now and then: in the end the very weights of a run that was never stopped."""
    straight = tmp_path / "straight"
    trial, _ = run(checkpoints[0], prompts, straight)
    names = {"tests": str(Path(__file__).parents[1]), "target": str(checkpoints[0])}
    code = CHILD.format(**names, prompts=str(prompts), out=str(tmp_path / "killed"))
    states = tmp_path / "killed" / "resume"
    for step in (1, 4):
        child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
        try:
            _wait_for(states / f"step-{step:08d}", states, child)
        finally:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
    assert not (tmp_path / "killed" / "README.md").exists()
    again, steps = run(checkpoints[0], prompts, tmp_path / "killed")
    assert again.progress == trial.progress and again.progress.step == SMALL["steps"]
    assert all(step > 4 for step in steps)
    mine, theirs = weights(straight), weights(tmp_path / "killed")
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def _wait_for(state: Path, folder: Path, child: Any) -> None:
    """Until this state or a later one is there."""
    end = time.monotonic() + 120
    while not any(path.name >= state.name for path in folder.glob("step-*")):
        assert child.poll() is None and time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("method", ["medusa", "hydra", "blockwise"])
def test_each_recipe_learns(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path, method: str
) -> None:
    """The loss falls, served is as estimated, and card and checkpoint say so."""
    seen: list[float] = []
    recipe = read_recipe(method, {**SMALL, "steps": 30, "evaluate_every": 10, "lr": 3e-3})
    trial = make(
        method,
        str(checkpoints[0]),
        read_conversations(prompts),
        recipe,
        tmp_path / "out",
        show=False,
        say=lambda now: seen.append(now.loss),
    )
    assert sum(seen[-5:]) < 0.9 * sum(seen[:5])
    expected, served = trial.expected.acceptance_length, trial.served.mean_acceptance_length
    assert expected == pytest.approx(served, rel=0.01) and served > 1
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"{expected:.3f}" in card and f"{served:.3f}" in card
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["foretoken_method"] == method and config["notes"]["rates"]
    llm = LLM(checkpoints[0], speculative_config={"method": method, "model": tmp_path / "out"})
    params = SamplingParams(temperature=0, max_tokens=24)
    plain = LLM(checkpoints[0]).generate("the sea", params)[0].token_ids
    assert llm.generate("the sea", params)[0].token_ids == plain


def test_the_command(
    checkpoints: tuple[Path, Path],
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`foretoken train` says what was reached; a wrong setting is one sentence."""
    command = ["train", "blockwise", "--target", str(checkpoints[0]), "--data", str(prompts)]
    command += ["--out", str(tmp_path / "out"), "--limit", "6"]
    for name, value in {**SMALL, "steps": 2, "lr": "1e-3"}.items():
        command += ["--set", f"{name}={value}"]
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert not ended.value.code
    assert "2 steps · mean acceptance length" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main([*command, "--set", "lr"])
    assert ended.value.code == 1 and "--set takes name=value" in capsys.readouterr().err


def test_training_stops_early(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    """Without a better estimate for `patience` times; the best weights are what is left."""
    trial, _ = run(
        checkpoints[0], prompts, tmp_path / "out", steps=60, lr=1e-12, evaluate_every=2, patience=2
    )
    assert trial.progress.step == 6 and trial.progress.stale == 2


def test_what_is_refused(checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path) -> None:
    """Another training's folder, methods and settings that aren't there."""
    run(checkpoints[0], prompts, tmp_path / "out", steps=1, lr=1e-3)
    with pytest.raises(ForetokenError, match=r"lr was 0.001 and is now 0.5; give another --out"):
        run(checkpoints[0], prompts, tmp_path / "out", steps=1, lr=0.5)
    with pytest.raises(ForetokenError, match="nothing to train for method 'pld'"):
        trainable("pld")
    with pytest.raises(ForetokenError, match="Did you mean 'steps'"):
        read_recipe("medusa", {"step": 3})
    with pytest.raises(ForetokenError, match="Did you mean 'medusa'"):
        read_recipe("medusas")
    with pytest.raises(ForetokenError, match="a row must hold a prompt"):
        Recipe(max_tokens=512, length=512)


def test_every_recipe_can_be_read() -> None:
    assert {"medusa", "hydra", "blockwise"} <= set(recipes())
    for name in recipes():
        assert read_recipe(name).goal.mix
    assert read_recipe("medusa", {"lr": "5e-4"}).lr == 5e-4  # what YAML makes of --set lr=5e-4


def test_answers_are_written_once(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    """Turn by turn, in blocks that are read back; other prompts in the folder are refused."""
    llm, params = LLM(checkpoints[0]), SamplingParams(temperature=0, max_tokens=8)
    asked = read_conversations(prompts)
    first = write(llm, asked, tmp_path, params, 200, show=False)
    assert len(first) == 2 * len(WORDS) + len(WORDS) + 1
    second_turn = llm.tokenizer.decode(first.prompt(2 * len(WORDS) + 1))
    assert "more of" in second_turn
    for i in range(len(first)):
        plain = llm.generate([first.prompt(i)], params)[0].token_ids
        assert first.answer(i) == plain
    llm.generate = None  # type: ignore[method-assign, assignment]
    again = write(llm, asked, tmp_path, params, 200, show=False)
    assert (again.tokens == first.tokens).all() and (again.answers == first.answers).all()
    with pytest.raises(ForetokenError, match="made for prompts"):
        write(llm, asked[1:], tmp_path, params, 200, show=False)


def test_a_run_is_noted_in_a_new_folder(tmp_path: Path) -> None:
    """Also where no texts were written there before, as with the file's own."""
    same_run(tmp_path / "new" / "out", {"method": "sps"})
    with pytest.raises(ForetokenError, match="method was 'sps' and is now 'medusa'"):
        same_run(tmp_path / "new" / "out", {"method": "medusa"})


def test_bad_prompts(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"turns": ["a"]}\n{"question": "b"}\n')
    with pytest.raises(ForetokenError, match="line 2 has neither"):
        read_conversations(path)
    path.write_text("no json\n")
    with pytest.raises(ForetokenError, match="line 1: not JSON"):
        read_conversations(path)


def test_records() -> None:
    """Joined and split, every text stands as it was."""
    one = Records.of([([1, 2], [3]), ([4], [5, 6])], 8, 9)
    both = Records.joined([one, Records.of([([], [7, 8])], 4, 9)])
    assert [(both.prompt(i), both.answer(i)) for i in range(3)] == [
        ([1, 2], [3]),
        ([4], [5, 6]),
        ([], [7, 8]),
    ]
    learned, held = both.split(1)
    assert len(learned) == 2 and held.answer(0) == [3] and both.limit == 8
    assert len(both.apart(held)) == 2 and len(both.apart(both)) == 1  # what has no prompt stays


def test_a_loss_that_is_none(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """NaN ends the training with a sentence."""
    from foretoken.models.load import load_model
    from foretoken.train.frozen import Frozen
    from foretoken.trainable.checkpoint import Facts

    model = load_model(checkpoints[0], backend="plain")
    module = trainable("medusa").module(Facts.of(model))
    torch.nn.init.constant_(next(iter(module.parameters())), float("nan"))
    records = Records.of([([1, 2], [3, 4, 5])] * 4, 8, model.vocab_size)
    with pytest.raises(ForetokenError, match="loss is nan at step 0"):
        train(
            module,
            Frozen(model),
            lambda step: [records],
            records,
            Recipe(length=16, max_tokens=8),
            lambda m, lesson: lesson.room[..., None] > 9,
            tmp_path,
        )
    assert Progress().step == 0
