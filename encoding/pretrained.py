"""Load models and tokenizers, and refuse those that would give wrong embeddings without an error.

Transformers fills weights that a checkpoint lacks with random numbers, and makes a tokenizer of special tokens alone
where a folder has none. Both encode without complaint.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    LongT5EncoderModel,
    MT5EncoderModel,
    PreTrainedTokenizerBase,
    T5EncoderModel,
    UMT5EncoderModel,
)

from csekit.encoding.imports import import_hint
from csekit.encoding.unfinished import interrupted_run
from csekit.modeling.backbone import ENCODERS_ALONE, GivesScoresError, check_row_length, run_on_text_alone
from csekit.modeling.hub import from_hub
from csekit.modeling.quiet import quiet_weights
from csekit.modeling.tokenization import sentence_frame, tokenize

#: Rows of the word embeddings without a token that are allowed: vocabularies are padded to a multiple of 64 or 128.
SPARE_ROWS = 127
#: Names that one error lists at most.
NAMED = 5
#: Types of safetensors that a weight can have; integers are a quantised model's, which needs code of its own.
_FLOATS = ("F64", "F32", "F16", "BF16")
#: Types of models with a decoder to the classes of their encoders, which a SentenceTransformer holds.
_ENCODERS_ALONE: dict[str, Any] = dict(
    zip(ENCODERS_ALONE, (T5EncoderModel, MT5EncoderModel, UMT5EncoderModel, LongT5EncoderModel), strict=True)
)


@contextmanager
def broken_model_told(source: str | Path) -> Iterator[None]:
    """Turn every error inside the context into one that a command reports in one line, with the model's name.

    A model's folder may hold anything, and libraries answer with any class of exception. Errors of csekit itself stay
    as they are.

    Raises:
        ValueError: names the source.
    """
    try:
        yield
    except Exception as error:
        known = isinstance(error, ValueError | OSError | ImportError)
        if known and (_is_ours(error) or str(source) in str(error)):
            raise
        reason = " ".join((str(error) if known else f"{type(error).__name__}: {error}").split())[:300]
        raise ValueError(f"{source}: the model cannot be used: {reason}") from error


def _is_ours(error: BaseException) -> bool:
    """Tell whether code of csekit raised the error."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and str(place.tb_frame.f_globals.get("__name__")).startswith("csekit.")


def load_pretrained(auto_class: Any, source: str | Path, **options: Any) -> Any:
    """Call ``auto_class.from_pretrained`` without its reports on stderr. Code in the source is never run.

    Raises:
        ValueError: the class cannot load the source; the message names both. The source is an interrupted run.
        FileNotFoundError: the source is not here, and the Hub cannot be reached.
    """
    if (told := interrupted_run(source)) is not None:
        raise ValueError(told)
    try:
        with quiet_weights():
            return from_hub(auto_class, source, **options)
    except FileNotFoundError:
        raise
    except Exception as error:
        if "trust_remote_code" in str(error):  # Transformers would ask on the terminal
            raise ValueError(
                f"{source}: needs Python code of its own (auto_map), which csekit does not run"
            ) from error
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{source}: {auto_class.__name__} cannot load it: {reason}{import_hint(source)}") from error


def load_transformer(source: str | Path, **options: Any) -> nn.Module:
    """Load a plain encoder in float32, without BERT's own pooler where its class can leave it out, and without T5's
    decoder.

    Raises:
        ValueError: it cannot be loaded; a weight is missing, has another shape, is not a floating-point number, or
            holds NaN or infinite values; the checkpoint has more layers than the config; it needs
            inputs for a decoder; it reads rows of a single length.
    """
    stored_weights(source)
    options |= {"dtype": torch.float32, "output_loading_info": True, "ignore_mismatched_sizes": True}
    config = load_pretrained(AutoConfig, source)
    check_row_length(str(source), config)
    kind = _ENCODERS_ALONE.get(config.model_type, AutoModel)
    try:
        model, info = load_pretrained(kind, source, add_pooling_layer=False, **options)
    except ValueError as error:
        if not isinstance(error.__cause__, TypeError):
            raise
        model, info = load_pretrained(kind, source, **options)  # the class does not know the option
    _check_weights(source, model, info, unread=("pooler.",))
    _check_decoder(source, model)
    return model


