"""A model's folder, local or on the Hub: its small files, its modules, its plain encoder."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModel

from csekit.modeling.export import TEMPLATE_POOLING

_ST_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
#: How two embeddings may be compared, by sentence-transformers' names.
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "Identity": nn.Identity,
    "Tanh": nn.Tanh,
    "ReLU": nn.ReLU,
    "GELU": nn.GELU,
}


class Normalize(nn.Module):
    """Rows to length 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(x, dim=-1)


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


def load_transformer(source: str | Path) -> nn.Module:
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


def pools_prompt(folder: Path) -> bool:
    """False if a SentenceTransformer's pooling leaves the tokens of a prompt out (``include_prompt``)."""
    pooling = [folder / module["path"] for module in read_json(folder / "modules.json") if "Pooling" in module["type"]]
    files = [path / "config.json" for path in pooling if (path / "config.json").is_file()]
    return all(read_json(file).get("include_prompt", True) for file in files)


def prompts_and_similarity(folder: Path) -> tuple[dict[str, str], str | None, str]:
    """Read a SentenceTransformer folder's prompts by name, the name of the default one, and its similarity.

    Raises:
        ValueError: a similarity that is none of ``SIMILARITIES``.
    """
    file = folder / "config_sentence_transformers.json"
    settings = read_json(file) if file.is_file() else {}
    prompts = {name: text or "" for name, text in (settings.get("prompts") or {}).items()}
    similarity = settings.get("similarity_fn_name") or "cosine"
    if similarity not in SIMILARITIES:
        allowed = ", ".join(map(repr, SIMILARITIES))
        raise ValueError(f"{file}: similarity_fn_name must be one of {allowed}, got {similarity!r}")
    return prompts, settings.get("default_prompt_name") or None, similarity


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
    linear = nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
    weights = load_file(folder / "model.safetensors")
    linear.load_state_dict({name.removeprefix("linear."): weight for name, weight in weights.items()})
    return nn.Sequential(linear, _ACTIVATIONS[activation]())


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


def model_name(source: str | Path) -> str:
    path = Path(source).expanduser()
    if not path.is_dir():
        return str(source)
    path = path.resolve()
    return f"{path.parent.name}/{path.name}" if path.name == "training" else path.name
