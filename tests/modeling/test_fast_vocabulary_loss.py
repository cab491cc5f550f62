"""The vocabulary's cross-entropy against logits, softmax and loss of autograd, in value and gradient."""

import pytest
import torch
from torch.nn import functional as F

from csekit.modeling import fast_vocabulary_loss
from csekit.modeling.fast_vocabulary_loss import vocabulary_cross_entropy

M, E, V = 13, 8, 50


def naive(states, matrix, bias, labels):
    """Token by token, in float64."""
    losses = []
    for state, label in zip(states.double(), labels.tolist(), strict=True):
        scores = matrix.double() @ state + (0 if bias is None else bias.double())
        losses.append(-torch.log(scores[label].exp() / scores.exp().sum()) if label >= 0 else scores.sum() * 0)
    return torch.stack(losses)


@pytest.fixture
def given():
    generator = torch.Generator().manual_seed(0)
    states, matrix, bias = (torch.randn(*shape, generator=generator) for shape in ((M, E), (V, E), (V,)))
    labels = torch.randint(0, V, (M,), generator=generator)
    labels[[2, 7]] = -100
    upstream = torch.rand(M, generator=generator)
    return states, matrix, bias, labels, upstream


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("entries", [1, 3 * V, 1 << 20])
def test_value_and_gradient(given, entries, with_bias, monkeypatch):
    monkeypatch.setattr(fast_vocabulary_loss, "_BLOCK_ENTRIES", {"cpu": entries, "other": entries})
    states, matrix, bias, labels, upstream = given
    inputs = [states, matrix, bias] if with_bias else [states, matrix]
    ours, theirs = ([tensor.clone().requires_grad_() for tensor in inputs] for _ in range(2))
    losses, correct = vocabulary_cross_entropy(*(ours if with_bias else [*ours, None]), labels)
    expected = naive(*(theirs if with_bias else [*theirs, None]), labels)
    torch.testing.assert_close(losses, expected.float())
    logits = F.linear(states, matrix, bias if with_bias else None)
    assert torch.equal(correct, logits.argmax(-1) == labels) and not correct.requires_grad
    (losses * upstream).sum().backward()
    (expected * upstream).sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_float64_and_no_gradient(given):
    states, matrix, bias, labels, _ = (tensor.double() if tensor.is_floating_point() else tensor for tensor in given)
    inputs = [tensor.requires_grad_() for tensor in (states, matrix, bias)]
    assert torch.autograd.gradcheck(lambda *x: vocabulary_cross_entropy(*x, labels)[0], inputs)
    with torch.no_grad():
        losses, _ = vocabulary_cross_entropy(*inputs, labels)
    assert losses.dtype == torch.float64 and not losses.requires_grad
    torch.testing.assert_close(losses, naive(*inputs, labels).detach())


def test_a_frozen_matrix_and_no_token(given):
    states, matrix, bias, labels, _ = given
    states.requires_grad_()
    vocabulary_cross_entropy(states, matrix, bias, labels)[0].sum().backward()
    assert states.grad[0].abs().sum() > 0
    assert (states.grad[2] == 0).all()
    assert matrix.grad is None
    bias.requires_grad_()
    losses, correct = vocabulary_cross_entropy(states[:0], matrix, bias, labels[:0])
    losses.sum().backward()
    assert losses.shape == correct.shape == (0,) and (bias.grad == 0).all()


def test_under_autocast_as_precise_as_separate_steps(given):
    """bf16 products, the softmax in fp32; a mean's weights of 1/M do not scale the gradient by their rounding."""
    states, matrix, bias, labels, _ = given
    kept = labels != -100

    def gradients(loss_of):
        inputs = [tensor.clone().requires_grad_() for tensor in (states, matrix, bias)]
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(*inputs)
        loss.backward()
        return [tensor.grad for tensor in inputs]

    def error(found, exact):
        return (found - exact).norm() / exact.norm()

    exact = gradients(lambda s, m, b: naive(s, m, b, labels)[kept].mean().float())
    fused = gradients(lambda s, m, b: vocabulary_cross_entropy(s, m, b, labels)[0].sum() / kept.sum())
    apart = gradients(lambda s, m, b: F.cross_entropy(F.linear(s, m, b).float(), labels))
    for mine, usual, true in zip(fused, apart, exact, strict=True):
        assert error(mine, true) < max(1.3 * error(usual, true), 0.01)


@pytest.mark.parametrize("label", [1, 3])
def test_of_equal_logits_the_first_is_the_guess(label):
    """As in argmax, with which the naive path compares; in 16 bits the largest logits are often equal."""
    states, matrix = torch.ones(2, 1), torch.tensor([[0.0], [2.0], [1.0], [2.0]])
    _, correct = vocabulary_cross_entropy(states, matrix, None, torch.tensor([label, -100]))
    assert correct.tolist() == [label == 1, False]
