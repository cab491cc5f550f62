"""Check that the encoder on disk is the one that training selected: load it as a user does and compare."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from csekit.encoding.encoder import TextEncoder
from csekit.encoding.load import load_encoder
from csekit.encoding.pretrained import load_transformer
from csekit.evaluation.pairs import Pairs
from csekit.evaluation.sts import EmbeddedPairs, score_pairs

#: Spearman × 100 that two computations of the same embeddings may differ by, float32 and bf16.
TOLERANCE = {"fp32": 0.01, "bf16": 0.5}
#: Largest relative difference of two computations of the same state, float32.
STATES = 1e-3


class ExportMismatchError(RuntimeError):
    """The encoder on disk is not the one that training selected. Nothing was deleted."""


def check_score(folder: Path, dev: Pairs, recorded: float, device: torch.device, precision: str) -> float:
    """Load the encoder, score it on the dev set, and compare.

    Arguments:
        folder: an export, or a training checkpoint.
        recorded: Spearman × 100 of the selected weights, measured in training.
        precision: that of the measurement, ``fp32`` or ``bf16``.

    Returns:
        Spearman × 100 of the saved encoder, in that precision.

    Raises:
        ExportMismatchError: the scores differ by more than rounding: ``TOLERANCE``, and for small sets the change that
            arises if half of the pairs trade places with their neighbours.
    """
    encoder = _load(folder, device)
    encoder.precision = precision
    found = score_pairs(EmbeddedPairs(encoder, [dev]), dev)["spearman"]
    if not same_score(found, recorded, len(dev), precision):
        raise ExportMismatchError(
            f"{folder}: the saved encoder scores {found:.2f} on {dev.name}, the weights that training selected scored "
            f"{recorded:.2f}: it is not the selected encoder; nothing was deleted"
        )
    return found


def same_score(found: float, recorded: float, pairs: int, precision: str) -> bool:
    """Return True if two Spearman × 100 of a dev set differ by rounding alone, or both are undefined."""
    allowed = TOLERANCE[precision] + 600 / max(pairs**2 - 1, 1)
    return bool(np.isnan(found) and np.isnan(recorded)) or abs(found - recorded) <= allowed


def check_embeddings(folder: Path, texts: list[str], expected_nH: np.ndarray, device: torch.device) -> None:
    """Load the encoder, embed some texts, and compare.

    Arguments:
        expected_nH: the embeddings by the weights in memory.

    Raises:
        ExportMismatchError: they differ by more than rounding.
    """
    _check_states(folder, _load(folder, device).encode(texts), expected_nH)


@torch.no_grad()
def check_backbone(folder: Path, batch: dict[str, torch.Tensor], expected_bLH: torch.Tensor) -> None:
    """Load a plain encoder, run it on a batch, and compare the states of all real tokens.

    Arguments:
        batch: ``input_ids`` and ``attention_mask`` (b, L).
        expected_bLH: the states by the weights in memory.

    Raises:
        ExportMismatchError: they differ by more than rounding.
    """
    model: Any = load_transformer(folder)
    real_bL = batch["attention_mask"].bool().cpu()
    found_bLH = model.eval()(**{name: value.cpu() for name, value in batch.items()}).last_hidden_state
    _check_states(folder, found_bLH[real_bL].numpy(), expected_bLH.float().cpu()[real_bL].numpy())


def _load(folder: Path, device: torch.device) -> TextEncoder:
    try:
        encoder = load_encoder(folder, device=device)
        encoder.truncate_dim = None  # all dimensions are compared
        return encoder
    except ValueError as error:
        raise ExportMismatchError(f"the saved encoder does not load: {error}; nothing was deleted") from error


def _check_states(folder: Path, found: np.ndarray, expected: np.ndarray) -> None:
    difference = float(np.abs(found - expected).max()) if found.shape == expected.shape else float("inf")
    allowed = STATES * max(1.0, float(np.abs(expected).max()))
    if not difference <= allowed:
        raise ExportMismatchError(
            f"{folder}: the saved encoder differs from the trained one by {difference:.2g}, at most {allowed:.2g} is "
            "rounding; nothing was deleted"
        )
