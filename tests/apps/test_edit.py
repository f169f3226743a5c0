"""A text changed by an instruction: what is asked, drafted, cut out, and refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from edits import ASKED, FILE, scripted
from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.apps.edit import _bounded, _cut, _fence, edit, messages
from foretoken.testing import ByteTokenizer, native, tiny_transformers
from seq2seq_models import native_of, tiny

CHANGED = FILE.replace("f(", "area(")
GREEDY = SamplingParams(temperature=0, max_tokens=None)
SEEDED = SamplingParams(temperature=0.9, seed=3, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def random() -> LLM:
    """A model whose texts are nobody's, in float64."""
    return LLM(native(tiny_transformers(97, max_length=1024)), tokenizer=ByteTokenizer(97))


@pytest.mark.parametrize("before", ["", "Here it is:\n"])
@pytest.mark.parametrize("tag", ["", "python"])
def test_a_fence_is_taken_off(before: str, tag: str) -> None:
    with scripted(f"{before}```{tag}\n{CHANGED}```\nI renamed f.") as llm:
        edited = edit(llm, FILE, ASKED)
    assert edited.text == CHANGED and edited.complete and edited.before == FILE


def test_special_tokens_of_a_file_are_a_part_of_it() -> None:
    """What the tokenizer takes for its own is written all the same; an end can't be gone over."""
    text = "T = '<|user|>{q}<|assistant|>'\nx = 1\n"
    with LLM("mini") as llm:
        tokenizer: Any = llm.tokenizer
        start = len(llm.chat_prompt(messages(text, ASKED)))
        ids = tokenizer(f"```\n{text}```", add_special_tokens=False)["input_ids"]
        assert set(ids) & set(tokenizer.all_special_ids)
        ids.append(tokenizer.eos_token_id)

        def copies(before: Any, scores: Any) -> Any:
            scores = torch.full_like(scores, -torch.inf)
            scores[:, ids[min(before.shape[1] - start, len(ids) - 1)]] = 0
            return scores

        params = replace(GREEDY, logits_processors=[copies])
        edited = edit(llm, text, ASKED, params)
        assert edited.complete and edited.text == text
        with pytest.raises(ForetokenError, match=r"holds '<\|endoftext\|>', at which"):
            edit(llm, f"a = '{tokenizer.eos_token}'\n", ASKED)


def test_a_bare_answer() -> None:
    with scripted(CHANGED.rstrip("\n")) as llm:
        edited = edit(llm, FILE, ASKED)
    assert edited.text == CHANGED and edited.complete


def test_what_stays_costs_few_passes() -> None:
    """The block of the prompt is the prediction, so even its fences are drafted."""
    with scripted(f"```\n{FILE}```") as llm:
        edited = edit(llm, FILE, ASKED)
        stats = edited.output.stats
        assert edited.text == FILE and edited.diff("a") == ""
        assert edited.predicted == len(FILE) + 7 == stats.tokens - 1  # the end of text
        assert stats.accepted_prediction_tokens == stats.tokens - stats.passes
        assert stats.rejected_prediction_tokens == 0 and stats.passes <= 5 < stats.tokens / 10


@pytest.mark.parametrize("params", [replace(GREEDY, max_tokens=40, ignore_eos=True), SEEDED])
def test_the_prediction_changes_no_token(random: LLM, params: SamplingParams) -> None:
    """A text like the model's own answer, so that some of it is accepted and some is not."""
    asked = partial(messages, instruction="Shorten.")
    text = "abc\n"
    for _ in range(3):  # towards a file that the answer repeats
        [plain] = random.chat([asked(text)], params)
        edited = edit(random, text, "Shorten.", params)
        assert edited.output.token_ids == plain.token_ids and not edited.complete
        assert edited.output.stats.rejected_prediction_tokens > 0
        text = f"{plain.text.replace('`', '')}\n"


