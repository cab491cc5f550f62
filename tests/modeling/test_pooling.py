"""Each pooling against loops over unpadded sentences."""

import pytest
import torch
from torch import Tensor

from csekit.modeling.pooling import at_offset, pool

LENGTHS, L, H, LAYERS = (5, 2, 7, 1), 7, 4, 4


def padded(side: str, extra: int = 0) -> tuple[list[Tensor], Tensor, list[list[Tensor]]]:
    """Hidden states of all layers, mask, and the unpadded states of each sentence; padding holds large numbers."""
    generator = torch.Generator().manual_seed(0)
    sentences = [[torch.randn(n, H, generator=generator) for _ in range(LAYERS)] for n in LENGTHS]
    states = [torch.full((len(LENGTHS), L + extra, H), 1e4) for _ in range(LAYERS)]
    mask = torch.zeros(len(LENGTHS), L + extra, dtype=torch.int64)
    for row, (sentence, n) in enumerate(zip(sentences, LENGTHS, strict=True)):
        where = slice(0, n) if side == "right" else slice(L + extra - n, None)
        mask[row, where] = 1
        for layer in range(LAYERS):
            states[layer][row, where] = sentence[layer]
    return states, mask, sentences


@pytest.mark.parametrize("extra", [0, 3])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "first_last_mean", "top2_mean"])
def test_equals_the_loop_whatever_the_padding(naive, pooling, side, extra):
    states, mask, sentences = padded(side, extra)
    expected = torch.stack([naive.pool(pooling, sentence) for sentence in sentences])
    torch.testing.assert_close(pool(pooling, states, mask), expected)
    torch.testing.assert_close(pool(pooling, states, mask.bool()), expected)


@pytest.mark.parametrize("extra", [0, 3])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("offset", [0, -1])
def test_mask_offset_counts_from_both_ends(side, extra, offset):
    states, mask, sentences = padded(side, extra)
    expected = torch.stack([sentence[-1][offset] for sentence in sentences])
    torch.testing.assert_close(pool("mask", states, mask, offset), expected)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("offset", [1, 3, -2, -4])
def test_mask_offset_inside(side, offset):
    states, mask, sentences = padded(side)
    long = [row for row, n in enumerate(LENGTHS) if n >= 4]
    expected = torch.stack([sentences[row][-1][offset] for row in long])
    torch.testing.assert_close(at_offset(states[-1][long], mask[long], offset), expected)


def test_gradient_reaches_real_tokens_only():
    states, mask, _ = padded("right")
    states = [state.requires_grad_() for state in states]
    pool("first_last_mean", states, mask).sum().backward()
    assert (states[1].grad[mask == 0] == 0).all() and (states[1].grad[mask == 1] != 0).all()
    assert states[0].grad is None and states[2].grad is None


def test_messages():
    states, mask, _ = padded("right")
    with pytest.raises(ValueError, match=r"pooling must be one of 'cls', .*, got 'max'"):
        pool("max", states, mask)
    with pytest.raises(ValueError, match="prompt_mask_offset, got None"):
        pool("mask", states, mask)
