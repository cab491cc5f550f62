"""Measure how strongly each loss term pulls at the encoder: its gradient's norm, and its angle to the contrast's.

    python benchmarks/term_gradients.py --train_file sentences.txt \
        --start "diffcse my-encoder --projector batchnorm" "diffcse my-encoder --projector batchnorm --rtd_weight 1" \
        --checkpoints runs/diffcse/training/checkpoint-150 --output experiments/results/gradients/my-encoder.json

The logged value of a term does not show this: a weighted term can be as large as the contrast and move nothing.
``--start`` takes a method, an encoder and further arguments of ``examples/run_unsup.py``, and builds the model that
this training starts from. ``--checkpoints`` takes what a training has saved. All models see the same shuffled batches,
with dropout, in fp32, and their weights stay fixed. ``--objectives_from`` in a start takes the objectives' weights of
an earlier warm-up, and the row says of how many steps. Three numbers describe a term:

- the median of its gradient's norm over the batches;
- the norm of its mean gradient over the batches: what is left when the noise of single batches cancels;
- the norm of that mean as Adam scales it: the gradients are clipped as in training, then divided by sqrt(v̂) + ε. v is
  the second moment in the checkpoint's optimiser, or zero for a start, and is updated on every measured batch
  with the sum of the terms' squared gradients. The square of their sum would be near zero wherever two terms happen to
  cancel, and a few weights of rare words would then outweigh all others.

A row also holds the means of the model's diagnostics, such as ``rtd_gap``, over the batches.

Two checks come from the log of a checkpoint's training: ``grad_norm`` beside the measured norm of the whole gradient,
and the dev score. A start takes them from a checkpoint of the same method and weights. `python -m experiments.tables`
makes the table `gradients/NAME` of the file.
"""

import argparse
import copy
import json
import shlex
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity
from train_step import MAX_GRAD_NORM, SEED, draw_batches, parse_setting
from transformers import AutoConfig, AutoTokenizer, set_seed
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.utils import logging

from csekit.encoding.provenance import environment
from csekit.evaluation.results import read_results, write_results
from csekit.modeling import METHODS, CSEConfig, CSEModel
from csekit.trainers import CSETrainer, CSETrainingArguments, load_corpus, parse_run_arguments
from csekit.trainers.data.corpora import Corpus
from csekit.trainers.objective_warmup import OBJECTIVES_FOLDER, RECORD

LOGGED_STEPS = 50  # last steps of a checkpoint's log that are compared with the measurement
FIRST_STEPS = 5  # first steps of a log that are compared with a start

SETTINGS = ("device", "batch_size", "max_seq_length", "repetitions", "max_grad_norm", "seed")
UNUSED = ("index", "return_loss")  # keys of a collated batch that are no input of the terms

Batch = dict[str, Any]


@dataclass
class SecondMoment:
    """Adam's second moment of the encoder's gradient.

    Arguments:
        value: (P,) v, without correction of its bias.
        step: optimiser steps that it holds.
    """

    value: Tensor
    step: int = 0
    beta2: float = 0.999
    epsilon: float = 1e-8

    def update(self, squares: Tensor) -> None:
        self.step += 1
        self.value.mul_(self.beta2).add_(squares, alpha=1 - self.beta2)

    def divisor(self) -> Tensor:
        """sqrt(v̂) + ε, (P,)."""
        return (self.value / (1 - self.beta2**self.step)).sqrt() + self.epsilon


@dataclass
class TermSums:
    """Statistics of one term's gradients: numbers of each batch, and sums over batches."""

    value: list[float] = field(default_factory=list)
    norm: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    cosine: list[float] = field(default_factory=list)
    total: Tensor | float = 0.0
    clipped: Tensor | float = 0.0
    clipped_squares: Tensor | float = 0.0


def term_gradients(
    model: CSEModel, parameters: Sequence[nn.Parameter], batch: Batch
) -> tuple[dict[str, float], dict[str, Tensor], dict[str, float]]:
    """Values and gradients of the weighted terms.

    Returns:
        the terms' values; their gradients in all of ``parameters``, (P,) each; the model's diagnostics.
    """
    _, terms, metrics = model.terms(**batch)
    gradients = {}
    for name, term in terms.items():
        found = torch.autograd.grad(term, list(parameters), retain_graph=True, materialize_grads=True)
        gradients[name] = torch.cat([each.flatten() for each in found])
    values, diagnostics = ({name: each.item() for name, each in found.items()} for found in (terms, metrics))
    return values, gradients, diagnostics


