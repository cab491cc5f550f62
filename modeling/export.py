"""Export the plain encoder with the pooling of its training, for ``AutoModel`` and ``SentenceTransformer``.

Without pooling metadata sentence-transformers uses mean pooling, with no more than a log line.
"""

import copy
import json
import logging
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from .auxiliary_head import FOLDER
from .configuration_cse import CSEConfig
from .drafts import whole_files
from .lora import ADAPTER_FOLDER, merged_weights
from .quiet import quiet_weights
from .template_pooling import TemplatePooling
from .tokenization import own_template, with_template

logger = logging.getLogger(__name__)

#: sentence-transformers' flag of each pooling; that of ``mask`` is for templates that end in the mask token.
EXPORTABLE_POOLINGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "last": "pooling_mode_lasttoken",
    "mask": "pooling_mode_lasttoken",
}
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
#: Patterns of the files that a model's folder can hold. A new export replaces those of an earlier one.
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "chat_template.jinja",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling",
    "[0-9]_Dense",
    "template_pooling.py",
    FOLDER,
    ADAPTER_FOLDER,
)
#: The pooling module of other templates; its file is copied into the export.
TEMPLATE_POOLING = f"template_pooling.{TemplatePooling.__name__}"


class SentenceEncoder(Protocol):
    """The parts of a :class:`CSEModel` that an export reads."""

    config: CSEConfig
    backbone: PreTrainedModel
    projector: nn.Module


def check_exportable(pooling: str) -> None:
    """Check that sentence-transformers can compute a pooling.

    Raises:
        ValueError: it cannot.
    """
    if pooling not in EXPORTABLE_POOLINGS:
        allowed = ", ".join(map(repr, EXPORTABLE_POOLINGS))
        raise ValueError(
            f"an encoder with pooling {pooling!r} cannot be exported: sentence-transformers has no such pooling "
            f"(it has {allowed}) and would silently use another one; load the training checkpoint with csekit instead"
        )


def needs_code(config: CSEConfig) -> bool:
    """Return True if the export needs its own pooling module: the pooled mask token is not the last token."""
    return config.pooling == "mask" and config.prompt_mask_offset != -1


