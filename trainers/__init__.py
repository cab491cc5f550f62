"""Training: corpora, collator, arguments and the trainer."""

from .arguments import CSETrainingArguments, PretrainingArguments
from .base_trainer import NonFiniteLossError
from .callbacks import GeometryCallback
from .collator import CSECollator
from .corpora import Corpus, load_corpus
from .packing import Blocks, PretrainingCollator, pack
from .pretraining import PretrainingTrainer
from .publishing import PublishError, push_run
from .run_arguments import RunArguments, parse_run_arguments
from .tokenizer_training import train_tokenizer
from .trainer import CSETrainer

__all__ = [
    "Blocks",
    "CSECollator",
    "CSETrainer",
    "CSETrainingArguments",
    "Corpus",
    "GeometryCallback",
    "NonFiniteLossError",
    "PretrainingArguments",
    "PretrainingCollator",
    "PretrainingTrainer",
    "PublishError",
    "RunArguments",
    "load_corpus",
    "pack",
    "parse_run_arguments",
    "push_run",
    "train_tokenizer",
]
