"""Pooling: from token states to one state per sentence.

Shape suffixes: N sentences, L tokens, H hidden size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

POOLINGS = ("cls", "mean", "last", "first_last_mean", "top2_mean", "mask")
#: Poolings that read more than the last layer.
NEEDS_HIDDEN_STATES = ("first_last_mean", "top2_mean")


def mean_over_tokens(states_NLH: Tensor, mask_NL: Tensor) -> Tensor:
    """Average the states of each row's real tokens, (N, H)."""
    weights = mask_NL.unsqueeze(-1).to(states_NLH.dtype)
    return (states_NLH * weights).sum(1) / weights.sum(1).clamp_min(1e-9)


def place_of(mask_NL: Tensor, offset: int | Tensor) -> Tensor:
    """Return the position ``offset`` tokens after each row's first real token; negative offsets count from the last
    one (−1), (N,) int64. The offset may be one for all rows, or (N,)."""
    real_NL = mask_NL.to(torch.int32)
    if isinstance(offset, Tensor):
        ends_N = mask_NL.shape[1] - real_NL.flip(1).argmax(1)
        return torch.where(offset >= 0, real_NL.argmax(1), ends_N) + offset
    if offset >= 0:
        return real_NL.argmax(1) + offset
    return mask_NL.shape[1] - real_NL.flip(1).argmax(1) + offset


def flat_place_of(mask_NL: Tensor, offset: int | Tensor) -> Tensor:
    """Return ``place_of`` as positions in the flattened (N·L), (N,) int64."""
    N, L = mask_NL.shape
    return torch.arange(0, N * L, L, device=mask_NL.device) + place_of(mask_NL, offset)


def at_offset(states_NLH: Tensor, mask_NL: Tensor, offset: int | Tensor) -> Tensor:
    """Return the states at ``place_of``, (N, H)."""
    rows_N = torch.arange(mask_NL.shape[0], device=mask_NL.device)  # len() would make N a constant in exported graphs
    return states_NLH[rows_N, place_of(mask_NL, offset)]


def single_offset(pooling: str, mask_offset: int | Tensor | None = None) -> int | Tensor | None:
    """Return the offset (see ``place_of``) of the one state that ``cls``, ``last`` or ``mask`` reads, else None.

    Raises:
        ValueError: ``mask`` without an offset.
    """
    if pooling == "mask" and mask_offset is None:
        raise ValueError("pooling 'mask' needs prompt_mask_offset, got None: build the model with from_backbone")
    return {"cls": 0, "last": -1, "mask": mask_offset}.get(pooling)


def check_layers(pooling: str, backbone: nn.Module) -> None:
    """Check that a model has the layers that a pooling reads.

    Raises:
        ValueError: the pooling reads several layers, and the model has an encoder and a decoder (BART): their layers
            are no one sequence.
    """
    if pooling in NEEDS_HIDDEN_STATES and getattr(backbone, "decoder", None) is not None:
        config = getattr(backbone, "config", None)
        if getattr(config, "is_encoder_decoder", False):
            allowed = ", ".join(repr(each) for each in POOLINGS if each not in NEEDS_HIDDEN_STATES)
            raise ValueError(
                f"pooling must be one of {allowed} for a {getattr(config, 'model_type', '')!r}, which has an encoder "
                f"and a decoder, got {pooling!r}"
            )


def pool(
    pooling: str, hidden_states: Sequence[Tensor], mask_NL: Tensor, mask_offset: int | Tensor | None = None
) -> Tensor:
    """Pool the states of N sentences.

    Arguments:
        pooling: ``cls`` (the first real token), ``last`` (the last one), ``mean``, ``first_last_mean``, ``top2_mean``
            or ``mask``. "First" is the output of the first layer (``hidden_states[1]``; ``[0]`` would be the
            embeddings), as in SimCSE since its fix.
        hidden_states: (N, L, H) each; embeddings first, last layer last. Only the last is needed for ``cls``,
            ``last``, ``mean`` and ``mask``.
        mask_NL: 1 for real tokens.
        mask_offset: for ``mask``, the position of the template's own mask token (see
            ``CSEConfig.prompt_mask_offset``), one for all rows or (N,).

    Returns:
        (N, H)

    Raises:
        ValueError: an unknown pooling, or ``mask`` without an offset.
    """
    last_NLH = hidden_states[-1]
    offset = single_offset(pooling, mask_offset)
    if offset is not None:
        return at_offset(last_NLH, mask_NL, offset)
    if pooling == "mean":
        return mean_over_tokens(last_NLH, mask_NL)
    if pooling == "first_last_mean":
        return mean_over_tokens((hidden_states[1] + last_NLH) / 2, mask_NL)
    if pooling == "top2_mean":
        return mean_over_tokens((hidden_states[-2] + last_NLH) / 2, mask_NL)
    raise ValueError(f"pooling must be one of {', '.join(map(repr, POOLINGS))}, got {pooling!r}")
