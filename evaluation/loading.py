"""One function that loads whatever holds a sentence encoder, and never guesses the pooler."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from csekit.evaluation.encoding import TextEncoder, length_limit
from csekit.evaluation.inference import fast_inference
from csekit.modeling.export import TEMPLATE_POOLING
from csekit.modeling.pooling import flat_place_of, pool, single_offset
from csekit.modeling.tokenization import own_template, sentence_frame, tokenize
from csekit.modeling.unpadding import run_encoder

#: Poolers that ``load_encoder`` takes for a plain encoder.
POOLINGS = ("cls", "mean", "first_last_mean", "top2_mean", "mask")
_ST_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "Identity": nn.Identity,
    "Tanh": nn.Tanh,
    "ReLU": nn.ReLU,
    "GELU": nn.GELU,
}


@dataclass
class PooledOutput:
    """``sentence_embedding`` (b, H)."""

    sentence_embedding: torch.Tensor


class PooledBackbone(nn.Module):
    """A plain encoder with a pooler: what ``encode`` expects of a model.

    Arguments:
        backbone: an ``AutoModel``.
        pooling: one of ``POOLINGS``, or ``lasttoken``.
        mask_offset: for ``mask``, where the mask token stands (``sentence_frame(...).mask_offset``).
        head: layers applied to the pooled vector (a SentenceTransformer's Dense, Normalize).
    """

    def __init__(
        self, backbone: nn.Module, pooling: str, mask_offset: int | None = None, head: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.config = getattr(backbone, "config", None)
        self.pooling, self.mask_offset = ("mask", -1) if pooling == "lasttoken" else (pooling, mask_offset)
        self.head = head or nn.Identity()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> PooledOutput:
        offset = single_offset(self.pooling, self.mask_offset)
        if offset is not None and isinstance(self.backbone, PreTrainedModel):
            places_N = flat_place_of(attention_mask, offset)
            states = run_encoder(self.backbone, attention_mask, input_ids, places_M=places_N).last_hidden_state
            return PooledOutput(self.head(states))
        layers = self.pooling in ("first_last_mean", "top2_mean")
        output = self.backbone(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=layers)
        states = output.hidden_states if layers else (output.last_hidden_state,)
        return PooledOutput(self.head(pool(self.pooling, states, attention_mask, mask_offset=self.mask_offset)))


class Normalize(nn.Module):
    """Rows to length 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(x, dim=-1)


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
                rows_dH = self.model.encode(list(distinct), batch_size=self.batch_size, show_progress_bar=False)
            advance(len(distinct))
            yield np.asarray(rows_dH, dtype=np.float32)[[distinct[text] for text in texts]], self._cut(list(distinct))

    def _cut(self, distinct: list[str]) -> int:
        """How many of the texts exceed the length limit."""
        tokenizer: Any = self.tokenizer
        if self.max_length is None or not hasattr(tokenizer, "model_max_length"):
            return 0
        ids = tokenizer(distinct, truncation=False, verbose=False)["input_ids"]
        return sum(len(row) > self.max_length for row in ids)


def read_json(path: Path) -> Any:
    """A JSON file's content. Raises ValueError: it is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: not a JSON file: {error}") from error


def metadata_folder(path_or_id: str | Path) -> Path:
    """The folder with the small files of a model: the local folder itself, or the Hub's (weights are not fetched).

    Raises:
        FileNotFoundError: neither a folder nor something that the Hub has.
    """
    folder = Path(path_or_id).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or str(path_or_id).startswith((".", "~")) or len(folder.parts) > 2:
        raise FileNotFoundError(f"path must be a model folder or a Hub id, got {str(path_or_id)!r}: no such folder")
    from huggingface_hub import snapshot_download

    try:
        patterns = ["*.json", "*.txt", "*.model", "*.jinja", "?_*/*"]
        return Path(snapshot_download(str(path_or_id), allow_patterns=patterns))
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileNotFoundError(f"{str(path_or_id)!r} is no folder, and the Hub did not give it: {reason}") from error


def load_pretrained(auto_class: Any, source: str | Path, **kwargs: Any) -> Any:
    """``auto_class.from_pretrained``, its many kinds of failure as one ValueError that names the source."""
    try:
        return auto_class.from_pretrained(str(source), **kwargs)
    except TypeError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{source}: {auto_class.__name__} cannot load it: {reason}") from error


def load_backbone(source: str | Path) -> nn.Module:
    """An ``AutoModel`` in float32, without BERT's own pooler where the class lets one leave it out."""
    try:
        return load_pretrained(AutoModel, source, add_pooling_layer=False, dtype=torch.float32)
    except TypeError:
        return load_pretrained(AutoModel, source, dtype=torch.float32)


def st_pooling(folder: Path) -> str:
    """The pooling mode of a SentenceTransformer's Pooling folder. Several modes give ``a+b``."""
    config = read_json(folder / "config.json")
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for flag, mode in _ST_POOLINGS.items() if config.get(flag)] or ["mean"]
    return modes if isinstance(modes, str) else "+".join(modes)


