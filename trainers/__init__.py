"""Training: corpora, collator, arguments and the trainer."""

from .arguments import CSETrainingArguments
from .collator import CSECollator
from .corpora import Corpus, load_corpus
from .run_arguments import RunArguments, parse_run_arguments
from .trainer import CSETrainer, NonFiniteLossError

__all__ = [
    "CSECollator",
    "CSETrainer",
    "CSETrainingArguments",
    "Corpus",
    "NonFiniteLossError",
    "RunArguments",
    "load_corpus",
    "parse_run_arguments",
]
