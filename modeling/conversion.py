"""Checkpoints of the methods' released code as models of ours.

SimCSE, DiffCSE, InfoCSE and InforMin-CL save one state dict of everything that their script built: the encoder under
``bert.`` or ``roberta.``, the head of the contrast under ``mlp.``, and beside them what trained with it. On the Hub
lies another form, made by SimCSE's conversion script: the encoder without a prefix and the head as ``pooler.``.
"""

import copy
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig

from .configuration_cse import CSEConfig
from .modeling_cse import CSEModel, build_backbone, speed_up
from .registry import METHODS, OBJECTIVES
from .tokenization import sentence_frame

#: In a folder, the file that holds the weights.
FILES = ("model.safetensors", "pytorch_model.bin")
#: What is left behind, by the start of its keys, and why.
DROPPED = {
    "generator.": "the frozen generator, which is loaded by its name",
    "aux_bert.": "the discriminator (method diffcse takes it)",
    "discriminator.": "the discriminator (method diffcse takes it)",
    "electra_head.": "the discriminator's head (method diffcse takes it)",
    "c_head.": "the layers of the auxiliary masked LM",
    "mlm.": "the frozen copy of the auxiliary masked LM",
    "lm_head.": "a masked-LM head",
    "cls.": "a masked-LM head",
}
_BUFFERS = "a buffer that is computed anew"
_OWN_POOLER = "the encoder's own pooler, which no method uses"
_HEADS = ("mlp.", "pooler.")


