"""Continue a masked LM as Transformers documents it, with its own Trainer: the peer of `end_to_end.py --task mlm`.

    python benchmarks/mlm_training.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --dev_file heldout.txt --max_steps 200 --output_dir runs/peer

The sentences are tokenised, joined and cut into blocks of `--max_seq_length` tokens. `DataCollatorForLanguageModeling`
masks 15 % of the tokens, and the loss of the held-out sentences is computed every `--eval_steps`.
"""

import argparse
from itertools import chain
from pathlib import Path

from datasets import Dataset
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)


def blocks(path: str, tokenizer: PreTrainedTokenizerBase, length: int) -> Dataset:
    """Tokenise the sentences of a file, join them and cut blocks of so many tokens."""
    lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    ids = list(chain.from_iterable(tokenizer(lines)["input_ids"]))
    return Dataset.from_dict({"input_ids": [ids[i : i + length] for i in range(0, len(ids) - length + 1, length)]})


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model_name_or_path", "train_file", "dev_file", "output_dir"):
        parser.add_argument(f"--{name}", required=True)
    for name, default in (("max_steps", 200), ("eval_steps", 125), ("batch_size", 32), ("max_seq_length", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--learning_rate", type=float, default=3e-5)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--use_cpu", action="store_true")
    args = parser.parse_args(argv)
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    settings = TrainingArguments(
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
        prediction_loss_only=True,
        logging_steps=args.eval_steps,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=AutoModelForMaskedLM.from_pretrained(args.model_name_or_path).float(),  # a checkpoint may have 16 bits
        args=settings,
        train_dataset=blocks(args.train_file, tokenizer, args.max_seq_length),
        eval_dataset=blocks(args.dev_file, tokenizer, args.max_seq_length),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
    )
    trainer.train()
    trainer.save_model(args.output_dir)


if __name__ == "__main__":
    main()