def load_dense(folder: Path) -> nn.Module:
    """A SentenceTransformer's Dense folder as a linear layer with its activation.

    Raises:
        ValueError: an activation other than Identity, Tanh, ReLU, GELU, or no ``model.safetensors``.
    """
    config = read_json(folder / "config.json")
    activation = config.get("activation_function", "Tanh").rsplit(".", 1)[-1]
    if activation not in _ACTIVATIONS:
        raise ValueError(f"{folder}: activation_function must be one of {sorted(_ACTIVATIONS)}, got {activation!r}")
    if not (folder / "model.safetensors").is_file():
        raise ValueError(f"{folder}: model.safetensors is missing")
    from safetensors.torch import load_file

    linear = nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
    weights = load_file(folder / "model.safetensors")
    linear.load_state_dict({name.removeprefix("linear."): weight for name, weight in weights.items()})
    return nn.Sequential(linear, _ACTIVATIONS[activation]())


def _check_frame(tokenizer: PreTrainedTokenizerBase, source: str | Path, limit: int) -> None:
    """Our token-level framing must give what the tokenizer itself gives."""
    text = "Two birds, one stone."
    own, ours = tokenizer(text)["input_ids"], tokenize(tokenizer, [text], limit).input_ids[0]
    if own[:limit] != ours and len(own) <= limit:
        raise ValueError(f"{source}: the special tokens of this tokenizer cannot be told from the sentence's own")


def module_kinds(folder: Path) -> tuple[list[str], str | None, int | None]:
    """Of a SentenceTransformer's folder: the kinds of its modules, the pooling mode, and where the mask token of a
    template stands that our own module pools."""
    modules = read_json(folder / "modules.json")
    kinds = [module["type"].rsplit(".", 1)[-1] for module in modules]
    if TEMPLATE_POOLING in [module["type"] for module in modules[1:2]]:
        kinds[1] = "Pooling"
        return kinds, "mask", read_json(folder / modules[1]["path"] / "config.json")["mask_offset"]
    paths = {kind: folder / module["path"] for kind, module in zip(kinds, modules, strict=True)}
    return kinds, st_pooling(paths["Pooling"]) if "Pooling" in paths else None, None


def load_head(folder: Path) -> nn.Sequential:
    """What a SentenceTransformer's folder has behind its pooling: Dense and Normalize modules."""
    tail = read_json(folder / "modules.json")[2:]
    dense = [module["type"].endswith(".Dense") for module in tail]
    paths = [folder / module["path"] for module in tail]
    return nn.Sequential(
        *[load_dense(p) if is_dense else Normalize() for p, is_dense in zip(paths, dense, strict=True)]
    )


def _from_sentence_transformer(
    source: str | Path, folder: Path, pooling: str | None, max_length: int | None, batch_size: int
) -> TextEncoder:
    """A folder with ``modules.json``: our own encoder where it can, sentence-transformers where it must."""
    kinds, found, mask_offset = module_kinds(folder)
    name = model_name(source)
    if pooling is not None and pooling != found:
        raise ValueError(f"pooling must be left out or {found!r}, what {name!r} was trained with, got {pooling!r}")
    settings_file = folder / "config_sentence_transformers.json"
    settings = read_json(settings_file) if settings_file.is_file() else {}
    ours = (
        kinds[:2] == ["Transformer", "Pooling"]
        and set(kinds[2:]) <= {"Dense", "Normalize"}
        and read_json(folder / "modules.json")[0]["path"] == ""
        and found in ("cls", "mean", "lasttoken", "mask")
        and not settings.get("default_prompt_name")
    )
    if not ours:
        return _with_sentence_transformers(source, kinds, found, batch_size, max_length)
    bert_file = folder / "sentence_bert_config.json"
    bert = read_json(bert_file) if bert_file.is_file() else {}
    tokenizer = load_pretrained(AutoTokenizer, source)
    assert found is not None
    model = PooledBackbone(load_backbone(source), found, mask_offset, head=load_head(folder))
    if max_length is None and bert.get("max_seq_length"):
        max_length = min(bert["max_seq_length"], length_limit(model, tokenizer))
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
        PooledBackbone(load_backbone(source), pooling, offset),
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


def model_name(source: str | Path) -> str:
    path = Path(source).expanduser()
    if not path.is_dir():
        return str(source)
    path = path.resolve()
    return f"{path.parent.name}/{path.name}" if path.name == "training" else path.name


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
    from csekit.evaluation.onnx_encoder import ONNXEncoder, onnx_file

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
        import csekit.modeling  # noqa: F401  registers our model types

        config = load_pretrained(AutoConfig, source)
        ours = type(config).__module__.startswith("csekit.")
        build = _from_checkpoint if ours else _from_plain
        encoder = build(source, pooling, max_length, batch_size, prompt_template)
    encoder.model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return encoder
