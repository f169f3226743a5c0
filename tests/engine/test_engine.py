"""Many requests at once: admission, stopping, cancelling, samples, log-probabilities, counting."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch

from engines import GREEDY, PROMPTS, engine_of, finish, known, served, written
from foretoken import ForetokenError, SamplingParams
from foretoken.access import Wants
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.protocols import BaseDrafter
from foretoken.testing import (
    Oracle,
    Pair,
    Scripted,
    TableModel,
    native,
    related,
    serve,
    tiny_transformers,
)
from foretoken.testing.checks import greedy_reference
from foretoken.tree import DraftTree, Kind, empty
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly
from foretoken.verify.typical import Typical


def test_end_of_text_and_stop_ids(pair: Pair) -> None:
    """Both end a text after their token; only a stop id is named; `ignore_eos` writes on."""
    text = known(pair)[tuple(PROMPTS[0])]
    first = text.index(text[6]) + 1
    ends = frozenset({text[6]})
    for params, eos, length, stop in (
        (GREEDY, ends, first, None),
        (SamplingParams(temperature=0, stop_token_ids=[text[6]]), frozenset(), first, text[6]),
        (SamplingParams(temperature=0, max_tokens=20, ignore_eos=True), ends, 20, None),
    ):
        [output] = serve(pair.target, Nothing(), TargetOnly(), PROMPTS[:1], params, eos_ids=eos)
        assert output.token_ids == text[:length]
        assert output.outputs[0].stop_reason == stop


def test_no_end_before_min_tokens(pair: Pair) -> None:
    """Until `min_tokens` are written no end is sampled and no stop string ends the text."""
    text = known(pair)[tuple(PROMPTS[1])]
    for ends, options in ((frozenset(text[:3]), {}), (frozenset(), {"stop_token_ids": text[:3]})):
        params = SamplingParams(temperature=0, min_tokens=8, max_tokens=20, **options)  # type: ignore[arg-type]
        drafter = Oracle(known(pair), 6)
        [output] = serve(pair.target, drafter, TargetOnly(), PROMPTS[1:2], params, eos_ids=ends)
        [plain] = serve(pair.target, Nothing(), TargetOnly(), PROMPTS[1:2], params, eos_ids=ends)
        assert output.token_ids == plain.token_ids and len(plain.token_ids) >= 8
        assert not set(plain.token_ids[:8]) & set(text[:3])


def test_an_end_that_is_none(pair: Pair) -> None:
    """-1 in a configuration means that there is none; the vocabulary's last token is another."""
    engine = engine_of(pair, eos_ids=frozenset({-1, 97}))
    params = SamplingParams(temperature=0, min_tokens=3, max_tokens=3, logit_bias={96: 100.0})
    assert engine.eos_ids == frozenset()
    assert written(served(engine, [1, 2], params)) == [[96] * 3]


def test_no_end_before_min_tokens_where_ends_are_ignored(pair: Pair) -> None:
    """Neither is an end of the text written by then that wouldn't end it, as in vLLM."""
    text = known(pair)[tuple(PROMPTS[1])]
    ends = frozenset(text[:3])
    params = SamplingParams(temperature=0, min_tokens=8, max_tokens=20, ignore_eos=True)
    drafter = Oracle(known(pair), 6)
    [output] = serve(pair.target, drafter, TargetOnly(), PROMPTS[1:2], params, eos_ids=ends)
    assert len(output.token_ids) == 20 and not set(output.token_ids[:8]) & ends


def test_a_seed_of_none(pair: Pair) -> None:
    """Clients of vLLM write -1 for it."""
    params = SamplingParams(seed=-1, max_tokens=12)
    outs = serve(pair.target, Nothing(), TargetOnly(), PROMPTS[:1] * 3, params)
    assert len({tuple(out.token_ids) for out in outs}) > 1


