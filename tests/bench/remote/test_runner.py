"""Measuring a server: what is timed, counted and recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from conftest import letters
from fake_server import (
    FIRST,
    KEY,
    PROMPT,
    WORD,
    WORDS,
    answering,
    head,
    plan,
    serving,
    vllm,
)
from foretoken.bench.measure import metrics
from foretoken.bench.plan import Unit, blocks, units
from foretoken.bench.record import BASELINE, Answer, check, read_results
from foretoken.bench.remote import address
from foretoken.bench.remote.openai import Endpoint
from foretoken.bench.remote.runner import RemoteRunner
from foretoken.bench.report.samples import read_answers
from foretoken.bench.run.order import Order
from foretoken.bench.run.summary import summarize
from foretoken.bench.suites.suite import Prompt, Suite
from foretoken.cli.commands import app
from foretoken.errors import ForetokenError


def sglang(requests: int) -> str:
    """Each answer of eight words took three verifications after its first token."""
    return (
        f'sglang:spec_verify_calls_total{{model_name="m"}} {3 * requests}\n'
        'sglang:spec_accept_length{model_name="m",tp_rank="0"} 2.5\n'
        'sglang:spec_accept_rate{model_name="m",tp_rank="0"} 0.4\n'
    )


def serve(runner: RemoteRunner, *prompts: Prompt) -> list[Answer]:
    todo = [u for b in blocks(prompts, runner.plan.batch_sizes) for u in units(b, runner.plan)]
    return [answer for unit in todo for answer in runner.serve(unit)]


def test_an_answer_is_timed_from_its_stream() -> None:
    """First token, total, and decoding as the time per token between the first and the end."""
    with serving(pace=1.0) as (_, endpoint):
        began = perf_counter()
        [answer] = RemoteRunner(plan(), endpoint).serve(Unit((PROMPT,), 1, 0.0))
        took = perf_counter() - began
    assert answer.error is None and answer.seconds["total"] < took
    assert (answer.text, answer.finish_reason) == ("".join(WORDS), "stop")
    assert (answer.tokens, answer.prompt_tokens, answer.token_ids) == (8, 5, [])
    spent = answer.seconds
    assert spent["ttft"] >= FIRST
    assert spent["total"] - spent["ttft"] > 0  # however late this process is to read
    assert spent["other"] == pytest.approx((spent["total"] - spent["ttft"]) * 8 / 7)
    assert spent["prefill"] + spent["other"] == pytest.approx(spent["total"])


def test_a_lone_piece_is_all_decoding() -> None:
    """Where nothing lies between first and last, the prompt's share can't be told."""
    from foretoken.bench.remote.openai import Reply
    from foretoken.bench.remote.runner import seconds

    whole = Reply(began=1.0, arrivals=[3.0], ended=3.0)
    assert seconds([whole], 5) == {"prefill": 0, "draft": 0, "verify": 0, "other": 2.0}
    pair = [
        Reply(began=0.0, arrivals=[2.0, 6.0], ended=6.0),
        Reply(began=0.0, arrivals=[1.0], ended=5.0),
    ]
    assert seconds(pair, 6)["other"] == pytest.approx((6 - 1) * 6 / 5 / 2)
    assert seconds(pair, 2)["other"] == pytest.approx(6 / 2)  # not more than there was
    late = [replace(pair[1], began=0.5), pair[0]]  # whichever is the first and the last to end
    spent = seconds(late, 11)
    assert (spent["prefill"], spent["other"]) == pytest.approx((0.5 / 2, 5.5 / 2))


@pytest.mark.parametrize(
    ("counters", "source", "passes", "drafted", "per_position"),
    [
        (vllm, "vllm's counters", 5, 4, [1.0, 0.5]),
        (lambda n: vllm(n, "foretoken", ""), "foretoken's counters", 5, 4, [1.0, 0.5]),
        (sglang, "SGLang's counters", 4, 0, []),
        (lambda n: "sglang:spec_accept_length 2\n", "SGLang's gauge of the last seconds", 4, 0, []),
        (lambda n: "vllm:num_requests_running 0\nnonsense\n", "nobody", 0, 0, []),
        (None, "nobody", 0, 0, []),
    ],
)
def test_acceptance_comes_from_the_counters(
    counters: Callable[[int], str] | None,
    source: str,
    passes: int,
    drafted: int,
    per_position: list[float],
) -> None:
    """Of each family, of none, and of a server without /metrics."""
    with serving(counters) as (_, endpoint):
        runner = RemoteRunner(plan(), endpoint)
        [answer] = runner.serve(Unit((PROMPT,), 1, 0.0))
    assert runner.target["acceptance_from"] == source
    assert (answer.passes, answer.drafted) == (passes, drafted)
    found = metrics.measure([answer], [])
    assert found["acceptance_rate_per_position"] == per_position
    assert found["mean_acceptance_length"] == (8 / passes if passes else None)
    assert found["draft_acceptance_rate"] == (3 / 4 if drafted else None)
    assert found["tokens"] == 8


def later_than_the_first() -> Callable[[int], str]:
    """Counters that aren't there as they are first looked at."""
    looks: list[int] = []

    def counters(requests: int) -> str:
        looks.append(requests)
        return "" if len(looks) == 1 else vllm(1000 + requests)

    return counters


