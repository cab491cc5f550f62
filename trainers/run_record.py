"""The record of a run: its settings, its scores over the steps and its log as plain values."""

import json
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import Trainer

from csekit.modeling import METHODS
from csekit.modeling.objectives import further_columns
from csekit.trainers.arguments import RunTrainingArguments
from csekit.trainers.objective_warmup import OBJECTIVES_FOLDER, RECORD


def changed_arguments(args: RunTrainingArguments) -> dict[str, Any]:
    """Return the training arguments that differ from their defaults, without paths, access tokens and the Hub's."""
    default = type(args)(output_dir=args.output_dir)
    skipped = {"output_dir", "logging_dir", "run_name", "resume_from_checkpoint", "accelerator_config", "use_cpu"}
    skipped |= {"push_to_hub", "hub_model_id", "hub_revision", "hub_private_repo"}
    changed = {}
    for field in fields(args):
        name, value = field.name, getattr(args, field.name)
        told = name not in skipped and not name.endswith("_token")
        if told and value != getattr(default, name) and _is_plain(value):
            changed[name] = value
    return changed


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):  # lr_scheduler_kwargs
        return all(map(_is_plain, value.values()))
    return isinstance(value, str | int | float | bool | type(None)) and not os.path.isabs(str(value))


def without_folders(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with folders shortened to their last part, and without nested configurations."""
    return {
        name: Path(value).name if isinstance(value, str) and os.path.exists(value) else value
        for name, value in fields.items()
        if not isinstance(value, dict)
    }


def history(trainer: Trainer) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Return (evaluations, training log) from the trainer's state, without prefixes, to 6 significant digits."""
    evaluations, log = [], []
    for entry in trainer.state.log_history:
        scores = {name.removeprefix("eval_"): value for name, value in entry.items() if name.startswith("eval_")}
        geometry = {name: value for name, value in entry.items() if name.startswith("geometry/")}
        if scores:
            evaluations.append({"step": entry["step"], **scores})
        elif geometry and evaluations:  # they belong to the evaluation before
            evaluations[-1] |= geometry
        elif "loss" in entry:
            log.append({name: float(f"{v:.6g}") if isinstance(v, float) else v for name, v in entry.items()})
    return evaluations, log


def positives_of(trainer: Any) -> str:
    """Return the origin of the positives: dropout, perturbation, an augmentation, pairs or triplets."""
    further = further_columns(trainer.model.batch_specs)
    columns = len(trainer.corpus.columns) - further
    alone = "perturbation" if any(trainer.model.config.view_changes) else "dropout"
    return {2: "pairs", 3: "triplets"}.get(columns) or trainer.args.augmentation.replace("none", alone)


def own_modules(trainer: Any) -> list[str]:
    """Return the modules outside csekit that define objectives of the model; ``__main__`` becomes the script's
    name."""
    names = {type(objective).__module__ for objective in trainer.model.auxiliaries()}
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or "__main__").stem
    return sorted(script if name == "__main__" else name for name in names if name.split(".")[0] != "csekit")


def method_of(kind: type) -> str:
    """Return the method that a model's class is, or derives from."""
    names = {method: name for name, method in METHODS.items()}
    return next((names[base] for base in kind.__mro__ if base in names), "joint")


def teachers_of(trainer: Any) -> dict[str, Any]:
    """Return the names of the run's teachers under ``teachers``, folders as their last part; nothing without any."""
    names = [Path(name).name if os.path.isabs(name) else name for name in trainer.args.teachers or []]
    return {"teachers": names} if names else {}


def warmup_of(trainer: Any) -> dict[str, Any]:
    """Return the record of the objectives' warm-up under ``objective_warmup``, nothing for a run without one."""
    path = Path(str(trainer.args.output_dir)) / OBJECTIVES_FOLDER / RECORD
    if not trainer.args.objective_warmup_steps or not path.is_file():
        return {}
    return {"objective_warmup": json.loads(path.read_text(encoding="utf-8"))}


def kept_step(trainer: Any) -> int | None:
    """Return the step whose weights are kept: the best one, or the last one."""
    state, args = trainer.state, trainer.args
    best = args.load_best_model_at_end and args.metric_for_best_model
    step: int | None = state.best_global_step if best else state.global_step
    return step


def kept_scores(trainer: Any) -> dict[str, float]:
    """Return the scores of the kept step, measured during training; {} if it was not scored."""
    step = kept_step(trainer)
    return next((entry for entry in history(trainer)[0] if entry["step"] == step), {})


def trainer_results(trainer: Any) -> dict[str, Any]:
    """Return the results that a trainer holds, as plain values. ``dev.after`` holds the scores of the step that was
    kept, measured during training."""
    evaluations, log = history(trainer)
    metric = trainer.args.metric_for_best_model if trainer.args.load_best_model_at_end else None
    config = trainer.model.config.to_diff_dict()
    kept = {name: value for name, value in config.items() if name not in ("encoder_config", "transformers_version")}
    kept["objectives"] = [without_folders(objective) for objective in kept.get("objectives", [])]
    encoder = trainer.model.config.encoder_config
    imports = own_modules(trainer)
    return (
        {
            "name": Path(str(trainer.args.output_dir)).resolve().name,
            "method": method_of(type(trainer.model)),
            "backbone": Path(trainer.model.backbone.name_or_path or "").name or encoder.model_type,
            "corpus": trainer.corpus.describe(),
            "positives": positives_of(trainer),
            "config": kept | {"encoder": encoder.model_type},
            "arguments": changed_arguments(trainer.args) | teachers_of(trainer),
            "seed": trainer.args.seed,
            "dev": {
                "metric": metric,
                "best": trainer.state.best_metric if metric else None,
                "step": kept_step(trainer),
                "after": {
                    name: value for name, value in kept_scores(trainer).items() if name != "step" and "/" not in name
                },
                "history": [{**entry, "value": entry.get(str(metric))} for entry in evaluations],
            },
            "test": None,
            "log": log,
        }
        | ({"imports": imports} if imports else {})
        | warmup_of(trainer)
    )
