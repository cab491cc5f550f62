"""Does the checkpoint that is chosen depend on the precision of the dev set's embeddings?

    python -m experiments.dev_precision --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --data_dir SentEval/data --output experiments/results/dev-precision/bert-base-uncased.json

SimCSE trains in bf16, and every evaluation scores STS-B dev twice: in float32 and in bf16. The results file holds both
scores of each checkpoint. `python -m experiments.tables` makes the table `dev-precision` of all files.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer
from transformers.utils import logging

from csekit.encoding import environment
from csekit.encoding.provenance import checksum
from csekit.evaluation.results import write_results
from csekit.evaluation.sts_data import load_stsb_dev
from csekit.modeling import SimCSEModel
from csekit.trainers import CSETrainer, CSETrainingArguments, load_corpus

SCORE = "stsb_spearman"


class BothPrecisions(CSETrainer):
    """Adds the dev score in the other precision to every evaluation."""

    def dev_scores(self, precision: str | None = None, known: Mapping[str, float] | None = None) -> dict[str, float]:
        both = {each: super(BothPrecisions, self).dev_scores(each)[SCORE] for each in ("fp32", "bf16")}
        return {SCORE: both["fp32"], "bf16": both["bf16"]}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.dev_precision", description=__doc__.split("\n")[0])
    parser.add_argument("--model_name_or_path", required=True, help="encoder checkpoint")
    parser.add_argument("--train_file", required=True, help="sentences, one a line")
    parser.add_argument("--data_dir", required=True, help="folder with SentEval's layout, for STS-B dev")
    parser.add_argument("--output", type=Path, required=True, help="results file")
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--max_steps", type=int, default=200)
    parser.add_argument("--eval_steps", type=int, default=10)
    args = parser.parse_args(argv)
    logging.disable_progress_bar()
    try:
        dev, corpus = replace(load_stsb_dev(args.data_dir), name="stsb"), load_corpus(args.train_file)
        model = SimCSEModel.from_backbone(args.model_name_or_path, projector="tanh")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {"learning_rate": args.learning_rate, "max_steps": args.max_steps, "seed": 42}
        training = CSETrainingArguments(
            folder, bf16=True, eval_steps=args.eval_steps, label_free_samples=0, report_to="none", **settings
        )
        tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
        trainer = BothPrecisions(model, training, corpus, tokenizer, dev)
        trainer.train()
    evaluations = [entry for entry in trainer.state.log_history if f"eval_{SCORE}" in entry]
    rows = [{"step": e["step"], "fp32": e[f"eval_{SCORE}"], "bf16": e["eval_bf16"]} for e in evaluations]
    run = {"method": "simcse", "backbone": Path(args.model_name_or_path).name, "batch_size": 64, **settings}
    run |= {"corpus": corpus.name, "corpus_sha256": checksum(Path(args.train_file)), "dev": dev.name}
    write_results(args.output, {"run": run, "checkpoints": rows, "environment": environment()}, overwrite=True)
    print(f"written: {args.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
