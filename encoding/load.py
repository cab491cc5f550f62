"""Load whatever holds a sentence encoder. Each kind of folder has one function; none of them guesses the pooling."""

from pathlib import Path

import torch
from transformers import AutoConfig

import csekit.modeling  # registers our model types  # noqa: F401
from csekit.encoding.encoder import TextEncoder, digest_of, truncation_length
from csekit.encoding.folders import (
    beyond_csekit,
    load_head,
    metadata_folder,
    model_name,
    module_kinds,
    prompts_and_similarity,
    read_settings,
    saved_size,
)
from csekit.encoding.onnx import ONNXEncoder, onnx_file
from csekit.encoding.pooled import PooledBackbone
from csekit.encoding.pretrained import (
    broken_model_told,
    check_frame,
    embedding_rows,
    load_checkpoint,
    load_pretrained,
    load_tokenizer,
    load_transformer,
)
from csekit.encoding.sentence_transformer import load_sentence_transformer
from csekit.modeling.pooling import POOLINGS
from csekit.modeling.tokenization import own_template, sentence_frame


def _from_sentence_transformer(
    source: str | Path, folder: Path, pooling: str | None, max_length: int | None, batch_size: int
) -> TextEncoder:
    """Load a folder with ``modules.json``: as our own encoder, or through sentence-transformers."""
    kinds, found, mask_offset = module_kinds(folder)
    name = model_name(source)
    if pooling is not None and pooling != found:
        raise ValueError(f"pooling must be left out or {found!r}, the pooling saved with {name!r}, got {pooling!r}")
    prompts, _, similarity = prompts_and_similarity(folder)
    encoder: TextEncoder
    if (why := beyond_csekit(folder, kinds, found)) is not None:
        encoder = load_sentence_transformer(source, folder, why, max_length, batch_size)
        encoder.prompts, encoder.similarity_fn_name = prompts, similarity
        return encoder
    assert found is not None
    backbone = load_transformer(source)
    tokenizer = load_tokenizer(source, embedding_rows(backbone), found)
    model = PooledBackbone(backbone, found, mask_offset, head=load_head(folder))
    settings = read_settings(folder, "sentence_bert_config.json")
    encoder = TextEncoder(
        model,
        tokenizer,
        name=name,
        pooling=found,
        max_length=truncation_length(model, tokenizer, max_length, settings.get("max_seq_length")),
        batch_size=batch_size,
        prompt_template=own_template(tokenizer),
        lowercase=bool(settings.get("do_lower_case")),
    )
    check_frame(tokenizer, source, encoder.max_length)
    encoder.prompts, encoder.similarity_fn_name = prompts, similarity
    return encoder


def _from_checkpoint(
    source: str | Path, pooling: str | None, max_length: int | None, batch_size: int, template: str | None
) -> TextEncoder:
    """Load a csekit training checkpoint: its config says the pooling and the template."""
    model = load_checkpoint(source)
    config = model.config
    if pooling is not None and pooling != config.pooling:
        raise ValueError(
            f"pooling must be left out or {config.pooling!r}, the pooling of the training, got {pooling!r}"
        )
    trained = getattr(config, "prompt_template", None)
    if template is not None and template != trained:
        raise ValueError(f"prompt_template must be left out or {trained!r}, the checkpoint's own, got {template!r}")
    path = Path(source)
    beside = path.name == "training" and not (path / "tokenizer_config.json").is_file()
    tokenizer = load_tokenizer(path.parent if beside else source, embedding_rows(model.backbone), config.pooling)
    encoder = TextEncoder(
        model,
        tokenizer,
        name=model_name(source),
        pooling=config.pooling,
        max_length=max_length,
        batch_size=batch_size,
        prompt_template=trained,
    )
    encoder.similarity_fn_name = config.similarity_fn_name
    return encoder


def _from_plain(
    source: str | Path, pooling: str | None, max_length: int | None, batch_size: int, template: str | None
) -> TextEncoder:
    """Load a plain Transformers encoder. Its folder does not say the pooling, so the caller must."""
    allowed = ", ".join(repr(name) for name in POOLINGS)
    if pooling not in POOLINGS:
        raise ValueError(
            f"pooling must be one of {allowed} for the plain encoder {model_name(source)!r}, got {pooling!r}"
        )
    if (pooling == "mask" and template is None) or (pooling not in ("mask", "last") and template is not None):
        raise ValueError(f"pooling 'mask' and prompt_template go together, got {pooling!r} and {template!r}")
    backbone = load_transformer(source)
    tokenizer = load_tokenizer(source, embedding_rows(backbone), pooling)
    offset = sentence_frame(tokenizer, template).mask_offset
    encoder = TextEncoder(
        PooledBackbone(backbone, pooling, offset),
        tokenizer,
        name=model_name(source),
        pooling=pooling,
        max_length=max_length,
        batch_size=batch_size,
        prompt_template=template,
    )
    if template is None:
        check_frame(tokenizer, source, encoder.max_length)
    return encoder


