"""InfoCSE (Wu et al., 2022, "InfoCSE: Information-aggregated Contrastive Learning of Sentence Embeddings").

Shape suffixes: N rows (view-major), L tokens, M masked positions, H hidden size, V vocabulary.
"""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.utils import cached_file

from .auxiliary_head import FOLDER, AuxiliaryHead, lower_layers
from .configuration_infocse import AuxiliaryMaskedLMConfig, InfoCSEConfig
from .distributed import token_mean
from .masked_lm import MaskedLMHead
from .modeling_cse import CSEModel, build_backbone, load_backbone
from .objectives import Encode, MaskingSpec, Objective, Views
from .row_counts import first_rows
from .unpadding import run_encoder


class _Scale(torch.autograd.Function):
    """x · ``value`` forwards, the gradient · ``gradient`` backwards, exactly."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: float, gradient: float) -> Tensor:
        ctx.gradient = gradient
        return x * value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return gradient * ctx.gradient, None, None


class LowerLayers(nn.Module):
    """A copy of an encoder's embeddings and first layers: (N, L) ids → (N, L, H). Its dropout is off whatever
    ``train()`` says."""

    def __init__(self, encoder_config: PreTrainedConfig, num_layers: int) -> None:
        super().__init__()
        config = copy.deepcopy(encoder_config)
        config.num_hidden_layers = num_layers
        self.model = build_backbone(config)
        self.eval()

    def train(self, mode: bool = True) -> "LowerLayers":
        return super().train(False)

    def forward(self, input_ids_NL: Tensor, mask_NL: Tensor) -> Tensor:
        return run_encoder(self.model, mask_NL, input_ids_NL).last_hidden_state

    def load_from(self, name_or_path: str) -> None:
        """Copy the layers of a checkpoint."""
        source = load_backbone(name_or_path, copy.deepcopy(self.model.config), type(self.model))
        self.model.load_state_dict(source.state_dict())


def replace_first(states_NLH: Tensor, first_NH: Tensor, mask_NL: Tensor) -> Tensor:
    """The states with the one of each row's first real token, its [CLS], replaced."""
    is_first_NL = mask_NL.bool() & (mask_NL.to(torch.int32).cumsum(1) == 1)
    return torch.where(is_first_NL.unsqueeze(-1), first_NH.unsqueeze(1).to(states_NLH.dtype), states_NLH)