def measure(
    model: CSEModel,
    clip_group: Sequence[nn.Parameter],
    moment: SecondMoment,
    batches: Iterable[Batch],
    max_grad_norm: float,
) -> dict[str, Any]:
    """Measure every term's gradient in the encoder.

    Arguments:
        clip_group: the parameters that training clips together with the encoder's.
        moment: as the training left it; carried on over the batches.

    Returns:
        ``terms``: by term, the medians ``value``, ``norm``, ``share`` (norm relative to the contrast's) and ``cosine``
        (to the contrast's gradient); ``mean_norm``, ``mean_share``, ``mean_cosine`` of the mean gradient; the same of
        the mean clipped gradient as Adam scales it, ``adam_…``; ``mean_error`` and ``adam_error``, the norm that the
        noise of the batches adds to such a mean (the root of the summed squared standard errors). None where there is
        no contrast or a norm is zero. ``grad_norm``: of the whole gradient in the clip group, over the batches.
        ``metrics``: the means of the model's diagnostics over the batches.
    """
    encoder = encoder_parameters(model)
    known = {id(parameter) for parameter in encoder}
    parameters = [*encoder, *(parameter for parameter in clip_group if id(parameter) not in known)]
    size = sum(parameter.numel() for parameter in encoder)
    sums: dict[str, TermSums] = {}
    norms: list[float] = []
    diagnostics: list[dict[str, float]] = []
    for batch in batches:
        values, gradients, found = term_gradients(model, parameters, batch)
        diagnostics.append(found)
        whole = torch.stack(list(gradients.values())).sum(0)
        norms.append(norm(whole))
        clip = min(1.0, max_grad_norm / (norms[-1] + 1e-6))
        moment.update(sum((clip * gradient[:size]) ** 2 for gradient in gradients.values()))
        contrast = gradients["contrastive"][:size] if "contrastive" in gradients else None
        for name, gradient in gradients.items():
            own, kept = gradient[:size], sums.setdefault(name, TermSums())
            share, cosine = beside(own, contrast)
            kept.value.append(values[name])
            kept.norm.append(norm(own))
            kept.share += [] if share is None else [share]
            kept.cosine += [] if cosine is None else [cosine]
            kept.total = kept.total + own
            kept.clipped = kept.clipped + clip * own
            kept.clipped_squares = kept.clipped_squares + (clip * own) ** 2
    divisor, count = moment.divisor(), len(norms)
    means = {name: torch.as_tensor(kept.total) / count for name, kept in sums.items()}
    scaled = {name: torch.as_tensor(kept.clipped) / count / divisor for name, kept in sums.items()}
    terms = {}
    for name, kept in sums.items():
        row: dict[str, float | None] = {
            key: statistics.median(found) if (found := getattr(kept, key)) else None
            for key in ("value", "norm", "share", "cosine")
        }
        squares = {"mean": sum(each**2 for each in kept.norm)}
        squares["adam"] = (torch.as_tensor(kept.clipped_squares) / divisor**2).sum(dtype=torch.float64).item()
        for kind, vectors in (("mean", means), ("adam", scaled)):
            own = vectors[name]
            row[f"{kind}_norm"] = norm(own)
            row[f"{kind}_share"], row[f"{kind}_cosine"] = beside(own, vectors.get("contrastive"))
            variance = max(squares[kind] / count - norm(own) ** 2, 0.0)
            row[f"{kind}_error"] = (variance / (count - 1)) ** 0.5 if count > 1 else None
        terms[name] = row
    clipped = sum(each > max_grad_norm for each in norms) / count
    metrics = {name: statistics.fmean(each[name] for each in diagnostics) for name in diagnostics[0]}
    return {"terms": terms, "grad_norm": {**spread(norms), "clipped": clipped}, "metrics": metrics}


def norm(vector: Tensor) -> float:
    return torch.linalg.vector_norm(vector, dtype=torch.float64).item()


def beside(own: Tensor, contrast: Tensor | None) -> tuple[float | None, float | None]:
    """Norm relative to the contrast's, and the cosine of both; None where there is no contrast or one is zero."""
    if contrast is None or not norm(own) or not norm(contrast):
        return None, None
    cosine = cosine_similarity(own.double(), contrast.double(), dim=0, eps=0.0).item()
    return norm(own) / norm(contrast), cosine


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def encoder_parameters(model: CSEModel) -> list[nn.Parameter]:
    return [parameter for parameter in model.backbone.parameters() if parameter.requires_grad]


