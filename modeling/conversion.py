"""Convert checkpoints of the methods' released code to csekit's models.

SimCSE, DiffCSE, InfoCSE and InforMin-CL save the state dict of their whole training model: the encoder under ``bert.``
or ``roberta.``, the head of the contrast under ``mlp.``, and the auxiliary networks. The checkpoints on the Hub have
another form, from SimCSE's conversion script: the encoder without a prefix, the head as ``pooler.``.
"""

import copy
import json
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

from .backbone import build_backbone
from .configuration_cse import CSEConfig
from .hub import from_hub
from .methods import METHODS
from .modeling_cse import CSEModel, speed_up
from .registry import registered
from .tokenization import sentence_frame

#: Names of the weights file in a folder.
FILES = ("model.safetensors", "pytorch_model.bin")
#: Keys that are not converted, by their start, with the reason.
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
    """The report of a conversion: where each key of the source went.

    Arguments:
        taken: source key to the key of our model.
        dropped: reason to source keys.
        unknown: source keys that this module does not know.
        left_out: names of the method's objectives whose networks are not in the source.
    """

    taken: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, list[str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def read_state(path: str | Path) -> dict[str, Tensor]:
    """Read the state dict of a file (.safetensors, .bin, .pt) or of the weights file in a folder.

    No code in the file is executed.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, or does not hold tensors by name, each once.
    """
    path = Path(path).expanduser()
    candidates = [path / name for name in FILES] if path.is_dir() else [path]
    file = next((candidate for candidate in candidates if candidate.is_file()), None)
    if file is None:
        raise FileNotFoundError(f"{path} must be a weights file or a folder with {' or '.join(FILES)}: none found")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (PermissionError, MemoryError):
        raise
    except (SafetensorError, UnpicklingError, RuntimeError) as error:
        raise ValueError(f"{file} must hold a state dict of tensors: {str(error).splitlines()[0][:200]}") from None
    except Exception as error:  # an empty or cut file: torch answers with any class
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise ValueError(f"{file} must hold a state dict of tensors: {reason}") from None
    state = content.get("state_dict", content) if isinstance(content, dict) else content
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{file} must hold a state dict of tensors, got {type(state).__name__}")
    if odd := [name for name in state if not isinstance(name, str)]:
        raise ValueError(f"{file} must hold tensors by their names, got the name {odd[0]!r:.80}")
    plain = {name.removeprefix("module."): value for name, value in state.items()}  # saved under DataParallel
    if len(plain) < len(state):
        twice = next(name for name in state if name.startswith("module.") and name.removeprefix("module.") in state)
        raise ValueError(f"{file} must hold each weight once, got {twice.removeprefix('module.')} and {twice}")
    return plain


def found_projector(names: Iterable[str], prefix: str) -> tuple[str, str]:
    """Return the kind of the head in a state dict and the start of its keys; ``("none", "")`` without a head.

    ``pooler.`` is the head in the Hub's form only, in which the encoder has no prefix and there is no ``mlp.``.
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
    """Convert a checkpoint of released code to a csekit model in eval mode.

    Arguments:
        checkpoint: a file or folder, see :func:`read_state`.
        backbone: name or path of the checkpoint that it was trained from. Only its configuration and tokenizer are
            read.
        method: one of ``METHODS``. An objective is kept if it has no weights, or if the source holds them (DiffCSE's
            discriminator with its head); the others are left out.
        allow_unknown: True to ignore unknown keys.
        config: fields of the method's config. ``projector`` follows the source: ``mlp.dense`` is ``tanh`` (the file
            does not name the activation: pass ``linear`` if it is none), ``mlp.net`` is ``batchnorm``; ``"none"``
            drops the head.

    Returns:
        the model and a report of the keys.

    Raises:
        FileNotFoundError: there is no weights file.
        ValueError: the file is no state dict, has unknown keys, lacks weights, has one twice or other shapes than the
            backbone; a weight is not finite; the method or a field is unknown; the head is missing or of another kind.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}")
    kind = METHODS[method]
    kind.config_class.check_names(list(config))
    if _is_ours(Path(checkpoint)):
        raise ValueError(f"{checkpoint} is a checkpoint of csekit itself, which AutoModel loads as it is")
    state = read_state(checkpoint)
    encoder_config = from_hub(AutoConfig, backbone)
    if isinstance(encoder_config, CSEConfig):
        raise ValueError(
            f"--backbone must be the plain encoder that training began with, {backbone} is a training checkpoint"
        )
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
        tokenizer = from_hub(AutoTokenizer, backbone)
        model_config.prompt_mask_offset = sentence_frame(tokenizer, model_config.prompt_template).mask_offset
    model = kind(model_config)
    _account(state, model, start if model_config.projector != "none" else "", report)
    if report.unknown and not allow_unknown:
        raise ValueError(
            f"{checkpoint} has {len(report.unknown)} unknown keys: {_listed(report.unknown)}; --allow_unknown ignores "
            "them"
        )
    _load(model, state, report, f"{checkpoint}", str(backbone))
    return speed_up(model.eval()), report  # type: ignore[return-value]


