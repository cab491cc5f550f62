"""``csekit export``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .common import Imports, one_line_errors, quiet_transformers, refuse_given


def export(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="A run, a training checkpoint, any encoder's folder, or a Hub name.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A new folder.")],
    format: Annotated[str, typer.Option("--format", help="onnx, or sentence-transformers.")] = "onnx",
    pooled: Annotated[bool, typer.Option("--pooled", help="onnx: add the output sentence_embedding.")] = False,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="onnx: scale sentence_embedding to length 1; needs --pooled.")
    ] = False,
    int8: Annotated[bool, typer.Option("--int8", help="onnx: also write a file with 8-bit weights.")] = False,
    opset: Annotated[int, typer.Option("--opset", help="onnx: the opset, at least 18.")] = 18,
    dtype: Annotated[
        str, typer.Option("--dtype", help="sentence-transformers: float32, float16 or bfloat16.")
    ] = "float32",
    pooling: Annotated[
        str | None,
        typer.Option("--pooling", help="cls, mean, last, first_last_mean, top2_mean, mask; for plain encoders."),
    ] = None,
    prompt_template: Annotated[
        str | None, typer.Option("--prompt_template", help="With {sentence} and {mask}; for --pooling mask.")
    ] = None,
    data_dir: Annotated[
        str | None,
        typer.Option("--data_dir", envvar="CSEKIT_DATA", help="onnx: score every file on STS-B dev from here."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    imports: Imports = None,
) -> None:
    """Write an encoder as ONNX, checked against torch, or in another dtype."""
    loading: dict[str, Any] = {"pooling": pooling, "prompt_template": prompt_template, "overwrite": overwrite}
    with one_line_errors():
        if format not in ("onnx", "sentence-transformers"):
            raise ValueError(f"--format must be onnx or sentence-transformers, got {format!r}")
        quiet_transformers()
        if format == "sentence-transformers":
            from csekit.encoding import export_sentence_transformer

            refuse_given(ctx, ["pooled", "normalize", "int8", "opset", "data_dir"], "is for --format onnx")
            export_sentence_transformer(model, output, dtype=dtype, **loading)
            typer.echo(f"written: {output}, {dtype}")
            return
        if dtype != "float32":
            raise ValueError(f"--dtype is for --format sentence-transformers, got {dtype!r}")
        from csekit.encoding import export_onnx

        options: dict[str, Any] = {"pooled": pooled, "normalize": normalize, "int8": int8, "opset": opset}
        record = export_onnx(model, output, **options, dev=_dev(data_dir), **loading)
        typer.echo("\n".join(_report(output, record)))


def _dev(data_dir: str | None) -> Any:
    from csekit.encoding.onnx_export import DevScore
    from csekit.evaluation.sts import evaluate_pairs
    from csekit.evaluation.sts_data import load_stsb_dev

    if data_dir is None:
        return None
    pairs = load_stsb_dev(data_dir)
    return DevScore(len(pairs), lambda encoder: evaluate_pairs(encoder, pairs)["spearman"])


def _report(output: Path, record: dict[str, Any]) -> list[str]:
    """Return lines about the files that were written, their checks and scores."""
    lines = [f"written: {output / name}, {info['bytes'] / 1e6:,.1f} MB" for name, info in record["files"].items()]
    check = record["check"]
    shapes = ", ".join(f"{rows} × {tokens}" for rows, tokens in check["batches"])
    lines.append(
        f"largest difference to torch: {check['largest_difference']:.1e}, {check['allowed']:.0e} allowed "
        f"(sentences × tokens: {shapes})"
    )
    if "int8" in record:
        lines.append(f"int8: least cosine to torch {record['int8']['least_cosine']:.4f}")
    if "stsb" in record:
        scores = record["stsb"]["spearman"]
        told = [f"{name} {value:.2f} ({value - scores['torch']:+.2f})" for name, value in scores.items()]
        lines.append(f"STS-B dev, Spearman × 100: {', '.join(told).replace(' (+0.00)', '', 1)}")
    return lines
