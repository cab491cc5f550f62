"""One function that loads whatever holds a sentence encoder, and never guesses the pooler."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerBase

import csekit.modeling  # registers our model types  # noqa: F401
from csekit.encoding.encoder import TextEncoder, truncation_length
from csekit.encoding.fast_cpu import fast_inference
from csekit.encoding.folders import (
    load_head,
    load_pretrained,
    load_transformer,
    metadata_folder,
    model_name,
    module_kinds,
    pools_prompt,
    prompts_and_similarity,
    read_json,
)
from csekit.encoding.onnx import ONNXEncoder, onnx_file
from csekit.encoding.pooled import PooledBackbone
from csekit.modeling.configuration_cse import POOLINGS
from csekit.modeling.tokenization import own_template, sentence_frame, tokenize


class SentenceTransformerEncoder(TextEncoder):
    """A SentenceTransformer whose modules only sentence-transformers itself can run."""

    def __init__(self, model: Any, name: str, batch_size: int) -> None:
        self.model: Any = model
        self.tokenizer = model.tokenizer
        self.name = name
        self.pooling = None
        self.max_length = model.max_seq_length
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
        """The role's own function, which also chooses the way through a model with several."""
        names = {"query": "encode_query", "document": "encode_document"}
        return getattr(self.model, names[self.role]) if self.role else self.model.encode  # type: ignore[no-any-return]

    def _cut(self, distinct: list[str]) -> int:
        """How many of the texts exceed the length limit."""
        tokenizer: Any = self.tokenizer
        if self.max_length is None or not hasattr(tokenizer, "model_max_length"):
            return 0
        prompt = self.prompt or ""
        ids = tokenizer([prompt + text for text in distinct], truncation=False, verbose=False)["input_ids"]
        return sum(len(row) > self.max_length for row in ids)


def _check_frame(tokenizer: PreTrainedTokenizerBase, source: str | Path, limit: int) -> None:
    """Our token-level framing must give what the tokenizer itself gives."""
    text = "Two birds, one stone."
    own, ours = tokenizer(text)["input_ids"], tokenize(tokenizer, [text], limit).input_ids[0]
    if own[:limit] != ours and len(own) <= limit:
        raise ValueError(f"{source}: the special tokens of this tokenizer cannot be told from the sentence's own")


def _from_sentence_transformer(
    source: str | Path, folder: Path, pooling: str | None, max_length: int | None, batch_size: int
) -> TextEncoder:
    """A folder with ``modules.json``: our own encoder where it can, sentence-transformers where it must."""
    kinds, found, mask_offset = module_kinds(folder)
    name = model_name(source)
    if pooling is not None and pooling != found:
        raise ValueError(f"pooling must be left out or {found!r}, what {name!r} was trained with, got {pooling!r}")
    prompts, default_prompt, similarity = prompts_and_similarity(folder)
    ours = (
        kinds[:2] == ["Transformer", "Pooling"]
        and set(kinds[2:]) <= {"Dense", "Normalize"}
        and read_json(folder / "modules.json")[0]["path"] == ""
        and found in ("cls", "mean", "lasttoken", "mask")
        and default_prompt is None
        and (pools_prompt(folder) or not any(prompts.values()))
    )
    if not ours:
        encoder = _with_sentence_transformers(source, kinds, found, batch_size, max_length)
        encoder.prompts, encoder.similarity_fn_name = prompts, similarity
        return encoder
    bert_file = folder / "sentence_bert_config.json"
    bert = read_json(bert_file) if bert_file.is_file() else {}
    tokenizer = load_pretrained(AutoTokenizer, source)
    assert found is not None
    model = PooledBackbone(load_transformer(source), found, mask_offset, head=load_head(folder))
    if max_length is None and bert.get("max_seq_length"):
        max_length = min(bert["max_seq_length"], truncation_length(model, tokenizer))
    encoder = TextEncoder(
        model,
        tokenizer,
        name=name,
        pooling=found,
        max_length=max_length,
        batch_size=batch_size,
        prompt_template=own_template(tokenizer),
        lowercase=bool(bert.get("do_lower_case")),
    )
    _check_frame(tokenizer, source, encoder.max_length)
    encoder.prompts, encoder.similarity_fn_name = prompts, similarity
    return encoder


def _with_sentence_transformers(
    source: str | Path, kinds: list[str], pooling: str | None, batch_size: int, max_length: int | None
) -> TextEncoder:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ImportError(
            f"{source}: modules {kinds} with pooling {pooling!r} need sentence-transformers: pip install 'csekit[st]'"
        ) from error
    model = SentenceTransformer(str(source), device="cpu")
    if max_length is not None:
        model.max_seq_length = max_length
    return SentenceTransformerEncoder(model, model_name(source), batch_size)


