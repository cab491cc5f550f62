"""The encoder's own weights as a decoder: causal attention, and attention to one vector in every layer.

Shape suffixes: B sentences, K tokens, H hidden size.
"""

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedConfig, PreTrainedModel

from .backbone import build_backbone
from .lora import plain_weights


class TiedDecoder(nn.Module):
    """The decoder of the encoder's family, with the encoder's weights (TSDAE).

    Every weight that the encoder has is the encoder's own, taken at call time. Only the layers' attention to the
    sentence's vector is the decoder's, and only that is part of its state dict.

    Arguments:
        encoder_config: configuration of the encoder.

    Raises:
        ValueError: the family has no decoder with cross-attention.
    """

    def __init__(self, encoder_config: PreTrainedConfig) -> None:
        super().__init__()
        config = copy.deepcopy(encoder_config)
        config.is_decoder = config.add_cross_attention = True
        device = torch.empty(0).device  # the meta device while from_pretrained builds the model
        with torch.device("meta"):
            decoder, encoder = build_backbone(config), build_backbone(copy.deepcopy(encoder_config))
        if decoder.config._attn_implementation not in ("eager", "sdpa"):
            decoder.set_attn_implementation("sdpa")
        self.shared = {name for name, _ in encoder.named_parameters()}
        paths = modules_without(decoder, self.shared)
        if not paths:
            raise ValueError(
                f"tsdae_decoder must be 'small' for the family {encoder_config.model_type!r}, which has no decoder "
                "with cross-attention, got 'tied'"
            )
        self.names = {path: path.replace(".", "_") for path in paths}
        self.own = nn.ModuleDict(
            {name: decoder.get_submodule(path).to_empty(device=device) for path, name in self.names.items()}
        )
        self.frame = [decoder]  # in a list: its weights are not this module's

    def forward(self, backbone: nn.Module, ids_BK: Tensor, mask_BK: Tensor, memory_BH: Tensor) -> Tensor:
        """Return the states (B, K, H). A position attends to the positions up to its own, and to the vector.

        Arguments:
            backbone: the encoder.
        """
        (decoder,) = self.frame
        if decoder.training != self.training:
            decoder.train(self.training)
        weights = {name: value for name, value in plain_weights(backbone).items() if name in self.shared}
        weights.update(backbone.named_buffers())
        for path, name in self.names.items():
            weights |= {f"{path}.{key}": value for key, value in self.own[name].named_parameters()}
        inputs = {"input_ids": ids_BK, "attention_mask": mask_BK, "encoder_hidden_states": memory_BH.unsqueeze(1)}
        output = functional_call(decoder, weights, kwargs={**inputs, "use_cache": False})
        return cast(Tensor, output.last_hidden_state)


def modules_without(model: PreTrainedModel, shared: set[str]) -> list[str]:
    """Return the paths of the largest modules of a model none of whose parameters is in ``shared``."""
    found: list[str] = []
    for path, module in model.named_modules():
        names = [f"{path}.{name}" for name, _ in module.named_parameters()]
        inside = any(path.startswith(f"{other}.") for other in found)
        if path and names and not inside and shared.isdisjoint(names):
            found.append(path)
    return found
