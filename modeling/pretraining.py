"""The base of the models of pre-training: an encoder with the heads of its objective."""

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from .backbone import build_backbone, load_backbone, set_dropout
from .base import EncoderWrapper, EncoderWrapperConfig
from .fast_dropout import speed_up_dropout
from .hub import from_hub


@dataclass
class PretrainingOutput(ModelOutput):
    """Output of a model of pre-training.

    Arguments:
        loss: () the sum of the terms, with gradient.
        loss_dict: the weighted terms by name, detached; ``loss == sum(loss_dict.values())`` in value.
        metrics: shares of tokens, e.g. ``mlm_accuracy``.
        counts: the number of this process's tokens of which each term and each metric is a mean.
    """

    loss: Tensor | None = None
    loss_dict: dict[str, Tensor] | None = None
    metrics: dict[str, Tensor] | None = None
    counts: dict[str, Any] | None = None


Model = TypeVar("Model", bound="EncoderForPreTraining")


class EncoderForPreTraining(EncoderWrapper):
    """Base of the models of pre-training.

    ``forward`` takes a batch of :class:`~csekit.trainers.batches.packing.PretrainingCollator` and returns a
    :class:`PretrainingOutput`.
    """

    #: True if the batch needs ``scored_positions``, the positions of all tokens that are not special.
    scores_all_tokens: ClassVar[bool] = False

    def __init__(self, config: EncoderWrapperConfig, backbone: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        self.backbone = build_backbone(config.encoder_config) if backbone is None else backbone

    @classmethod
    def from_backbone(
        cls: type[Model],
        name_or_path: str | os.PathLike[str],
        *,
        dropout: float | None = None,
        attn_implementation: str | None = None,
        **config: Any,
    ) -> Model:
        """Continue to train any encoder checkpoint. Like ``from_pretrained``, it returns a model in eval mode.

        Arguments:
            name_or_path: Hub id or folder of an encoder that ``AutoModel`` loads.
            dropout: sets all dropout probabilities of the encoder; default: the checkpoint's.
            attn_implementation: as in Transformers.
            config: fields of the model's config.

        Raises:
            ValueError: an unknown field, a value that is not allowed, a checkpoint that lacks weights of the encoder,
                or a family without the objective.
            FileNotFoundError: it is a name on the Hub, which cannot be reached, and is not in the cache.
        """
        name_or_path, kind = str(name_or_path), cls.config_class
        known = set(inspect.get_annotations(kind)) - {"encoder_config", "model_type", "sub_configs"}
        if unknown := sorted(set(config) - known):
            raise ValueError(f"{kind.__name__} has no field {unknown[0]!r}; it has {sorted(known)}")
        encoder_config = from_hub(AutoConfig, name_or_path)
        if hasattr(encoder_config, "encoder_config"):
            raise ValueError(
                f"{name_or_path} is a training checkpoint: reload it with from_pretrained, or start from its encoder, "
                "in the folder that holds training/"
            )
        encoder_config.dtype = torch.float32
        set_dropout(encoder_config, dropout)
        with torch.device("meta"):
            skeleton = build_backbone(encoder_config)
        model = cls(kind(encoder_config=encoder_config, **config), backbone=skeleton)
        model.backbone = load_backbone(name_or_path, encoder_config, type(skeleton), attn_implementation)
        model.init_from_checkpoint(name_or_path)
        speed_up_dropout(model)
        return model.eval()

    def init_from_checkpoint(self, name_or_path: str) -> None:
        """Fill the heads from the backbone's checkpoint. ``from_backbone`` calls this once."""

    def load_frozen(self) -> None:
        """Load frozen networks that are not part of the state dict. ``from_backbone`` and the trainer call this."""

    def summed(
        self, terms: Mapping[str, Tensor], metrics: Mapping[str, Tensor], counts: Mapping[str, Any]
    ) -> PretrainingOutput:
        """Return the output of ``forward``: the sum of the weighted terms, and the parts detached."""
        loss = torch.stack(list(terms.values())).sum()
        detached = {name: term.detach() for name, term in terms.items()}
        return PretrainingOutput(loss=loss, loss_dict=detached, metrics=dict(metrics), counts=dict(counts))

    def export_checkpoint(self, path: str | os.PathLike[str], tokenizer: PreTrainedTokenizerBase) -> Path:
        """Write a folder that ``AutoModel`` loads, with the tokenizer, and return its path. It is whole or not at all.

        Raises:
            DiskFullError: there is no room for it.
        """
        raise NotImplementedError

    def objective_weights(self) -> dict[str, Tensor]:
        """Return the weights with which an objective of a sentence encoder can start, under its names there
        (``objectives_from``)."""
        return {}
