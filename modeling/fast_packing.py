"""Packed batches: an encoder computes real tokens only, whatever the padding of its input.

The real tokens of all rows are concatenated, and every layer except attention processes this one sequence. On CPU,
attention with dropout is our own function of packed tokens (``fast_attention.py``). Scaled dot-product attention needs
padded rows, so the tokens are padded before it and packed after it. Transformers' flash attention needs no rows: it
gets their boundaries. All use Transformers' attention interface, so no family's code is forked.

Shape suffixes: N rows, L tokens of the longest, T real tokens of all rows, M wanted positions, H hidden size, A heads,
D size of a head.
"""

import inspect
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.utils.generic import is_flash_attention_requested

from .backbone import layer_list
from .fast_attention import PackedAttention, Rows, fill_keys
from .fast_counts import counts_of
from .fast_half import half_states, widened
from .fast_layers import TakeRows, arguments_of, ask_at, attention_output, only_at, self_attention, take_places
from .fast_recompute import recomputed
from .fast_switch import fast
from .perturbation import scaled_embeddings

logger = logging.getLogger(__name__)

#: The name of this attention in Transformers.
PACKED_ATTENTION = "csekit_packed"
#: The same function for encoders whose batches stay padded.
FILLED_ATTENTION = "csekit_filled"
#: On CPU, a batch of at least so many tokens is filled up to a multiple of ``FILL`` tokens. Kernels are made for
#: numbers of tokens and kept, and blocks of memory leave holes that other sizes do not fill, so there should be few
#: numbers.
FILLED = 256
FILL = 64
#: On a GPU a batch is packed if its padding has at least so many elements (tokens times hidden size). Packing a layer
#: starts some twenty kernels more, and to compute few padded tokens takes less time than that.
PADDING = 1 << 21
#: The attribute of a mask that holds its rows (``PaddedRows.of``).
_PADDED = "_csekit_padded_rows"
#: The attribute of an encoder that holds the position id of a row's first token.
_FIRST = "_csekit_first_position"
#: The attribute of an encoder that makes the packing of a mask, if it is not ``Packing.of`` (``fast_buckets.py``).
PACKING = "_csekit_packing"


class Readable:
    """A batch that knows what its tokens attend to.

    Arguments:
        mask_NL: bool, True for real tokens.
    """

    mask_NL: Tensor

    def read(self, causal: bool, window: int | None) -> Tensor:
        """Return which places of its row each token reads: bool, (N, 1, 1, L), or (N, 1, L, L) if that depends on the
        token.

        Arguments:
            causal: a token reads the tokens up to itself.
            window: a token reads tokens less than this distance away.
        """
        L = self.mask_NL.shape[1]
        read = self.mask_NL[:, None, None]
        if causal or (window is not None and window < L):
            place_L = torch.arange(L, device=read.device)
            distance_LL = place_L[:, None] - place_L
            read_LL = distance_LL >= 0 if causal else torch.ones_like(distance_LL, dtype=torch.bool)
            if window is not None:
                read_LL = read_LL & (distance_LL.abs() < window)
            read = read & read_LL
        return read

    def bias(self, causal: bool, window: int | None, dtype: torch.dtype) -> Tensor:
        """Return the same as a number to add to the products: 0 where a token reads, else the least of the type. (With
        −∞ the weights of a token that reads nothing would be nan.)

        Made once a batch: scaled dot-product attention makes it of a bool in every layer. Rows begin at multiples of
        16 bytes, as kernels want them.
        """
        known: dict[Any, Tensor] = self.__dict__.setdefault("_biases", {})
        key = (causal, window, dtype)
        if key not in known:
            read = self.read(causal, window)
            columns = read.shape[-1]
            zeros = torch.zeros((*read.shape[:-1], columns + -columns % 8), dtype=dtype, device=read.device)
            known[key] = zeros[..., :columns].masked_fill_(~read, torch.finfo(dtype).min)
        return known[key]


