"""Matryoshka training (Kusupati et al., 2022, "Matryoshka Representation Learning"): the first dimensions of an
embedding are an embedding.

Shape suffixes: V views, B sentences, N = V·B rows (view-major), H hidden size, d dimensions that are kept.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .objectives import Encode, Views
from .settings import check_number


def sizes_and_weights(
    dims: Sequence[int] | None, weights: Sequence[float] | None, hidden_size: int
) -> dict[int, float]:
    """Return the weight of each size, the full one last; 1 where none is given.

    The full size always counts, so that the whole embedding trains.

    Raises:
        ValueError: sizes that are not whole numbers in [1, H], or that repeat; a weight that is not above 0; another
            number of weights than of sizes; weights without sizes.
    """
    if dims is None:
        if weights is not None:
            raise ValueError(f"matryoshka_weights need matryoshka_dims, got {weights} and None")
        return {hidden_size: 1.0}
    if not isinstance(dims, list | tuple) or not dims:
        raise ValueError(f"matryoshka_dims must be a list of sizes, got {dims!r:.80}")
    for size in dims:
        if type(size) is not int or not 1 <= size <= hidden_size:
            raise ValueError(
                f"matryoshka_dims must be whole numbers from 1 to the encoder's hidden size, {hidden_size}, "
                f"got {size!r:.40}"
            )
    if len(set(dims)) < len(dims):
        raise ValueError(f"matryoshka_dims must differ, got {list(dims)}")
    if weights is None:
        weights = [1.0] * len(dims)
    if not isinstance(weights, list | tuple) or len(weights) != len(dims):
        raise ValueError(f"matryoshka_weights must be one of each of the {len(dims)} sizes, got {weights!r:.80}")
    for weight in weights:
        check_number("matryoshka_weights", weight, 0, open_ends="low")
    given = dict(zip(dims, map(float, weights), strict=True))
    full = given.pop(hidden_size, 1.0)
    return {size: given[size] for size in sorted(given)} | {hidden_size: full}


def cuts_z(projector: str, projector_at_inference: bool) -> bool:
    """Return True if z is the embedding of inference, or equals it: then z is cut behind the projector."""
    return projector_at_inference or projector == "none"


class Cut:
    """The first ``size`` dimensions of the embedding of inference.

    Arguments:
        size: d.
        projector: the model's.
        kind, at_inference: its kind, and whether it is part of the embedding. If it is, z is cut. If it only trains, h
            is cut, and z is the projection of h with zeros behind the cut. If it is the identity, both are cut.
    """

    def __init__(self, size: int, projector: nn.Module, kind: str, at_inference: bool) -> None:
        self.size, self.projector = size, projector
        self.behind = cuts_z(kind, at_inference)  # z is cut
        self.h_is_cut = not at_inference or kind == "none"

    def project(self, h_NH: Tensor) -> Tensor:
        """Return z of rows that the projector reads, (N, d), or (N, H) if it is h that is cut."""
        if self.behind:
            with running_statistics_kept(self.projector):
                return self.projector(h_NH)[:, : self.size]  # type: ignore[no-any-return]
        with running_statistics_kept(self.projector):
            return self.projector(widened(h_NH[:, : self.size], h_NH.shape[-1]))  # type: ignore[no-any-return]

    def views(self, views: Views) -> Views:
        """Return the views with h and z of this size."""
        h_VBH, H = views.h, views.h.shape[-1]
        h = h_VBH[..., : self.size] if self.h_is_cut else h_VBH
        if self.behind:
            return replace(views, h=h, z=views.z[..., : self.size], width=H)
        z_NH = self.project(views.raw.flatten(0, 1))
        return replace(views, h=h, z=z_NH.unflatten(0, h_VBH.shape[:2]), width=H)

    def encode(self, encode: Encode, raw: Any, embed: Any) -> Encode:
        """Return the encoder as lent to an objective, whose vectors have this size.

        Arguments:
            raw: ``raw(ids, mask, dropout)`` returns what the projector reads, (N, H).
            embed: the same by a copy of the backbone, ``embed(copy, ids, mask)``, without gradient.
        """

        def project(ids_NL: Tensor, mask_NL: Tensor, dropout: bool = True) -> Tensor:
            return self.project(raw(ids_NL, mask_NL, dropout))

        def pooled(ids_NL: Tensor, mask_NL: Tensor, **options: Any) -> Tensor:
            full: Any = encode.pooled
            h_NH = full(ids_NL, mask_NL, **options)
            return widened(h_NH[:, : self.size], h_NH.shape[-1]) if self.h_is_cut else h_NH

        @torch.no_grad()
        def by_copy(copy: Any, ids_NL: Tensor, mask_NL: Tensor) -> Tensor:
            training = self.projector.training
            self.projector.eval()
            z_NH = self.project(embed(copy, ids_NL, mask_NL))
            self.projector.train(training)
            return z_NH

        def views_by(network: Any) -> Views:
            return self.views(encode.views_by(network))

        return replace(encode, project=project, pooled=pooled, embed=by_copy, views_by=views_by)


def widened(vectors: Tensor, width: int) -> Tensor:
    """Return vectors with zeros behind them, (…, width)."""
    return nn.functional.pad(vectors, (0, width - vectors.shape[-1]))


@contextmanager
def running_statistics_kept(projector: nn.Module) -> Iterator[None]:
    """Leave the running statistics of batch norms as they are: those of the full size count."""
    norms = [module for module in projector.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    before = [dict(norm.named_buffers()) for norm in norms]
    for norm, values in zip(norms, before, strict=True):
        norm._buffers.update({name: value.clone() for name, value in values.items()})
    try:
        yield
    finally:
        for norm, values in zip(norms, before, strict=True):
            norm._buffers.update(values)