def test_counters_that_are_missing_for_a_turn() -> None:
    """Its tokens are of no pass that is known, whatever is known of the other turn."""
    with serving(later_than_the_first()) as (_, endpoint):
        found = serve(RemoteRunner(plan(), endpoint), replace(PROMPT, turns=("One?", "Two?")))
    assert [(a.turn, a.tokens, a.passes) for a in found] == [(0, 8, 0), (1, 8, 5)]
    assert metrics.measure(found, [])["mean_acceptance_length"] == 8 / 5


def test_counters_that_are_missing_for_a_group() -> None:
    """It has no acceptance: neither all drafts since the server's start, nor tokens of no pass."""
    with serving(later_than_the_first()) as (_, endpoint):
        found = serve(RemoteRunner(plan(), endpoint), PROMPT, replace(PROMPT, id="2"))
    assert [(a.tokens, a.passes, a.drafted) for a in found] == [(8, 0, 0), (8, 5, 4)]
    measured = metrics.measure(found, [])
    assert measured["mean_acceptance_length"] == 8 / 5
    assert measured["spec_bench"]["mean_accepted_tokens"] == 8 / 5
    assert measured["ms_per_step"]["other"] == pytest.approx(1000 * found[1].decoding / 5)


def test_a_group_with_a_failure_has_no_part_in_the_acceptance() -> None:
    """What was counted for it is not known to be the others'."""
    prompts = [Prompt(name, "qa", (said,)) for name, said in zip("abcd", "1234", strict=True)]
    prompts[3] = replace(prompts[3], turns=("refuse",))
    with serving() as (_, endpoint):
        found = serve(RemoteRunner(plan(batch_sizes=(2,)), endpoint), *prompts)
    assert [a.passes for a in found] == [5, 5, 0, 0] and found[2].tokens == 8
    assert metrics.measure(found, [])["mean_acceptance_length"] == 8 / 5


def test_passes_of_a_group_are_all_of_its_answers() -> None:
    """Whichever of them they are counted for, when they are shared out."""
    prompts = [Prompt(name, "qa", (said,)) for name, said in zip("ab", "12", strict=True)]
    with serving() as (_, endpoint):
        first, second = serve(RemoteRunner(plan(batch_sizes=(2,)), endpoint), *prompts)
    shared = [replace(first, passes=0), replace(second, passes=first.passes + second.passes)]
    assert first.group == second.group
    tokens, passes = first.tokens + second.tokens, first.passes + second.passes
    assert metrics.measure(shared, [])["mean_acceptance_length"] == tokens / passes


