"""Weights of the objectives alone: train them before the encoder, save them, start from them.

An auxiliary network that has not learnt its task teaches the encoder nothing. With ``objective_warmup_steps`` it is
trained first, on the embeddings of the encoder as it is; ``objectives_from`` starts a run from such weights.
"""

import json
import logging
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from csekit.encoding.provenance import write_atomically
from csekit.modeling import CSEModel

logger = logging.getLogger(__name__)

#: The folder in a run's folder, and its files: the weights, and how they were trained.
OBJECTIVES_FOLDER = "objectives"
WEIGHTS, RECORD = "objectives.safetensors", "objectives.json"


def check_warmup(model: CSEModel) -> set[int]:
    """Return the ids of the weights that a warm-up trains. Raises ValueError if there are none."""
    own = {id(parameter) for parameter in model.objectives.parameters() if parameter.requires_grad}
    if not own:
        names = [objective.config.name for objective in model.auxiliaries()]
        raise ValueError(f"objective_warmup_steps must be 0: no objective of {names} has weights of its own")
    return own


def check_own_weights(model: CSEModel, rate: float | None, folder: str | None) -> None:
    """Check that there are weights for ``objective_learning_rate`` and ``objectives_from``.

    Raises:
        ValueError: one of them is given, and no objective has weights of its own that train, or that can be loaded.
    """
    trained = any(parameter.requires_grad for parameter in model.objectives.parameters())
    for name, value, some in (
        ("objective_learning_rate", rate, trained),
        ("objectives_from", folder, bool(model.objectives.state_dict())),
    ):
        if value is not None and not some:
            names = [objective.config.name for objective in model.auxiliaries()]
            raise ValueError(
                f"{name} must be left out without an objective that has weights of its own, got {value!r} with the "
                f"objectives {names}"
            )


@contextmanager
def objectives_alone(model: CSEModel) -> Iterator[None]:
    """Let only the objectives' own weights train inside the context.

    The encoder and the projector get no gradient and keep their running statistics. The global random state is the
    same before and after.

    Raises:
        ValueError: no objective has weights of its own.
    """
    own = check_warmup(model)
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in own]
    buffers = {name: b.clone() for name, b in model.named_buffers() if not name.startswith("objectives.")}
    python, numpy = random.getstate(), np.random.get_state()
    for parameter in rest:
        parameter.requires_grad_(False)
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for parameter in rest:
            parameter.requires_grad_(True)
        for name, buffer in model.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])
        model.zero_grad()


def save_objectives(weights: Mapping[str, Tensor], folder: Path, record: dict[str, Any]) -> None:
    """Write weights of objectives, and the record of their training, into ``folder``; the weights last.

    Arguments:
        weights: by their names in a model's ``objectives``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / RECORD, f"{json.dumps(record, indent=1)}\n".encode())
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    draft = folder / f"{WEIGHTS}.draft"
    save_file(state, draft)
    os.replace(draft, folder / WEIGHTS)


def load_objectives(model: CSEModel, folder: Path) -> None:
    """Load weights that :func:`save_objectives` wrote, from ``folder`` or from its subfolder ``objectives``.

    The file must hold every weight of the model's objectives, but for those that an objective lets stay new
    (``may_stay_new``), with a warning. Objectives without weights that train, such as ``queue`` with its memory, need
    not be in it. Weights of further objectives are ignored.

    Raises:
        ValueError: ``folder`` has no such file, or the weights do not fit; the message names them.
    """
    paths = [path for path in (folder / WEIGHTS, folder / OBJECTIVES_FOLDER / WEIGHTS) if path.is_file()]
    if not paths:
        raise ValueError(
            f"objectives_from must be a folder with {WEIGHTS}, or a run's folder with {OBJECTIVES_FOLDER}/{WEIGHTS}, "
            f"got {folder}"
        )
    try:
        found = load_file(paths[0])
    except SafetensorError as error:
        raise ValueError(f"{paths[0]} is not a whole safetensors file: {error}") from None
    own = model.objectives.state_dict()
    optional = tuple(f"{o.config.name}.{prefix}" for o in model.auxiliaries() for prefix in o.may_stay_new)
    trained = {o.config.name for o in model.auxiliaries() if any(p.requires_grad for p in o.parameters())}
    absent = sorted(name for name in own if name not in found and name.split(".")[0] in trained)
    missing = [name for name in absent if not name.startswith(optional)]
    if missing:
        raise ValueError(
            f"{paths[0]} lacks weights of the objectives: {', '.join(missing[:3])} ({len(missing)} in all)"
        )
    if absent:
        logger.warning("%s lacks %s: these weights start new", paths[0], ", ".join(absent))
    own = {name: tensor for name, tensor in own.items() if name in found}
    if not own:
        names = [objective.config.name for objective in model.auxiliaries()]
        raise ValueError(f"{paths[0]} holds no weights of the objectives {names}: leave objectives_from out")
    for name, tensor in own.items():
        if found[name].shape != tensor.shape:
            raise ValueError(
                f"{paths[0]}: {name} must have the shape {list(tensor.shape)}, got {list(found[name].shape)}"
            )
        if not found[name].isfinite().all():
            raise ValueError(f"{paths[0]}: {name} has values that are not finite")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(found[name])


def own_parameters(model: nn.Module) -> set[int]:
    """Return the ids of the objectives' own parameters."""
    objectives = getattr(model, "objectives", None)
    return {id(parameter) for parameter in objectives.parameters()} if isinstance(objectives, nn.Module) else set()