def _check_decoder(source: str | Path, model: Any) -> None:
    """Raise ValueError for an encoder with a decoder that does not run on a text alone, or gives scores of words."""
    if not getattr(model.config, "is_encoder_decoder", False) or isinstance(model, tuple(_ENCODERS_ALONE.values())):
        return
    try:
        run_on_text_alone(model)
    except GivesScoresError as error:
        raise ValueError(f"{source}: csekit cannot encode with a {model.config.model_type!r}: {error}") from error
    except Exception as error:  # each class has its own
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{source}: csekit runs the encoder alone only of {', '.join(_ENCODERS_ALONE)}, and "
            f"{model.config.model_type} needs inputs for its decoder, too; Transformers says: {reason}"
        ) from error


def load_checkpoint(source: str | Path) -> Any:
    """Load a csekit training checkpoint in float32. Weights that only training reads may be missing.

    Raises:
        ValueError: as for :func:`load_transformer`.
    """
    stored_weights(source)
    options = {"dtype": torch.float32, "output_loading_info": True, "ignore_mismatched_sizes": True}
    model, info = load_pretrained(AutoModel, source, **options)
    unread = ["objectives.", "backbone.pooler."]
    if not getattr(model.config, "projector_at_inference", True):
        unread.append("projector.")
    _check_weights(source, model, info, unread)
    return model


def _check_weights(source: str | Path, model: nn.Module, info: dict[str, Any], unread: Iterable[str]) -> None:
    """Raise ValueError where a weight that inference reads did not come from the checkpoint, or is not finite.

    Arguments:
        info: what ``output_loading_info=True`` returns.
        unread: prefixes of the weights that inference does not read.
    """
    prefixes, kind = tuple(unread), type(model).__name__
    if missing := sorted(name for name in info["missing_keys"] if not name.startswith(prefixes)):
        raise ValueError(
            f"{source}: the checkpoint lacks {len(missing)} of the weights of {kind}, which would be random: "
            f"{listed(missing)}"
        )
    shapes = {
        name: f"{name} is {tuple(found)}, not {tuple(wanted)}" for name, found, wanted in info["mismatched_keys"]
    }
    if other := sorted(text for name, text in shapes.items() if not name.startswith(prefixes)):
        raise ValueError(f"{source}: weights do not have the shapes that config.json asks for: {listed(other)}")
    check_depth(source, model, info["unexpected_keys"])
    check_finite_weights(source, model, prefixes)


def check_depth(source: str | Path, model: nn.Module, stored: Iterable[str]) -> None:
    """Raise ValueError where a config asks for no layer, or for fewer than the checkpoint has.

    Arguments:
        stored: names of the checkpoint's weights, with or without those that the model took.
    """
    config: Any = getattr(model, "config", None)
    layers = getattr(config, "num_hidden_layers", None)
    if isinstance(layers, int) and layers < 1:
        raise ValueError(f"{source}: num_hidden_layers must be at least 1, got {layers}")
    own = set(model.state_dict())
    layered = {re.sub(r"\.\d+\.", ".#.", name) for name in own} - own
    left = []
    for name in stored:
        forms = {name, name.partition(".")[2]}  # with or without a prefix such as bert.
        if not forms & own and {re.sub(r"\.\d+\.", ".#.", form) for form in forms} & layered:
            left.append(name)
    if left:
        raise ValueError(
            f"{source}: the checkpoint has more layers than config.json, which would be left out: "
            f"{listed(sorted(left))}"
        )


