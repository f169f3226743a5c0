"""DFlash 2's convolution, number by number."""

from __future__ import annotations

import pytest
import torch

from foretoken.trainable.local_convolution import LocalConvolution

WIDTH, SIZE, TAPS, GROUP = 6, 3, 2, 3


def random_convolution(taps: int = TAPS) -> LocalConvolution:
    torch.manual_seed(0)
    conv = LocalConvolution(WIDTH, SIZE, taps, GROUP).double()
    for weight in conv.parameters():
        torch.nn.init.normal_(weight)
    return conv.requires_grad_(False)


@pytest.mark.parametrize("taps", [1, 2, 3, 5])
def test_each_number_by_its_formula(taps: int) -> None:
    """out[i, c] = Σ over t of (base[t, c] + δ[i, t, group of c]) · x[i - t, c]; what stands before
    the block, or in the block before it, counts nothing."""
    conv = random_convolution(taps)
    x, y = torch.randn(2, 2, 2 * SIZE, WIDTH).double()
    made, correction = conv.before(x)
    after = conv.after(y, correction)
    delta = conv.kernel_projection(x).view(2, 2 * SIZE, 2, taps, WIDTH // GROUP)
    for side, (given, found) in enumerate(((x, made), (y, after))):
        for b in range(2):
            for i in range(2 * SIZE):
                for c in range(WIDTH):
                    wanted = sum(
                        (conv.base_kernel[side, t, c] + delta[b, i, side, t, c // GROUP])
                        * given[b, i - t, c]
                        for t in range(min(taps, i % SIZE + 1))
                    )
                    torch.testing.assert_close(found[b, i, c], torch.as_tensor(wanted))


def test_only_earlier_places_of_the_block_count() -> None:
    conv = random_convolution(3)
    x = torch.randn(1, 2 * SIZE, WIDTH).double()
    other = x.clone()
    other[0, 2] += 1.0  # the last place of the first block
    differs = (conv.before(x)[0] != conv.before(other)[0]).any(-1)[0]
    assert differs.tolist() == [False, False, True, False, False, False]


def test_it_begins_as_the_identity() -> None:
    conv = LocalConvolution(WIDTH, SIZE, TAPS, GROUP)
    x = torch.randn(1, SIZE, WIDTH)
    made, correction = conv.before(x)
    assert torch.equal(made, x) and torch.equal(conv.after(x, correction), x)


@pytest.mark.parametrize(("taps", "group"), [(0, 3), (2, 0), (2, 4)])
def test_numbers_that_do_not_fit(taps: int, group: int) -> None:
    with pytest.raises(ValueError, match=f"conv_kernel_size is {taps} and conv_group_size {group}"):
        LocalConvolution(WIDTH, SIZE, taps, group)
