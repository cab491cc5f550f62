"""A frozen masked LM that fills positions of a text. It is not part of the state dict.

Shape suffixes: R rows, K tokens, M positions to fill, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, AutoTokenizer

from .fast_packing import pack_batches, run_encoder
from .fast_rows import fill_rows
from .hub import from_hub
from .masked_lm_head import Passthrough
from .quiet import quiet_weights


class Generator:
    """The generator of replaced token detection: any masked LM, never trained.

    It is no ``nn.Module``, so that the model that holds it neither saves nor trains it, nor switches its mode.

    Arguments:
        name_or_path: name or path of a masked-LM checkpoint.
        vocab_size: only ids below this number are generated.

    Raises:
        ValueError: the checkpoint cannot be loaded, or lacks weights of its masked-LM head, which would be random.
    """

    def __init__(self, name_or_path: str, vocab_size: int) -> None:
        try:
            with quiet_weights():  # of a pooler, which is not used
                model, info = from_hub(
                    AutoModelForMaskedLM, name_or_path, output_loading_info=True, dtype=torch.float32
                )
        except OSError as error:
            raise ValueError(
                f"generator {name_or_path!r} cannot be loaded: {error}; name another one in the field generator"
            ) from error
        if info["missing_keys"]:
            missing = sorted(info["missing_keys"])
            raise ValueError(
                f"generator {name_or_path!r} is no masked LM: it lacks {len(missing)} weights, e.g. {missing[0]!r}"
            )
        self.name_or_path, self.vocab_size = name_or_path, vocab_size
        self.backbone: Any = getattr(model, model.base_model_prefix)
        setattr(model, model.base_model_prefix, Passthrough())
        self.head: nn.Module = model
        self.networks = nn.ModuleList([self.backbone, self.head]).requires_grad_(False).eval()
        pack_batches(self.backbone)

    def logits(self, ids_RK: Tensor, mask_RK: Tensor, positions_M: Tensor, dropout: bool = False) -> Tensor:
        """Return the logits (M, V) at ``positions_M`` of the flattened ids; no other logits are computed."""
        if self.backbone.device != ids_RK.device:
            self.networks.to(ids_RK.device)
        if self.networks.training != dropout:
            self.networks.train(dropout)
        with torch.no_grad():
            states_MH = run_encoder(self.backbone, mask_RK, ids_RK, places_M=positions_M).last_hidden_state
            logits = self.head(inputs_embeds=fill_rows(states_MH).unsqueeze(0)).logits
            return logits[0, : len(positions_M), : self.vocab_size]

    def fill(
        self, ids_RK: Tensor, mask_RK: Tensor, positions_M: Tensor, sampling: str, dropout: bool = False
    ) -> Tensor:
        """Return the ids with the generator's tokens at ``positions_M``, (R, K).

        Arguments:
            sampling: ``sample`` draws from its distribution with torch's global generator; ``argmax`` takes the
                likeliest token.
            dropout: True to keep the generator's dropout on.
        """
        logits_MV = self.logits(ids_RK, mask_RK, positions_M, dropout)
        tokens_M = draw(logits_MV) if sampling == "sample" else logits_MV.argmax(-1)
        return ids_RK.flatten().index_copy(0, positions_M, tokens_M).view_as(ids_RK)


def draw(logits_MV: Tensor) -> Tensor:
    """Draw a token from each row's distribution by inversion, (M,) int64.

    This takes one random number per row; Gumbel's trick takes one per vocabulary entry, and ``torch.multinomial``
    synchronises with the device.
    """
    cumulative_MV = logits_MV.float().softmax(-1).cumsum(-1)
    total_M1 = cumulative_MV[:, -1:]
    below_M1 = torch.rand_like(total_M1) * total_M1
    below_M1 = below_M1.minimum(total_M1.nextafter(torch.zeros_like(total_M1)))  # the product may round up
    return torch.searchsorted(cumulative_MV, below_M1, right=True).squeeze(1)


def check_same_vocabulary(name: str, other: str, role: str) -> None:
    """Check that the tokenizers of two checkpoints give every token the same id.

    Arguments:
        name: the encoder's checkpoint.
        other: the checkpoint to compare.
        role: the field that names ``other``, for the message.

    Raises:
        ValueError: the vocabularies differ.
    """
    ours, theirs = (from_hub(AutoTokenizer, each).get_vocab() for each in (name, other))
    different = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
    if different:
        token = min(different, key=lambda each: (ours.get(each, len(ours)), each))
        raise ValueError(
            f"{role} must have the vocabulary of the encoder, {name} ({len(ours):,} tokens), got {other} "
            f"({len(theirs):,} tokens): {len(different):,} tokens differ, e.g. {token!r} with id {ours.get(token)} "
            f"in the first and {theirs.get(token)} in the second"
        )
