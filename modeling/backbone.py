"""The encoder of any family: build it from a config, load it from a checkpoint, find its parts."""

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

from .hub import from_hub
from .quiet import quiet_weights

#: Types of models with a decoder of which csekit runs the encoder alone, to encode; it trains none of them.
ENCODERS_ALONE = ("t5", "mt5", "umt5", "longt5")
_HEAD_DROPOUTS = ("classif", "qa", "summary", "pooler")
#: The attributes of an encoder that hold the paths of its layers and of its word embeddings.
_LAYERS, _WORDS = "_csekit_layers", "_csekit_words"


def dropout_fields(encoder_config: PreTrainedConfig) -> dict[str, float]:
    """Return the dropout probabilities of an encoder by field name, without those of task heads."""
    return {
        name: float(value)
        for name, value in vars(encoder_config).items()
        if ("dropout" in name or name.endswith("pdrop"))  # GPT-2 and its kin: resid_pdrop, embd_pdrop, attn_pdrop
        and isinstance(value, int | float)
        and not any(head in name for head in _HEAD_DROPOUTS)
    }


def set_dropout(encoder_config: PreTrainedConfig, dropout: float | None) -> None:
    """Set all dropout probabilities of an encoder to ``dropout``; None keeps them."""
    for field in dropout_fields(encoder_config) if dropout is not None else ():
        setattr(encoder_config, field, dropout)


def build_backbone(encoder_config: PreTrainedConfig) -> PreTrainedModel:
    """Build the encoder of a config with new weights, without a pooling layer (its parameters would never train)."""
    try:
        return AutoModel.from_config(encoder_config, add_pooling_layer=False)
    except TypeError:
        return AutoModel.from_config(encoder_config)


def load_backbone(
    name_or_path: str, config: PreTrainedConfig, kind: type, attn_implementation: str | None = None
) -> PreTrainedModel:
    """Load the encoder of a checkpoint in fp32, without a pooling layer.

    Arguments:
        name_or_path: Hub id or folder.
        config: the encoder's configuration.
        kind: the encoder's class, which says whether there is a pooling layer to leave out.
        attn_implementation: as in Transformers.

    Raises:
        ValueError: the checkpoint lacks weights of the encoder.
    """
    options: dict[str, Any] = {"config": config, "dtype": torch.float32, "output_loading_info": True}
    if attn_implementation is not None:
        options["attn_implementation"] = attn_implementation
    if "add_pooling_layer" in inspect.signature(kind).parameters:
        options["add_pooling_layer"] = False
    with quiet_weights():  # of the checkpoint's heads, which are not used
        backbone, info = from_hub(AutoModel, name_or_path, **options)
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise ValueError(
            f"{name_or_path} lacks {len(missing)} weights of {type(backbone).__name__}, e.g. {missing[0]!r}"
        )
    return backbone


def check_family(name_or_path: str, model_type: str) -> None:
    """Raise ValueError for a type of model that csekit does not train."""
    if model_type in ENCODERS_ALONE:
        raise _needs_decoder(name_or_path, model_type)


def check_row_length(name_or_path: str, config: PreTrainedConfig) -> None:
    """Raise ValueError for an encoder whose approximation of attention reads rows of a single length (Nyströmformer
    with landmarks)."""
    length, landmarks = (getattr(config, name, None) for name in ("segment_means_seq_len", "num_landmarks"))
    if length != landmarks:
        raise ValueError(
            f"{name_or_path}: a {config.model_type!r} with num_landmarks {landmarks} reads rows of exactly {length} "
            f"tokens: set num_landmarks to {length}, its segment_means_seq_len, in config.json; its weights then "
            "compute the attention that the landmarks approximate, for any length"
        )


def check_decoder(name_or_path: str, model: PreTrainedModel) -> None:
    """Raise ValueError for an encoder with a decoder that does not run on a text alone, or gives scores of words."""
    if not getattr(model.config, "is_encoder_decoder", False):
        return
    try:
        run_on_text_alone(model)
    except GivesScoresError as error:
        raise ValueError(f"{name_or_path}: a {model.config.model_type!r} cannot be trained: {error}") from error
    except Exception as error:  # each class has its own
        raise _needs_decoder(name_or_path, model.config.model_type) from error


def short_text(model: PreTrainedModel) -> torch.Tensor:
    """Return the ids of a text without padding, (1, 3), on the model's device."""
    return torch.full((1, 3), 2 if model.config.pad_token_id == 1 else 1, device=model.device)


class GivesScoresError(ValueError):
    """A model has scores of words where others have states (FSMT)."""


@torch.no_grad()
def run_on_text_alone(model: PreTrainedModel) -> None:
    """Run a model with a decoder without inputs for the decoder.

    Raises:
        GivesScoresError: its output is not as wide as the model.
        Exception: the class needs the decoder's inputs; each class has its own error.
    """
    ids = short_text(model)
    width = model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids))[0].shape[-1]
    own = getattr(model.config, "hidden_size", width)
    if width != own:
        raise GivesScoresError(f"its output has {width} numbers a token, not its hidden size of {own}")