@dataclass(frozen=True)
class PaddedRows(Readable):
    """Rows that stay padded, where packing does not pay.

    Arguments:
        mask_NL: bool, True for real tokens.
        version: the count of changes of the mask that this was made of.
    """

    mask_NL: Tensor
    version: int = 0

    @classmethod
    def of(cls, attention_mask_NL: Tensor) -> "PaddedRows":
        """Return the rows of a mask, the same object for the same mask: networks that read it share what is made of
        it. In inference mode every call makes new ones, since training cannot use what is made there."""
        if torch.is_inference_mode_enabled() or attention_mask_NL.is_inference():
            return cls(attention_mask_NL.bool())
        found: PaddedRows | None = getattr(attention_mask_NL, _PADDED, None)
        if found is None or found.version != attention_mask_NL._version:
            found = cls(attention_mask_NL.bool(), attention_mask_NL._version)
            setattr(attention_mask_NL, _PADDED, found)
        return found

    @cached_property
    def places_NL(self) -> Tensor:
        """The place of each token in its row, counted from the first real token; 0 before it."""
        return places_of(self.mask_NL).clamp_min(0)


def places_of(mask_NL: Tensor) -> Tensor:
    """Number the places of each row, 0 at its first real token: (N, L) int64. Blanks between real tokens count."""
    starts_N1 = mask_NL.to(torch.int32).argmax(1, keepdim=True)
    return torch.arange(mask_NL.shape[1], device=mask_NL.device) - starts_N1


