"""Transformer layers of the encoder's own family that read hidden states instead of token ids (Condenser, InfoCSE).

Shape suffixes: N rows, L tokens, M wanted ones, H hidden size.
"""

import copy
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

from .layers import layer_list
from .unpadding import run_encoder

#: Subfolder of a stage-1 checkpoint; the rest of the folder is a plain masked LM, which anything loads.
FOLDER = "auxiliary_head"


class _PassEmbeddings(nn.Module):
    """Stands where a family has its embeddings and hands on the states that it is given. Asked for the word embeddings
    (gradient checkpointing does) it has None."""

    def __init__(self, word_embeddings: str) -> None:
        super().__init__()
        self.register_module(word_embeddings, None)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        given = [
            value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.is_floating_point()
        ]
        return kwargs["inputs_embeds"] if kwargs.get("inputs_embeds") is not None else given[0]


def embeddings_module(model: PreTrainedModel) -> tuple[nn.Module, str]:
    """The parent and the name of the module that makes a model's first hidden states, whatever its family calls it.

    Raises:
        ValueError: the word embeddings do not sit in such a module.
    """
    words = model.get_input_embeddings()
    paths = [name for name, module in model.named_modules() if module is words]
    if not paths or "." not in paths[0]:
        raise ValueError(f"{type(model).__name__} has no module around its word embeddings")
    parent, _, name = paths[0].rpartition(".")[0].rpartition(".")
    return model.get_submodule(parent), name


class AuxiliaryHead(nn.Module):
    """``num_layers`` Transformer layers of the encoder's family over given states: (N, L, H) → (N, L, H).

    Raises:
        ValueError: a family that has no list of layers of its own (ALBERT), or that adds a norm behind the last one
            (ModernBERT): the head's layers would not be the encoder's.
    """

    def __init__(self, encoder_config: PreTrainedConfig, num_layers: int = 2) -> None:
        super().__init__()
        config = copy.deepcopy(encoder_config)
        config.num_hidden_layers = num_layers
        if hasattr(config, "embedding_size"):
            config.embedding_size = config.hidden_size  # no projection behind embeddings that are not there
        try:
            model = AutoModel.from_config(config, add_pooling_layer=False)
        except TypeError:
            model = AutoModel.from_config(config)
        layer_list(model)
        parent, name = embeddings_module(model)
        words = model.get_input_embeddings()
        own_name = next(child for child, module in getattr(parent, name).named_children() if module is words)
        setattr(parent, name, _PassEmbeddings(own_name))
        self.model = model

    @property
    def layers(self) -> nn.ModuleList:
        """The Transformer layers."""
        return layer_list(self.model)

    def forward(self, states_NLH: Tensor, mask_NL: Tensor, places_M: Tensor | None = None) -> Tensor:
        """The last states; with places of the flattened (N·L) those alone, (M, H)."""
        return run_encoder(self.model, mask_NL, inputs_embeds_NLH=states_NLH, places_M=places_M).last_hidden_state

    def copy_top_layers(self, encoder: PreTrainedModel) -> None:
        """Start as the encoder's last layers, with what stands beside its list of layers (relative positions).

        Raises:
            ValueError: the encoder has fewer layers than the head.
        """
        theirs, own = layer_list(encoder), self.layers
        if len(own) > len(theirs):
            raise ValueError(f"a head of {len(own)} layers cannot start from the {len(theirs)} of the encoder")
        for layer, source in zip(own, theirs[-len(own) :], strict=True):
            layer.load_state_dict(source.state_dict())
        prefix = next(name for name, module in self.model.named_modules() if module is own) + "."
        beside = {name for name in self.model.state_dict() if not name.startswith(prefix)}
        state = {name: value for name, value in encoder.state_dict().items() if name in beside}
        self.model.load_state_dict(state, strict=False)

    def save(self, checkpoint: str | Path, layer: int | None = None) -> None:
        """Write the head into the subfolder of a checkpoint; ``layer`` is the k whose states it was trained on."""
        folder = Path(checkpoint) / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: value.detach().cpu().contiguous() for name, value in self.model.state_dict().items()}
        save_file(state, folder / "model.safetensors")
        settings = {"num_layers": len(self.layers)} | ({"layer": layer} if layer is not None else {})
        (folder / "config.json").write_text(json.dumps(settings) + "\n", encoding="utf-8")

    def load(self, checkpoint: str | Path) -> None:
        """Fill the head from a checkpoint's subfolder.

        Raises:
            FileNotFoundError: the checkpoint has no auxiliary head.
            RuntimeError: the head there has other layers or sizes.
        """
        self.model.load_state_dict(load_file(Path(checkpoint) / FOLDER / "model.safetensors"))


def lower_layers(encoder_config: PreTrainedConfig, layer: int = 0) -> int:
    """k, the layer whose states the head reads: ``layer``, or with 0 InfoCSE's 6 (§3.1), half of the encoder's layers
    (at least 1) where it has fewer than 12.

    Raises:
        ValueError: the encoder has fewer layers.
    """
    layers = encoder_config.num_hidden_layers
    if layer > layers:
        raise ValueError(f"aux_mlm_layer must be at most {layers}, the encoder's layers, got {layer}")
    return layer or max(1, min(6, layers // 2))