def _from_checkpoint(
    source: str | Path, pooling: str | None, max_length: int | None, batch_size: int, template: str | None
) -> TextEncoder:
    """A csekit training checkpoint: pooling and template are the config's."""
    model = load_pretrained(AutoModel, source)
    config = model.config
    if pooling is not None and pooling != config.pooling:
        raise ValueError(
            f"pooling must be left out or {config.pooling!r}, what the checkpoint was trained with, got {pooling!r}"
        )
    trained = getattr(config, "prompt_template", None)
    if template is not None and template != trained:
        raise ValueError(f"prompt_template must be left out or {trained!r}, the checkpoint's own, got {template!r}")
    path = Path(source)
    beside = path.name == "training" and not (path / "tokenizer_config.json").is_file()
    tokenizer = load_pretrained(AutoTokenizer, path.parent if beside else source)
    return TextEncoder(
        model,
        tokenizer,
        name=model_name(source),
        pooling=config.pooling,
        max_length=max_length,
        batch_size=batch_size,
        prompt_template=trained,
    )


def _from_plain(
    source: str | Path, pooling: str | None, max_length: int | None, batch_size: int, template: str | None
) -> TextEncoder:
    """A plain Transformers encoder: it does not say how it is pooled, the caller must."""
    allowed = ", ".join(repr(name) for name in POOLINGS)
    if pooling not in POOLINGS:
        raise ValueError(
            f"pooling must be one of {allowed} for the plain encoder {model_name(source)!r}, got {pooling!r}"
        )
    if (pooling == "mask") != (template is not None):
        raise ValueError(f"pooling 'mask' and prompt_template go together, got {pooling!r} and {template!r}")
    tokenizer = load_pretrained(AutoTokenizer, source)
    offset = sentence_frame(tokenizer, template).mask_offset
    encoder = TextEncoder(
        PooledBackbone(load_transformer(source), pooling, offset),
        tokenizer,
        name=model_name(source),
        pooling=pooling,
        max_length=max_length,
        batch_size=batch_size,
        prompt_template=template,
    )
    if template is None:
        _check_frame(tokenizer, source, encoder.max_length)
    return encoder


def load_encoder(
    path_or_id: str | Path,
    pooling: str | None = None,
    max_length: int | None = None,
    device: str | torch.device | None = None,
    prompt_template: str | None = None,
    batch_size: int = 64,
) -> TextEncoder:
    """The sentence encoder in a folder or on the Hub.

    - a csekit run folder or export, or any SentenceTransformer: pooling from its ``1_Pooling/config.json``.
      sentence-transformers is needed only for modules beyond Transformer, Pooling (cls, mean, last token, a
      template's mask token), Dense and Normalize;
    - a csekit training checkpoint (or a folder whose ``training/`` is one): pooling and template from its config;
    - an ONNX export (a folder with ``onnx/model.onnx`` and no other weights, or the path of an ``.onnx`` file): run by
      onnxruntime, on CPU;
    - any other encoder: ``pooling`` is required. It is not guessed: the wrong pooler costs BERT-base SimCSE 20 points.

    Arguments:
        pooling: 'cls', 'mean', 'first_last_mean', 'top2_mean' or 'mask' (with ``prompt_template``).
        max_length, prompt_template, batch_size: as for ``encode``.
        device: None: the GPU where there is one.

    Raises:
        FileNotFoundError: no such folder, and the Hub has no such model or cannot be reached.
        ValueError: ``pooling`` is missing, not allowed, or not what the checkpoint was trained with.
        ImportError: the modules need sentence-transformers, which is not installed.
    """
    if (graph := onnx_file(path_or_id)) is not None:
        if pooling is not None or prompt_template is not None:
            raise ValueError("pooling and prompt_template must be left out for an ONNX export: its files say them")
        return ONNXEncoder(graph, max_length, batch_size)
    source: str | Path = path_or_id
    folder = metadata_folder(path_or_id)
    if not (folder / "config.json").is_file() and (folder / "training" / "config.json").is_file():
        source = folder = folder / "training"
    if (folder / "modules.json").is_file():
        if prompt_template is not None:
            raise ValueError("prompt_template must be left out for a SentenceTransformer: its tokenizer holds it")
        encoder = _from_sentence_transformer(source, folder, pooling, max_length, batch_size)
    elif not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{path_or_id}: holds neither config.json nor modules.json, so no model")
    else:
        config = load_pretrained(AutoConfig, source)
        ours = type(config).__module__.startswith("csekit.")
        build = _from_checkpoint if ours else _from_plain
        encoder = build(source, pooling, max_length, batch_size, prompt_template)
    encoder.model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return encoder