@pytest.mark.parametrize(
    ("answer", "text", "closed"),
    [
        ("```\na\n```", "a\n", True),
        ("```\na\n\n```", "a\n\n", True),
        ("```\n```", "", True),
        ("```\na", "a\n", False),
        ("  ````py\na\n````", "a\n", True),
        ("\na ``` b\n\n", "a ``` b\n", True),
        ("    ```\na", "    ```\na\n", True),
        ("", "", True),
    ],
)
def test_cut(answer: str, text: str, closed: bool) -> None:
    assert _cut(answer, "x\n", "```") == (text, closed)


def test_a_last_line_without_an_end_stays_one() -> None:
    assert _cut("```\na\n```", "x", "```") == ("a", True)
    assert _cut("a\n", "x", "```") == ("a", True)
    assert _cut("```\na\n```", "", "```") == ("a\n", True)


@pytest.mark.parametrize(
    "answer",
    ["```\na\n```\nor\n```\nb\n```", "```\n'''\n```python\nf()\n```\n'''\n```", "```a\n```b"],
)
def test_several_blocks_are_refused(answer: str) -> None:
    """Which of them is the file, or where it ends, can't be known; half a file is no answer."""
    with scripted(answer) as llm, pytest.raises(ForetokenError, match="one block was asked for"):
        edit(llm, FILE, ASKED)


PAGE = "# Page\n\n```python\nf()\n```\n"


@pytest.mark.parametrize("form", ["````\n{}````", "````markdown\n{}````", "{}", "```\n{}```"])
def test_a_file_with_fences(form: str) -> None:
    """It is asked for in a longer fence, and comes whole in that, bare, or in a short one."""
    assert messages(PAGE, ASKED)[0]["content"].startswith("````\n# Page")
    changed = PAGE.replace("f()", "g()")
    with scripted(form.format(changed), text=PAGE) as llm:
        assert edit(llm, PAGE, ASKED).text == changed


def test_fences_are_longer_than_the_texts() -> None:
    assert [_fence(text) for text in ("", "a `` b", "```", "`````\n```")] == [
        *("```", "```", "````", "``````")
    ]


def test_windows_lines_stay() -> None:
    """The model sees line feeds; the text has what it had. Mixed ends are left alone."""
    windows = FILE.replace("\n", "\r\n")
    with scripted(f"```\n{CHANGED}```") as llm:
        edited = edit(llm, windows, ASKED)
    assert edited.text == CHANGED.replace("\n", "\r\n")
    assert edited.diff("a").count("\n-") == 2
    mixed, changed = (text.replace("\n", "\r\n", 1) for text in (FILE, CHANGED))
    with scripted(f"```\n{changed}```", text=mixed, vocab_size=257) as llm:
        assert edit(llm, mixed, ASKED).text == changed


def test_a_byte_order_mark_stays() -> None:
    """The model doesn't see it."""
    with scripted(f"```\n{CHANGED}```") as llm:
        edited = edit(llm, "\ufeff" + FILE, ASKED)
    assert edited.text == "\ufeff" + CHANGED and edited.before == "\ufeff" + FILE


def test_an_empty_answer_empties_no_file() -> None:
    """A model that ends at once says nothing of the file; an empty block does, and what was cut off
    is told as such."""
    for answer in ("", " \n"):
        with scripted(answer) as llm, pytest.raises(ForetokenError, match="The answer is empty"):
            edit(llm, FILE, ASKED)
    with scripted("```\n```") as llm:
        edited = edit(llm, FILE, ASKED)
    assert edited.text == "" and edited.complete
    with scripted("\n\n") as llm:
        assert not edit(llm, FILE, ASKED, replace(GREEDY, max_tokens=1)).complete
    with scripted("", text="") as llm:  # nothing can be lost
        edited = edit(llm, "", ASKED)
    assert edited.text == "" and edited.complete


def test_diff() -> None:
    with scripted("```\na\nc\n```", text="a\nb") as llm:
        edited = edit(llm, "a\nb", ASKED)
    assert edited.diff("x.txt") == (
        "--- x.txt\n+++ x.txt\n@@ -1,2 +1,2 @@\n a\n"
        "-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n"
    )