def test_a_criterion_of_the_users_own(pair: Pair) -> None:
    """It is asked after every token, also inside an accepted block."""
    engine = engine_of(pair, Oracle(known(pair), 9))
    asked: list[int] = []

    def five(output: Any) -> bool:
        asked.append(len(output))
        return len(output) == 5

    request = engine.add(PROMPTS[0], GREEDY, criterion=five)
    finish(engine)
    assert asked == [1, 2, 3, 4, 5]
    assert request.samples[0].output.token_ids == known(pair)[tuple(PROMPTS[0])][:5]
    assert request.samples[0].output.finish_reason == "stop"


class Reading(BaseDrafter):
    """Notes how many prompt tokens of each sequence are read in one pass."""

    def __init__(self) -> None:
        self.read: list[list[int]] = []

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        return empty(len(sequences), torch.device("cpu"))

    def observe(self, sequences: Any, steps: Any) -> None:
        if steps[0].read:
            self.read.append([step.read for step in steps])


def test_a_chunk_is_shared_by_the_prompts(pair: Pair) -> None:
    """`chunk` bounds the tokens of all prompts that are read in one pass, not of each."""
    drafter = Reading()
    engine = engine_of(pair, drafter, chunk=6)
    for prompt in PROMPTS[:2]:
        engine.add(prompt * 3, SamplingParams(temperature=0, max_tokens=2))
    finish(engine)
    assert drafter.read[0] == [3, 3]
    assert max(map(sum, drafter.read)) == 6


def test_only_what_was_kept_counts_as_strayed(pair: Pair) -> None:
    """Tokens that a lenient rule accepted after the end of a text are in no statistics."""
    text = known(pair)[tuple(PROMPTS[0])]
    wrong = [(token + 1) % 97 for token in text]
    params = SamplingParams(seed=1, max_tokens=8, stop_token_ids=[wrong[1]])
    oracle = Oracle({tuple(PROMPTS[0]): wrong}, 6)
    [output] = serve(pair.target, oracle, Typical(epsilon=0.0), PROMPTS[:1], params)
    assert output.token_ids == wrong[:2]
    assert output.stats.strayed <= output.stats.accepted == 2


# --- joining, leaving, sharing ---


def test_more_requests_than_slots(pair: Pair) -> None:
    """All are served, in any mix of lengths, and later ones join between steps."""
    engine = engine_of(pair, PromptLookup(), slots=2)
    requests = [
        engine.add(prompt, SamplingParams(temperature=0, max_tokens=4 * i + 1))
        for i, prompt in enumerate(PROMPTS)
    ]
    for _ in range(3):
        engine.step()
    late = engine.add([40, 3, 3, 17, 40, 3], GREEDY)
    finish(engine)
    for i, request in enumerate(requests):
        text = known(pair)[tuple(PROMPTS[i])][: 4 * i + 1]
        assert request.samples[0].output.token_ids == text
    assert late.samples[0].output.token_ids == known(pair)[tuple(PROMPTS[1])]
    assert engine.target.free == 2


def test_long_prompts_do_not_hold_up_the_others(pair: Pair) -> None:
    """A prompt is read in chunks; a running request gets its tokens in every one of those steps."""
    engine = engine_of(pair, chunk=4)
    running = engine.add([1], SamplingParams(temperature=0, max_tokens=30))
    engine.step()
    long = engine.add([i % 50 for i in range(40)], SamplingParams(temperature=0, max_tokens=3))
    for step in range(10):
        written = len(running.samples[0].output.token_ids)
        engine.step()
        assert len(running.samples[0].output.token_ids) == written + 1
        assert not long.samples[0].output.token_ids or step >= 9
    finish(engine)
    assert long.samples[0].output.token_ids == greedy_reference(pair.target, long.prompt, 3)