@pytest.mark.parametrize("usage", [b'{"completion_tokens": 0}', b"null"])
def test_a_server_that_counts_nothing(usage: bytes) -> None:
    """No tokens for a text is no count."""

    def answer(to: BaseHTTPRequestHandler) -> None:
        head(to)
        to.wfile.write(WORD + b'data: {"choices": [], "usage": %b}\n\n' % usage)
        to.wfile.write(b"data: [DONE]\n\n")

    with answering(answer) as url:
        [answered] = RemoteRunner(plan(), Endpoint(url, "m")).serve(Unit((PROMPT,), 1, 0.0))
    assert answered.error is not None and "doesn't count tokens" in answered.error


def test_a_failed_prompt_is_recorded_and_spoils_no_other() -> None:
    """A refusal, an error in mid-stream and a broken stream; later turns aren't asked."""
    prompts = [
        Prompt("a", "qa", ("fine",)),
        Prompt("b", "qa", ("refuse",)),
        Prompt("c", "qa", ("break off",)),
        Prompt("d", "qa", ("hang up",)),
        Prompt("e", "mt", ("refuse", "and then?")),
        Prompt("f", "qa", ("talk nonsense",)),
    ]
    with serving() as (fake, endpoint):
        found = serve(RemoteRunner(plan(batch_sizes=(4,)), endpoint), *prompts)
    host = endpoint.root.partition("//")[2]
    assert [(a.id, a.turn, a.error) for a in found] == [
        ("a", 0, None),
        ("b", 0, f"{host} answered with status 400: too long"),
        ("c", 0, f"{host} reports an error: out of memory"),
        ("d", 0, f"{host} ended its stream before the answer"),
        ("e", 0, f"{host} answered with status 400: too long"),
        ("e", 1, f"{host} answered with status 400: too long"),
        ("f", 0, f"{host} sent an event that is no JSON object"),
    ]
    assert all(a.tokens == a.passes == sum(a.seconds.values()) == 0 for a in found if a.error)
    assert found[0].tokens == 8
    spent = found[0].seconds  # no others had a part in it
    assert spent["prefill"] + spent["other"] == pytest.approx(spent["total"])
    assert found[0].passes == 0, "counters that others share are not to be given to one"
    assert len(fake.asked) == 6


def test_concurrency_sends_a_group_at_once() -> None:
    """All of it, and the group's time is shared equally."""
    prompts = [Prompt(str(i), "qa", (f"Number {i}?",)) for i in range(4)]
    with serving(pace=1.0, together=4) as (fake, endpoint):
        found = serve(RemoteRunner(plan(batch_sizes=(4,)), endpoint), *prompts)
        assert fake.busiest == 4
    assert {a.seconds["other"] for a in found} == {found[0].seconds["other"]}
    assert {(a.batch_size, a.group) for a in found} == {(4, "0+3")}
    whole = 4 * (found[0].seconds["prefill"] + found[0].seconds["other"])
    alone = [a.seconds["total"] for a in found]
    assert max(alone) - 1e-6 < whole < sum(alone)
    assert sum(a.passes for a in found) == 4 * 5


CHAT = Prompt("chat", "chat", ("One?", "Two?"))


def test_turns_follow_the_servers_own_answers() -> None:
    """Without a baseline the second turn continues the server's first answer."""
    with serving() as (fake, endpoint):
        found = serve(RemoteRunner(plan(), endpoint), CHAT)
    assert [a.turn for a in found] == [0, 1]
    assert [m["content"] for m in fake.asked[1]["messages"]] == ["One?", "".join(WORDS), "Two?"]
    assert fake.asked[0]["seed"] != fake.asked[1]["seed"]


@pytest.mark.parametrize("own", [False, True])
def test_a_baseline_gives_a_speedup_and_the_history(own: bool) -> None:
    """Both answer every turn, and go on from plain decoding's answer or each from its own."""
    others = [word.upper() for word in WORDS]
    with serving() as (quick, server), serving(None, pace=0.5, words=others) as (slow, plain):
        runner = RemoteRunner(plan(own_history=own, repeats=2), server, plain)
        found = serve(runner, CHAT, Prompt("2", "chat", ("Three?", "Four?")))
    assert runner.labels == [BASELINE, "server"]
    assert [(a.turn, a.method) for a in found[:4]] == [
        (0, BASELINE),
        (0, "server"),
        (1, BASELINE),
        (1, "server"),
    ]
    assert len(quick.asked) == len(slow.asked) == 8
    assert all(len(a.decodings) == 2 for a in found)
    told = quick.asked[2]["messages"][1]["content"]
    assert told == "".join(WORDS if own else others)
    fast, base = ([a for a in found if a.method == method] for method in ("server", BASELINE))
    measured = metrics.measure(fast, base)
    assert measured["speedup"] is not None and measured["speedup"] > 1
    assert metrics.measure(base, base)["mean_acceptance_length"] == 1


