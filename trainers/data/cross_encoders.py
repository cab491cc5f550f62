"""Margins of a cross-encoder: its score of query and positive less that of query and negative, for every triplet."""

from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from csekit.encoding.chunks import evaluating
from csekit.encoding.load import torch_device
from csekit.encoding.pretrained import check_finite_weights, load_pretrained
from csekit.modeling.export import length_limit

BATCH, MAX_LENGTH = 64, 512


class CrossEncoder:
    """A model that reads two texts at once and scores them.

    Arguments:
        name: a sequence classifier with one output, Hub id or folder.
        max_length: tokens of both texts together; the longer one loses its end.

    Raises:
        ValueError: it has several outputs, or cannot be loaded.
        FileNotFoundError: there is no such model.
    """

    prompt_template = None  # of an encoder of single texts

    def __init__(self, name: str, max_length: int = MAX_LENGTH) -> None:
        model = load_pretrained(AutoModelForSequenceClassification, name, dtype=torch.float32)
        if model.config.num_labels != 1:
            raise ValueError(f"{name}: a cross-encoder must have one output, got {model.config.num_labels}")
        check_finite_weights(name, model)
        self.model = model.to(torch_device(None)).eval()
        self.tokenizer: Any = load_pretrained(AutoTokenizer, name)
        if self.tokenizer.pad_token is None:  # decoder language models
            self.tokenizer.pad_token = self.tokenizer.eos_token or self.tokenizer.unk_token
        if getattr(model.config, "pad_token_id", None) is None:  # they read the last token that is no padding
            model.config.pad_token_id = self.tokenizer.pad_token_id
        self.name = Path(name).name if Path(name).is_dir() else name
        self.max_length = min(max_length, length_limit(model, self.tokenizer))

    def describe(self) -> dict[str, Any]:
        """Return what the record of its margins says."""
        return {"name": self.name, "class": type(self.model).__name__, "max_length": self.max_length}

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Return the model's output for each pair, (N,) float32, without an activation."""
        order = sorted(range(len(pairs)), key=lambda i: -len(pairs[i][0]) - len(pairs[i][1]))
        scores = np.empty(len(pairs), dtype=np.float32)
        with evaluating(self.model):
            for start in range(0, len(order), BATCH):
                own = order[start : start + BATCH]
                firsts, seconds = ([pairs[i][side] for i in own] for side in (0, 1))
                limits = {"truncation": "longest_first", "max_length": self.max_length}
                batch = self.tokenizer(firsts, seconds, padding=True, return_tensors="pt", **limits)
                scores[own] = self.model(**batch.to(self.model.device)).logits[:, 0].float().cpu().numpy()
        return scores

    def encode_chunks(self, chunks: Iterable[Sequence[Sequence[str]]]) -> Generator[np.ndarray, None, None]:
        """Yield the margins (n, 1) of each chunk of triplets."""
        for rows in chunks:
            pairs = [(row[0], row[side]) for side in (1, 2) for row in rows]
            scores = self.score(pairs)
            yield (scores[: len(rows)] - scores[len(rows) :])[:, None]
