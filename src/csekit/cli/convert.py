"""``csekit convert``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .common import one_line_errors, quiet_transformers


def convert(
    checkpoint: Annotated[Path, typer.Argument(help="pytorch_model.bin, .pt, .safetensors, or a folder with one.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A new folder, laid out like a run's.")],
    backbone: Annotated[
        str, typer.Option("--backbone", help="The model it was trained from, for config and tokenizer.")
    ],
    method: Annotated[
        str, typer.Option("--method", help="simcse, informin, infocse, diffcse, msse or joint.")
    ] = "simcse",
    pooling: Annotated[
        str | None,
        typer.Option("--pooling", help="cls, mean, last, first_last_mean, top2_mean, mask; the method's own."),
    ] = None,
    projector_at_inference: Annotated[
        bool, typer.Option("--projector_at_inference", help="Embed with the head, as supervised SimCSE does.")
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A config field, NAME=VALUE; may be repeated.")
    ] = None,
    allow_unknown: Annotated[bool, typer.Option("--allow_unknown", help="Drop keys of unknown purpose.")] = False,
) -> None:
    """Convert a state dict saved by the code of SimCSE, DiffCSE, InfoCSE or InforMin-CL into a csekit model."""
    with one_line_errors():
        quiet_transformers()
        from transformers import AutoTokenizer

        from csekit.encoding.deploy import check_output
        from csekit.encoding.pretrained import broken_model_told, load_pretrained
        from csekit.modeling.conversion import convert_checkpoint

        check_output(output, overwrite=None)
        fields = _fields(settings or [], method)
        given = {"pooling": pooling, "projector_at_inference": projector_at_inference or None}
        for name, value in given.items():
            if value is not None and fields.setdefault(name, value) != value:
                raise ValueError(
                    f"--{name} must be {fields[name]!r}, as --set {name} says, or left out, got {value!r}"
                )
        with broken_model_told(backbone):
            model, report = convert_checkpoint(checkpoint, backbone, method, allow_unknown, **fields)
            tokenizer = load_pretrained(AutoTokenizer, backbone)
        loadable = _write(model, tokenizer, report, output, checkpoint, backbone)
        typer.echo("\n".join([*_report(report), f"written: {output}, {loadable}"]))


def _fields(settings: list[str], method: str) -> dict[str, Any]:
    """Parse NAME=VALUE pairs; each value gets the type of its field."""
    from csekit.trainers.scripts.run_arguments import method_fields, plain_value

    types, fields = method_fields(method), dict[str, Any]()
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not sign or name not in types:
            raise ValueError(f"--set must be NAME=VALUE with a field of {method!r}, got {setting!r}")
        try:
            parsed = plain_value(types[name], value)
        except ValueError:
            raise ValueError(f"--set {name} must be {types[name].__name__}, got {value!r}") from None
        if name in fields:
            raise ValueError(f"--set {name} must be given once, got {fields[name]!r} and {parsed!r}")
        fields[name] = parsed
    return fields


def _write(model: Any, tokenizer: Any, report: Any, output: Path, checkpoint: Path, backbone: str) -> str:
    """Write the training checkpoint, the export if the pooling allows one, and ``conversion.json``: all or nothing."""
    from csekit.encoding.deploy import whole_folder
    from csekit.modeling.export import EXPORTABLE_POOLINGS

    native = model.config.pooling in EXPORTABLE_POOLINGS
    with whole_folder(output) as new:
        model.save_pretrained(new / "training")
        tokenizer.save_pretrained(new / "training")
        if native:
            model.export(new, tokenizer)
        record = {"source": checkpoint.name, "backbone": Path(backbone).name, **vars(report)}
        (new / "conversion.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if native:
        return "the encoder at its root, the training checkpoint in training/"
    return f"training/ alone: sentence-transformers has no pooling {model.config.pooling!r}"


def _report(report: Any) -> list[str]:
    lines = [f"{len(report.taken)} keys taken"]
    for reason, names in report.dropped.items():
        lines.append(f"{len(names)} dropped, {reason}: {names[0]}{', …' if len(names) > 1 else ''}")
    if report.unknown:
        lines.append(f"{len(report.unknown)} left behind, of unknown purpose: {', '.join(report.unknown)}")
    if report.left_out:
        lines.append(f"objectives left out, since their weights are not there: {', '.join(report.left_out)}")
    return lines
