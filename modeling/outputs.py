"""The outputs of the models."""

from dataclasses import dataclass

import torch
from transformers.utils import ModelOutput


@dataclass
class SentenceEmbeddingOutput(ModelOutput):
    """Output at inference.

    Arguments:
        sentence_embedding: (N, H) the embeddings.
        last_hidden_state: (N, L, H) of the backbone.
    """

    sentence_embedding: torch.Tensor | None = None
    last_hidden_state: torch.Tensor | None = None


@dataclass
class ContrastiveOutput(ModelOutput):
    """Output in training.

    Arguments:
        loss: () the sum of the weighted terms, with gradient.
        loss_dict: the weighted terms by name, detached; ``loss == sum(loss_dict.values())`` in value.
        metrics: detached diagnostics outside the sum: ``positive_cosine``, ``negative_cosine``, ``alignment``,
            ``uniformity``, ``identical_texts`` (number of rows whose text is twice in the batch), and those of the
            objectives.
        sentence_embedding: (V, B, H) the views' embeddings, detached.
    """

    loss: torch.Tensor | None = None
    loss_dict: dict[str, torch.Tensor] | None = None
    metrics: dict[str, torch.Tensor] | None = None
    sentence_embedding: torch.Tensor | None = None
