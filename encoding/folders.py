"""A model's folder, local or on the Hub: its small files and the modules that sentence-transformers lists there."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import PositiveInt
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from csekit.encoding.json_files import read_json
from csekit.encoding.pretrained import check_finite_weights
from csekit.encoding.schema import Schema, check_schema
from csekit.encoding.unfinished import interrupted_run
from csekit.modeling.drafts import is_unfinished
from csekit.modeling.export import TEMPLATE_POOLING
from csekit.modeling.hub import hub_or_cache

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

#: How sentence-transformers 6 names the encoder's last states.
_AS_STATES = {"method": "forward", "method_output_name": "last_hidden_state"}


class _Prompts(Schema):
    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None
    similarity_fn_name: str | None = None
    truncate_dim: PositiveInt | None = None


class _SentenceBert(Schema):
    modality_config: dict[str, Any] | None = None
    max_seq_length: PositiveInt | None = None
    do_lower_case: bool | None = None


_SCHEMAS: dict[str, type[Schema]] = {
    "config_sentence_transformers.json": _Prompts,
    "sentence_bert_config.json": _SentenceBert,
}


class Normalize(nn.Module):
    """Scale each row to length 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(x, dim=-1)


def read_settings(folder: Path, name: str) -> dict[str, Any]:
    """Return the object in a JSON file of the folder; empty where there is no such file.

    Raises:
        ValueError: it is not JSON, or not an object.
    """
    file = folder / name
    settings = read_json(file) if file.is_file() else {}
    if not isinstance(settings, dict):
        raise ValueError(f"{file}: must hold an object, got {settings!r:.80}")
    if name in _SCHEMAS:
        check_schema(_SCHEMAS[name], settings, file)
    return settings


def metadata_folder(path_or_id: str | Path) -> Path:
    """Return the folder with the small files of a model: the local folder, or a download from the Hub without weights.

    Raises:
        FileNotFoundError: there is no such folder, and the Hub has no such model or cannot be reached.
        ValueError: the encoder there is unfinished, or belongs to a run that was interrupted.
    """
    folder = Path(path_or_id).expanduser()
    if folder.is_dir():
        if is_unfinished(folder):
            raise ValueError(
                f"{folder}: the encoder in it is unfinished, its writer was killed or is still at work: write it "
                "again, for a run with --resume_from_checkpoint True"
            )
        if (told := interrupted_run(folder)) is not None:
            raise ValueError(told)
        return folder
    if folder.is_absolute() or str(path_or_id).startswith((".", "~")) or len(folder.parts) > 2:
        raise FileNotFoundError(f"path must be a model folder or a Hub id, got {str(path_or_id)!r}: no such folder")
    from huggingface_hub import snapshot_download

    try:
        patterns = ["*.json", "*.txt", "*.model", "*.jinja", "?_*/*"]
        with hub_or_cache(path_or_id):
            return Path(snapshot_download(str(path_or_id), allow_patterns=patterns))
    except FileNotFoundError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileNotFoundError(f"{str(path_or_id)!r} is no folder, and the Hub did not give it: {reason}") from error


def read_modules(folder: Path) -> list[dict[str, Any]]:
    """Return the modules of a SentenceTransformer's folder: each has at least ``type`` and ``path``.

    Raises:
        ValueError: ``modules.json`` is not such a list.
    """
    modules = read_json(folder / "modules.json")
    fields = ("type", "path")
    if not isinstance(modules, list) or not modules:
        raise ValueError(f"{folder / 'modules.json'}: must be a list of modules, got {modules!r:.80}")
    for module in modules:
        if not isinstance(module, dict) or not all(isinstance(module.get(field), str) for field in fields):
            raise ValueError(f"{folder / 'modules.json'}: a module must have 'type' and 'path', got {module!r:.80}")
    return modules


def _module_config(folder: Path, required: Mapping[str, type]) -> dict[str, Any]:
    """Return the settings of a module. Raises ValueError: a required field is missing or of another type."""
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(f"{file}: is missing, and modules.json lists its module")
    config = read_settings(folder, file.name)
    for name, kind in required.items():
        if type(config.get(name)) is not kind:
            raise ValueError(f"{file}: {name} must be of type {kind.__name__}, got {config.get(name)!r}")
    return config