def test_cut_off_answers_say_so() -> None:
    """By the bound on tokens, or where the model stops within its block."""
    with scripted(f"```\n{CHANGED}```") as llm:
        edited = edit(llm, FILE, ASKED, replace(GREEDY, max_tokens=30))
    assert not edited.complete and len(edited.output.token_ids) == 30
    assert edited.text == CHANGED[:26] + "\n"
    with scripted(f"```\n{CHANGED}") as llm:
        assert not edit(llm, FILE, ASKED).complete


def test_bounds() -> None:
    """Without max_tokens, an answer that never ends does."""
    assert _bounded(GREEDY, [1, 2, 3], 999).max_tokens == 518
    assert _bounded(GREEDY, [1, 2, 3], 99).max_tokens == 99
    assert _bounded(replace(GREEDY, max_tokens=4), [1, 2, 3], 999).max_tokens == 4
    assert _bounded(replace(GREEDY, min_tokens=600), [1, 2, 3], 999).max_tokens == 600


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"instruction": " \n"}, "instruction is empty"),
        ({"params": replace(GREEDY, prediction="a")}, "leave prediction out"),
        ({"params": replace(GREEDY, n=2)}, "n is 2"),
        ({"text": "a" * 500}, r"takes (\d+) tokens, with an answer as long (\d+), .* is 1024;"),
    ],
)
def test_what_is_refused(random: LLM, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ForetokenError, match=reason):
        edit(random, **{"text": "a\n", "instruction": "b", "params": GREEDY} | change)


def test_the_longest_file(random: LLM) -> None:
    """One token more doesn't fit."""
    one = len(random.chat_prompt(messages("a\n", "b"))) + len("```\na\n```")
    text = "a" * ((1024 - one) // 2) + "a\n"
    few = replace(GREEDY, max_tokens=1)
    assert edit(random, text, "b" + "c" * (one % 2), few).output.stats.tokens == 1
    with pytest.raises(ForetokenError, match=r"as long 1025, and the context is 1024"):
        edit(random, text, "bc" + "c" * (one % 2), few)


def test_a_cache_that_is_small(random: LLM) -> None:
    """An answer without max_tokens ends where it is full; a file that doesn't fit is refused."""
    prompt = len(random.chat_prompt(messages("a\n", "b")))
    target = random.engine.target
    needs = target.budget.needs(prompt + 100)
    with LLM(target.model, tokenizer=ByteTokenizer(97), kv_cache_memory=needs) as tight:
        most = tight.engine.target.budget.longest(1024)
        assert prompt + 100 <= most < prompt + 500
        edited = edit(tight, "a\n", "b", replace(GREEDY, ignore_eos=True))
        assert len(edited.output.token_ids) == most - prompt and not edited.complete
        with pytest.raises(ForetokenError, match=f"the caches hold {most}; .* kv_cache_memory"):
            edit(tight, "a" * 400, "b")


def test_models_that_take_no_instructions() -> None:
    """One without a chat template, and one that reads sources."""
    tokenizer = ByteTokenizer(97)
    tokenizer.chat_template = None
    llm = LLM(native(tiny_transformers(97)), tokenizer=tokenizer)
    with llm, pytest.raises(ForetokenError, match="template"):
        edit(llm, "a\n", "b")
    llm = LLM(native_of(tiny("t5")), tokenizer=ByteTokenizer(61))
    with llm, pytest.raises(ForetokenError, match="takes no instructions"):
        edit(llm, "a\n", "b")


def test_a_file_that_begins_with_a_fence_keeps_it() -> None:
    """Where the answer is bare, its first fence is the file's own."""
    assert _cut("```\nb\n```", "```\na\n```\n", "````") == ("```\nb\n```\n", True)
    assert _cut("```\nb\n```", "a\n", "````") == ("b\n", True)
