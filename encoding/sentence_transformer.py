"""Run a SentenceTransformer whose modules csekit does not have through sentence-transformers itself."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from csekit.encoding.encoder import TextEncoder, position_limit, truncation_length
from csekit.encoding.fast_cpu import fast_inference
from csekit.encoding.folders import model_name, modules_digest, read_modules
from csekit.encoding.pretrained import check_finite_weights, check_vocabulary, embedding_rows, load_transformer
from csekit.modeling.tokenization import tokenize


class SentenceTransformerEncoder(TextEncoder):
    """A SentenceTransformer whose modules only sentence-transformers can run.

    Arguments:
        model: the ``SentenceTransformer``.
        name: as for ``TextEncoder``.
        batch_size: rows in a batch.
    """

    def __init__(self, model: Any, name: str, batch_size: int) -> None:
        self.model: Any = model
        self.tokenizer = model.tokenizer
        self.name = name
        self.pooling = None
        limit = model.max_seq_length
        self.max_length = None if limit is None or math.isinf(limit) else limit  # type: ignore[assignment]
        self.batch_size = batch_size
        self.prompt_template = None
        self.lowercase = False
        self.precision = "fp32"
        self.truncated = 0

    def embedded(
        self, chunks: Iterable[Sequence[str]], advance: Callable[[int], object] = lambda rows: None
    ) -> Iterator[tuple[np.ndarray, int]]:
        for texts in chunks:
            distinct = {text: i for i, text in enumerate(dict.fromkeys(texts))}
            with fast_inference(self.model, self.precision):
                rows_dH = self._encode_function()(
                    list(distinct), prompt=self.prompt, batch_size=self.batch_size, show_progress_bar=False
                )
            advance(len(distinct))
            yield np.asarray(rows_dH, dtype=np.float32)[[distinct[text] for text in texts]], self._cut(list(distinct))

    def _encode_function(self) -> Callable[..., Any]:
        """Return the function for the role, which also chooses the route through a model with several."""
        names = {"query": "encode_query", "document": "encode_document"}
        return getattr(self.model, names[self.role]) if self.role else self.model.encode  # type: ignore[no-any-return]

    def _cut(self, distinct: list[str]) -> int:
        """Count the texts that exceed the length limit with their prompt."""
        tokenizer: Any = self.tokenizer
        if self.max_length is None or not hasattr(tokenizer, "model_max_length"):
            return 0
        prompt = self.model.prompts.get(self.model.default_prompt_name) if self.prompt is None else self.prompt
        prompt = prompt or ""
        ids = tokenizer([prompt + text for text in distinct], truncation=False, verbose=False)["input_ids"]
        return sum(len(row) > self.max_length for row in ids)


def load_sentence_transformer(
    source: str | Path, folder: Path, why: str, max_length: int | None, batch_size: int
) -> SentenceTransformerEncoder:
    """Load a SentenceTransformer on CPU.

    Arguments:
        folder: its small files, see ``folders.metadata_folder``.
        why: the modules that csekit cannot run, for messages.

    Raises:
        ImportError: sentence-transformers is not installed.
        ValueError: sentence-transformers cannot load it; a weight is missing or not finite; the vocabulary is not the
            model's; its modules make no sentence embedding.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ImportError(f"{source}: {why} need sentence-transformers: pip install 'csekit[st]'") from error
    try:
        with torch.random.fork_rng(devices=[]):  # a pooler that nothing reads has the same weights at each load
            torch.default_generator.manual_seed(0)
            model = SentenceTransformer(str(source), device="cpu")
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{source}: sentence-transformers cannot load it: {reason}") from error
    transformer = getattr(model[0], "auto_model", None)
    if transformer is not None:
        load_transformer(folder / read_modules(folder)[0]["path"])  # it checks what sentence-transformers does not
        check_vocabulary(source, model.tokenizer, embedding_rows(transformer))
    check_finite_weights(source, model)
    try:
        model.encode(["a"], show_progress_bar=False)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ValueError(
            f"{source}: the modules that modules.json names make no sentence embedding, {reason}"
        ) from error
    model.float()  # a checkpoint in 16 bits is computed in float32, as by csekit's own encoders
    model.truncate_dim = None  # ``TextEncoder`` cuts
    _limit_length(model, transformer, max_length)
    encoder = SentenceTransformerEncoder(model, model_name(source), batch_size)
    encoder.modules = modules_digest(folder)
    return encoder


def _limit_length(model: Any, transformer: Any, max_length: int | None) -> None:
    """Set the length limit, which sentence-transformers does not check against the model's positions.

    Raises:
        ValueError: ``max_length`` is above the model's positions, leaves no room for a token of the sentence, or is
            given for modules without a limit.
    """
    if transformer is None:
        if max_length is not None:
            raise ValueError(f"max_length must be left out for {type(model[0]).__name__}, got {max_length}")
        return
    positions = position_limit(transformer)
    if max_length is not None:
        tokenize(model.tokenizer, ["a"], truncation_length(transformer, model.tokenizer, max_length))
        model.max_seq_length = max_length
    elif positions is not None and (model.max_seq_length or math.inf) > positions:
        model.max_seq_length = positions  # RoBERTa's config counts two positions more