def _is_ours(folder: Path) -> bool:
    """Tell whether a folder's configuration is one of csekit's."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    types = {kind.config_class.model_type for kind in METHODS.values()}
    return isinstance(config, dict) and config.get("model_type") in types


def _check_head(found: str, config: dict[str, Any], checkpoint: str | Path) -> None:
    """Check that the source has the head that the config asks for. Raises ValueError."""
    wanted = config["projector"]
    if wanted not in (found, "none") and {wanted, found} != {"tanh", "linear"}:
        raise ValueError(f"projector must be {found!r}, as in {checkpoint}, or 'none', got {wanted!r}")
    if config.get("projector_at_inference") and wanted == "none":
        raise ValueError(f"projector_at_inference needs a head, and {checkpoint} has none (mlp.* or pooler.*)")


def _keep_objectives(
    config: CSEConfig, encoder_config: PreTrainedConfig, state: dict[str, Tensor], backbone: str
) -> list[str]:
    """Remove the objectives whose networks are not in the source. Return their names."""
    kept, left_out = [], []
    for settings in config.objectives:
        with torch.device("meta"):
            weights = list(registered(settings.name)(settings, copy.deepcopy(encoder_config)).parameters())
        held = settings.name == "rtd" and {"electra_head.weight", "electra_head.bias"} <= state.keys()
        if weights and not held:
            left_out.append(settings.name)
            continue
        settings.complete(backbone)
        kept.append(settings)
    config.objectives = kept
    return left_out


def _account(state: dict[str, Tensor], model: CSEModel, head: str, report: Conversion) -> None:
    """Report for every key of the source where it goes."""
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
    """Return the key of our model that a source key fills, or None."""
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
    """Return the reason why a key is not converted; None for an unknown key."""
    if name.endswith((".position_ids", ".token_type_ids")):
        return _BUFFERS
    if name.startswith(f"{prefix}pooler."):
        return _OWN_POOLER
    if name.startswith(_HEADS):
        return "the head of the contrast (projector 'none')"
    return next((why for start, why in DROPPED.items() if name.startswith(start)), None)


def _load(model: CSEModel, state: dict[str, Tensor], report: Conversion, checkpoint: str, backbone: str) -> None:
    """Fill the model. Raises ValueError if weights are missing or there twice, have other shapes or types, or are not
    finite."""
    own, filled = model.state_dict(), {}
    sources: dict[str, str] = {}
    for name, target in report.taken.items():
        theirs, ours = tuple(state[name].shape), tuple(own[target].shape)
        if theirs != ours:
            raise ValueError(f"{name} of {checkpoint} must have the shape {ours} of {backbone}, got {theirs}")
        if (first := sources.setdefault(target, name)) != name:
            raise ValueError(f"{checkpoint} must hold each weight once, got {first} and {name}, which are one weight")
        if state[name].is_floating_point() != own[target].is_floating_point():
            raise ValueError(
                f"{name} of {checkpoint} must hold {'real' if own[target].is_floating_point() else 'whole'} numbers "
                f"(such as {own[target].dtype}), got {state[name].dtype}"
            )
        filled[target] = state[name].to(own[target].dtype)
        if not bool(torch.isfinite(filled[target]).all()):
            raise ValueError(f"{name} of {checkpoint} must hold finite numbers, got NaN or infinite ones")
    missing = set(own) - set(report.taken.values())
    missing = {name for name in missing if not name.endswith((".num_batches_tracked", ".position_ids"))}
    if missing:
        raise ValueError(
            f"{checkpoint} lacks {len(missing)} weights of {type(model.backbone).__name__} ({backbone}) or its heads: "
            f"{_listed(sorted(missing))}"
        )
    model.load_state_dict(filled, strict=False)


def _listed(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