def test_a_step_does_not_look_at_what_waits(pair: Pair) -> None:
    """Thousands may, while no slot is free; and where no request has a timeout none can be late."""

    class Queue(deque[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("looked through")

    class Known(dict[int, Any]):
        def values(self) -> Any:
            raise AssertionError("looked through")

    engine = engine_of(pair, slots=1)
    requests = [engine.add(prompt, GREEDY) for prompt in PROMPTS[:3]]
    for _ in range(2):
        engine.step()
    queue, known_ones = engine._waiting, engine._requests
    engine._waiting, engine._requests = Queue(queue), Known(known_ones)
    for _ in range(4):
        engine.step()
    engine._waiting, engine._requests = queue, known_ones
    finish(engine)
    assert [written(request) for request in requests] == [
        [known(pair)[tuple(prompt)]] for prompt in PROMPTS[:3]
    ]


def test_cancelling(pair: Pair) -> None:
    """Waiting, running and finished requests, and unknown ids; every slot comes back."""
    engine = engine_of(pair, SmallLM(pair.draft, 3), rule=Speculative(), slots=2)
    params = SamplingParams(temperature=0, max_tokens=20, n=2)
    requests = [engine.add(prompt, params) for prompt in PROMPTS[:3]]
    engine.step()
    engine.step()
    engine.cancel(requests[2].id)  # all of it waits
    engine.cancel(requests[0].id)  # both samples run
    engine.cancel(123456789)
    assert [s.output.finish_reason for s in requests[0].samples] == ["cancelled"] * 2
    finish(engine)
    assert [s.output.token_ids for s in requests[1].samples] == [known(pair)[tuple(PROMPTS[1])]] * 2
    engine.cancel(requests[1].id)
    assert requests[1].samples[0].output.finish_reason == "length"
    assert engine.target.free == 2 and not engine.busy


def test_what_is_told_once(pair: Pair) -> None:
    """`cancel` and `fail_all` return what became of a request, and no later step says it again."""
    engine = engine_of(pair)
    one, two = (engine.add(prompt, GREEDY) for prompt in PROMPTS[:2])

    def told() -> set[int]:
        return {output.request_id for _ in range(3) for output in engine.step()}

    assert told() == {one.id, two.id}
    ended = engine.cancel(one.id)
    assert ended is not None and ended.request_id == one.id
    assert told() == {two.id}
    [failed] = engine.fail_all(RuntimeError("x"))
    assert failed.request_id == two.id and "RuntimeError: x" in str(failed.error)
    three = engine.add(PROMPTS[2], GREEDY)
    assert told() == {three.id}


def test_a_time_limit_begins_with_the_arrival(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a request has waited in the queue counts."""
    now = 0.0
    for module in ("engine", "request"):
        monkeypatch.setattr(f"foretoken.engine.{module}.perf_counter", lambda: now)
    engine = engine_of(pair, slots=1)
    engine.add(PROMPTS[0], SamplingParams(temperature=0, max_tokens=3))
    waits = engine.add(PROMPTS[1], SamplingParams(temperature=0, max_tokens=99, timeout=6))
    now = 5.0
    while waits.stats.queue_time is None:
        engine.step()
    assert waits.stats.queue_time == 5
    engine.step()
    assert not waits.finished
    now = 7.0
    engine.step()
    assert waits.samples[0].output.finish_reason == "timeout"


def test_samples_share_a_prompt_in_chunks(pair: Pair) -> None:
    """It is read once also where a neighbour ends meanwhile, and the last one takes its place."""
    engine = engine_of(pair, slots=4, chunk=4, length=256)
    read: list[int] = []
    prefill = engine.target.prefill

    def counted(sequences: Any, chunk: int) -> Any:
        read.extend(min(chunk, engine.target.pending(s)) for s in sequences)
        return prefill(sequences, chunk)

    engine.add(PROMPTS[0][:4], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    engine.step()
    engine.target.prefill = counted  # type: ignore[method-assign]
    prompt = [1 + i % 50 for i in range(100)]
    request = engine.add(prompt, SamplingParams(n=3, seed=3, max_tokens=8))
    finish(engine)
    assert len(request.samples) == 3 and sum(read) == len(prompt) - 1


def test_samples_share_the_prompt(pair: Pair) -> None:
    """A prompt is read once for its n samples, which are numbered and different."""
    engine = engine_of(pair, slots=4)
    read: list[int] = []
    prefill = engine.target.prefill

    def counted(sequences: Any, chunk: int) -> Any:
        read.extend(engine.target.pending(s) for s in sequences)
        return prefill(sequences, chunk)

    engine.target.prefill = counted  # type: ignore[method-assign]
    request = engine.add(PROMPTS[0], SamplingParams(n=4, seed=3, max_tokens=8))
    finish(engine)
    outputs = [sample.output for sample in request.samples]
    assert read == [len(PROMPTS[0]) - 1]
    assert [output.index for output in outputs] == [0, 1, 2, 3]
    assert len({tuple(output.token_ids) for output in outputs}) == 4
    with pytest.raises(ForetokenError, match="4 samples"):
        _ = request.snapshot().text


def test_unseeded_requests_differ_and_seeded_ones_repeat(pair: Pair) -> None:
    """No seed means another one each time."""
    for seed, distinct in ((None, 4), (5, 1)):
        params = SamplingParams(seed=seed, max_tokens=16)
        outputs = serve(pair.target, Nothing(), TargetOnly(), [[1, 2]] * 4, params)
        assert len({tuple(o.token_ids) for o in outputs}) == distinct


# --- what can't be served ---


def test_prompts_that_cant_be_served(pair: Pair) -> None:
    """Empty, too long, or in another vocabulary: one sentence each, and nothing is queued."""
    engine = engine_of(pair, length=8)
    for prompt, said in (
        ([], "empty"),
        ([1] * 8, "context is 8"),
        ([97], "vocabulary of 97"),
        ([-1], "vocabulary of 97"),
    ):
        with pytest.raises(ForetokenError, match=said):
            engine.add(prompt, GREEDY)
    with pytest.raises(ForetokenError, match="tokenizer"):
        engine.add([1], SamplingParams(stop="x"))
    assert not engine.busy


@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": {97: 1.0}},
        {"bad_token_ids": [-1]},
        {"allowed_token_ids": [1, 500]},
        {"stop_token_ids": [97], "min_tokens": 2},
    ],
)
def test_ids_outside_the_vocabulary_are_refused_at_once(pair: Pair, options: Any) -> None:
    """They must not stop the batch that the request would have joined."""
    with pytest.raises(ForetokenError, match="vocabulary of 97"):
        engine_of(pair).add([1], SamplingParams(**options))


def test_ends_outside_the_vocabulary_are_never_met(pair: Pair) -> None:
    """A tokenizer's end-of-text beyond the model's vocabulary disturbs nothing."""
    params = SamplingParams(temperature=0, max_tokens=5, min_tokens=2)
    ends = frozenset({97, 500})
    [output] = serve(pair.target, Nothing(), TargetOnly(), PROMPTS[:1], params, eos_ids=ends)
    assert output.token_ids == known(pair)[tuple(PROMPTS[0])][:5]


@pytest.mark.parametrize("drafted", [0, 5])
def test_the_context_is_a_limit(pair: Pair, drafted: int) -> None:
    """Without max_tokens a text goes on to the end of the context, and no further."""
    text = known(pair)[tuple(PROMPTS[0])]
    engine = engine_of(pair, Oracle(known(pair), drafted), length=len(PROMPTS[0]) + 12)
    request = engine.add(PROMPTS[0], SamplingParams(temperature=0, max_tokens=None))
    finish(engine)
    assert request.samples[0].output.token_ids == text[:12]
    assert request.samples[0].output.finish_reason == "length"


def test_a_draft_model_of_shorter_context(pair: Pair) -> None:
    """Texts that outgrow it, each at its own step, go on without drafts and stay the same."""
    short = native(related(tiny_transformers(max_length=24), 0.02))
    prompts = [[i % 7 for i in range(length)] for length in (1, 19, 21, 22, 23, 30)]
    expected = [greedy_reference(pair.target, prompt, 30) for prompt in prompts]
    for slots in (1, 6):
        outputs = serve(
            pair.target,
            SmallLM(short, 4),
            Speculative(),
            prompts,
            SamplingParams(temperature=0, max_tokens=30),
            slots=slots,
            chunk=5,
        )
        assert [output.token_ids for output in outputs] == expected
        assert outputs[0].stats.drafted > 0 == outputs[-1].stats.drafted


def broken() -> TableModel:
    """0 → 1 → 2 → 0 …, and 4 → 3 → no distribution at all; what follows 3 is given to none."""
    chain = torch.full((5, 5), 0.02)
    for token, after in ((0, 1), (1, 2), (2, 0), (4, 3)):
        chain[token, after] = 1.0
    chain[3] = torch.nan
    return TableModel.markov(chain)


@pytest.mark.parametrize("temperature", [0.0, 1e-3])
def test_a_request_without_a_distribution_fails_alone(temperature: float) -> None:
    """NaN logits end the request that meets them, with a sentence; the others go on."""
    params = SamplingParams(temperature=temperature, max_tokens=9, seed=1)
    outputs = serve(broken(), Nothing(), TargetOnly(), [[0], [4], [2]], params)
    assert [o.outputs[0].token_ids for o in outputs] == [[1, 2, 0] * 3, [3], [0, 1, 2] * 3]
    assert outputs[1].error is not None and "NaN" in outputs[1].error
    assert outputs[1].outputs[0].finish_reason == "error"
    with pytest.raises(ForetokenError, match="after 1 tokens"):
        _ = outputs[1].text


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_nothing_is_accepted_behind_a_place_without_a_distribution(shape: str) -> None:
    """A draft can't lead past the place at which plain decoding fails."""
    paths = [[3, 0, 1, 2], [3, 1]]
    drafter = Scripted(lambda s, b: paths) if shape == "tree" else Oracle({(4,): paths[0]}, 4)
    [output] = serve(broken(), drafter, TargetOnly(), [[4]], GREEDY)
    assert output.error is not None
    assert output.outputs[0].token_ids == [3]


def test_every_token_forbidden() -> None:
    """A processor that leaves nothing over is such a place too."""

    def none(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores * 0 - torch.inf if ids.shape[1] > 3 else scores

    params = SamplingParams(logits_processors=[none], max_tokens=9, seed=0)
    outputs = serve(
        TableModel.random(5),
        Nothing(),
        TargetOnly(),
        [[0], [1]],
        [params, SamplingParams(max_tokens=9)],
    )
    assert len(outputs[0].outputs[0].token_ids) == 3 and outputs[0].error
    assert len(outputs[1].token_ids) == 9 and not outputs[1].error


def test_pairings_are_checked(pair: Pair) -> None:
    """A drafter that needs what the target lacks, trees for a chain rule, kinds for no rule."""

    class Needy(BaseDrafter):
        wants = Wants("ae")

    class Odd(BaseDrafter):
        kinds = frozenset({Kind.INDEPENDENT})

    table = Pair(TableModel.random(), TableModel.random())
    for target, drafter, rule, said in (
        (table, Needy(), TargetOnly(), "sub-layers"),
        (pair, Scripted(lambda s, b: []), Speculative(), "chains only"),
        (pair, Odd(), TargetOnly(), "independent"),
    ):
        with pytest.raises(ForetokenError, match=said):
            engine_of(target, drafter, rule=rule)  # type: ignore[arg-type]


def test_auxiliary_nodes_pair_with_target_only(pair: Pair) -> None:
    """Nodes that are only scored don't disturb the rule for chosen ones."""

    class Extra(Oracle):
        kinds = frozenset({Kind.CHOSEN, Kind.AUXILIARY})

        def draft(self, sequences: Any, budgets: Any, draws: Any) -> Any:
            tree = super().draft(sequences, budgets, draws)
            if tree.nodes > 2:
                tree.kinds = torch.zeros(tree.tokens.shape, dtype=torch.int8)
                tree.kinds[:, 2] = Kind.AUXILIARY
            return tree

    outputs = serve(pair.target, Extra(known(pair), 5), TargetOnly(), PROMPTS, GREEDY)
    assert [o.token_ids for o in outputs] == list(known(pair).values())
    assert outputs[0].stats.accepted_at[:4] == [7, 6, 0, 0]


# --- what is reported ---
