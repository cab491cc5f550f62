"""The plain encoder as a folder that ``AutoModel`` and ``SentenceTransformer`` load, with the pooling of its training.

Without pooling metadata sentence-transformers falls back to mean pooling and says so only in passing.
"""

import copy
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

if TYPE_CHECKING:
    from .modeling_cse import CSEModel

#: Poolings that sentence-transformers has a flag for.
EXPORTABLE_POOLINGS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
_FLAGS = (
    "pooling_mode_cls_token",
    "pooling_mode_mean_tokens",
    "pooling_mode_max_tokens",
    "pooling_mode_mean_sqrt_len_tokens",
)
# The legacy names: sentence-transformers 5 does not know the new ones, 6 knows both.
_TRANSFORMER, _POOLING, _DENSE = (
    f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Dense")
)
_IDENTITY, _TANH, _RELU = (
    f"torch.nn.modules.{name}" for name in ("linear.Identity", "activation.Tanh", "activation.ReLU")
)


def check_exportable(pooling: str, prompt_template: str | None = None) -> None:
    """Raise ValueError for a pooling that has no native form in sentence-transformers, and for a template, which a
    plain tokenizer would leave out."""
    if pooling not in EXPORTABLE_POOLINGS:
        allowed = ", ".join(map(repr, EXPORTABLE_POOLINGS))
        raise ValueError(
            f"an encoder with pooling {pooling!r} cannot be exported: sentence-transformers has no such pooling "
            f"(it has {allowed}) and would silently use another; load its training checkpoint with csekit instead"
        )
    if prompt_template is not None:
        raise ValueError(
            f"an encoder with prompt_template {prompt_template!r} cannot be exported: whoever loads the folder would "
            "encode sentences without it; load its training checkpoint with csekit instead"
        )


def length_limit(backbone: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens that the encoder can read, special ones included: the tokenizer's limit or its positions."""
    positions = getattr(backbone.config, "max_position_embeddings", None) or 512
    tables = [
        m for m in backbone.modules() if isinstance(m, nn.Embedding) and m is not backbone.get_input_embeddings()
    ]
    for table in tables:
        if table.num_embeddings == positions and table.padding_idx is not None:
            return int(min(tokenizer.model_max_length, positions - table.padding_idx - 1))  # RoBERTa counts from there
    return int(min(tokenizer.model_max_length, positions))


def _dense_layers(projector: Any) -> list[tuple[nn.Linear, str]]:
    """A projector as linear layers with an activation each; batch norms are folded into the layer before them."""
    if isinstance(projector, nn.Linear):
        return [(projector, _IDENTITY)]
    if isinstance(projector, nn.Identity):
        return []
    modules = list(projector.children())
    if len(modules) == 2:
        return [(modules[0], _TANH)]
    first, norm1, _, second, norm2 = modules
    return [(fold(first, norm1), _RELU), (fold(second, norm2), _IDENTITY)]


def fold(linear: nn.Linear, norm: nn.BatchNorm1d) -> nn.Linear:
    """The linear layer that equals ``norm(linear(x))`` in eval mode."""
    assert norm.running_mean is not None and norm.running_var is not None
    scale = torch.rsqrt(norm.running_var + norm.eps) * (norm.weight if norm.affine else 1.0)
    shift: Tensor | float = norm.bias if norm.affine else 0.0
    folded = nn.Linear(linear.in_features, linear.out_features)
    folded.weight.data = (linear.weight * scale[:, None]).detach()
    before = linear.bias if linear.bias is not None else 0.0
    folded.bias.data = ((before - norm.running_mean) * scale + shift).detach()
    return folded


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, path: Path, limit: int) -> None:
    """Save a copy with this length limit, without the truncation and padding of the caller's last call."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_max_length = limit
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(path)


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def export_encoder(model: "CSEModel", path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Write backbone, tokenizer and sentence-transformers' metadata to ``path``.

    The length limit is the encoder's own, not that of training. A projector kept at inference becomes ``Dense``
    modules behind the pooling; ``AutoModel`` alone then gives the state before it.

    Raises:
        ValueError: a pooling that has no native form in sentence-transformers, or a prompt template.
    """
    check_exportable(model.config.pooling, model.config.prompt_template)
    limit = length_limit(model.backbone, tokenizer)
    model.backbone.save_pretrained(path)
    save_tokenizer(tokenizer, path, limit)
    for stale in path.glob("[0-9]_Dense"):
        shutil.rmtree(stale)

    modules = [("", _TRANSFORMER), ("1_Pooling", _POOLING)]
    width = model.config.hidden_size
    flags = {flag: flag == EXPORTABLE_POOLINGS[model.config.pooling] for flag in _FLAGS}
    _write(path / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **flags})
    dense = _dense_layers(model.projector) if model.config.projector_at_inference else []
    for index, (layer, activation) in enumerate(dense, start=2):
        folder = path / f"{index}_Dense"
        shape = {"in_features": layer.in_features, "out_features": layer.out_features, "bias": layer.bias is not None}
        _write(folder / "config.json", {**shape, "activation_function": activation})
        state = {f"linear.{name}": value.detach().cpu().contiguous() for name, value in layer.state_dict().items()}
        save_file(state, folder / "model.safetensors")
        modules.append((folder.name, _DENSE))
    listed = [{"idx": i, "name": str(i), "path": folder, "type": kind} for i, (folder, kind) in enumerate(modules)]
    _write(path / "modules.json", listed)
    _write(path / "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": False})
    _write(path / "config_sentence_transformers.json", {"prompts": {}, "similarity_fn_name": "cosine"})
    return path