def test_the_baseline_must_not_speculate() -> None:
    """Counters that show drafts end the run at the warm-up."""
    with serving() as (_, server), serving() as (_, plain):
        runner = RemoteRunner(plan(), server, plain)
        with pytest.raises(ForetokenError, match="speculates"):
            runner.warm_up(PROMPT)


def test_without_usage_a_tokenizer_counts() -> None:
    """And the record says so; without a tokenizer the run doesn't begin."""
    with serving(usage=False) as (_, endpoint):
        with pytest.raises(ForetokenError, match="--tokenizer"):
            RemoteRunner(plan(), endpoint).warm_up(PROMPT)
        runner = RemoteRunner(plan(), endpoint, tokenizer=letters())
        runner.warm_up(PROMPT)
        [answer] = runner.serve(Unit((PROMPT,), 1, 0.0))
    assert answer.tokens == len("".join(WORDS))
    assert runner.target["tokens_from"] == "the tokenizer"


def test_a_long_prompt_is_skipped_where_the_context_is_known() -> None:
    """The server has 300 tokens of context, and 256 are to be left after the last turn."""
    short, long = Prompt("1", "qa", ("x" * 43,)), Prompt("2", "qa", ("x" * 44,))
    later, ruled = Prompt("3", "chat", ("x", "y")), replace(short, id="4", system="z")
    with serving() as (_, endpoint):
        known = RemoteRunner(plan(max_tokens=50), endpoint, tokenizer=letters())
        assert known.fitting([short, long, later, ruled]) == ([short], ["2", "3", "4"])
        assert RemoteRunner(plan(), endpoint).fitting([long]) == ([long], [])


def test_a_refused_warm_up_ends_the_run() -> None:
    """What is refused there would be refused every time."""
    with serving() as (_, endpoint), pytest.raises(ForetokenError, match="400: too long"):
        RemoteRunner(plan(), endpoint).warm_up(Prompt("1", "qa", ("refuse",)))


def test_results_without_a_baseline_have_no_speedup() -> None:
    """The contract holds, and nothing is made up."""
    suite = Suite("s", "0", (CHAT, PROMPT))
    with serving() as (_, endpoint):
        runner = RemoteRunner(plan(batch_sizes=(1, 2)), endpoint)
        runner.warm_up(PROMPT)
        found = serve(runner, *suite.prompts)
    results = summarize(found, plan=runner.plan, suite=suite, target=runner.target)
    check(json.loads(json.dumps(results)))
    assert results["suite"] | {"prompts": 2, "turns": 3, "history": "own"} == results["suite"]
    assert [(run["method"], run["batch_size"]) for run in results["runs"]] == [
        ("server", 1),
        ("server", 2),
    ]
    for run in results["runs"]:
        assert run["speedup"] is run["speedup_ci95"] is run["spec_bench"]["speedup"] is None
        assert run["identical_to_autoregressive"] is run["ideal"] is None
        assert run["tokens"] == 3 * len(WORDS)
        assert run["mean_acceptance_length"] == 8 / 5


def command(endpoint: Endpoint, folder: Path, *more: str) -> list[str]:
    """`foretoken bench` on three prompts, one of which is refused."""
    suite = folder / "few.jsonl"
    turns = [["One?", "Two?"], ["Three?"], ["refuse"]]
    rows = [{"id": str(i), "task": "qa", "turns": own} for i, own in enumerate(turns)]
    suite.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        "bench",
        "--engine",
        "openai",
        "--base-url",
        endpoint.base_url,
        "--model",
        "m",
        "--suite",
        str(suite),
        "--temperatures",
        "0",
        "--out",
        str(folder / "out"),
        *more,
    ]