def length_limit(backbone: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return how many tokens the encoder can read, special ones included: the tokenizer's limit or the encoder's
    positions, whichever is smaller."""
    positions = getattr(backbone.config, "max_position_embeddings", None)
    if positions in (None, -1):  # XLNet has relative positions, and -1 in its configuration
        positions = 512
    tables = [
        m for m in backbone.modules() if isinstance(m, nn.Embedding) and m is not backbone.get_input_embeddings()
    ]
    for table in tables:
        if table.num_embeddings == positions and table.padding_idx is not None:
            return int(
                min(tokenizer.model_max_length, positions - table.padding_idx - 1)
            )  # RoBERTa's positions start there
    return int(min(tokenizer.model_max_length, positions))


def _dense_layers(projector: Any) -> list[tuple[nn.Linear, str]]:
    """Return a projector as linear layers and their activations; batch norms are folded into the layer before."""
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
    """Return the linear layer that equals ``norm(linear(x))`` in eval mode."""
    assert norm.running_mean is not None and norm.running_var is not None
    scale = torch.rsqrt(norm.running_var + norm.eps) * (norm.weight if norm.affine else 1.0)
    shift: Tensor | float = norm.bias if norm.affine else 0.0
    folded = nn.Linear(linear.in_features, linear.out_features)
    folded.weight.data = (linear.weight * scale[:, None]).detach()
    before = linear.bias if linear.bias is not None else 0.0
    folded.bias.data = ((before - norm.running_mean) * scale + shift).detach()
    return folded


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, path: Path, limit: int, template: str | None = None) -> None:
    """Save a copy of the tokenizer that puts the template around every text.

    The copy does not keep the truncation and padding of the caller's last call. It pads and truncates on the right, as
    csekit does: BERT and its kin give a text other vectors behind padding.

    Arguments:
        limit: its length limit in tokens.

    Raises:
        ValueError: :func:`with_template` refuses the template.
    """
    tokenizer = copy.deepcopy(tokenizer) if template is None else with_template(tokenizer, template)
    tokenizer.model_max_length = limit
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(path)
    if own_template(tokenizer) is not None:  # a family's own class would replace the post-processor
        file = path / "tokenizer_config.json"
        inputs = {"model_input_names": tokenizer.model_input_names}
        _write(file, {**json.loads(file.read_text()), "tokenizer_class": "PreTrainedTokenizerFast", **inputs})


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def export_encoder(model: SentenceEncoder, path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Write backbone, tokenizer and sentence-transformers' metadata to ``path``, and return it.

    The length limit is the encoder's own, not that of training. The tokenizer holds the prompt template. Mask pooling
    becomes last-token pooling if the mask token is the last one; else the export gets a module of its own,
    ``template_pooling.py``, with a warning. A projector kept at inference becomes ``Dense`` modules after the pooling;
    ``AutoModel`` alone then returns the state before it.

    The export is whole or not at all: an earlier one stays until the new one is complete. Other files stay.

    Raises:
        ValueError: sentence-transformers does not support the pooling, or the tokenizer cannot hold the template.
        DiskFullError: there is no room for it.
    """
    check_exportable(model.config.pooling)
    limit = length_limit(model.backbone, tokenizer)
    with whole_files(path, MODEL_FILES) as draft, quiet_weights():
        save_tokenizer(tokenizer, draft, limit, model.config.prompt_template)
        model.backbone.save_pretrained(draft, state_dict=plain_weights(model.backbone))
        write_modules(model, draft, limit)
    return path


def plain_weights(backbone: PreTrainedModel) -> dict[str, Tensor]:
    """Return the encoder's weights with those of the pooler that its plain class adds, if it adds one. Adapters are
    merged into the weights.

    csekit's encoders have no pooler, and no embedding reads it. Without weights for it, loading would draw random
    ones and warn that the model must be trained. The export's pooler is the identity: ``pooler_output`` is the tanh of
    the first token's state.
    """
    own = merged_weights(backbone)
    with torch.device("meta"):
        plain = AutoModel.from_config(backbone.config).state_dict()
    for name, weight in plain.items():
        if name not in own and name.startswith("pooler."):
            own[name] = torch.eye(*weight.shape) if weight.dim() == 2 else torch.zeros(weight.shape)
    return own


def write_modules(model: SentenceEncoder, path: Path, limit: int) -> None:
    """Write sentence-transformers' files into a new folder: the list of modules, pooling, projector, length limit."""
    modules = [("", _TRANSFORMER), ("1_Pooling", write_pooling(model.config, path))]
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
    size = {} if model.config.truncate_dim is None else {"truncate_dim": model.config.truncate_dim}
    _write(
        path / "config_sentence_transformers.json",
        {"prompts": {}, "similarity_fn_name": model.config.similarity_fn_name, **size},
    )


def write_pooling(config: CSEConfig, path: Path) -> str:
    """Write the pooling's folder and return the type of its module."""
    folder, width = path / "1_Pooling", config.hidden_size
    folder.mkdir(parents=True, exist_ok=True)
    if needs_code(config):
        logger.warning(
            "the mask token of prompt_template %r is not the last token, and sentence-transformers has no pooling for "
            "it: the export carries template_pooling.py, which SentenceTransformer runs with trust_remote_code=True "
            "only (AutoModel needs no code: last_hidden_state at the mask token). A template that ends in '{mask}' "
            "needs no code.",
            config.prompt_template,
        )
        assert config.prompt_mask_offset is not None
        TemplatePooling(width, config.prompt_mask_offset).save(str(folder))
        return TEMPLATE_POOLING
    chosen = EXPORTABLE_POOLINGS[config.pooling]
    flags = {flag: flag == chosen for flag in dict.fromkeys((*_FLAGS, chosen))}
    _write(folder / "config.json", {"word_embedding_dimension": width, **flags})
    return _POOLING