def st_pooling(folder: Path) -> str:
    """Return the pooling mode of a SentenceTransformer's Pooling folder; ``a+b`` for several modes.

    Raises:
        ValueError: ``config.json`` names no mode. sentence-transformers would take the mean.
    """
    config = _module_config(folder, {})
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for flag, mode in _ST_POOLINGS.items() if config.get(flag)]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list | tuple) or not modes or not all(isinstance(mode, str) and mode for mode in modes):
        raise ValueError(
            f"{folder / 'config.json'}: names no pooling: pooling_mode must be a name such as 'cls', or one of "
            f"{', '.join(_ST_POOLINGS)} must be true"
        )
    return "+".join(modes)


def pools_prompt(folder: Path) -> bool:
    """False if a SentenceTransformer's pooling leaves the tokens of a prompt out (``include_prompt``)."""
    pooling = [folder / module["path"] for module in read_modules(folder) if "Pooling" in module["type"]]
    return all(read_settings(path, "config.json").get("include_prompt", True) for path in pooling)


def prompts_and_similarity(folder: Path) -> tuple[dict[str, str], str | None, str]:
    """Read a SentenceTransformer folder's prompts by name, the name of the default one, and its similarity.

    Raises:
        ValueError: a similarity that is none of ``SIMILARITIES``.
    """
    file = folder / "config_sentence_transformers.json"
    settings = read_settings(folder, file.name)
    prompts = {name: text or "" for name, text in (settings.get("prompts") or {}).items()}
    similarity = settings.get("similarity_fn_name") or "cosine"
    if similarity not in SIMILARITIES:
        allowed = ", ".join(map(repr, SIMILARITIES))
        raise ValueError(f"{file}: similarity_fn_name must be one of {allowed}, got {similarity!r}")
    return prompts, settings.get("default_prompt_name") or None, similarity


def saved_size(folder: Path) -> int | None:
    """Return the number of dimensions to which a SentenceTransformer's folder cuts embeddings; None: all.

    Raises:
        ValueError: it is no whole number above 0.
    """
    size = read_settings(folder, "config_sentence_transformers.json").get("truncate_dim")
    return None if size is None else int(size)