@dataclass(frozen=True)
class Subject:
    """A model at one step of a training; ``load`` builds it.

    Arguments:
        settings: of the training, as far as they are known here.
        history: the log of its training up to this step; empty before training.
        load: gives the trainer with the model, and Adam's second moment at this step.
    """

    config: CSEConfig
    step: int
    settings: dict[str, Any]
    history: list[dict[str, Any]]
    load: Callable[[], tuple[CSETrainer, SecondMoment]]

    @property
    def weights(self) -> dict[str, float]:
        """The weights of the terms."""
        objectives = {each.name: float(each.weight) for each in self.config.objectives}
        return {"contrastive": float(self.config.contrastive_weight), **objectives}


def start(words: str, corpus: Corpus, args: CSETrainingArguments) -> Subject:
    """The model that a training with these arguments starts from.

    Raises:
        ValueError: not a method and an encoder.
    """
    method, encoder, *more = [*shlex.split(words), "", ""]
    if method not in METHODS or not encoder:
        raise ValueError(f"--start must be 'METHOD ENCODER …' with a method of {', '.join(METHODS)}, got {words!r}")
    given = ["--method", method, "--model_name_or_path", encoder, *(word for word in more if word)]
    run, own, fields = parse_run_arguments([*given, "--output_dir", str(args.output_dir)])

    def load() -> tuple[CSETrainer, SecondMoment]:
        tokenizer = AutoTokenizer.from_pretrained(encoder)
        set_seed(own.seed)
        model = METHODS[method].from_backbone(encoder, tokenizer=tokenizer, dropout=run.dropout, **fields)
        given = copy.copy(args)
        given.objectives_from = own.objectives_from
        trainer = CSETrainer(model, given, corpus, tokenizer)
        zero = torch.cat([torch.zeros_like(each).flatten() for each in encoder_parameters(model)])
        return trainer, SecondMoment(zero, beta2=own.adam_beta2, epsilon=own.adam_epsilon)

    settings = {"encoder": Path(encoder).name, "seed": own.seed, "dropout": run.dropout, **fields, **warmed(own)}
    return Subject(METHODS[method].config_class(**fields), 0, settings, [], load)


def checkpoint(folder: Path, corpus: Corpus, args: CSETrainingArguments) -> Subject:
    """A training checkpoint with its optimiser and its log.

    Raises:
        ValueError: the folder holds no training checkpoint; on loading: an optimiser without second moment.
    """
    kinds = {kind.config_class: kind for kind in METHODS.values()}
    config = AutoConfig.from_pretrained(folder) if (folder / "config.json").is_file() else None
    log, optimizer_file = folder / "trainer_state.json", folder / "optimizer.pt"
    if type(config) not in kinds or not (log.is_file() and optimizer_file.is_file()):
        raise ValueError(f"{folder} must be a training checkpoint (training/checkpoint-N of a run)")
    state = json.loads(log.read_text(encoding="utf-8"))

    def load() -> tuple[CSETrainer, SecondMoment]:
        model = kinds[type(config)].from_pretrained(folder, training=True)
        trainer = CSETrainer(model, args, corpus, AutoTokenizer.from_pretrained(folder))
        optimizer = trainer.create_optimizer()
        optimizer.load_state_dict(torch.load(optimizer_file, map_location=args.device, weights_only=True))
        group, states = (
            optimizer.param_groups[0],
            [optimizer.state.get(each, {}) for each in encoder_parameters(model)],
        )
        if not all("exp_avg_sq" in each for each in states):
            raise ValueError(f"{folder} must hold Adam's second moment of every weight of the encoder")
        value = torch.cat([each["exp_avg_sq"].float().flatten() for each in states])
        return trainer, SecondMoment(value, int(states[0]["step"]), group["betas"][1], group["eps"])

    rates = [entry["learning_rate"] for entry in state["log_history"] if "learning_rate" in entry]
    settings = {"max_steps": state["max_steps"], "batch_size": state["train_batch_size"]}
    settings |= {"peak_learning_rate": max(rates, default=None)}
    # csekit itself wrote this file; it holds no tensors, which alone torch reads without trust
    settings |= warmed(torch.load(folder / TRAINING_ARGS_NAME, weights_only=False))
    return Subject(config, state["global_step"], settings, state["log_history"], load)


def warmed(args: CSETrainingArguments) -> dict[str, int | None]:
    """``objective_warmup_steps`` of a training, its own or those of ``objectives_from``, None where that folder has no
    record of them; nothing without a warm-up."""
    if args.objectives_from is None:
        return {"objective_warmup_steps": args.objective_warmup_steps} if args.objective_warmup_steps else {}
    folder = Path(args.objectives_from)
    found = [path for path in (folder / RECORD, folder / OBJECTIVES_FOLDER / RECORD) if path.is_file()]
    return {"objective_warmup_steps": json.loads(found[0].read_text(encoding="utf-8"))["steps"] if found else None}


