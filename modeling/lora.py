"""Low-rank adapters of an encoder (LoRA: Hu et al., 2021), through peft: put in, merged for the export, saved alone.

Only the adapters train. The encoder's own weights stay as they are, so that neither gradients nor the optimiser's
state of them are kept.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

#: peft's name of the adapter, the folder of its files in a checkpoint, and the settings that are not given.
ADAPTER, ADAPTER_FOLDER = "default", "adapter"
DEFAULTS: dict[str, Any] = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.0, "target_modules": "all-linear"}


def lora_settings(given: Any) -> dict[str, Any] | None:
    """Return the settings of the adapters: fields of ``peft.LoraConfig``, or None for no adapters.

    Arguments:
        given: None, the rank (a number, or digits from a command line), or a mapping of fields (or as JSON).

    Raises:
        ValueError: something else, or a rank below 1.
    """
    if given is None:
        return None
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            given = {"r": given}
    if isinstance(given, int) and not isinstance(given, bool):
        given = {"r": given, "lora_alpha": 2 * given}
    rank = given.get("r", DEFAULTS["r"]) if isinstance(given, dict) else None
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise ValueError(f"lora must be a rank of at least 1, or fields of peft.LoraConfig with r, got {given!r:.80}")
    return {**DEFAULTS, **given}


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ImportError("lora needs peft: pip install 'csekit[lora]'") from error
    return peft


def add_lora(backbone: PreTrainedModel, settings: dict[str, Any]) -> None:
    """Put adapters into an encoder, in place, and freeze its own weights.

    Raises:
        ImportError: peft is not installed.
        ValueError: a rank above that of the encoder's weights; peft refuses a setting; or it makes adapters that are
            no matrix added to a weight, so that the export could not hold them.
    """
    peft, own = _peft(), _plain_names(backbone)
    _check_ranks(backbone, settings)
    try:
        config = peft.LoraConfig(**settings)
        peft.inject_adapter_in_model(config, backbone, adapter_name=ADAPTER)
    except (TypeError, ValueError) as error:
        raise ValueError(f"lora: {' '.join(str(error).split())[:300]}") from error
    if config.bias != "none":
        raise ValueError(f"lora: bias must be 'none', since nothing but the adapters is trained, got {config.bias!r}")
    if not config.lora_alpha:
        raise ValueError("lora: lora_alpha must not be 0, which keeps the adapters from the encoder")
    adapted: list[Any] = [module for module in backbone.modules() if hasattr(module, "get_delta_weight")]
    added = not any(layer.lora_variant or any(layer.lora_bias.values()) for layer in adapted)
    if not added or _plain_names(backbone) != own:
        raise ValueError(
            "lora must make adapters that are added to weights, which the export merges: without use_dora, lora_bias, "
            f"modules_to_save, target_parameters, trainable_token_indices and the like, got {settings}"
        )


def _check_ranks(backbone: nn.Module, settings: dict[str, Any]) -> None:
    """Raise ValueError for a rank above the smaller side of every weight: no matrix of their shapes has it."""
    most = max((min(weight.shape[:2]) for weight in backbone.parameters() if weight.dim() > 1), default=0)
    given = settings.get("rank_pattern")
    ranks = [settings["r"], *(given.values() if isinstance(given, dict) else ())]
    for rank in ranks:
        if isinstance(rank, int) and rank > most:
            raise ValueError(
                f"lora must have a rank of at most {most}, the largest that a weight can have, got {rank}"
            )


def _plain_names(backbone: nn.Module) -> set[str]:
    """Return the names of the weights by those of the plain encoder, without the adapters."""
    return {name.replace(".base_layer.", ".") for name in backbone.state_dict() if ".lora_" not in name}


def freeze_but_lora(backbone: nn.Module) -> None:
    """Let the adapters alone train."""
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(".lora_" in name)


def plain_weights(backbone: nn.Module) -> dict[str, Tensor]:
    """Return the encoder's parameters by the names of the plain encoder, the adapters added to those that have any,
    with gradient."""
    found: dict[str, Tensor] = {
        name.replace(".base_layer.", "."): weight
        for name, weight in backbone.named_parameters()
        if ".lora_" not in name
    }
    for name, module in backbone.named_modules():
        if hasattr(module, "get_delta_weight"):
            adapted: Any = module
            found[f"{name}.weight"] = adapted.get_base_layer().weight + adapted.get_delta_weight(ADAPTER)
    return found


@torch.no_grad()
def merged_weights(backbone: nn.Module) -> dict[str, Tensor]:
    """Return the encoder's weights with the adapters added to them, by the names of the plain encoder.

    The encoder itself does not change."""
    state = {name.replace(".base_layer.", "."): value for name, value in backbone.state_dict().items()}
    own = {name: value for name, value in state.items() if ".lora_" not in name}  # with buffers and tied names
    return own | {name: weight.detach() for name, weight in plain_weights(backbone).items()}


def save_adapter(backbone: PreTrainedModel, folder: Path, settings: dict[str, Any]) -> None:
    """Write the adapters alone, so that ``peft.PeftModel.from_pretrained(encoder, folder)`` loads them."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: weight for name, weight in backbone.state_dict().items() if ".lora_" in name}
    named = {f"base_model.model.{name.replace(f'.{ADAPTER}', '')}": weight for name, weight in state.items()}
    save_file({name: weight.detach().cpu().contiguous() for name, weight in named.items()},
              folder / "adapter_model.safetensors")  # fmt: skip
    config = _peft().LoraConfig(**settings)
    config.inference_mode = True
    config.base_model_name_or_path = Path(backbone.name_or_path or "").name or None
    config.save_pretrained(str(folder))
