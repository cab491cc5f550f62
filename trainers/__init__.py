"""Training: corpora, collator, arguments and the trainer."""

from csekit.trainers.arguments import CSETrainingArguments, PretrainingArguments
from csekit.trainers.base_trainer import NonFiniteLossError
from csekit.trainers.batches.collator import CSECollator
from csekit.trainers.batches.packing import Blocks, PretrainingCollator, pack
from csekit.trainers.callbacks import GeometryCallback
from csekit.trainers.data.corpora import Corpus, load_corpus
from csekit.trainers.data.tokenizer_training import train_tokenizer
from csekit.trainers.hub.publishing import PublishError, push_run
from csekit.trainers.pretraining import PretrainingTrainer
from csekit.trainers.scripts.run_arguments import RunArguments, parse_run_arguments
from csekit.trainers.trainer import CSETrainer

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