def logged(history: Sequence[dict[str, Any]], first: int, last: int) -> dict[str, Any] | None:
    """The ``grad_norm`` that a training logged in these steps: its spread and the number of entries."""
    found = [entry["grad_norm"] for entry in history if "grad_norm" in entry and first <= entry["step"] <= last]
    return {**spread(found), "entries": len(found), "first_step": first, "last_step": last} if found else None


def dev_score(history: Sequence[dict[str, Any]], step: int) -> float | None:
    """The Spearman correlation × 100 on the dev set that a training logged at this step."""
    for entry in history:
        scores = [value for name, value in entry.items() if name.startswith("eval_") and name.endswith("_spearman")]
        if entry.get("step") == step and scores:
            return float(scores[0])
    return None


def row_of(subject: Subject, others: Sequence[Subject], found: dict[str, Any]) -> dict[str, Any]:
    """A row of the results: the measurement beside what the training logged."""
    kind, step = subject.config.model_type, subject.step
    same = [each.history for each in others if (each.config.model_type, each.weights) == (kind, subject.weights)]
    history = subject.history or max(same, key=len, default=[])
    steps = (max(1, step - LOGGED_STEPS + 1), step) if step else (1, FIRST_STEPS)
    own = {"title": kind, "step": step, "weights": subject.weights, "settings": subject.settings}
    return {**own, **found, "logged_grad_norm": logged(history, *steps), "dev": dev_score(history, step)}


def collated(trainer: CSETrainer, rows: Iterable[list[dict[str, Any]]]) -> Iterator[Batch]:
    for each in rows:
        batch = trainer.data_collator(each)
        device = trainer.args.device
        yield {k: v.to(device) if torch.is_tensor(v) else v for k, v in batch.items() if k not in UNUSED}


def earlier_rows(path: Path, run: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a results file, none where there is no file.

    Raises:
        ValueError: the file was measured with other settings.
    """
    if not path.is_file():
        return []
    found = read_results(path)
    for name, value in run.items():
        if found["run"].get(name) != value:
            raise ValueError(f"--add: {name} must be {found['run'].get(name)!r} as in {path}, got {value!r}")
    return list(found["rows"])


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", required=True, help="sentences, one a line")
    parser.add_argument(
        "--start",
        nargs="*",
        default=[],
        metavar="'METHOD ENCODER …'",
        help="models before training: method, encoder and further arguments of run_unsup.py, quoted as one word",
    )
    parser.add_argument("--checkpoints", nargs="*", type=Path, default=[], help="training/checkpoint-N of runs")
    parser.add_argument("--max_grad_norm", type=float, default=MAX_GRAD_NORM, help="clipping norm of the trainings")
    parser.add_argument(
        "--add", action="store_true", help="keep the rows of an existing results file with the same settings"
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="results file, experiments/results/gradients/NAME.json"
    )
    parser.set_defaults(seed=SEED)
    return parse_setting(parser, argv, repetitions=32, warmup=0)


def main(argv: list[str] | None = None) -> None:
    args = read_arguments(argv)
    logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        training = CSETrainingArguments(
            output_dir=folder,
            max_seq_length=args.max_seq_length,
            use_cpu=args.device == "cpu",
            seed=SEED,
            label_free_samples=0,
            report_to="none",
        )
        try:
            if not args.start and not args.checkpoints:
                raise ValueError("--start or --checkpoints must name a model")
            corpus = load_corpus(args.train_file)
            drawn = draw_batches(corpus, args.batch_size, args.repetitions)
            subjects = [start(words, corpus, training) for words in args.start]
            subjects += [checkpoint(each, corpus, training) for each in args.checkpoints]
            run = {"benchmark": "term_gradients", "corpus": corpus.name, "corpus_sha256": corpus.checksum}
            run |= {name: getattr(args, name) for name in SETTINGS}
            rows = earlier_rows(args.output, run) if args.add else []
            for subject in subjects:
                trainer, moment = subject.load()
                trainer.model.train()
                torch.manual_seed(SEED)
                group, batches = trainer.clip_groups["encoder"], collated(trainer, drawn)
                found = measure(trainer.model, group, moment, batches, args.max_grad_norm)
                rows.append(row_of(subject, subjects, found))
                write_results(args.output, {"run": run, "rows": rows, "environment": environment()}, overwrite=True)
                for term, values in found["terms"].items():
                    told = f"norm {values['norm']:.2e}, mean {values['mean_norm']:.2e}, Adam {values['adam_norm']:.2e}"
                    print(f"{rows[-1]['title']:10} step {subject.step:>6}  {term:16} {told}", flush=True)
        except (ValueError, OSError) as error:
            raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