@dataclass(frozen=True)
class Packing(Readable):
    """The positions of the real tokens in a padded batch.

    Arguments:
        mask_NL: bool, True for real tokens.
        index_T: int64, their ascending positions in the flattened (N·L) batch.
        fill: the packed sequence is filled up to a multiple of so many tokens, by copies of the last one. Copies have
            no gradient.
    """

    mask_NL: Tensor
    index_T: Tensor
    fill: int = 1
    by_index: ClassVar[bool] = True  # False: attention on CPU cannot read the rows by index

    @classmethod
    def of(cls, attention_mask_NL: Tensor, fill: bool = False) -> "Packing":
        """Find the real tokens of a mask.

        Synchronises with the device unless token counts were attached to the mask (``fast_counts.py``).

        Arguments:
            fill: fill large batches.

        Raises:
            RuntimeError: the attached counts are wrong; on a GPU the error comes later, when the device gets there.
        """
        mask_NL, counts = attention_mask_NL.bool(), counts_of(attention_mask_NL)
        flat = mask_NL.flatten()
        if counts is None:
            index_T = flat.nonzero().squeeze(1)
            return cls(mask_NL, index_T, FILL if fill and len(index_T) >= FILLED else 1)
        torch._assert_async(flat.sum() == sum(counts), "token_counts are not those of attention_mask")
        T = sum(counts)
        return cls(mask_NL, torch.nonzero_static(flat, size=T).squeeze(1), FILL if fill and T >= FILLED else 1)

    @cached_property
    def rows(self) -> Rows:
        """The rows, for attention on CPU."""
        return Rows(self.mask_NL, self.index_T, len(self.filled_index) - len(self.index_T))

    @property
    def inside(self) -> "Packing":
        """The packing that attention reads."""
        return self

    def boundaries(self) -> dict[str, Any]:
        """Return where rows begin and end, as arguments of Transformers' flash attention.

        The longest length is given as L, an upper bound: the exact one would have to be read from the device."""
        ends_N = self.mask_NL.sum(1).cumsum(0)
        starts = nn.functional.pad(ends_N, (1, 0)).to(torch.int32)
        L = self.mask_NL.shape[1]
        return {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": L, "max_length_k": L}

    @property
    def full(self) -> bool:
        """True if the batch has no padding, and nothing to fill."""
        T = len(self.index_T)
        return self.mask_NL.numel() == T and T % self.fill == 0

    @cached_property
    def filled_index(self) -> Tensor:
        """The positions of the packed tokens, copies included."""
        if missing := -len(self.index_T) % self.fill:
            return torch.cat([self.index_T, self.index_T[-1:].expand(missing)])
        return self.index_T

    def pack(self, padded: Tensor) -> Tensor:
        """Drop the padding: (N, L, …) → (T, …)."""
        if self.full:
            return padded.flatten(0, 1)
        return TakeRows.apply(padded.flatten(0, 1), self.filled_index, len(self.index_T))

    def pad(self, packed: Tensor) -> Tensor:
        """Restore the rows: (T, …) → (N, L, …), zeros at padding."""
        N, L = self.mask_NL.shape
        if self.full:
            return packed.unflatten(0, (N, L))
        T = len(self.index_T)
        real = packed if len(packed) == T else packed[:T]  # a slice of everything would still copy its gradient
        padded = packed.new_zeros((N * L, *packed.shape[1:]))
        return padded.index_copy_(0, self.index_T, real).unflatten(0, (N, L))

    def pad_states(self, *states: Tensor, together: bool) -> tuple[Tensor, ...]:
        """Restore the rows of queries, keys and values: (1, A, T, D) → (N, A, L, D) each.

        Arguments:
            together: pad states of one shape in one piece, which starts fewer kernels. On a GPU small ones take longer
                to start than to run.
        """
        packed = [each.squeeze(0).transpose(0, 1) for each in states]  # (T, A, D)
        if together and len({each.shape for each in states}) == 1:
            padded = self.pad(torch.stack(packed, 1)).unbind(2)
        else:
            padded = tuple(self.pad(each) for each in packed)
        return tuple(each.transpose(1, 2) for each in padded)

    def places(self, places_M: Tensor) -> Tensor:
        """Convert positions of the flattened (N·L) to positions among the T real tokens, (M,) int64."""
        return self.mask_NL.flatten().cumsum(0).index_select(0, places_M) - 1

    def positions(self, first: int = 0) -> Tensor:
        """Number the places of each row from ``first``, its first real token: (1, T) int64. Blanks between real tokens
        count."""
        places_NL = places_of(self.mask_NL) + first
        return places_NL.flatten().index_select(0, self.filled_index).unsqueeze(0)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packing: Packing | PaddedRows | None = None,
    sliding_window: int | None = None,
    asking: nn.Module | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention; with a ``packing``, each token attends to its own row only, and in a causal module
    to the tokens up to itself.

    Arguments:
        query, key, value: (1, A, T, D) with a ``Packing``, else (N, A, L, D).
        sliding_window: with a packing, a token attends to tokens less than this distance away.
        asking: a module in which one token of each row asks (``ask_at``): the first N queries are theirs, the first N
            results too.

    Returns:
        (1, T, A, D) or (N, L, A, D), None
    """
    if packing is None:
        return _padded_attention(module, query, key, value, attention_mask, **kwargs)
    given = kwargs.get("is_causal")  # a configuration's is_causal, which overrides the module's
    causal = bool(getattr(module, "is_causal", False) if given is None else given)
    if sliding_window is not None and given is False:
        sliding_window += 1  # the mask of a decoder that attends both ways includes the edge of the window
    # the attention mask is an argument as well, but torch.compile does not know that
    if reads_numbers(query):
        attention_mask = packing.bias(causal, sliding_window, query.dtype)
    else:
        attention_mask = packing.read(causal, sliding_window)
    if isinstance(packing, PaddedRows):
        return _padded_attention(module, query, key, value, attention_mask, **kwargs)
    N = len(packing.mask_NL)
    one, dropout = module is asking, kwargs.get("dropout", 0.0)
    # without dropout, torch's kernel of all queries is faster, or as fast, but its backward pass is slow in 16 bits
    ours = one or dropout > 0 or (torch.is_grad_enabled() and query.dtype.itemsize == 2)
    if ours and own_attention(query) and packing.by_index and query.shape == key.shape:
        q, k, v = (states.squeeze(0).transpose(0, 1) for states in (query, key, value))
        scaling = query.shape[-1] ** -0.5 if kwargs.get("scaling") is None else kwargs["scaling"]
        further = (dropout, scaling, attention_mask)
        output = PackedAttention.apply(q[:N] if one else q, k, v, packing.rows, one, *further)
        if one:
            output = nn.functional.pad(output, (0, 0, 0, 0, 0, len(q) - N))
        return output.unsqueeze(0), None
    q_NALD, k_NALD, v_NALD = packing.pad_states(query, key, value, together=query.device.type != "cpu")
    output_NLAD, _ = _padded_attention(module, q_NALD, k_NALD, v_NALD, attention_mask, **kwargs)
    return packing.pack(output_NLAD).unsqueeze(0), None


def _padded_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Transformers' attention; on CPU without gradient, with as many keys as are fast."""
    given = kwargs.get("is_causal")
    causal = attention_mask is None and bool(getattr(module, "is_causal", True) if given is None else given)
    if not causal and kwargs.get("position_bias") is None and own_attention(query) and not torch.is_grad_enabled():
        key, value, attention_mask = fill_keys(key, value, attention_mask)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


def own_attention(states: Tensor) -> bool:
    """Return True where attention can be ``fast_attention.py``'s: on CPU, in layers that are not compiled."""
    return states.device.type == "cpu" and not torch.compiler.is_compiling()


def reads_numbers(states: Tensor) -> bool:
    """Return True where the kernels of attention add numbers to the products: on a GPU, in layers not compiled."""
    return states.device.type != "cpu" and not torch.compiler.is_compiling()


for name in (PACKED_ATTENTION, FILLED_ATTENTION):
    AttentionInterface.register(name, packed_attention)
    AttentionMaskInterface.register(name, sdpa_mask)


def _position_table(model: nn.Module) -> nn.Embedding | None:
    """Return the trained embeddings of absolute positions, None without."""
    for name, module in model.named_modules():
        if name.endswith(("position_embeddings", "wpe")) and isinstance(module, nn.Embedding):
            return module
    return None


def _first_position(model: nn.Module) -> int:
    """Return the position id of a row's first token: RoBERTa counts from behind its padding index."""
    if (known := model.__dict__.get(_FIRST)) is None:
        table = _position_table(model)
        known = 0 if table is None or table.padding_idx is None else table.padding_idx + 1
        model.__dict__[_FIRST] = known
    return int(known)


def own_positions(model: Any, mask_NL: Tensor) -> dict[str, Tensor]:
    """Return ``position_ids`` that count from each row's first real token, which may follow padding, for a decoder
    language model with a table of positions (GPT-2); else nothing."""
    if not hasattr(model, "wpe") or "position_ids" not in _arguments(model):
        return {}
    return {"position_ids": places_of(mask_NL).clamp_min(0) + _first_position(model)}


def pack_batches(model: nn.Module) -> None:
    """Let every encoder in ``model`` compute real tokens only, unless the fast paths are off.

    The encoder needs the default attention (sdpa) and a family that uses Transformers' attention interface. Other
    families stay padded, with one log line per family. Encoders with flash attention need no change: ``run_encoder``
    packs their batches. ``model.backbone.set_attn_implementation("sdpa")`` undoes this.
    """
    if not fast():
        return
    for encoder in model.modules():
        if not isinstance(encoder, PreTrainedModel) or encoder.base_model is not encoder:  # a model around an encoder
            continue
        flash = is_flash_attention_requested(encoder.config)
        if (flash or encoder.config._attn_implementation in ("sdpa", "eager")) and not _dispatches(encoder):
            warn_padded(type(encoder).__name__)
        elif encoder.config._attn_implementation == "sdpa":
            if _packs_exactly(encoder):
                encoder.set_attn_implementation(PACKED_ATTENTION)
            else:
                warn_padded(type(encoder).__name__)


@contextmanager
def filled_attention(encoder: PreTrainedModel) -> Iterator[None]:
    """Inside the context, let an encoder with plain attention fill up its keys (``fill_keys``), if the family's code
    allows it and the fast paths are on. Its batches stay padded."""
    if encoder.config._attn_implementation == "sdpa" and fast() and _dispatches(encoder):
        with _attention(encoder, FILLED_ATTENTION):
            yield
    else:
        yield


@contextmanager
def _attention(encoder: PreTrainedModel, name: str) -> Iterator[None]:
    """Switch the encoder to another attention inside the context."""
    before = encoder.config._attn_implementation
    encoder.set_attn_implementation(name)
    try:
        yield
    finally:
        encoder.config._attn_implementation = before  # its own setter would check it again


@lru_cache
def warn_padded(family: str) -> None:
    """Warn, once for each family, that its batches stay padded."""
    logger.warning("%s cannot compute packed batches: they stay padded", family)


def _arguments(encoder: PreTrainedModel) -> Mapping[str, inspect.Parameter]:
    own: Any = encoder.__dict__.get("forward")
    kind: Any = type(encoder)
    return arguments_of(kind) if own is None else inspect.signature(own).parameters


def _dispatches(encoder: PreTrainedModel) -> bool:
    """Return True if the family's code passes position ids and further arguments on to attention."""
    names = _arguments(encoder)
    further = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in names.values())
    return further and "position_ids" in names and bool(encoder._supports_attention_backend)