class AuxiliaryMaskedLM(Objective):
    """λ·L_aux: a masked LM too weak to do without the sentence's embedding (Eqs. 5 and 7; L = L_cl + λ·L_aux)

    C = [h, M_1, …, M_{L−1}],  M = layers 1..k, frozen, over the masked sentence,  H̃ = two layers over C
    L = L_NCE + λ · (1/|M|) Σ_{t∈M} CE(H̃_t W, x_t)

    h is the embedding of the view that was not masked: with ``pooling="cls"`` the paper's raw last-layer [CLS]. With
    another pooling it is that pooled state, which then stands at the place of [CLS]: the auxiliary network always
    reads, and trains, what is the embedding at inference. The gradient reaches the encoder through h alone.
    """

    config_class = AuxiliaryMaskedLMConfig
    config: AuxiliaryMaskedLMConfig
    reads_z = False
    cacheable = True

    def __init__(self, config: AuxiliaryMaskedLMConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.encoder_config = encoder_config
        self.num_lower = lower_layers(encoder_config, config.layer)
        self.head = AuxiliaryHead(encoder_config, config.head_layers)  # refuses the families that cannot be
        self.lower = LowerLayers(encoder_config, self.num_lower)
        self.lm_head = MaskedLMHead(encoder_config, tied=False)

    @property
    def batch_spec(self) -> MaskingSpec:
        return MaskingSpec(probability=self.config.probability, views=self.config.views)

    def freeze(self) -> None:
        if self.config.detach:
            self.lower.requires_grad_(False)

    def parameter_groups(self) -> list[dict[str, Any]]:
        if self.config.gradient == "plain":
            return []
        return [{"params": [p for p in self.parameters() if p.requires_grad], "clip_group": "aux_mlm"}]

    def init_from_checkpoint(self, name_or_path: str) -> None:
        """Fill the lower copy, and the head as ``head_init`` says.

        Raises:
            ValueError: the checkpoint lacks the head that ``head_init`` asks for.
        """
        init = self.config.head_init
        if init == "pretrained":
            load_stage1_head(self.head, name_or_path, self.num_lower)
        elif init == "top_layers":
            config = copy.deepcopy(self.encoder_config)
            self.head.copy_top_layers(load_backbone(name_or_path, config, type(self.lower.model)))
        if init != "random" and (missing := self.lm_head.load_from(name_or_path)):
            raise ValueError(
                f"aux_mlm_head_init={init!r} needs a checkpoint with a masked-LM head, {name_or_path} lacks "
                f"{missing[0]!r}: take a masked LM, or aux_mlm_head_init='random'"
            )
        self.lower.load_from(name_or_path)

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        ids_NL, positions_M, labels_M = (batch[f"aux_mlm_{key}"] for key in ("input_ids", "positions", "labels"))
        mask_NL = first_rows(views.attention_mask, len(ids_NL))
        h_NH, weight, scaled = (
            views.h.flatten(0, 1)[: len(ids_NL)],
            self.config.weight,
            self.config.gradient == "scaled",
        )
        if scaled:
            h_NH = _Scale.apply(h_NH, 1.0, weight)
        losses_M, correct_M = encode.chunks(self.predict, (ids_NL, mask_NL, h_NH), (positions_M, labels_M))
        loss, accuracy = (token_mean(each.sum(), len(labels_M)) for each in (losses_M, correct_M.float()))
        term = _Scale.apply(loss, weight, 1.0) if scaled else weight * loss
        return {"aux_mlm": term}, {"aux_mlm_accuracy": accuracy, "aux_mlm_cross_entropy": loss.detach()}

    def predict(
        self, ids_NL: Tensor, mask_NL: Tensor, h_NH: Tensor, positions_M: Tensor, labels_M: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The cross-entropy of each masked token, and whether the likeliest one is right, (M,) each."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.detach):
            lower_NLH = self.lower(ids_NL, mask_NL)
        return self.lm_head(self.head(replace_first(lower_NLH, h_NH, mask_NL), mask_NL, positions_M), labels_M)


class InfoCSEModel(CSEModel):
    """InfoCSE: :class:`CSEModel` with :class:`AuxiliaryMaskedLM`."""

    config_class = InfoCSEConfig


def load_stage1_head(head: AuxiliaryHead, name_or_path: str, num_lower: int) -> None:
    """Fill a head from a stage-1 checkpoint, a folder or on the Hub.

    Raises:
        ValueError: the checkpoint has no auxiliary head, or one for another number of layers.
    """
    files = {
        name: cached_file(name_or_path, f"{FOLDER}/{name}", _raise_exceptions_for_missing_entries=False)
        for name in ("config.json", "model.safetensors")
    }
    if None in files.values():
        raise ValueError(
            f"{name_or_path} has no auxiliary head, which aux_mlm_head_init='pretrained' needs: make it by stage 1, "
            f"'python examples/run_pretrain.py --objective condenser --model_name_or_path {name_or_path} "
            "--output_dir stage1 …', and start from its folder; or take aux_mlm_head_init='top_layers' or 'random'"
        )
    saved = json.loads(Path(str(files["config.json"])).read_text(encoding="utf-8"))
    for field, key, own in (("head_layers", "num_layers", len(head.layers)), ("layer", "layer", num_lower)):
        if saved.get(key, own) != own:
            raise ValueError(f"aux_mlm_{field} must be {saved[key]} for the head of {name_or_path}, got {own}")
    head.load(Path(str(files["config.json"])).parents[1])
