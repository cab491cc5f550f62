"""Count the parameters of every method in training and at inference, and the bytes of its checkpoints.

    python benchmarks/parameters.py --model_name_or_path runs/my-bert \
        --output experiments/results/parameters/my-bert.json
    python benchmarks/parameters.py --model_type bert --output experiments/results/parameters/bert-base.json

The script builds each model from the checkpoint, saves it as a training checkpoint and exports it. The count at
inference is that of the encoder, without the pooler of the exported file, which no embedding reads. With
`--model_type` there are no weights and no bytes, only the sizes of the family's default config (BERT-base for `bert`).
`python -m experiments.tables` makes the table `parameters/NAME` of the file
`experiments/results/parameters/NAME.json` (DiffCSE, Table 14).
"""

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import safe_open
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import logging

from csekit.encoding.provenance import checksum, environment
from csekit.evaluation.results import write_results
from csekit.modeling import METHODS, CSEModel

METHODS_FILE = Path(__file__).with_name("methods.yaml")


def numbers(parameters: Any) -> int:
    return sum(parameter.numel() for parameter in parameters)


def counted(model: CSEModel) -> dict[str, Any]:
    """Count a model's parameters in training: its own, and those of generators, which are in no checkpoint."""
    generators = {id(g): g for o in model.auxiliaries() for g in getattr(o, "_generator", [])}
    return {
        "training": numbers(model.parameters()),
        "trainable": numbers(p for p in model.parameters() if p.requires_grad),
        "generator": numbers(p for g in generators.values() for p in g.networks.parameters()),
    }


def stored(path: Path) -> tuple[int, int]:
    """Count the numbers in a weights file, and its bytes."""
    with safe_open(path, framework="pt") as file:
        names = list(file.keys())
        shapes = [file.get_slice(name).get_shape() for name in names]
    return sum(math.prod(shape) for shape in shapes), path.stat().st_size


def of_checkpoint(name_or_path: str, method: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Count a method's parameters and bytes on a checkpoint, from the files that it writes."""
    model = METHODS[method].from_backbone(name_or_path, **fields)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(Path(folder) / "training")
        model.export(folder, AutoTokenizer.from_pretrained(name_or_path))
        in_training, training_bytes = stored(Path(folder) / "training" / "model.safetensors")
        export_bytes = stored(Path(folder) / "model.safetensors")[1]
    buffers = numbers(buffer for name, buffer in model.named_buffers() if name in model.state_dict())
    found = counted(model)
    assert in_training == found["training"] + buffers, "a weight is missing in the checkpoint, or one too many"
    inference = numbers(model.backbone.parameters())
    return {**found, "inference": inference, "training_bytes": training_bytes, "export_bytes": export_bytes}


def of_sizes(model_type: str, method: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Count a method's parameters on a family's default config, without weights."""
    with torch.device("meta"):
        config = METHODS[method].config_class(encoder_config=AutoConfig.for_model(model_type), **fields)
        model = METHODS[method](config)
    found = counted(model) | {"generator": None}  # its size does not follow from the encoder's
    return {**found, "inference": numbers(model.backbone.parameters()), "training_bytes": None, "export_bytes": None}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model_name_or_path", help="encoder checkpoint: Hub id or folder")
    source.add_argument("--model_type", help="family whose default sizes are counted, instead of a checkpoint")
    parser.add_argument(
        "--output", type=Path, required=True, help="results file, experiments/results/parameters/NAME.json"
    )
    args = parser.parse_args(argv)
    logging.disable_progress_bar()
    rows = []
    for name, given in yaml.safe_load(METHODS_FILE.read_text(encoding="utf-8")).items():
        fields = dict(given)
        title, method = fields.pop("title"), fields.pop("method")
        if args.model_type:
            row = of_sizes(args.model_type, method, fields)
        else:
            row = of_checkpoint(args.model_name_or_path, method, fields)
        rows.append({"name": name, "title": title, "method": method, "config": fields, **row})
        print(f"{title}: {row}", flush=True)
    run: dict[str, Any] = {"benchmark": "parameters", "backbone": args.model_type}
    if args.model_name_or_path:
        folder = Path(args.model_name_or_path)
        run |= {
            "backbone": folder.name,
            "weights": checksum(folder / "model.safetensors") if folder.is_dir() else None,
        }
    write_results(args.output, {"run": run, "methods": rows, "environment": environment()}, overwrite=True)


if __name__ == "__main__":
    main()