@torch.no_grad()
def _packs_exactly(encoder: PreTrainedModel) -> bool:
    """Return True if packed and padded states of two short rows agree, or if the encoder cannot be tried (it has no
    word embeddings or no weights)."""
    words = encoder.get_input_embeddings()
    if not isinstance(words, nn.Embedding) or words.weight.is_meta:
        return True
    pad = words.padding_idx or 0
    ids_NL = (torch.arange(10, device=words.weight.device).view(2, 5) + pad + 1) % words.num_embeddings
    mask_NL = torch.ones_like(ids_NL)
    ids_NL[1, 3:], mask_NL[1, 3:] = pad, 0
    flags = [(module, module.training) for module in encoder.modules()]
    encoder.eval()
    try:
        padded = encoder(input_ids=ids_NL, attention_mask=mask_NL).last_hidden_state
        encoder.set_attn_implementation(PACKED_ATTENTION)
        packed = run_encoder(encoder, mask_NL, ids_NL, always=True).last_hidden_state
        return bool(torch.allclose(padded[mask_NL.bool()], packed[mask_NL.bool()], rtol=1e-3, atol=1e-3))
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    finally:
        encoder.set_attn_implementation("sdpa")
        for module, training in flags:
            module.training = training


def run_with_attention(model: Any, attention_mask_NL: Tensor, input_ids_NL: Tensor, **kwargs: Any) -> Any:
    """Call an encoder, on padded rows and with Transformers' plain attention, so that its output has ``attentions``.

    Raises:
        ValueError: the family hands out no attention of each token to each (Longformer, Funnel), or its layers are
            computed again in the backward pass, where their attention would be another one.
    """
    if model.training and any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise ValueError("gradient_checkpointing must be off with an objective that reads the encoder's attention")
    tell_of_attention(type(model).__name__)
    with _attention(model, "eager"):
        output = run_encoder(model, attention_mask_NL, input_ids_NL, packed=False, output_attentions=True, **kwargs)
    L = input_ids_NL.shape[1]
    found = output.get("attentions") or (None,)
    if any(each is None or each.shape[-2:] != (L, L) for each in found):
        raise ValueError(
            f"the family {model.config.model_type!r} hands out no attention of each token to each, which the "
            "objective 'attention' reads: leave it out, or start from another encoder, such as bert or roberta"
        )
    return output