def load_dense(folder: Path) -> nn.Module:
    """Load a SentenceTransformer's Dense folder as a linear layer with its activation.

    Raises:
        ValueError: an activation other than Identity, Tanh, ReLU, GELU; a size that is missing; no
            ``model.safetensors``; weights that are missing, of another shape, or not finite.
    """
    config = _module_config(folder, {"in_features": int, "out_features": int})
    activation = str(config.get("activation_function", "Tanh")).rsplit(".", 1)[-1]
    if activation not in _ACTIVATIONS:
        raise ValueError(f"{folder}: activation_function must be one of {sorted(_ACTIVATIONS)}, got {activation!r}")
    if not (folder / "model.safetensors").is_file():
        raise ValueError(f"{folder}: model.safetensors is missing")
    linear = nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
    try:
        weights = load_file(folder / "model.safetensors")
        linear.load_state_dict({name.removeprefix("linear."): weight for name, weight in weights.items()})
    except (SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{folder / 'model.safetensors'}: not the weights of this layer: {reason}") from error
    check_finite_weights(folder / "model.safetensors", linear)
    return nn.Sequential(linear, _ACTIVATIONS[activation]())


def maps_the_embedding(folder: Path) -> bool:
    """Tell whether a SentenceTransformer's Dense folder is a layer from the sentence embedding to the sentence
    embedding, without a residual, with a known activation and not in a pickle: what :func:`load_dense` computes."""
    config = read_settings(folder, "config.json")
    names = [config.get(f"module_{end}_name") or "sentence_embedding" for end in ("input", "output")]
    pickled = (folder / "pytorch_model.bin").is_file() and not (folder / "model.safetensors").is_file()
    known = str(config.get("activation_function", "Tanh")).rsplit(".", 1)[-1] in _ACTIVATIONS
    return set(names) == {"sentence_embedding"} and not config.get("use_residual") and known and not pickled


def feeds_plain_text(folder: Path) -> bool:
    """Tell whether a SentenceTransformer's folder gives texts to its encoder as they are, and takes its last states:
    False for limits by role, query expansion, further arguments of the tokenizer, chat templates and other tasks."""
    settings = read_settings(folder, "sentence_bert_config.json")
    further = ("query_length", "document_length", "query_expansion", "processing_kwargs")
    modalities = settings.get("modality_config") or {}
    usual = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
    return (
        not any(settings.get(name) for name in further)
        and "message" not in modalities
        and modalities.get("text", _AS_STATES) == _AS_STATES
        and all((settings.get(name) or value) == value for name, value in usual.items())
    )


def module_kinds(folder: Path) -> tuple[list[str], str | None, int | None]:
    """Read the modules of a SentenceTransformer's folder.

    Returns:
        the kind of each module ('Transformer', 'Pooling', …), the pooling mode (None without a Pooling module), and
        for our own pooling of a template's mask token its place in the text (``sentence_frame(...).mask_offset``).

    Raises:
        ValueError: ``modules.json`` or the pooling's ``config.json`` lacks a field.
    """
    modules = read_modules(folder)
    kinds = [module["type"].rsplit(".", 1)[-1] for module in modules]
    if TEMPLATE_POOLING in [module["type"] for module in modules[1:2]]:
        kinds[1] = "Pooling"
        return kinds, "mask", _module_config(folder / modules[1]["path"], {"mask_offset": int})["mask_offset"]
    paths = {kind: folder / module["path"] for kind, module in zip(kinds, modules, strict=True)}
    return kinds, st_pooling(paths["Pooling"]) if "Pooling" in paths else None, None


def beyond_csekit(folder: Path, kinds: list[str], pooling: str | None) -> str | None:
    """Return what csekit itself does not compute of a SentenceTransformer's folder; None where it computes all.

    Arguments:
        kinds, pooling: from :func:`module_kinds`.
    """
    prompts, default_prompt, _ = prompts_and_similarity(folder)
    paths = [module["path"] for module in read_modules(folder)]
    usual = kinds[:2] == ["Transformer", "Pooling"] and set(kinds[2:]) <= {"Dense", "Normalize"} and paths[0] == ""
    if not usual or pooling not in ("cls", "mean", "lasttoken", "mask"):
        return f"modules {kinds} with pooling {pooling!r}"
    for kind, path in zip(kinds, paths, strict=True):
        if kind == "Dense" and not maps_the_embedding(folder / path):
            return f"settings or weights in {path}"
    if not feeds_plain_text(folder):
        return "settings in sentence_bert_config.json"
    if read_settings(folder, "tokenizer_config.json").get("truncation_side", "right") != "right":
        return "texts that are truncated on the left (truncation_side in tokenizer_config.json)"
    if default_prompt is not None:
        return "default prompts (default_prompt_name in config_sentence_transformers.json)"
    if any(prompts.values()) and not pools_prompt(folder):
        return "prompts that are not pooled (include_prompt in 1_Pooling/config.json)"
    return None


def modules_digest(folder: Path) -> str:
    """Return the SHA-256 of the settings of a SentenceTransformer's modules: the JSON files in their folders, and in
    the root those that sentence-transformers reads. Versions and the order of fields do not count."""
    names = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "config.json")
    files = {folder / name for name in names}
    for path in {module["path"] for module in read_modules(folder)} - {""}:
        files |= set((folder / path).rglob("*.json"))
    state = hashlib.sha256()
    for file in sorted(file for file in files if file.is_file()):
        content = read_json(file)
        if isinstance(content, dict):
            content = {name: value for name, value in content.items() if "version" not in name}
        text = json.dumps(content, sort_keys=True)
        state.update(f"{file.relative_to(folder).as_posix()}\0{text}\n".encode())
    return state.hexdigest()


def load_head(folder: Path) -> nn.Sequential:
    """Load the Dense and Normalize modules behind the pooling of a SentenceTransformer's folder."""
    layers = [
        load_dense(folder / module["path"]) if module["type"].endswith(".Dense") else Normalize()
        for module in read_modules(folder)[2:]
    ]
    return nn.Sequential(*layers)


def model_name(source: str | Path) -> str:
    """Return a model's name for results files: the last part of its folder, or its name on the Hub; never a path."""
    path = Path(source).expanduser()
    if not path.is_dir():
        return str(source)
    path = path.resolve()
    return f"{path.parent.name}/{path.name}" if path.name == "training" else path.name
