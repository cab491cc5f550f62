"""A frozen masked LM that fills positions of a text. It is not part of the state dict.

Shape suffixes: R rows, K tokens, M positions to fill, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, AutoTokenizer

from .fast_packing import pack_batches, run_encoder
from .fast_rows import fill_rows
from .fast_switch import fast
from .hub import from_hub
from .masked_lm_head import Passthrough
from .quiet import quiet_weights

#: The tokens of a block: about the root of a vocabulary's size.
_BLOCK = 128
#: States that the head scores at once on CPU, and logits from which tokens are drawn at once there. Few of them lie in
#: memory that is used again, while a matrix of all logits would be new memory in every step.
_STATES, _LOGITS = 256, 1 << 20


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
        self.name_or_path, self.vocab_size = name_or_path, vocab_size
        self._load()

    def _load(self) -> None:
        try:
            with quiet_weights():  # of a pooler, which is not used
                model, info = from_hub(
                    AutoModelForMaskedLM, self.name_or_path, output_loading_info=True, dtype=torch.float32
                )
        except OSError as error:
            raise ValueError(
                f"generator {self.name_or_path!r} cannot be loaded: {error}; name another one in the field generator"
            ) from error
        except ValueError as error:  # a family without one
            reason = str(error).splitlines()[0]  # a list of all families follows
            raise ValueError(f"generator {self.name_or_path!r} cannot be loaded as a masked LM: {reason}") from error
        if info["missing_keys"]:
            missing = sorted(info["missing_keys"])
            raise ValueError(
                f"generator {self.name_or_path!r} is no masked LM: it lacks {len(missing)} weights, "
                f"e.g. {missing[0]!r}"
            )
        self.backbone: Any = getattr(model, model.base_model_prefix)
        setattr(model, model.base_model_prefix, Passthrough())
        self.head: nn.Module = model
        self.networks = nn.ModuleList([self.backbone, self.head]).requires_grad_(False).eval()
        self._precision = torch.float32  # of the linear maps
        pack_batches(self.backbone)

    def _prepare(self, device: torch.device, dropout: bool) -> None:
        """Bring the networks to the device and the mode, and the linear maps to the precision of autocast.

        Autocast converts weights that are not trained at each use, and these never change.
        """
        if self.backbone.device != device:
            self.networks.to(device)
        if self.networks.training != dropout:
            self.networks.train(dropout)
        autocast = fast() and torch.is_autocast_enabled(device.type)
        precision = torch.get_autocast_dtype(device.type) if autocast else torch.float32
        if precision == self._precision:
            return
        if self._precision != torch.float32:  # the exact weights are those of the checkpoint
            self._load()
            self._prepare(device, dropout)
            return
        for module in self.networks.modules():
            if type(module) is nn.Linear:  # alone: a matrix that it shares with the embeddings stays as it is there
                for name, weight in list(module.named_parameters(recurse=False)):
                    setattr(module, name, nn.Parameter(weight.to(precision), requires_grad=False))
        self._precision = precision

    def logits(self, ids_RK: Tensor, mask_RK: Tensor, positions_M: Tensor, dropout: bool = False) -> Tensor:
        """Return the logits (M, V) at ``positions_M`` of the flattened ids; no other logits are computed."""
        return self._score(self._states(ids_RK, mask_RK, positions_M, dropout))

    @torch.no_grad()
    def _states(self, ids_RK: Tensor, mask_RK: Tensor, positions_M: Tensor, dropout: bool) -> Tensor:
        """Return the states (M, H) that the head reads."""
        self._prepare(ids_RK.device, dropout)
        states: Tensor = run_encoder(self.backbone, mask_RK, ids_RK, places_M=positions_M).last_hidden_state
        return states

    @torch.no_grad()
    def _score(self, states_MH: Tensor) -> Tensor:
        """Return the logits (M, V)."""
        logits = self.head(inputs_embeds=fill_rows(states_MH).unsqueeze(0)).logits
        return logits[0, : len(states_MH), : self.vocab_size]

    def fill(
        self, ids_RK: Tensor, mask_RK: Tensor, positions_M: Tensor, sampling: str, dropout: bool = False
    ) -> Tensor:
        """Return the ids with the generator's tokens at ``positions_M``, (R, K).

        Arguments:
            sampling: ``sample`` draws from its distribution with torch's global generator; ``argmax`` takes the
                likeliest token.
            dropout: True to keep the generator's dropout on.
        """
        states_MH = self._states(ids_RK, mask_RK, positions_M, dropout)
        choose = draw if sampling == "sample" else _likeliest
        tokens_M = torch.cat([choose(self._score(part)) for part in states_MH.split(_rows(states_MH, _STATES))])
        return ids_RK.flatten().index_copy(0, positions_M, tokens_M).view_as(ids_RK)


def draw(logits_MV: Tensor) -> Tensor:
    """Draw a token from each row's distribution by inversion, (M,) int64.

    This takes one random number per row; Gumbel's trick takes one per vocabulary entry, and ``torch.multinomial``
    synchronises with the device. The number finds a block of the vocabulary first, then a token of the block, so that
    the running sums, which are slow, are those of the blocks and of one block.
    """
    return torch.cat([_draw(part) for part in logits_MV.split(_rows(logits_MV, _LOGITS // logits_MV.shape[1]))])


def _likeliest(logits_MV: Tensor) -> Tensor:
    return logits_MV.argmax(-1)


def _rows(rows: Tensor, most: int) -> int:
    """Return how many rows to work on at once: on a CPU at most so many, elsewhere all."""
    return max(1, min(len(rows), most) if rows.device.type == "cpu" else len(rows))


def _draw(logits_MV: Tensor) -> Tensor:
    M, V = logits_MV.shape
    blocks = -(-V // _BLOCK)
    filled = logits_MV.new_full((M, blocks * _BLOCK), -torch.inf, dtype=torch.float32)
    filled[:, :V] = logits_MV
    shares = filled.softmax(-1).view(M, blocks, _BLOCK)
    totals = shares.sum(-1)
    block_M1, rest_M1 = _find(totals, torch.rand_like(totals[:, :1]) * totals.sum(-1, keepdim=True))
    inside = shares.gather(1, block_M1.unsqueeze(-1).expand(M, 1, _BLOCK)).squeeze(1)
    token_M1, _ = _find(inside, rest_M1)
    return (block_M1 * _BLOCK + token_M1).squeeze(1)


def _find(shares_MK: Tensor, amount_M1: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the running sum of the shares exceeds an amount, (M, 1), and what the amount exceeds the sum before
    by. The place found has a share above 0."""
    sums_MK = shares_MK.cumsum(-1)
    last_M1 = sums_MK[:, -1:]
    amount_M1 = amount_M1.minimum(last_M1.nextafter(torch.zeros_like(last_M1)))  # rounding may reach the last sum
    place_M1 = torch.searchsorted(sums_MK, amount_M1, right=True)
    before_M1 = sums_MK.gather(1, (place_M1 - 1).clamp_min(0)) * (place_M1 > 0)
    return place_M1, (amount_M1 - before_M1).clamp_min(0)


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
