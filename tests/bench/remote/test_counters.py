"""Acceptance from a server's counters."""

from __future__ import annotations

import pytest

from fake_server import vllm
from foretoken.bench.remote.counters import acceptance_between, parse


def test_counters_of_several_engines_add_up_and_a_restart_is_noticed() -> None:
    """Labels are summed; counters that fell are no counts."""
    two = parse(vllm(1).replace('engine="0"', 'engine="1"') + vllm(2))
    found = acceptance_between(parse(vllm(1)), two, 100, 3)
    assert found is not None
    assert (found.drafts, found.drafted, found.accepted_at) == (4, 8, (4, 2))
    assert found.passes == 100 - 6
    assert acceptance_between(parse(vllm(2)), parse(vllm(1)), 100, 1) is None


@pytest.mark.parametrize("members", [1, 2, 3, 7])
def test_shares_add_up(members: int) -> None:
    """And no member keeps more at a position than it has drafts, or drafts without a draft."""
    whole = acceptance_between(parse(vllm(0)), parse(vllm(2)), 19, 2)
    assert whole is not None
    shares = [whole.share(m, members) for m in range(members)]
    assert sum(s.passes for s in shares) == whole.passes
    assert sum(s.drafts for s in shares) == whole.drafts
    assert sum(s.drafted for s in shares) == whole.drafted
    assert tuple(map(sum, zip(*(s.accepted_at for s in shares), strict=True))) == whole.accepted_at
    assert all(max(s.accepted_at) <= s.drafts <= s.drafted for s in shares)
    assert all(s.drafts or not s.drafted for s in shares)


def test_each_request_takes_a_pass() -> None:
    """Also where a gauge of other seconds says less, and beside its verifications."""
    found = acceptance_between({}, parse("sglang:spec_accept_length 8\n"), 8, 4)
    assert found is not None and found.passes == 4
    found = acceptance_between({}, parse("sglang:spec_verify_calls_total 6\n"), 24, 4)
    assert found is not None and (found.passes, found.drafts) == (6 + 4, 6)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e300", "1_0x", "9" * 400])
def test_what_is_no_count_is_left_out(value: str) -> None:
    """The others are read."""
    text = f'vllm:spec_decode_num_drafts{{a="1"}} {value}\nvllm:spec_decode_num_drafts 3\n'
    assert parse(text) == {"vllm:spec_decode_num_drafts": {"": 3.0}}
    position = f'vllm:spec_decode_num_accepted_tokens_per_pos{{position="{"9" * 5000}"}} 1\n'
    found = acceptance_between({}, parse(text + position), 9, 1)
    assert found is not None and found.accepted_at == ()


def test_passes_of_what_was_cut() -> None:
    """No fewer than the drafts, though a stop left fewer tokens than were accepted; and without a
    token there are none."""
    found = acceptance_between({}, parse(vllm(2)), 7, 2)
    assert found is not None and (found.drafts, found.passes) == (4, 4)
    assert acceptance_between({}, parse(vllm(2)), 0, 2) is None


def test_a_gauge_of_one_token_a_pass() -> None:
    """Says that nothing was accepted; below 1 it says nothing."""
    for length, passes in ((1, 8), (0, None)):
        found = acceptance_between({}, parse(f"sglang:spec_accept_length {length}\n"), 8, 2)
        assert (found and found.passes) == passes


def test_positions_are_in_their_order() -> None:
    """Whatever order they are listed in."""
    lines = vllm(3).splitlines()[::-1]
    found = acceptance_between({}, parse("\n".join(lines)), 40, 3)
    assert found is not None and found.accepted_at == (6, 3)