def stored_weights(source: str | Path) -> list[str]:
    """Return the names of the weights in a local folder's safetensors; [] without such files.

    Raises:
        ValueError: a file cannot be read, or stores a weight as anything but a floating-point number.
    """
    found: list[str] = []
    for file in sorted(Path(source).glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as content:
                kinds = {name: content.get_slice(name).get_dtype() for name in content.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file}: not readable: {' '.join(str(error).split())[:300]}") from None
        whole = [f"{name} is {kind}" for name, kind in kinds.items() if _is_weight(name) and kind not in _FLOATS]
        if whole:
            raise ValueError(f"{file}: weights must be float32, float16, bfloat16 or float64: {listed(whole)}")
        found += kinds
    return found


def _is_weight(name: str) -> bool:
    return name.endswith((".weight", ".bias", ".gamma", ".beta"))


def all_finite(values: torch.Tensor) -> torch.Tensor:
    """Return True, as a tensor, if no value of a tensor is NaN or infinite; ``isfinite`` would make copies of it."""
    least, most = values.aminmax() if values.numel() else values.new_zeros(2)
    return least.isfinite() & most.isfinite()


def check_finite_weights(source: str | Path, model: nn.Module, unread: tuple[str, ...] = ()) -> None:
    """Raise ValueError that names the weights with NaN or infinite values.

    Arguments:
        unread: prefixes of the weights that inference does not read.
    """
    state = model.state_dict()
    tensors = {name: t for name, t in state.items() if isinstance(t, torch.Tensor) and t.is_floating_point()}
    broken = [name for name, tensor in tensors.items() if not name.startswith(unread) and not all_finite(tensor)]
    if broken:
        raise ValueError(f"{source}: {len(broken)} weights hold NaN or infinite values: {listed(broken)}")


def listed(names: Collection[str]) -> str:
    """Join the first few of the names with commas."""
    return ", ".join([*list(names)[:NAMED], *(["…"] if len(names) > NAMED else [])])


def load_tokenizer(source: str | Path, rows: int | None, pooling: str | None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of an encoder.

    Arguments:
        rows: the number of word embeddings of the model, see :func:`embedding_rows`; None: not known.
        pooling: 'cls' needs a token in front of the sentence.

    Raises:
        ValueError: it cannot be loaded; its vocabulary is not the model's; it puts no token in front of a sentence,
            whose first word 'cls' would read.
    """
    tokenizer: PreTrainedTokenizerBase = load_pretrained(AutoTokenizer, source)
    if tokenizer.pad_token is None:  # decoder language models; the attention mask hides padding
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    check_vocabulary(source, tokenizer, rows)
    if pooling == "cls" and not sentence_frame(tokenizer).before:
        raise ValueError(
            f"{source}: pooling 'cls' reads the first token, and this tokenizer puts none in front of a sentence: "
            "the post_processor in tokenizer.json is missing"
        )
    return tokenizer


def check_vocabulary(source: str | Path, tokenizer: PreTrainedTokenizerBase, rows: int | None) -> None:
    """Raise ValueError where the tokenizer has tokens without word embeddings or leaves many embeddings without one.

    Tokens that were added to a tokenizer (special tokens among them) may be without an embedding, but not those for
    padding, for unknown words and around a sentence. 127 rows or 1 % of them may be without a token, but never half.
    """
    if rows is None:
        return
    tokens = len(tokenizer)
    spare = min(max(SPARE_ROWS, rows // 100), rows // 2)
    if tokens - rows > len(tokenizer.get_added_vocab()) or rows - tokens > spare:
        raise ValueError(
            f"{source}: the tokenizer has {tokens:,} tokens and the model {rows:,} word embeddings: the folder lacks "
            "its tokenizer, or has another model's"
        )
    for name in ("pad_token", "unk_token"):
        if (number := getattr(tokenizer, f"{name}_id")) is not None and number >= rows:
            raise ValueError(
                f"{source}: {name} {getattr(tokenizer, name)!r} has number {number:,}, and the model {rows:,} word "
                "embeddings: name another token in tokenizer_config.json"
            )
    frame = sentence_frame(tokenizer)
    for number in (*frame.before, *frame.after):
        if number >= rows:
            raise ValueError(
                f"{source}: the tokenizer puts {tokenizer.convert_ids_to_tokens(number)!r} around a sentence, which "
                f"has number {number:,}, and the model {rows:,} word embeddings: name another token in "
                "tokenizer_config.json"
            )


def check_files(source: str | Path) -> None:
    """Check config and stored weights of an encoder that a training starts from, before anything is built.

    Raises:
        ValueError: ``AutoConfig`` cannot load it; what :func:`stored_weights` raises.
    """
    load_pretrained(AutoConfig, source)
    stored_weights(source)


def check_backbone(source: str | Path, backbone: Any, tokenizer: PreTrainedTokenizerBase, whole: bool = True) -> None:
    """Check an encoder that a training starts from.

    Arguments:
        whole: False if it keeps only some of the checkpoint's layers.

    Raises:
        ValueError: the checkpoint has more layers than the config, or a weight that is not a finite floating-point
            number; the vocabulary is not the model's.
    """
    if whole:
        check_depth(source, backbone, stored_weights(source))
    check_vocabulary(source, tokenizer, embedding_rows(backbone))
    check_finite_weights(source, backbone)


def embedding_rows(model: Any) -> int | None:
    """Return the number of word embeddings; None for a model without such a table."""
    try:
        table = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    return table.num_embeddings if isinstance(table, nn.Embedding) else None


def check_frame(tokenizer: PreTrainedTokenizerBase, source: str | Path, limit: int) -> None:
    """Raise ValueError where the special tokens that csekit puts around a sentence are not the tokenizer's own."""
    text = "Two birds, one stone."
    own, ours = tokenizer(text)["input_ids"], tokenize(tokenizer, [text], limit).input_ids[0]
    if own[:limit] != ours and len(own) <= limit:
        raise ValueError(f"{source}: the special tokens of this tokenizer cannot be told from the sentence's own")