def _needs_decoder(name_or_path: str, model_type: str) -> ValueError:
    encodes = f" (csekit encodes with {', '.join(ENCODERS_ALONE)}, and trains none of them)"
    return ValueError(
        f"{name_or_path} must be an encoder such as bert, roberta or modernbert, or a decoder language model, to be "
        f"trained, got a {model_type!r}, whose decoder needs inputs of its own"
        f"{encodes if model_type in ENCODERS_ALONE else ''}"
    )


def with_layers(encoder_config: PreTrainedConfig, layers: Sequence[int]) -> PreTrainedConfig:
    """Return a copy of a configuration for these layers alone, by their numbers from 0.

    Raises:
        ValueError: no layer, one that the encoder does not have, or one twice.
    """
    count = int(encoder_config.num_hidden_layers)
    if not layers or any(not 0 <= layer < count for layer in layers):
        raise ValueError(f"layers must be numbers from 0 to {count - 1}, the encoder's last layer, got {[*layers]}")
    if len(set(layers)) < len(layers):
        raise ValueError(f"layers must differ, got {[*layers]}")
    own = copy.deepcopy(encoder_config)
    own.num_hidden_layers = len(layers)
    for name, value in vars(encoder_config).items():
        if isinstance(value, list) and len(value) == count:  # a kind of attention for each layer
            setattr(own, name, [value[layer] for layer in layers])
    return own


def keep_layers(model: PreTrainedModel, config: PreTrainedConfig, layers: Sequence[int]) -> None:
    """Reduce an encoder to some of its layers.

    Arguments:
        config: :func:`with_layers`, which the encoder gets.

    Raises:
        ValueError: the encoder has no list with one module for each layer.
    """
    count = model.config.num_hidden_layers
    found = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == count
    ]
    if len(found) != 1:
        raise ValueError(f"layers must be left out for {type(model).__name__}, which has no plain list of layers")
    parent, name = found[0]
    whole: Any = parent.get_submodule(name)
    kept = nn.ModuleList([whole[layer] for layer in layers])
    setattr(parent, name, kept)
    for place, layer in enumerate(kept):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                setattr(module, "layer_idx", place)  # noqa: B010
    whole_config = model.config
    for module in model.modules():
        if getattr(module, "config", None) is whole_config:
            setattr(module, "config", config)  # noqa: B010 (attention reads there which kind it is)


def attend_both_ways(model: PreTrainedModel) -> None:
    """Let every token of a causal encoder attend to all tokens, also when it is loaded again.

    Raises:
        ValueError: its attention is not causal, or its family does not read ``is_causal`` from the configuration.
    """
    if not any(getattr(module, "is_causal", False) for module in model.modules()):
        raise ValueError(f"bidirectional must be False for {type(model).__name__}, whose attention is not causal")
    model.config.is_causal = False


def layer_list(model: PreTrainedModel) -> nn.ModuleList:
    """Return an encoder's list of Transformer layers: its ``ModuleList`` with one module per layer.

    Raises:
        ValueError: the encoder has no such list, or a norm follows it.
    """
    count = model.config.num_hidden_layers
    known = kept_module(model, _LAYERS)
    if isinstance(known, nn.ModuleList) and len(known) == count:
        return known
    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    }
    norms = [name for name, module in model.named_children() if "final" in name and isinstance(module, nn.LayerNorm)]
    if not lists or norms or getattr(model.config, "num_hidden_groups", count) != count:
        raise ValueError(f"{type(model).__name__} has no plain list of layers: an auxiliary head is not possible")
    path, found = next(iter(lists.items()))
    model.__dict__[_LAYERS] = path
    return found


def kept_module(model: nn.Module, attribute: str) -> nn.Module | None:
    """Return the module at the path that an attribute of the model holds, None if there is none (any more).

    A walk over all modules takes as long as starting a hundred kernels of a GPU, so paths are kept once found.
    """
    path = model.__dict__.get(attribute)
    try:
        return None if path is None else model.get_submodule(path)
    except AttributeError:
        return None


def embeddings_module(model: PreTrainedModel) -> tuple[nn.Module, str]:
    """Return the parent and the name of the module that makes a model's first hidden states.

    Raises:
        ValueError: the word embeddings are not part of such a module.
    """
    words = model.get_input_embeddings()
    if words is None or kept_module(model, _WORDS) is not words:
        model.__dict__[_WORDS] = next((name for name, module in model.named_modules() if module is words), "")
    path = model.__dict__[_WORDS]
    if "." not in path:
        raise ValueError(
            f"{type(model).__name__} has no embedding layer around its word embeddings, which 'rtd', 'aux_mlm', "
            "'conditional_mlm', 'corrective_lm' and perturbations change: choose other objectives, or another encoder"
        )
    parent, _, name = path.rpartition(".")[0].rpartition(".")
    return model.get_submodule(parent), name
