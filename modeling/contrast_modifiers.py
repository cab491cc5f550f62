"""The contrast as its modifiers leave it: weights of the batch's negatives, and further negatives.

Shape suffixes: B rows of this process, K keys of all processes, Q further keys, V views, H hidden size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .losses import cosine_logits, info_nce
from .objectives import ContrastModifier, Encode, Negatives, Views
from .random_streams import own_stream


@dataclass(frozen=True)
class Modified:
    """The contrast of one step, as its modifiers change it.

    Arguments:
        modifiers: by name.
        further: the further negatives that they gave, by name.
        batch: the collator's further keys.
        temperature: τ.
        mask_identical: leave further keys with the text of a row's own out of its denominator.
    """

    modifiers: Mapping[str, ContrastModifier]
    further: Mapping[str, Negatives]
    batch: dict[str, Tensor]
    temperature: float
    mask_identical: bool

    def loss(
        self,
        logits_BK: Tensor,
        positives_B: Tensor,
        excluded_BK: Tensor | None,
        views: Views,
        order: Sequence[int] = (0, 1),
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return InfoNCE, (), and the modifiers' diagnostics.

        Arguments:
            logits_BK, positives_B, excluded_BK: as for ``info_nce``, of the batch's keys.
            order: the view of the rows, then those of the columns.
        """
        if not self.modifiers:
            return info_nce(logits_BK, positives_B, excluded_BK), {}
        query, *keys = order
        weights_BK, metrics = torch.ones_like(logits_BK), {}
        for name, modifier in self.modifiers.items():
            found = [modifier.weights(views, self.batch, query, key) for key in keys]
            given = [α_BK for α_BK in found if α_BK is not None]
            if given:
                α_BK = torch.cat(given, 1).to(logits_BK.dtype).scatter(1, positives_B[:, None], 1.0)
                weights_BK = weights_BK * α_BK
                absent_BK = logits_BK.detach() == -torch.inf  # a row's own place in its own view
                metrics[f"{name}_left_out"] = (1 - α_BK).masked_fill(absent_BK, 0.0).sum(1).mean()
        for name, negatives in self.further.items():
            l_BQ = cosine_logits(views.z[query].float(), negatives.keys.float(), self.temperature)
            metrics[f"{name}_cosine"] = mean_cosine(l_BQ.detach() * self.temperature, negatives.weights > 0)
            logits_BK = torch.cat([logits_BK, l_BQ], 1)
            α_BQ = negatives.weights.to(l_BQ.dtype).expand_as(l_BQ)
            weights_BK = torch.cat([weights_BK, self.without_identical(α_BQ, negatives, views)], 1)
        if excluded_BK is not None:
            rest = logits_BK.shape[1] - excluded_BK.shape[1]
            excluded_BK = torch.nn.functional.pad(excluded_BK, (0, rest))
        return info_nce(logits_BK, positives_B, excluded_BK, weights_BK), metrics

    @torch.no_grad()
    def without_identical(self, α_BQ: Tensor, negatives: Negatives, views: Views) -> Tensor:
        """Return α with 0 at further keys with the text of a row's query or positive, if such keys are left out."""
        if negatives.texts is None or not self.mask_identical:
            return α_BQ
        same_BQ = (negatives.texts == views.texts[0][:, None]) | (negatives.texts == views.texts[1][:, None])
        return α_BQ.masked_fill(same_BQ, 0.0)


def further_negatives(
    modifiers: Mapping[str, ContrastModifier], views: Views, batch: dict[str, Tensor], encode: Encode, seed: int
) -> dict[str, Negatives]:
    """Return the modifiers' further negatives by name; each modifier draws from a stream of its own."""
    found = {}
    for name, modifier in modifiers.items():
        with own_stream(name, seed, views.z.device), torch.autocast(views.z.device.type, enabled=False):
            negatives = modifier.negatives(views, batch, encode)
        if negatives is not None:
            found[name] = replace(negatives, keys=negatives.keys[:, : views.z.shape[-1]])  # as long as z
    return found


def mean_cosine(cosine_BQ: Tensor, chosen_Q: Tensor) -> Tensor:
    """Return the mean of the chosen columns, (); 0 if there is none."""
    return (cosine_BQ * chosen_Q).sum() / (len(cosine_BQ) * chosen_Q.sum().clamp_min(1))