@dataclass
class Conversion:
    """What became of each key of the source.

    Arguments:
        taken: source key to the key of our model.
        dropped: reason to source keys.
        unknown: source keys that nothing is known of.
        left_out: objectives of the method whose networks the source does not hold.
    """

    taken: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, list[str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def read_state(path: str | Path) -> dict[str, Tensor]:
    """The state dict of a file (.safetensors, .bin, .pt), or of the one in a folder. No code of it is run.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it holds something else than tensors by name.
    """
    path = Path(path).expanduser()
    candidates = [path / name for name in FILES] if path.is_dir() else [path]
    file = next((candidate for candidate in candidates if candidate.is_file()), None)
    if file is None:
        raise FileNotFoundError(f"{path}: no checkpoint there, a file or a folder with {' or '.join(FILES)} is wanted")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(f"{file}: no state dict of tensors alone: {str(error).splitlines()[0][:200]}") from None
    state = content.get("state_dict", content) if isinstance(content, dict) else content
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{file}: a state dict is wanted, tensors by name, got {type(state).__name__}")
    return {name.removeprefix("module."): value for name, value in state.items()}  # saved under DataParallel


def found_projector(names: Iterable[str], prefix: str) -> tuple[str, str]:
    """(kind, start of its keys) of the head in a state dict, ``("none", "")`` where it has none.

    ``pooler.`` is the head in the Hub's form alone: encoder without prefix, no ``mlp.``.
    """
    names = set(names)
    encoder_prefixed = any(name.startswith(f"{prefix}.") for name in names)
    for start in _HEADS:
        if start == "pooler." and encoder_prefixed:
            continue
        if f"{start}dense.weight" in names:
            return "tanh", f"{start}dense."
        if f"{start}net.0.weight" in names:
            return "batchnorm", f"{start}net."
        if f"{start}weight" in names:
            return "linear", start
    return "none", ""


def convert_checkpoint(
    checkpoint: str | Path, backbone: str | Path, method: str = "simcse", allow_unknown: bool = False, **config: Any
) -> tuple[CSEModel, Conversion]:
    """A model of ours with the weights of a checkpoint of released code, in eval mode.

    Arguments:
        checkpoint: a file or folder, see :func:`read_state`.
        backbone: name or path of what it was trained from; its configuration and tokenizer are taken, no weight.
        method: one of ``METHODS``. Its objectives are kept where they have no weights of their own, or the source
            holds them (DiffCSE's discriminator with its head); the others are left out.
        allow_unknown: leave unknown keys behind, too.
        config: fields of the method's config. ``projector`` follows the source: ``mlp.dense`` is ``tanh`` (the
            activation is in no file: ``linear`` can be given), ``mlp.net`` is ``batchnorm``; ``"none"`` drops it.

    Raises:
        FileNotFoundError, ValueError: what :func:`read_state` raises; unknown keys, missing weights or other shapes
            than the backbone's; an unknown method or field; a head that is not there or of another kind.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}")
    kind = METHODS[method]
    kind.config_class.check_names(list(config))
    state = read_state(checkpoint)
    encoder_config = AutoConfig.from_pretrained(str(backbone))
    if isinstance(encoder_config, CSEConfig):
        raise ValueError(f"{backbone} is a training checkpoint: --backbone wants the plain encoder it began as")
    encoder_config.dtype = torch.float32
    with torch.device("meta"):
        skeleton = build_backbone(encoder_config)
    head, start = found_projector(state, skeleton.base_model_prefix)
    config = {"projector": head, **config}
    _check_head(head, config, checkpoint)
    model_config = kind.config_class(encoder_config=encoder_config, **config)
    report = Conversion()
    report.left_out = _keep_objectives(model_config, encoder_config, state, str(backbone))
    if model_config.prompt_template is not None:
        tokenizer = AutoTokenizer.from_pretrained(str(backbone))
        model_config.prompt_mask_offset = sentence_frame(tokenizer, model_config.prompt_template).mask_offset
    model = kind(model_config)
    _account(state, model, start if model_config.projector != "none" else "", report)
    if report.unknown and not allow_unknown:
        raise ValueError(
            f"{checkpoint}: {len(report.unknown)} keys of unknown purpose: {_listed(report.unknown)}; --allow_unknown "
            "leaves them behind"
        )
    _load(model, state, report, f"{checkpoint}", str(backbone))
    return speed_up(model.eval()), report  # type: ignore[return-value]


def _check_head(found: str, config: dict[str, Any], checkpoint: str | Path) -> None:
    """Raise ValueError where the head that is asked for is not the one that is there."""
    wanted = config["projector"]
    if wanted not in (found, "none") and {wanted, found} != {"tanh", "linear"}:
        raise ValueError(f"projector must be {found!r}, what {checkpoint} holds, or 'none', got {wanted!r}")
    if config.get("projector_at_inference") and wanted == "none":
        raise ValueError(f"projector_at_inference needs a head, and {checkpoint} has none (mlp.* or pooler.*)")


def _keep_objectives(
    config: CSEConfig, encoder_config: PreTrainedConfig, state: dict[str, Tensor], backbone: str
) -> list[str]:
    """Take out the objectives whose networks the source does not hold. Returns their names."""
    kept, left_out = [], []
    for settings in config.objectives:
        with torch.device("meta"):
            weights = list(OBJECTIVES[settings.name](settings, copy.deepcopy(encoder_config)).parameters())
        held = settings.name == "rtd" and {"electra_head.weight", "electra_head.bias"} <= state.keys()
        if weights and not held:
            left_out.append(settings.name)
            continue
        settings.complete(backbone)
        kept.append(settings)
    config.objectives = kept
    return left_out


def _account(state: dict[str, Tensor], model: CSEModel, head: str, report: Conversion) -> None:
    """Say of every key of the source what becomes of it."""
    ours = set(model.state_dict())
    prefix = f"{model.backbone.base_model_prefix}."
    prefixed = any(name.startswith(prefix) for name in state)
    for name in state:
        target = _target(name, prefix if prefixed else "", head, ours)
        if target is not None:
            report.taken[name] = target
        elif reason := _reason(name, prefix if prefixed else ""):
            report.dropped.setdefault(reason, []).append(name)
        else:
            report.unknown.append(name)


def _target(name: str, prefix: str, head: str, ours: set[str]) -> str | None:
    """The key of our model that a key of the source fills."""
    plain = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
    if head and name.startswith(head):
        rest = name.removeprefix(head)
        found = [f"projector.{rest}", f"projector.0.{rest}"]
    elif plain.startswith(("aux_bert.", "discriminator.")):
        found = [f"objectives.rtd.discriminator.model.{plain.partition('.')[2]}"]
    elif name.startswith("electra_head."):
        found = [f"objectives.rtd.head.{name.partition('.')[2]}"]
    else:
        found = [f"backbone.{plain.removeprefix(prefix)}"] if plain.startswith(prefix) else []
    return next((key for key in found if key in ours), None)


def _reason(name: str, prefix: str) -> str | None:
    """Why a key is left behind; None where nothing is known of it."""
    if name.endswith((".position_ids", ".token_type_ids")):
        return _BUFFERS
    if name.startswith(f"{prefix}pooler."):
        return _OWN_POOLER
    if name.startswith(_HEADS):
        return "the head of the contrast (projector 'none')"
    return next((why for start, why in DROPPED.items() if name.startswith(start)), None)


def _load(model: CSEModel, state: dict[str, Tensor], report: Conversion, checkpoint: str, backbone: str) -> None:
    """Fill the model. Raises ValueError: weights are missing or have other shapes."""
    own = model.state_dict()
    for name, target in report.taken.items():
        theirs, ours = tuple(state[name].shape), tuple(own[target].shape)
        if theirs != ours:
            raise ValueError(f"{checkpoint}: {name} has the shape {theirs}, {backbone} wants {ours}")
    missing = set(own) - set(report.taken.values())
    missing = {name for name in missing if not name.endswith((".num_batches_tracked", ".position_ids"))}
    if missing:
        raise ValueError(
            f"{checkpoint} lacks {len(missing)} weights of {type(model.backbone).__name__} ({backbone}) or its heads: "
            f"{_listed(sorted(missing))}"
        )
    filled = {target: state[name].to(own[target].dtype) for name, target in report.taken.items()}
    model.load_state_dict(filled, strict=False)


def _listed(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
