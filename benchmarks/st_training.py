"""Train SimCSE as sentence-transformers documents it, with its own Trainer: the peer of `end_to_end.py`.

    python benchmarks/st_training.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --dev_file stsb-dev.tsv --max_steps 200 --output_dir runs/peer

MultipleNegativesRankingLoss of each sentence with itself, [CLS] pooling, evaluation of the dev pairs every
`--eval_steps`, the best checkpoint at the end.
"""

import argparse
import csv
from pathlib import Path

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from transformers import AutoConfig

TEMPERATURE = 0.05


def read_pairs(path: Path) -> EmbeddingSimilarityEvaluator:
    """Read the columns sentence1, sentence2 and score of a tsv file."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    scores = [float(row["score"]) for row in rows]
    firsts, seconds = ([row[name] for row in rows] for name in ("sentence1", "sentence2"))
    return EmbeddingSimilarityEvaluator(firsts, seconds, scores, name="dev", show_progress_bar=False, batch_size=64)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model_name_or_path", "train_file", "dev_file", "output_dir"):
        parser.add_argument(f"--{name}", required=True)
    for name, default in (("max_steps", 200), ("eval_steps", 125), ("batch_size", 64), ("max_seq_length", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--learning_rate", type=float, default=3e-5)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--use_cpu", action="store_true")
    args = parser.parse_args(argv)
    words = Transformer(args.model_name_or_path, max_seq_length=args.max_seq_length)
    words.float()  # a checkpoint in 16 bits would be trained as it is
    size = AutoConfig.from_pretrained(args.model_name_or_path).hidden_size
    device = "cpu" if args.use_cpu else None
    model = SentenceTransformer(modules=[words, Pooling(size, pooling_mode="cls")], device=device)
    lines = [line for line in Path(args.train_file).read_text(encoding="utf-8").splitlines() if line.strip()]
    settings = SentenceTransformerTrainingArguments(
        output_dir=args.output_dir,
        max_steps=args.max_steps,
        per_device_train_batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        bf16=args.bf16,
        use_cpu=args.use_cpu,
        eval_strategy="steps",
        eval_steps=args.eval_steps,
        save_steps=args.eval_steps,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_dev_spearman_cosine",
        logging_steps=args.eval_steps,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=settings,
        train_dataset=Dataset.from_dict({"anchor": lines, "positive": lines}),
        loss=MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE),
        evaluator=read_pairs(Path(args.dev_file)),
    )
    trainer.train()
    model.save_pretrained(args.output_dir)


if __name__ == "__main__":
    main()
