"""InfoCSE's auxiliary masked LM (Wu et al., 2022, "InfoCSE: Information-aggregated Contrastive Learning of Sentence
Embeddings").

Shape suffixes: N rows (view-major), L tokens, M masked positions, H hidden size, V vocabulary.
"""

import json
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.utils import cached_file

from .auxiliary_head import FOLDER, AuxiliaryHead, check_head_layers, lower_layers
from .backbone import build_backbone, load_backbone
from .fast_packing import run_encoder
from .losses import scale_gradient, scale_value
from .masked_lm_head import MaskedLMHead
from .objective_mlm import MaskedTokensConfig
from .objectives import Encode, MaskedCopy, MaskingSpec, Objective, Views
from .settings import check_choice
from .vector_gap import vector_gap

GRADIENTS = ("scaled", "plain")
HEAD_INITS = ("pretrained", "top_layers", "new_layers", "random")


@dataclass
class AuxiliaryMaskedLMConfig(MaskedTokensConfig):
    """Settings of :class:`AuxiliaryMaskedLM`.

    Arguments:
        weight: λ of Eq. 7; 1e-5 is the best of Table 8 (the 0.005 of §4.2 is worse there than no auxiliary loss).
        probability: share of masked tokens; 0.40 is the best of Table 7. The released script for BERT-large has 0.30.
        views: 2 masks both views, 1 halves the cost.
        layer: k, the layers of the frozen copy. 0 means 6 as in the paper (§3.1), or half of the encoder's layers (at
            least 1) if it has fewer than 12. A stage-1 head fits one k only.
        head_layers: trainable layers on top; 2 in the paper (§3.1).
        detach: keep the lower copy frozen (§3.2). False trains it as well (Table 6, one point lower).
        gradient: ``plain`` is λ·CE as printed in Eq. 7. At λ = 1e-5 most gradients of the head then are below Adam's
            ε = 1e-8, and the head hardly learns. ``scaled`` multiplies only the gradient that reaches the encoder by
            λ; the head learns from CE itself and is clipped separately. Both log λ·CE.
        head_init: ``pretrained`` takes the head of a stage-1 checkpoint (§3.1), ``top_layers`` the encoder's own upper
            layers (Table 4, w/o pre-training), ``new_layers`` new layers (the released code if its local file is
            missing), all three with the checkpoint's masked-LM head; ``random`` takes nothing.
        lower_dropout: True to keep dropout on in the frozen lower copy while training, as the released script for
            BERT-large does.

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "aux_mlm"
    weight: float = 1e-5
    probability: float = 0.40
    layer: int = 0
    head_layers: int = 2
    detach: bool = True
    gradient: str = "scaled"
    head_init: str = "pretrained"
    lower_dropout: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.layer, int) or self.layer < 0:
            raise ValueError(f"aux_mlm_layer must be 0 (automatic) or a number of layers, got {self.layer!r}")
        if not isinstance(self.head_layers, int) or self.head_layers < 1:
            raise ValueError(f"aux_mlm_head_layers must be at least 1, got {self.head_layers!r}")
        check_choice(self, "gradient", GRADIENTS)
        check_choice(self, "head_init", HEAD_INITS)
        check_choice(self, "lower_dropout", (True, False))


class AuxiliaryMaskedLM(Objective):
    """λ·L_aux: a masked LM so weak that it needs the sentence's embedding (Eqs. 5 and 7)

    L = L_NCE + λ·L_aux,  L_aux = (1/|M|) Σ_{t∈M} CE(H̃_t W, x_t)

    H̃ = two trainable layers over C = [h, M_1, …, M_{L−1}],  M = layers 1..k, frozen, over the masked sentence

    h is the embedding of the unmasked view, which takes the place of [CLS]: with ``pooling="cls"`` the paper's raw
    last-layer [CLS], with another pooling that pooled state. The auxiliary network thus always trains the embedding of
    inference, and its gradient reaches the encoder through h alone.

    The diagnostic ``aux_mlm_gap`` is the cross-entropy given another sentence's embedding, minus that given its own
    (``vector_gap.py``). At 0 the head ignores the embedding.
    """

    config_class = AuxiliaryMaskedLMConfig
    config: AuxiliaryMaskedLMConfig
    reads_z = False
    cacheable = True
    compares_views = False
    from_all_layers = True

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        λ, scaled = self.config.weight, self.config.gradient == "scaled"
        h = views.vectors("h")
        h = scale_gradient(h, λ) if scaled else h
        copy = self.masked_copy(views, batch, h)
        L_aux, accuracy = self.token_means(copy, encode)
        term = scale_value(L_aux, λ) if scaled else λ * L_aux
        metrics = {"aux_mlm_accuracy": accuracy, "aux_mlm_cross_entropy": L_aux.detach()}
        gap = {"aux_mlm_gap": self.gap(copy, encode)} if self.measures_gap else {}
        return {"aux_mlm": term}, metrics | gap

    def predict(self, copy: MaskedCopy, encode: Encode) -> tuple[Tensor, Tensor]:
        """Return CE(H̃_t W, x_t) of each masked token, and whether the likeliest token is right, (M,) each."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.detach):
            M_NLH = self.lower(copy.ids, copy.mask)
        C_NLH = replace_first(M_NLH, copy.vectors, copy.mask)
        return self.lm_head(self.head(C_NLH, copy.mask, copy.positions), copy.labels)

    def gap(self, copy: MaskedCopy, encode: Encode) -> Tensor:
        """Return ``aux_mlm_gap``, (): how much the head loses with another sentence's embedding, in nats."""
        return vector_gap(self, copy, lambda twice: self.predict(twice, encode)[0])

    def __init__(self, config: AuxiliaryMaskedLMConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.encoder_config = encoder_config
        self.num_lower = lower_layers(encoder_config, config.layer)
        check_head_layers("aux_mlm_head_layers", encoder_config, config.head_layers)
        self.head = AuxiliaryHead(encoder_config, config.head_layers)  # refuses families without such a head
        self.lower = LowerLayers(encoder_config, self.num_lower, dropout=config.lower_dropout)
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
        """Fill the lower copy from the checkpoint, and the head as ``head_init`` says.

        Raises:
            ValueError: the checkpoint lacks the head that ``head_init`` needs.
        """
        init = self.config.head_init
        if init == "pretrained":
            load_stage1_head(self.head, name_or_path, self.num_lower)
        elif init == "top_layers":
            config = deepcopy(self.encoder_config)
            self.head.copy_top_layers(load_backbone(name_or_path, config, type(self.lower.model)))
        if init != "random" and (missing := self.lm_head.load_from(name_or_path)):
            raise ValueError(
                f"aux_mlm_head_init={init!r} needs a checkpoint with a masked-LM head, {name_or_path} lacks "
                f"{missing[0]!r}: take a masked LM, or aux_mlm_head_init='random'"
            )
        self.lower.load_from(name_or_path)


def replace_first(states_NLH: Tensor, first_NH: Tensor, mask_NL: Tensor) -> Tensor:
    """Replace the state of each row's first real token, its [CLS]."""
    is_first_NL = mask_NL.bool() & (mask_NL.to(torch.int32).cumsum(1) == 1)
    return torch.where(is_first_NL.unsqueeze(-1), first_NH.unsqueeze(1).to(states_NLH.dtype), states_NLH)


class LowerLayers(nn.Module):
    """A copy of an encoder's embeddings and first layers: (N, L) ids → (N, L, H).

    Arguments:
        encoder_config: the encoder's configuration.
        num_layers: number of layers.
        dropout: True to use dropout in training; False keeps it off.
    """

    def __init__(self, encoder_config: PreTrainedConfig, num_layers: int, dropout: bool = False) -> None:
        super().__init__()
        self.dropout = dropout
        config = deepcopy(encoder_config)
        config.num_hidden_layers = num_layers
        self.model = build_backbone(config)
        self.train()

    def train(self, mode: bool = True) -> "LowerLayers":
        """Keep dropout off, whatever ``mode``, unless the network was built with dropout."""
        return super().train(mode and self.dropout)

    def forward(self, input_ids_NL: Tensor, mask_NL: Tensor) -> Tensor:
        return run_encoder(self.model, mask_NL, input_ids_NL).last_hidden_state

    def load_from(self, name_or_path: str) -> None:
        """Copy the layers of a checkpoint."""
        source = load_backbone(name_or_path, deepcopy(self.model.config), type(self.model))
        self.model.load_state_dict(source.state_dict())


def load_stage1_head(head: AuxiliaryHead, name_or_path: str, num_lower: int) -> None:
    """Fill a head from a stage-1 checkpoint in a folder or on the Hub.

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
            f"'csekit pretrain --objective condenser --model_name_or_path {name_or_path} "
            "--output_dir stage1 …', and start from its folder; or take aux_mlm_head_init='top_layers', "
            "'new_layers' or 'random'"
        )
    saved = json.loads(Path(str(files["config.json"])).read_text(encoding="utf-8"))
    for field, key, own in (("head_layers", "num_layers", len(head.layers)), ("layer", "layer", num_lower)):
        if saved.get(key, own) != own:
            raise ValueError(f"aux_mlm_{field} must be {saved[key]} for the head of {name_or_path}, got {own}")
    head.load(Path(str(files["config.json"])).parents[1])
