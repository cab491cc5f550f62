"""Replaced-token pre-training (Clark et al., 2020, "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than
Generators").

Shape suffixes: B blocks of a batch, L tokens, M masked positions, S scored positions, H hidden size, V vocabulary.
"""

import os
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from .configuration_infocse_pretraining import InfoCSEPretrainingConfig
from .configuration_rtd_pretraining import RTDPretrainingConfig
from .distributed import token_mean
from .drafts import whole_files
from .export import MODEL_FILES, length_limit, plain_weights, save_tokenizer
from .fast_packing import run_encoder
from .fast_rows import map_rows
from .generator import Generator, check_same_vocabulary, draw
from .hub import from_hub
from .losses import token_cross_entropy_sum
from .modeling_infocse_pretraining import InfoCSEForPreTraining
from .objective_rtd import ReplacedTokenDetectionConfig, rtd_accuracies
from .pretraining import EncoderForPreTraining, PretrainingOutput
from .quiet import quiet_weights


class RTDForPreTraining(EncoderForPreTraining):
    """A discriminator D that finds the tokens which a generator G replaced (ELECTRA §2)

    L = L_MLM + λ·L_RTD,  L_MLM = (1/|M|) Σ_{t∈M} −log G(x_t | x′),  L_RTD = (1/|S|) Σ_{t∈S} −log D(1[x″_t ≠ x_t] | x″)

    x′ is the masked text, M its masked positions. In x″ tokens drawn from G stand at all of them; one that equals the
    original counts as original. No gradient flows through the draws. S is the set of tokens that are not special.
    With ``train_generator=False`` G is frozen and the loss has the second term only.

    The aim is D, with which DiffCSE's discriminator can start (``objective_weights``). It therefore departs from the
    paper in these points:

    - Both networks start from checkpoints, by default from the same one, and have embeddings of their own. The paper's
      start from nothing and share them; its generator has a quarter to a half of the discriminator's size, as
      ``generator_name_or_path`` may name one.
    - The head is one linear map to two classes, DiffCSE's. The paper has a hidden layer before one logit.
    - Special tokens are not scored, as in DiffCSE. The paper scores [CLS] and [SEP] as well.
    - The masks are BERT's: of the chosen tokens 80 % become [MASK], 10 % a random token, 10 % stay. In ELECTRA's
      released code 85 % become [MASK] and 15 % stay.

    ``forward`` takes ``input_ids``, ``attention_mask`` (B, L), ``masked_positions`` (M,) in the flattened ids,
    ``labels`` (M,), the original ids there, and ``scored_positions`` (S,), all int64. The terms are ``mlm`` and
    ``rtd``, weighted, in nats per masked and per scored token. The metrics are shares: ``rtd_accuracy_replaced`` and
    ``rtd_accuracy_kept`` of the replaced and of the kept tokens that D finds, ``replaced`` of the masked tokens that
    were replaced, and ``mlm_accuracy`` of a trained generator.
    """

    config_class = RTDPretrainingConfig
    config: RTDPretrainingConfig
    scores_all_tokens: ClassVar[bool] = True

    def __init__(self, config: RTDPretrainingConfig, backbone: PreTrainedModel | None = None) -> None:
        super().__init__(config, backbone)
        self.head = nn.Linear(config.hidden_size, 2)
        self.generator: InfoCSEForPreTraining | None = None
        if config.train_generator:
            encoder = config.generator_config or config.encoder_config.to_dict()
            own = InfoCSEPretrainingConfig(encoder_config=encoder, objective="mlm")
            self.generator = InfoCSEForPreTraining(own)
        self._frozen: list[Generator] = []  # in a list, so that it is no submodule and not in the state dict
        self.post_init()

    # Forward

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        masked_positions: Tensor | None = None,
        labels: Tensor | None = None,
        scored_positions: Tensor | None = None,
        return_loss: bool | None = None,
    ) -> PretrainingOutput:
        if masked_positions is None or labels is None or scored_positions is None:
            raise ValueError(
                "RTDForPreTraining needs masked_positions, labels and scored_positions; AutoModel loads its export"
            )
        attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        x1_BL, M, S = input_ids, masked_positions, scored_positions
        x2_BL, terms, metrics = self.edited(x1_BL, attention_mask, M, labels)
        x_BL = x1_BL.flatten().index_copy(0, M, labels).view_as(x1_BL)
        changed_BL = (x2_BL != x_BL).long()
        changed_S = changed_BL.flatten().index_select(0, S)
        states_SH = run_encoder(self.backbone, attention_mask, x2_BL, places_M=S).last_hidden_state
        logits_S2 = map_rows(self.head, states_SH)
        terms["rtd"] = self.config.discriminator_weight * token_mean(
            token_cross_entropy_sum(logits_S2, changed_S), len(S)
        )

        metrics |= rtd_accuracies(logits_S2.detach(), changed_S)
        metrics["replaced"] = token_mean(changed_BL.sum().float(), len(M))
        counts: dict[str, Any] = dict.fromkeys(("mlm", "mlm_accuracy", "replaced"), len(M))
        counts |= {"rtd": len(S), "rtd_accuracy_replaced": changed_S.sum(), "rtd_accuracy_kept": (1 - changed_S).sum()}
        return self.summed(terms, metrics, {name: counts[name] for name in (*terms, *metrics)})

    def edited(
        self, ids_BL: Tensor, mask_BL: Tensor, masked_M: Tensor, labels_M: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Return the ids (B, L) with tokens drawn from the generator at the masked positions, and the terms and the
        metrics of a trained generator."""
        if self.generator is None:
            return self.frozen.fill(ids_BL, mask_BL, masked_M, "sample"), {}, {}
        head, words_VE = self.generator.mlm_head, cast(Tensor, self.generator.get_input_embeddings().weight)
        states_MH = self.generator.states(ids_BL, mask_BL, masked_M)["mlm"]
        losses_M, correct_M = head(states_MH, labels_M, words_VE)
        with torch.no_grad():  # a second product with the vocabulary: the loss keeps no logits
            drawn_M = draw(head.logits(states_MH, words_VE)[:, : int(self.config.encoder_config.vocab_size)])
        terms = {"mlm": token_mean(losses_M.sum(), len(labels_M))}
        metrics = {"mlm_accuracy": token_mean(correct_M.float().sum(), len(labels_M))}
        return ids_BL.flatten().index_copy(0, masked_M, drawn_M).view_as(ids_BL), terms, metrics

    @property
    def frozen(self) -> Generator:
        """The frozen generator.

        Raises:
            RuntimeError: it has not been loaded.
        """
        if not self._frozen:
            raise RuntimeError("the generator has not been loaded yet: call load_frozen()")
        return self._frozen[0]

    # Loading

    @classmethod
    def from_backbone(
        cls,
        name_or_path: str | os.PathLike[str],
        *,
        dropout: float | None = None,
        attn_implementation: str | None = None,
        **config: Any,
    ) -> "RTDForPreTraining":
        """Start the discriminator from an encoder checkpoint and the generator from a masked LM.

        Arguments and errors as in the base class. ``dropout`` is the discriminator's.

        Raises:
            ValueError: the generator has another vocabulary, or is no masked LM.
        """
        name = str(name_or_path)
        generator = str(config.pop("generator_name_or_path", None) or name_or_path)
        check_generator(name, generator)
        trained = None
        if config.get("train_generator", True):
            trained = InfoCSEForPreTraining.from_backbone(
                generator, attn_implementation=attn_implementation, objective="mlm"
            )
            fields = trained.config.to_dict()["encoder_config"]
            config["generator_config"] = {n: v for n, v in fields.items() if n != "transformers_version"}
        options: dict[str, Any] = {"dropout": dropout, "attn_implementation": attn_implementation}
        model = super().from_backbone(name, **options, **config, generator_name_or_path=generator)
        if trained is not None:
            model.generator = trained
        model.load_frozen()
        return model

    def load_frozen(self) -> None:
        """Load a frozen generator, unless it is loaded already.

        Raises:
            ValueError: the config names no generator, or it cannot be loaded.
        """
        name = self.config.generator_name_or_path
        if self.generator is not None or self._frozen:
            return
        if name is None:
            raise ValueError("generator_name_or_path must name a masked LM, got None")
        self._frozen = [Generator(name, int(self.config.encoder_config.vocab_size))]

    # Export

    def export_checkpoint(self, path: str | os.PathLike[str], tokenizer: PreTrainedTokenizerBase) -> Path:
        """Write the discriminator's encoder to a folder and return its path.

        It is a plain encoder with tokenizer, which ``AutoModel`` loads, without a masked-LM head. The weights equal
        those of training bit for bit. It is whole or not at all, as :func:`export_encoder`'s.

        Raises:
            DiskFullError: there is no room for it.
        """
        path = Path(path)
        with whole_files(path, MODEL_FILES) as draft, quiet_weights():
            save_tokenizer(tokenizer, draft, length_limit(self.backbone, tokenizer))
            self.backbone.save_pretrained(draft, state_dict=plain_weights(self.backbone))
        return path

    def objective_weights(self) -> dict[str, Tensor]:
        """Return the discriminator and its head under their names in DiffCSE's objective ``rtd``."""
        parts = {"discriminator.model": self.backbone, "head": self.head}
        return {
            f"{ReplacedTokenDetectionConfig.name}.{part}.{name}": tensor
            for part, module in parts.items()
            for name, tensor in module.state_dict().items()
        }


def check_generator(name: str, generator: str) -> None:
    """Check the generator of an encoder before anything large is loaded.

    Arguments:
        name, generator: name or path of the encoder and of the generator.

    Raises:
        ValueError: the generator's family has no masked LM in Transformers, or its vocabulary is not the encoder's.
    """
    config = from_hub(AutoConfig, generator)
    if type(config) not in AutoModelForMaskedLM._model_mapping:
        raise ValueError(
            f"generator_name_or_path must name a masked LM, got {generator!r}: Transformers has none of the family "
            f"{config.model_type!r}"
        )
    if generator != name:
        check_same_vocabulary(name, generator, "generator_name_or_path")
