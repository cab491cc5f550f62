"""Each projector against its definition; batch statistics over both views."""

import pytest
import torch
from torch import Tensor, nn

from csekit.modeling.projectors import CrossRankBatchNorm1d, build_projector

N, H = 8, 4


def naive_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    columns = []
    for column in x.T:
        mean = sum(column) / len(column)
        variance = sum((value - mean) ** 2 for value in column) / len(column)
        columns.append((column - mean) / (variance + eps).sqrt())
    y = torch.stack(columns).T
    return y if weight is None else y * weight + bias


def naive_projector(kind: str, module: nn.Module, x: Tensor) -> Tensor:
    p = {name: value.double() for name, value in module.state_dict().items()}
    if kind == "none":
        return x
    if kind == "linear":
        return x @ p["weight"].T + p["bias"]
    if kind == "tanh":
        return torch.tanh(x @ p["0.weight"].T + p["0.bias"])
    hidden = naive_norm(x @ p["0.weight"].T, p["1.weight"], p["1.bias"])
    return naive_norm(hidden.clamp_min(0) @ p["3.weight"].T)


@pytest.mark.parametrize("kind", ["tanh", "batchnorm", "linear", "none"])
def test_equals_its_definition(disturb, kind):
    module = disturb(build_projector(kind, H)).train()
    x = torch.randn(N, H, requires_grad=True)
    x64 = x.detach().double().requires_grad_()
    ours, theirs = module(x), naive_projector(kind, module, x64)
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)
    weights = torch.randn(N, H)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    torch.testing.assert_close(x.grad.double(), x64.grad, rtol=1e-3, atol=1e-4)


def test_parameters():
    shapes = {name: tuple(p.shape) for name, p in build_projector("batchnorm", H).named_parameters()}
    assert shapes == {"0.weight": (2 * H, H), "1.weight": (2 * H,), "1.bias": (2 * H,), "3.weight": (H, 2 * H)}
    assert not list(build_projector("none", H).parameters())


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_in_one_process_it_is_torch_s_batchnorm(affine, training):
    ours, theirs = CrossRankBatchNorm1d(H, affine=affine), nn.BatchNorm1d(H, affine=affine)
    for _ in range(3):
        x = torch.randn(N, H) * 3 + 1
        a, b = (x.clone().requires_grad_() for _ in range(2))
        ours.train(training)(a).pow(3).sum().backward()
        theirs.train(training)(b).pow(3).sum().backward()
        assert torch.equal(a.grad, b.grad)
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name


def test_running_statistics():
    norm = CrossRankBatchNorm1d(H)
    x = torch.randn(N, H) * 2 + 3
    norm(x)
    torch.testing.assert_close(norm.running_mean, 0.1 * x.mean(0))
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * x.var(0, unbiased=True))
    assert norm.num_batches_tracked == 1


def test_moments_over_processes_equal_torch_s(monkeypatch):
    """The branch for many processes, run with a world of one: same output, gradient and running statistics."""
    ours, theirs = CrossRankBatchNorm1d(H), nn.BatchNorm1d(H)
    monkeypatch.setattr("csekit.modeling.projectors.world_size", lambda: 2)
    x = torch.randn(N, H)
    a, b = (x.clone().requires_grad_() for _ in range(2))
    ours(a).pow(3).sum().backward()
    theirs(b).pow(3).sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-4, atol=1e-5)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, msg=name)


def test_unknown_kind():
    with pytest.raises(ValueError, match=r"projector must be one of 'tanh', .*, got 'mlp'"):
        build_projector("mlp", H)


def test_a_single_row_is_normalised_by_the_running_statistics() -> None:
    """It has no variance of its own. BatchNorm1d raises an error for it."""
    projector = build_projector("batchnorm", H).train()
    projector(torch.randn(N, H, generator=torch.Generator().manual_seed(0)))
    before = {name: value.clone() for name, value in projector.named_buffers()}
    row = torch.randn(1, H, generator=torch.Generator().manual_seed(1), requires_grad=True)
    found = projector(row)
    assert all(torch.equal(value, before[name]) for name, value in projector.named_buffers())
    torch.testing.assert_close(found, projector.eval()(row))
    found.sum().backward()
    assert row.grad is not None and row.grad.isfinite().all()
