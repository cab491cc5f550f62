"""Pooling of a prompt template's mask token, as a module of sentence-transformers.

sentence-transformers has no such pooling. An export therefore has a copy of this file if its template does not end in
the mask token. The template itself is in the tokenizer.
"""

import json
from pathlib import Path

import torch
from torch import Tensor, nn


class TemplatePooling(nn.Module):
    """Returns one state per sentence, (N, L, H) → (N, H).

    Arguments:
        embedding_dimension: H.
        mask_offset: position of the state, counted from the first attended token (≥ 0) or from the last (−1).
    """

    def __init__(self, embedding_dimension: int, mask_offset: int) -> None:
        super().__init__()
        self.embedding_dimension, self.mask_offset = embedding_dimension, mask_offset

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Add ``sentence_embedding`` (N, H) to the encoder's output."""
        states, mask = features["token_embeddings"], features["attention_mask"]
        if states.shape[:2] != mask.shape:
            raise ValueError(f"token states must be padded to {tuple(mask.shape)}, got {tuple(states.shape[:2])}")
        real = mask.to(torch.int32)
        start = real.argmax(1) if self.mask_offset >= 0 else mask.shape[1] - real.flip(1).argmax(1)
        rows = torch.arange(len(states), device=states.device)
        return {**features, "sentence_embedding": states[rows, start + self.mask_offset]}

    def get_embedding_dimension(self) -> int:
        """Return H."""
        return self.embedding_dimension

    get_sentence_embedding_dimension = get_embedding_dimension  # its name before sentence-transformers 6

    def save(self, output_path: str, *args: object, **kwargs: object) -> None:
        """Write ``config.json`` into the folder, and this file into its parent."""
        config = {"embedding_dimension": self.embedding_dimension, "mask_offset": self.mask_offset}
        Path(output_path, "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        own = Path(__file__)
        Path(output_path).parent.joinpath("template_pooling.py").write_bytes(own.read_bytes())

    @staticmethod
    def load(input_path: str) -> "TemplatePooling":
        """Read ``config.json`` from the folder."""
        return TemplatePooling(**json.loads(Path(input_path, "config.json").read_text(encoding="utf-8")))