@lru_cache
def tell_of_attention(family: str) -> None:
    """Say, once for each family, that its views are computed without the fast paths."""
    logger.warning("%s hands out the attention of the views: they stay padded, with plain attention", family)


def _fills(encoder: Any) -> bool:
    """Return True where large batches are filled up: not in training with compiled layers, which take any number of
    tokens."""
    compiled = any(getattr(module, "_compiled_call_impl", None) is not None for module in encoder.modules())
    return not (compiled and (encoder.training or torch.is_grad_enabled()))


def _call(model: Any, inputs: dict[str, Any], places_M: Tensor | None) -> Any:
    """Call the encoder; with positions, its last hidden state is restricted to them, (1, M or more, H)."""
    module = None if places_M is None else attention_output(model)
    if places_M is None or module is not None:
        with only_at(module, places_M) if module is not None and places_M is not None else nullcontext():
            return model(**inputs)
    output = model(**inputs)
    output.last_hidden_state = take_places(output.last_hidden_state, places_M)
    return output


def _packing_of(model: Any, mask_NL: Tensor, fill: bool) -> Packing:
    """Return the packing of a mask, the encoder's own kind if it has one."""
    make = getattr(model, PACKING, None)
    return Packing.of(mask_NL, fill) if make is None else make(mask_NL)


