"""Train what GPL needs beside the encoder, from pairs of title and text: a writer of questions and a judge of answers.

    csekit pairs corpus.jsonl --kind title -o titles.jsonl
    python experiments/question_models.py writer titles.jsonl --start minilm-wiki --output_dir writer
    csekit mine titles.jsonl --columns anchor positive --model minilm-wiki --pooling mean --output triplets.jsonl
    python experiments/question_models.py judge triplets.jsonl --start minilm-wiki --output_dir judge

GPL (Wang et al., 2022) takes both from MS MARCO, whose questions people asked. Where there is no such model, titles
stand in for questions: the writer learns to write the title of a text, and the judge to tell a title's own text from
others. Both start from a masked language model. The writer is an encoder and a decoder of the same weights (Rothe et
al., 2020), whose cross-attention is new; the judge is a cross-encoder with one output. Files: ``anchor``, ``positive``
and, for the judge, ``negative``.
"""

import argparse
import random
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers.cross_encoder import (
    CrossEncoder,
    CrossEncoderTrainer,
    CrossEncoderTrainingArguments,
    losses,
)
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    EncoderDecoderModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)


def read_rows(path: Path) -> dict[str, list[str]]:
    """Return the columns of a file of JSON lines."""
    columns: Any = Dataset.from_json(str(path), keep_in_memory=True)
    return {name: list(columns[name]) for name in columns.column_names}


def train_writer(args: argparse.Namespace) -> None:
    """Train an encoder-decoder that writes the anchor of a positive."""
    tokenizer: Any = AutoTokenizer.from_pretrained(args.start)
    model: Any = EncoderDecoderModel.from_encoder_decoder_pretrained(args.start, args.start).float()
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id = tokenizer.cls_token_id
        config.eos_token_id = tokenizer.sep_token_id
        config.pad_token_id = tokenizer.pad_token_id
    rows = read_rows(args.pairs)
    inputs = tokenizer(rows["positive"], truncation=True, max_length=args.max_length)
    targets = tokenizer(rows["anchor"], truncation=True, max_length=args.max_target_length)
    # the model shifts the labels and puts [CLS] in front itself
    labels = [ids[1:] for ids in targets["input_ids"]]
    data = Dataset.from_dict(
        {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"], "labels": labels}
    )
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(**training_options(args)),
        train_dataset=data,
        data_collator=DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=-100),
    )
    trainer.train()
    model.save_pretrained(args.output_dir)
    tokenizer.save_pretrained(args.output_dir)


def train_judge(args: argparse.Namespace) -> None:
    """Train a cross-encoder on each anchor with its positive, its mined negative and another row's text."""
    rows = read_rows(args.pairs)
    others = random.Random(args.seed).sample(rows["positive"], len(rows["positive"]))
    texts = [*rows["positive"], *rows["negative"], *others]
    labels = [1.0] * len(others) + [0.0] * 2 * len(others)
    data = Dataset.from_dict({"anchor": rows["anchor"] * 3, "text": texts, "label": labels})
    model = CrossEncoder(
        str(args.start), num_labels=1, max_length=args.max_length, model_kwargs={"dtype": torch.float32}
    )
    trainer = CrossEncoderTrainer(
        model=model,
        args=CrossEncoderTrainingArguments(**training_options(args)),
        train_dataset=data,
        loss=losses.BinaryCrossEntropyLoss(model),
    )
    trainer.train()
    model.save_pretrained(str(args.output_dir))


def training_options(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "output_dir": str(args.output_dir),
        "max_steps": args.max_steps,
        "per_device_train_batch_size": args.batch_size,
        "learning_rate": args.learning_rate,
        "warmup_steps": max(1, args.max_steps // 10),
        "bf16": True,
        "use_cpu": not torch.cuda.is_available(),
        "seed": args.seed,
        "logging_steps": 25,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["writer", "judge"])
    parser.add_argument("pairs", type=Path, help="JSON lines: anchor, positive and, for the judge, negative")
    parser.add_argument("--start", required=True, help="a masked language model, folder or Hub id")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--max_length", type=int, default=128, help="tokens of a text; for the judge, with its title")
    parser.add_argument("--max_target_length", type=int, default=32, help="tokens of a title (writer)")
    parser.add_argument("--max_steps", type=int, default=400)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=2e-4)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args(argv)
    {"writer": train_writer, "judge": train_judge}[args.kind](args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
