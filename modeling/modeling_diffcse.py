"""DiffCSE (Chuang et al., 2022, "DiffCSE: Difference-based Contrastive Learning for Sentence Embeddings").

Shape suffixes: V views, B sentences, R rows of the edited copies, K tokens, S scored tokens,
Q keys (sentences of all processes), H hidden size.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, PreTrainedConfig

from .conditional_encoder import ConditionalEncoder, conditions
from .configuration_diffcse import DiffCSEConfig, EditedContrastConfig, ReplacedTokenDetectionConfig
from .distributed import gather_rows, rank, token_mean
from .generator import Generator
from .gradient_cache import WHOLE_BATCH, Chunks
from .losses import cosine_logits, info_nce, token_cross_entropy_sum
from .modeling_cse import CSEModel, build_backbone, load_backbone
from .objectives import EditSpec, Encode, Objective, Views


class EditingObjective(Objective):
    """Base of the objectives whose texts a frozen generator edits (x″ = G(x′), §3)."""

    def __init__(self, config: Any, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.vocab_size = int(encoder_config.vocab_size)
        self._generator: list[Generator] = []  # in a list: not a submodule, not in the state dict

    @property
    def batch_spec(self) -> EditSpec:
        return self.config.batch_spec

    @property
    def generator(self) -> Generator:
        """The frozen generator.

        Raises:
            RuntimeError: it has not been loaded.
        """
        if not self._generator:
            raise RuntimeError(
                f"objective {self.config.name!r} has no generator yet: call load_frozen(), or reload the model with "
                "from_pretrained(…, training=True)"
            )
        return self._generator[0]

    def load_frozen(self) -> None:
        """Fetch the generator that the config names, unless it is there.

        Raises:
            ValueError: the config names none, or it cannot be loaded.
        """
        name = self.config.generator
        if name is None:
            raise ValueError(f"{self.config.name}_generator must name a masked LM, got None")
        if not self._generator or self._generator[0].name_or_path != name:
            self._generator = [Generator(name, self.vocab_size)]

    def edited(self, batch: dict[str, Tensor], chunks: Chunks = WHOLE_BATCH) -> tuple[Tensor, Tensor, Tensor]:
        """The edited copies x″, made in ``chunks`` of rows, with their mask, and whether a token differs from the
        original (1) or not (0): each (R, K) int64."""
        config, name = self.config, self.config.name
        ids, mask = batch[f"{name}_input_ids"], batch[f"{name}_attention_mask"]
        places = batch[f"{name}_positions" if config.edit_scope == "masked" else f"{name}_own"]
        dropout = config.generator_dropout and self.training

        def fill(ids_RK: Tensor, mask_RK: Tensor, places_M: Tensor) -> tuple[Tensor]:
            return (self.generator.fill(ids_RK, mask_RK, places_M, config.edit_sampling, dropout),)

        with torch.no_grad():
            (edited,) = chunks(fill, (ids, mask), (places,))
        return edited, mask, (edited != batch[f"{name}_originals"]).long()


class ReplacedTokenDetection(EditingObjective):
    """λ·L_RTD: a discriminator D that sees the sentence's vector in place of the first token tells which tokens of the
    edited sentence x″ are not those of x (§3)

    L = L_NCE + λ · (1/|S|) Σ_{t∈S} −log D(1[x″_t ≠ x_t] | x″, z)
    """

    config_class = ReplacedTokenDetectionConfig
    cacheable = True

    def __init__(self, config: ReplacedTokenDetectionConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        own = copy.deepcopy(encoder_config)
        if config.discriminator_config is not None:
            fields = dict(config.discriminator_config)
            own = AutoConfig.for_model(fields.pop("model_type"), **fields)
        self.discriminator = ConditionalEncoder(build_backbone(own), encoder_config.hidden_size)
        self.head = nn.Linear(own.hidden_size, 2)

    def init_from_checkpoint(self, name_or_path: str) -> None:
        skeleton = self.discriminator.model
        source = self.config.discriminator or name_or_path
        self.discriminator.model = load_backbone(source, skeleton.config, type(skeleton))

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        edited_RK, mask_RK, labels_RK = self.edited(batch, encode.chunks)
        vectors_RH = conditions(views, self.config.condition, self.config.views, len(edited_RK))
        places = () if self.config.rtd_positions == "all" else (batch["rtd_scored"],)
        (logits,) = encode.chunks(self.detect, (edited_RK, mask_RK, vectors_RH), places)
        labels = labels_RK.flatten()
        labels = labels.index_select(0, *places) if places else labels
        loss = token_mean(token_cross_entropy_sum(logits, labels), len(labels))
        return {"rtd": self.config.weight * loss}, rtd_accuracies(logits.detach(), labels)

    def detect(
        self, edited_RK: Tensor, mask_RK: Tensor, vectors_RH: Tensor, scored_S: Tensor | None = None
    ) -> tuple[Tensor]:
        """The discriminator's logits (S, 2) of the scored tokens; without any of all, padding included."""
        return (self.head(self.discriminator(edited_RK, mask_RK, vectors_RH, scored_S)),)


def rtd_accuracies(logits_S2: Tensor, labels_S: Tensor) -> dict[str, Tensor]:
    """Shares of the replaced and of the kept tokens that the discriminator finds."""
    right_S = (logits_S2.argmax(-1) == labels_S).float()
    kinds = {"replaced": labels_S.float(), "kept": (1 - labels_S).float()}
    return {f"rtd_accuracy_{kind}": token_mean((right_S * of).sum(), of.sum()) for kind, of in kinds.items()}


class EditedContrast(EditingObjective):
    """Table 15: the edited sentences x″ as further examples of the contrast, instead of a discriminator; s = cos/τ

    positive: L = L_NCE + w · (1/B) Σ_i −log exp s(z_i, z″_i) / Σ_j exp s(z_i, z″_j)
    negative: L = L_NCE + w · (1/B) Σ_i log(1 + Σ_j exp s(z_i, z″_j) / Σ_k exp s(z_i, z_k)),

    which at w = 1 is L_NCE with all x″ in its denominators (without hard_negative_weight and mask_identical). A
    sentence that the generator left as it was is nobody's negative.
    """

    config_class = EditedContrastConfig
    cacheable = True

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        edited_BK, mask_BK, labels_BK = self.edited(batch, encode.chunks)
        assert encode.project is not None
        z_edited_BH = encode.project(edited_BK, mask_BK)
        with torch.autocast(views.z.device.type, enabled=False):
            z = views.z.float()
            logits_BQ = cosine_logits(z[0], gather_rows(z_edited_BH.float()), encode.temperature)
            if self.config.use_edited_as == "positive":
                loss = info_nce(logits_BQ, torch.arange(len(z[0]), device=z.device) + rank() * len(z[0]))
            else:
                unchanged_Q = gather_rows((labels_BK.sum(1) == 0).long()) == 1
                keys = torch.cat([gather_rows(view) for view in z[1:]])
                plain_B = cosine_logits(z[0], keys, encode.temperature).logsumexp(1)
                loss = F.softplus(logits_BQ.masked_fill(unchanged_Q, -1e4).logsumexp(1) - plain_B).mean()
        return {"edited": self.config.weight * loss}, {}


class DiffCSEModel(CSEModel):
    """DiffCSE: :class:`CSEModel` with :class:`ReplacedTokenDetection`."""

    config_class = DiffCSEConfig
