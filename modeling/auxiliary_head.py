"""Transformer layers of the encoder's own family that read hidden states instead of token ids (Condenser, InfoCSE).

Shape suffixes: N rows, L tokens, M wanted ones, H hidden size.
"""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from .backbone import build_backbone, embeddings_module, layer_list
from .fast_packing import run_encoder
from .layer_memory import check_layers

#: Subfolder of a stage-1 checkpoint; the rest of the folder is a plain masked LM that Transformers loads.
FOLDER = "auxiliary_head"


#: A family's map from the width of its embeddings, which has it also where both widths are equal (RemBERT).
_PROJECTION = "embedding_hidden_mapping_in"


def _no_head(config: PreTrainedConfig, error: Exception) -> ValueError:
    return ValueError(
        f"the family {config.model_type!r} has no layers that read hidden states instead of token ids, which "
        f"'aux_mlm' needs ({type(error).__name__}: {error}): choose other objectives, or another encoder"
    )


def _head_config(encoder_config: PreTrainedConfig, num_layers: int) -> PreTrainedConfig:
    config = copy.deepcopy(encoder_config)
    for name in ("embedding_size", "input_embedding_size"):
        if hasattr(config, name):
            setattr(config, name, config.hidden_size)  # without embeddings there is nothing to project
    config.num_hidden_layers = num_layers
    return config


def check_head_layers(field: str, encoder_config: PreTrainedConfig, num_layers: int) -> None:
    """Check that this machine's memory holds a head with more layers than the encoder has.

    Raises:
        ValueError: it does not; or the family has no plain list of layers.
    """
    if num_layers > encoder_config.num_hidden_layers:
        one = _head_config(encoder_config, 1)
        check_layers(field, num_layers, lambda: layer_list(build_backbone(one))[0])


class _PassEmbeddings(nn.Module):
    """Replaces a family's embeddings and returns the states that it gets.

    Returns None as input embeddings, which gradient checkpointing queries.
    """

    def __init__(self, word_embeddings: str) -> None:
        super().__init__()
        self.register_module(word_embeddings, None)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        given = [
            value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.is_floating_point()
        ]
        return kwargs["inputs_embeds"] if kwargs.get("inputs_embeds") is not None else given[0]


class AuxiliaryHead(nn.Module):
    """Transformer layers of the encoder's family that read hidden states: (N, L, H) → (N, L, H).

    Arguments:
        encoder_config: the encoder's configuration.
        num_layers: number of layers.

    Raises:
        ValueError: the family has no plain list of layers (ALBERT), layers that take more than states (I-BERT,
            Longformer), or adds a norm after the last layer (ModernBERT, Megatron-BERT): the head's layers would then
            differ from the encoder's, and so would states of layer k.
    """

    def __init__(self, encoder_config: PreTrainedConfig, num_layers: int = 2) -> None:
        super().__init__()
        try:
            model = build_backbone(_head_config(encoder_config, num_layers))
        except Exception as error:  # each class has its own for another number of layers
            raise _no_head(encoder_config, error) from error
        layer_list(model)
        for module in model.modules():
            if hasattr(module, _PROJECTION):
                setattr(module, _PROJECTION, nn.Identity())
        parent, name = embeddings_module(model)
        words = model.get_input_embeddings()
        own_name = next(child for child, module in getattr(parent, name).named_children() if module is words)
        setattr(parent, name, _PassEmbeddings(own_name))
        if (norm := norm_behind(model)) is not None:
            raise ValueError(
                f"{type(model).__name__} has the norm {norm!r} outside its layers: an auxiliary head is not possible"
            )
        self.model = model
        if model.device.type != "meta":  # from_pretrained builds there what was tried before
            self._try()

    @torch.no_grad()
    def _try(self) -> None:
        """Run the layers on two states. Raises ValueError where they need more."""
        self.model.eval()  # draws no random numbers
        states_12H = torch.zeros(1, 2, int(self.model.config.hidden_size), device=self.model.device)
        try:
            self(states_12H, torch.ones(1, 2, dtype=torch.long, device=self.model.device))
        except Exception as error:  # each class has its own
            raise _no_head(self.model.config, error) from error
        self.model.train()

    @property
    def layers(self) -> nn.ModuleList:
        """The Transformer layers."""
        return layer_list(self.model)

    def forward(self, states_NLH: Tensor, mask_NL: Tensor, places_M: Tensor | None = None) -> Tensor:
        """Return the last states (N, L, H), or those at positions of the flattened (N·L) only, (M, H)."""
        return run_encoder(self.model, mask_NL, inputs_embeds_NLH=states_NLH, places_M=places_M).last_hidden_state

    def copy_top_layers(self, encoder: PreTrainedModel) -> None:
        """Copy the encoder's last layers, and its modules outside the list of layers (relative positions).

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
        """Write the head into the subfolder of a checkpoint. ``layer`` is the k on whose states it was trained."""
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
            RuntimeError: the checkpoint's head has another number of layers or other sizes.
        """
        self.model.load_state_dict(load_file(Path(checkpoint) / FOLDER / "model.safetensors"))


def norm_behind(model: PreTrainedModel) -> str | None:
    """Return the name of a norm outside the layers of an encoder without embeddings; None if there is none, or if it
    is of relative positions (DeBERTa)."""
    inside = {id(module) for module in layer_list(model).modules()}
    for name, module in model.named_modules():
        is_norm = "Norm" in type(module).__name__ and not any(module.children())
        of_positions = hasattr(model.get_submodule(name.rpartition(".")[0]), "rel_embeddings")
        if is_norm and id(module) not in inside and not of_positions:
            return name
    return None


def lower_layers(encoder_config: PreTrainedConfig, layer: int = 0) -> int:
    """Return k, the layer whose states the head reads: ``layer``, or the default for 0.

    The default is InfoCSE's 6 (§3.1); in an encoder of fewer than 12 layers half of them, at least 1.

    Raises:
        ValueError: the encoder has fewer layers than ``layer``.
    """
    layers = encoder_config.num_hidden_layers
    if layer > layers:
        raise ValueError(f"aux_mlm_layer must be at most {layers}, the encoder's layers, got {layer}")
    return layer or max(1, min(6, layers // 2))