def packing_pays(model: Any, mask_NL: Tensor) -> bool:
    """Return True if a packed batch takes less time than a padded one: always on CPU, and on a GPU if there is much
    padding (``PADDING``). Where the host does not know the number of tokens, a large batch counts as one with much.

    Compiled layers and an encoder with a packing of its own are always packed: they are made for one kind of batch.
    """
    if mask_NL.device.type == "cpu" or hasattr(model, PACKING) or _compiled(model):
        return True
    counts = counts_of(mask_NL)
    tokens = 0 if counts is None else sum(counts)
    return (mask_NL.numel() - tokens) * int(model.config.hidden_size) >= PADDING


def _compiled(model: Any) -> bool:
    try:
        return layer_list(model)[0]._compiled_call_impl is not None
    except ValueError:
        return False


def run_encoder(
    model: Any,
    attention_mask_NL: Tensor,
    input_ids_NL: Tensor | None = None,
    inputs_embeds_NLH: Tensor | None = None,
    *,
    packed: bool = True,
    places_M: Tensor | None = None,
    each_row: bool = False,
    factors_NLE: Tensor | None = None,
    always: bool = False,
    **kwargs: Any,
) -> Any:
    """Call an encoder, on real tokens only if its attention is ``PACKED_ATTENTION``, and that pays, or a flash
    attention.

    Flash attention does not support float32: without autocast such an encoder gets a padded batch and sdpa.

    Arguments:
        input_ids_NL, inputs_embeds_NLH: exactly one of them.
        packed: False computes the padding too, whatever the encoder's attention.
        places_M: positions of real tokens in the flattened (N·L), none twice; only their last states are returned.
        each_row: ``places_M`` are one place of each row, row after row.
        factors_NLE: the token embeddings are multiplied by them (``scaled_embeddings``).
        always: pack also where it does not pay.
        kwargs: further arguments of the encoder.

    Returns:
        the encoder's output with ``last_hidden_state`` and ``hidden_states`` (N, L, H). At padding they are zero in a
        packed batch, and arbitrary otherwise. With ``places_M`` the last hidden state is (M, H); do not use the
        ``hidden_states`` of the last layer then.
    """
    if getattr(model.config, "use_cache", False) and "use_cache" in _arguments(model):
        kwargs.setdefault("use_cache", False)  # the keys and values of a decoder language model, for generation
    flash = is_flash_attention_requested(model.config)
    if flash and next(model.parameters()).dtype == torch.float32 and not torch.is_autocast_enabled(model.device.type):
        with _attention(model, "sdpa"):
            batch = (model, attention_mask_NL, input_ids_NL, inputs_embeds_NLH)
            kwargs |= {"packed": False, "places_M": places_M, "each_row": each_row, "factors_NLE": factors_NLE}
            return run_encoder(*batch, **kwargs)
    own = own_attention(attention_mask_NL) and not hasattr(model, PACKING)
    rows = _rows_of(model, attention_mask_NL, packed and fast(), always, own and not flash)
    given = {"input_ids": input_ids_NL, "inputs_embeds": inputs_embeds_NLH}
    inputs: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if not isinstance(rows, Packing) or (rows.full and not (own and (model.training or each_row))):
        inputs |= {"attention_mask": None if flash and rows is not None else attention_mask_NL}
        if isinstance(rows, PaddedRows):
            inputs |= {"attention_mask": rows.mask_NL[:, None, None], "packing": rows}
            inputs |= {"position_ids": rows.places_NL + _first_position(model)}
        elif rows is None:
            inputs |= own_positions(model, attention_mask_NL)
        with scaled_embeddings(model, factors_NLE), recomputed(model), half_states(model):
            output = _call(model, inputs | kwargs, places_M)
        if places_M is not None:
            output.last_hidden_state = output.last_hidden_state.squeeze(0)[: len(places_M)]
        return widened(output)
    return _run_packed(model, rows, inputs, kwargs, places_M, each_row and not flash and own, factors_NLE)