def test_the_command_writes_its_four_files_and_goes_on_with_them(tmp_path: Path) -> None:
    """With a baseline; the second time nothing is asked any more."""
    with serving() as (fake, endpoint), serving(None, pace=0.2) as (_, plain):
        words = command(endpoint, tmp_path, "--baseline-url", plain.base_url)
        first = CliRunner().invoke(app, words)
        asked = len(fake.asked)
        again = CliRunner().invoke(app, words)
    assert first.exit_code == again.exit_code == 0, first.output
    assert len(fake.asked) == asked
    results = read_results(tmp_path / "out" / "results.json")
    assert results["target"]["server"] in first.output
    assert results["target"]["acceptance_from"] == "vllm's counters"
    base, own = results["runs"]
    assert (base["method"], base["speedup"], base["failed"]) == (BASELINE, 1.0, 1)
    assert own["speedup"] is not None and own["failed"] == 1
    assert own["mean_acceptance_length"] == 8 / 5
    lines = (tmp_path / "out" / "samples.jsonl").read_text().splitlines()
    assert [Answer.parse(line).tokens for line in lines] == [8] * 6 + [0] * 2
    for page in ("report.md", "report.html"):
        assert results["target"]["server"] in (tmp_path / "out" / page).read_text()


def test_the_command_needs_an_address(tmp_path: Path) -> None:
    """Without --base-url one sentence asks for it."""
    words = command(Endpoint("http://127.0.0.1:9", "m"), tmp_path)
    at = words.index("--base-url")
    done = CliRunner().invoke(app, words[:at] + words[at + 2 :])
    assert done.exit_code == 1
    assert "give --base-url" in done.output


def test_the_command_keeps_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither key, password nor query is in a file or on the screen; it is resumed without."""
    monkeypatch.setenv(address.KEY, KEY)
    with serving() as (_, endpoint):
        url = endpoint.base_url.replace("//", "//me:pass-word-1@", 1) + "?token=query-word-1"
        words = command(Endpoint(url, "m"), tmp_path)
        done = [CliRunner().invoke(app, words) for _ in range(2)]
    files = [path.read_text() for path in (tmp_path / "out").iterdir() if path.is_file()]
    assert [one.exit_code for one in done] == [0, 0], done[0].output
    assert any(f'"base_url": "{endpoint.base_url}"' in text for text in files)
    for secret in (KEY, "pass-word-1", "query-word-1"):
        assert not any(secret in text for text in (*files, *(one.output for one in done)))


def test_any_text_of_a_server_is_kept(tmp_path: Path) -> None:
    """Halves of surrogate pairs in prompts and answers: in the samples as they were, on the pages
    and on a screen without them as escapes."""
    odd = "\ud83d word \udc80 é "
    with serving(words=[odd] * 8) as (fake, endpoint):
        words = command(endpoint, tmp_path)
        suite = tmp_path / "few.jsonl"
        row = {"id": "\ud83d", "task": "qa", "turns": [odd], "reference": [[odd]]}
        suite.write_text(json.dumps(row) + "\n")
        done = CliRunner(charset="ascii").invoke(app, words)
    assert done.exit_code == 0, (done.output, done.exception)
    assert fake.asked[-1]["messages"] == [{"role": "user", "content": odd}]
    [found] = read_answers(tmp_path / "out" / "samples.jsonl")
    assert (found.id, found.prompt, found.text) == ("\ud83d", odd, odd * 8)
    for page in ("report.md", "report.html"):
        assert "\\ud83d word \\udc80 é" in (tmp_path / "out" / page).read_text(encoding="utf-8")


def test_a_text_that_no_tokenizer_counts(tmp_path: Path) -> None:
    """Fails its own answer where the server doesn't count either."""
    with serving(usage=False, words=["\ud83d"]) as (_, endpoint):
        runner = RemoteRunner(plan(), endpoint, tokenizer=letters())
        [answer] = runner.serve(Unit((PROMPT,), 1, 0.0))
    assert answer.error is not None and "half of a surrogate pair" in answer.error


