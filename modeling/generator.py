"""A frozen masked LM that fills places of a text, held outside the state dict.

Shape suffixes: R rows, K tokens, M places to fill, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from .masked_lm import _Passthrough
from .unpadding import pack_batches, run_encoder


class Generator:
    """The generator of replaced token detection: any masked LM, never trained.

    Not an ``nn.Module``, so that a model that holds one neither saves nor trains nor switches it.

    Arguments:
        name_or_path: of a masked-LM checkpoint.
        vocab_size: only the first so many ids are generated.

    Raises:
        ValueError: the checkpoint cannot be loaded or lacks weights of its masked-LM head; they would be random.
    """

    def __init__(self, name_or_path: str, vocab_size: int) -> None:
        verbosity = transformers_logging.get_verbosity()
        transformers_logging.set_verbosity_error()  # a pooler that is not needed is no news
        try:
            model, info = AutoModelForMaskedLM.from_pretrained(
                name_or_path, output_loading_info=True, dtype=torch.float32
            )
        except OSError as error:
            raise ValueError(
                f"generator {name_or_path!r} cannot be loaded: {error}; name another in the field generator"
            ) from error
        finally:
            transformers_logging.set_verbosity(verbosity)
        if info["missing_keys"]:
            missing = sorted(info["missing_keys"])
            raise ValueError(
                f"generator {name_or_path!r} is no masked LM: it lacks {len(missing)} weights, e.g. {missing[0]!r}"
            )
        self.name_or_path, self.vocab_size = name_or_path, vocab_size
        self.backbone: Any = getattr(model, model.base_model_prefix)
        setattr(model, model.base_model_prefix, _Passthrough())
        self.head: nn.Module = model
        self.networks = nn.ModuleList([self.backbone, self.head]).requires_grad_(False).eval()
        pack_batches(self.backbone)

    def logits(self, ids_RK: Tensor, mask_RK: Tensor, positions_M: Tensor, dropout: bool = False) -> Tensor:
        """(M, V) logits at ``positions_M`` of the flattened ids; only these rows meet the vocabulary."""
        if self.backbone.device != ids_RK.device:
            self.networks.to(ids_RK.device)
        if self.networks.training != dropout:
            self.networks.train(dropout)
        with torch.no_grad():
            states_MH = run_encoder(self.backbone, mask_RK, ids_RK, places_M=positions_M).last_hidden_state
            return self.head(inputs_embeds=states_MH.unsqueeze(0)).logits[0, :, : self.vocab_size]

    def fill(
        self, ids_RK: Tensor, mask_RK: Tensor, positions_M: Tensor, sampling: str, dropout: bool = False
    ) -> Tensor:
        """The ids with the generator's tokens at ``positions_M``: drawn from its distribution (``sample``, by torch's
        global generator) or the likeliest ones (``argmax``)."""
        logits_MV = self.logits(ids_RK, mask_RK, positions_M, dropout)
        tokens_M = draw(logits_MV) if sampling == "sample" else logits_MV.argmax(-1)
        return ids_RK.flatten().index_copy(0, positions_M, tokens_M).view_as(ids_RK)


def draw(logits_MV: Tensor) -> Tensor:
    """A token of each row's distribution, (M,) int64, by inversion: one random number a row, while Gumbel's trick
    draws one for each entry of the vocabulary; ``torch.multinomial`` would wait for the device."""
    cumulative_MV = logits_MV.float().softmax(-1).cumsum(-1)
    total_M1 = cumulative_MV[:, -1:]
    below_M1 = torch.rand_like(total_M1) * total_M1
    below_M1 = below_M1.minimum(total_M1.nextafter(torch.zeros_like(total_M1)))  # the product may round up
    return torch.searchsorted(cumulative_MV, below_M1, right=True).squeeze(1)


def check_same_vocabulary(name: str, other: str, role: str) -> None:
    """Raises ValueError where the tokenizers of two checkpoints do not give every token the same id."""
    ours, theirs = (AutoTokenizer.from_pretrained(each).get_vocab() for each in (name, other))
    different = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
    if different:
        token = min(different, key=lambda each: (ours.get(each, len(ours)), each))
        raise ValueError(
            f"{role} must have the vocabulary of the encoder, {name} ({len(ours):,} tokens), got {other} "
            f"({len(theirs):,} tokens): {len(different):,} tokens differ, e.g. {token!r} with id {ours.get(token)} "
            f"in the one and {theirs.get(token)} in the other"
        )