def _rows_of(model: Any, mask_NL: Tensor, packed: bool, always: bool, fills: bool) -> Packing | PaddedRows | None:
    """Return the packing of a mask, its padded rows where that does not pay, or None for a family that is not packed.

    Arguments:
        packed: whether packing is wanted.
        always: also where it does not pay.
        fills: fill large batches.
    """
    flash = is_flash_attention_requested(model.config)
    if not packed or not (_dispatches(model) if flash else model.config._attn_implementation == PACKED_ATTENTION):
        return None
    if flash or always or packing_pays(model, mask_NL):
        return _packing_of(model, mask_NL, fills and _fills(model))
    return PaddedRows.of(mask_NL)


def _run_packed(
    model: Any,
    packing: Packing,
    inputs: dict[str, Any],
    kwargs: dict[str, Any],
    places_M: Tensor | None,
    asks: bool,
    factors_NLE: Tensor | None,
) -> Any:
    """Call an encoder on real tokens only; see ``run_encoder``.

    Arguments:
        asks: the places alone ask in the last layer, if the family allows it.
    """
    flash = is_flash_attention_requested(model.config)
    inputs = {name: packing.pack(value).unsqueeze(0) for name, value in inputs.items()}
    inputs |= {"position_ids": packing.positions(_first_position(model))}
    # Transformers passes a mask of four dimensions to attention unchanged
    inside = packing.inside
    rows = {"attention_mask": inside.mask_NL[:, None, None], "packing": inside}
    inputs |= {"attention_mask": None, **packing.boundaries()} if flash else rows
    places_M = None if places_M is None else packing.places(places_M)
    module = attention_output(model) if asks else None
    asking = None if module is None else self_attention(model)
    factors_1TE = None if factors_NLE is None else packing.pack(factors_NLE).unsqueeze(0)
    with scaled_embeddings(model, factors_1TE), recomputed(model), half_states(model):
        if module is None or asking is None or places_M is None:
            output = _call(model, inputs | kwargs, places_M)
        else:
            with ask_at(asking, module, places_M):
                output = model(**inputs, asking=asking, **kwargs)
    last = output.last_hidden_state.squeeze(0)
    output.last_hidden_state = packing.pad(last) if places_M is None else last[: len(places_M)]
    if output.get("hidden_states") is not None:
        output.hidden_states = tuple(packing.pad(states.squeeze(0)) for states in output.hidden_states)
    return widened(output)
