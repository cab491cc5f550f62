"""How strongly each term of a loss pulls at the encoder: the norm of its gradient, and the angle to the contrast's.

    python benchmarks/term_gradients.py --train_file sentences.txt --start infocse=runs/stage1 diffcse=my-encoder \
        --checkpoints runs/infocse/training/checkpoint-1500 --output experiments/results/gradients/my-encoder.json

A term's value in the log says nothing of this: a weighted term may be as large as the contrast and move nothing.
``--start`` takes a method's default settings on an encoder, ``--checkpoints`` what a training has saved. All see the
same sentences. `python -m experiments.tables` makes the table `gradients/NAME` of the file.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from train_step import SEED, parse_setting, read_batches
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import logging

from csekit.encoding.provenance import environment
from csekit.evaluation.results import write_results
from csekit.modeling import METHODS, CSEModel
from csekit.trainers import CSECollator


def term_gradients(model: CSEModel, batch: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """Each weighted term's value, the norm of its gradient in all weights of the encoder, that norm relative to the
    contrastive term's, and the cosine of the two gradients (None where one is zero)."""
    encoder = [parameter for parameter in model.backbone.parameters() if parameter.requires_grad]
    _, terms, _ = model.terms(**batch)

    def gradient(term: Tensor) -> Tensor:
        found = torch.autograd.grad(term, encoder, retain_graph=True, materialize_grads=True)
        return torch.cat([each.flatten() for each in found]).double()

    gradients = {name: gradient(term) for name, term in terms.items()}
    norms = {name: own.norm().item() for name, own in gradients.items()}
    rows: dict[str, dict[str, float | None]] = {}
    for name, own in gradients.items():
        share = cosine = None
        if norms[name] and norms.get("contrastive"):
            share = norms[name] / norms["contrastive"]
            cosine = cosine_similarity(own, gradients["contrastive"], dim=0, eps=0.0).item()
        rows[name] = {"value": terms[name].item(), "norm": norms[name], "share": share, "cosine": cosine}
    return rows


def median_over_batches(found: list[dict[str, dict[str, float | None]]]) -> dict[str, dict[str, float | None]]:
    """The median of each number over the batches that have one: gradients of the contrast have a heavy tail."""
    medians: dict[str, dict[str, float | None]] = {}
    for name in found[0]:
        medians[name] = {}
        for key in found[0][name]:
            values = [value for each in found if (value := each[name][key]) is not None]
            medians[name][key] = statistics.median(values) if values else None
    return medians


def read_models(starts: list[str], checkpoints: list[Path], device: str) -> list[dict[str, Any]]:
    """The models with their titles, steps and the folder of their tokenizer.

    Raises:
        ValueError: a start that is not METHOD=ENCODER, a folder that holds no training checkpoint.
    """
    found, kinds = [], {kind.config_class: kind for kind in METHODS.values()}
    for start in starts:
        method, _, name = start.partition("=")
        if method not in METHODS or not name:
            raise ValueError(f"--start must be METHOD=ENCODER with a method of {', '.join(METHODS)}, got {start!r}")
        torch.manual_seed(SEED)  # of the projector
        model = METHODS[method].from_backbone(name)
        found.append({"title": method, "step": 0, "model": model, "tokenizer": name})
    for folder in checkpoints:
        config = AutoConfig.from_pretrained(folder) if (folder / "config.json").is_file() else None
        state = folder / "trainer_state.json"
        if type(config) not in kinds or not state.is_file():
            raise ValueError(f"{folder} must be a training checkpoint (training/checkpoint-N of a run)")
        model = kinds[type(config)].from_pretrained(folder, training=True)
        step = json.loads(state.read_text(encoding="utf-8"))["global_step"]
        found.append({"title": model.config.model_type, "step": step, "model": model, "tokenizer": str(folder)})
    return [row | {"model": row["model"].to(device).train()} for row in found]


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", required=True, help="sentences, one a line")
    parser.add_argument("--start", nargs="*", default=[], metavar="METHOD=ENCODER", help="methods before training")
    parser.add_argument("--checkpoints", nargs="*", type=Path, default=[], help="training/checkpoint-N of runs")
    parser.add_argument("--output", type=Path, required=True, help="results/gradients/NAME.json")
    return parse_setting(parser, argv, repetitions=12, warmup=0)


def main(argv: list[str] | None = None) -> None:
    args = read_arguments(argv)
    logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    try:
        models = read_models(args.start, args.checkpoints, args.device)
        corpus, batches = read_batches(args.train_file, args.batch_size, args.repetitions)
        if not models:
            raise ValueError("--start or --checkpoints must name a model")
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    rows = []
    for row in models:
        model, found = row["model"], []
        tokenizer = AutoTokenizer.from_pretrained(row["tokenizer"])
        template = model.config.prompt_template
        collator = CSECollator(tokenizer, args.max_seq_length, model.batch_specs, SEED, template)
        torch.manual_seed(SEED)
        for texts in batches:
            batch = {k: v.to(args.device) if torch.is_tensor(v) else v for k, v in collator(texts).items()}
            found.append(term_gradients(model, {k: v for k, v in batch.items() if k not in ("index", "return_loss")}))
        rows.append({"title": row["title"], "step": row["step"], "terms": median_over_batches(found)})
        for term, values in rows[-1]["terms"].items():
            print(f"{row['title']:10} step {row['step']:>6}  {term:16} norm {values['norm']:.2e}", flush=True)
    run = {"benchmark": "term_gradients", "corpus": corpus, "device": args.device, "batch_size": args.batch_size}
    run |= {"max_seq_length": args.max_seq_length, "repetitions": args.repetitions, "seed": SEED}
    write_results(args.output, {"run": run, "rows": rows, "environment": environment()}, overwrite=True)


if __name__ == "__main__":
    main()