def load_encoder(
    path_or_id: str | Path,
    pooling: str | None = None,
    max_length: int | None = None,
    device: str | torch.device | None = None,
    prompt_template: str | None = None,
    batch_size: int = 64,
    truncate_dim: int | None = None,
) -> TextEncoder:
    """Load the sentence encoder in a folder or on the Hub.

    - a csekit run folder or export, or any SentenceTransformer: pooling from its ``1_Pooling/config.json``.
      sentence-transformers is needed only for modules beyond Transformer, Pooling (cls, mean, last token, a
      template's mask token), Dense and Normalize;
    - a csekit training checkpoint (or a folder whose ``training/`` is one): pooling and template from its config;
    - an ONNX export (a folder with ``onnx/model.onnx`` and no other weights, or the path of an ``.onnx`` file): run by
      onnxruntime, on CPU;
    - any other encoder: ``pooling`` is required, since its folder does not name one.

    A folder that would give wrong embeddings without an error is refused: weights that are missing, of another shape
    or not finite, a vocabulary that is not the model's, a Pooling folder that names no pooling.

    Arguments:
        pooling: 'cls', 'mean', 'last' (the last token, for decoder language models), 'first_last_mean', 'top2_mean'
            or 'mask' (with ``prompt_template``).
        max_length, prompt_template, batch_size: as for ``encode``.
        device: where the model goes; None: the GPU where there is one.
        truncate_dim: cut embeddings to their first dimensions; None: the folder's own size, or all.

    Returns:
        the encoder; its ``encode(texts)`` gives (N, H) float32.

    Raises:
        FileNotFoundError: there is no such folder, and the Hub has no such model or cannot be reached.
        ValueError: ``pooling`` is missing, not allowed, or not the one that was saved with the model; the folder is
            refused, see above, or broken in any other way; the device is not there; ``truncate_dim`` is not from 1 to
            the model's size.
        ImportError: the modules need sentence-transformers, which is not installed.
    """
    where = torch_device(device)
    with broken_model_told(path_or_id):
        encoder = _load(path_or_id, pooling, max_length, prompt_template, batch_size)
        if not isinstance(encoder, ONNXEncoder):
            encoder.model.to(where)
        _cut(encoder, path_or_id, truncate_dim)
    told = {"pooling": pooling, "max_length": max_length, "prompt_template": prompt_template}
    told |= {"truncate_dim": truncate_dim}
    encoder.loading = {"model": str(path_or_id)} | {name: value for name, value in told.items() if value is not None}
    return encoder


def folder_tokenizer_digest(folder: Path, prompt_template: str | None) -> str | None:
    """Return the digest of the tokenizer of an encoder's folder (``tokenizer_digest``), without its model; None where
    the folder's root has none.

    Arguments:
        prompt_template: that of an encoder whose tokenizer does not hold it.
    """
    try:
        tokenizer = load_tokenizer(folder, None, None)
    except (OSError, ValueError):
        return None
    return digest_of(tokenizer, own_template(tokenizer) if (folder / "modules.json").is_file() else prompt_template)


def _cut(encoder: TextEncoder, path_or_id: str | Path, size: int | None) -> None:
    """Cut an encoder's embeddings to ``size``, or to the size in its folder's metadata."""
    field = "truncate_dim"
    if size is None:
        graph = onnx_file(path_or_id)
        folder = graph.parent.parent if graph is not None else metadata_folder(path_or_id)
        size, field = saved_size(folder), f"{folder / 'config_sentence_transformers.json'}: truncate_dim"
    if size is None:
        return
    encoder.truncate_dim = None
    width = encoder.encode(["a"]).shape[1] if size >= 1 else 0
    if not 1 <= size <= width:
        raise ValueError(f"{field} must be from 1 to the model's size{f', {width}' if width else ''}, got {size}")
    encoder.truncate_dim = size


def torch_device(device: str | torch.device | None) -> torch.device:
    """Return the device to compute on; None: the GPU where there is one. Raises ValueError: it is not there."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        if found.type == "meta" or (found.type == "cpu" and found.index):
            raise ValueError("it holds no numbers" if found.type == "meta" else "there is one cpu")
        torch.empty(1, device=found)
    except Exception as error:  # RuntimeError, AssertionError or NotImplementedError, by the kind of device
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"device must be cpu, cuda or cuda:1 and be there, got {str(device)!r}: {reason}") from None
    return found


def _load(
    path_or_id: str | Path, pooling: str | None, max_length: int | None, prompt_template: str | None, batch_size: int
) -> TextEncoder:
    if (graph := onnx_file(path_or_id)) is not None:
        if pooling is not None or prompt_template is not None:
            raise ValueError("pooling and prompt_template must be left out for an ONNX export: its files say them")
        return ONNXEncoder(graph, max_length, batch_size)
    source: str | Path = path_or_id
    folder = metadata_folder(path_or_id)
    if not (folder / "config.json").is_file() and (folder / "training" / "config.json").is_file():
        source = folder = folder / "training"
    ours = "encoder_config" in read_settings(folder, "config.json")  # a checkpoint with its code has modules, too
    if (folder / "modules.json").is_file() and not ours:
        if prompt_template is not None:
            raise ValueError("prompt_template must be left out for a SentenceTransformer: its tokenizer holds it")
        return _from_sentence_transformer(source, folder, pooling, max_length, batch_size)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{path_or_id}: holds neither config.json nor modules.json, so it is no model")
    config = load_pretrained(AutoConfig, source)
    build = _from_checkpoint if type(config).__module__.startswith("csekit.") else _from_plain
    return build(source, pooling, max_length, batch_size, prompt_template)