def test_the_shorter_context_decides() -> None:
    """Of the two servers', as far as they tell it."""

    def endpoint(context: object) -> Any:
        return SimpleNamespace(
            model_info=lambda: {"max_model_len": context}, root="http://127.0.0.1"
        )

    for contexts, expected in (((300, 200), 200), ((300, None), 300), ((None, True), None)):
        runner = RemoteRunner(plan(), *map(endpoint, contexts))
        assert runner.context == expected


def test_servers_take_turns() -> None:
    """In each setting: whoever was asked first is asked last the next time."""
    runner = RemoteRunner.__new__(RemoteRunner)
    fake: Any = runner
    fake.servers, fake.plan, fake._order = {BASELINE: 0, "server": 0}, plan(repeats=2), Order()
    asked = list[str]()
    fake._group = lambda label, requests: (asked.append(label), [])[1]
    some: Any = {(BASELINE, "1"): None, ("server", "1"): None}
    for turn in (0, 1):
        runner._repeats(Unit((PROMPT,), 1, 0.0), turn, some)
    first, second = asked[:2]
    assert {first, second} == {BASELINE, "server"}
    assert asked == [first, second, second, first] * 2
    assert runner._repeats(Unit((PROMPT,), 1, 0.0), 1, {}) == {}  # both conversations are over


def test_who_counted_the_measured_servers_tokens() -> None:
    """And not plain decoding's."""
    with serving() as (_, server), serving(None, usage=False) as (_, plain):
        runner = RemoteRunner(plan(), server, plain, tokenizer=letters())
        runner.serve(Unit((PROMPT,), 1, 0.0))  # the server first
    assert runner.target["tokens_from"] == "the server"


def test_what_does_not_divide_is_shared_out() -> None:
    """Each request of a group has a share of its own, and together they have all of it."""
    prompts = [Prompt(name, "qa", (said,)) for name, said in zip("ab", "12", strict=True)]
    with serving(lambda answered: vllm(answered // 2)) as (_, endpoint):
        found = serve(RemoteRunner(plan(batch_sizes=(2,)), endpoint), *prompts)
    assert sorted(answer.passes for answer in found) == [6, 7]


def test_an_answer_of_no_tokens() -> None:
    """Is one, where the server says so and no text came."""

    def answer(to: BaseHTTPRequestHandler) -> None:
        head(to)
        to.wfile.write(WORD.replace(b"word", b""))
        to.wfile.write(b'data: {"choices": [], "usage": {"completion_tokens": 0}}\n\n')
        to.wfile.write(b"data: [DONE]\n\n")

    with answering(answer) as url:
        [answered] = RemoteRunner(plan(), Endpoint(url, "m")).serve(Unit((PROMPT,), 1, 0.0))
    assert (answered.error, answered.text, answered.tokens) == (None, "", 0)


def test_whose_counters_they_were_stays_known() -> None:
    """Though they are missing for a later turn."""
    looks: list[int] = []

    def counters(requests: int) -> str:
        looks.append(requests)
        return vllm(requests) if len(looks) <= 2 else ""

    with serving(counters) as (_, endpoint):
        runner = RemoteRunner(plan(), endpoint)
        found = serve(runner, CHAT)
    assert [answer.passes for answer in found] == [5, 0]
    assert runner.target["acceptance_from"] == "vllm's counters"


def test_where_plain_decoding_fails_the_other_is_over_too() -> None:
    """As there is nothing to compare it with; but not the other way round."""

    def refuse(to: BaseHTTPRequestHandler) -> None:
        head(to, 500)
        to.wfile.write(b"no")

    with serving(None) as (fake, fine), answering(refuse) as url:
        refusing = Endpoint(url, "m")
        runners = RemoteRunner(plan(), fine, refusing), RemoteRunner(plan(), refusing, fine)
        first, second = ([a.error for a in serve(runner, CHAT)] for runner in runners)
    said = f"{url.split('//')[1]} answered with status 500: no"
    assert first == [said, f"plain decoding failed: {said}"] * 2
    assert second == [None, said, None, said]
    assert len(fake.asked) == 1 + 2
