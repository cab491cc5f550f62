"""Distil a sentence encoder into another one: a smaller one, or one that reads another language.

    csekit distill --teachers sentence-transformers/all-MiniLM-L6-v2 --model_name_or_path student --train_file t.txt
    csekit distill --teachers BAAI/bge-base-en-v1.5 --model_name_or_path BAAI/bge-base-en-v1.5 --layers 0 4 8 …
    csekit distill --teachers TEACHER --model_name_or_path xlm-roberta-base --train_file parallel.tsv …

The options are those of `csekit train`. `--teachers` names the teacher: `NAME`, `NAME:POOLING` for a plain encoder, or
a `.npy` file with a vector for each row. A file of two columns holds sentences and their translations. The teacher
encodes the sentences once, before training. Where its vectors have another size than the student's, a linear layer
maps to them and stays in the exported encoder; `--distill_loss similarities` needs none.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from csekit.encoding.pretrained import load_pretrained
from csekit.trainers.data.teachers import load_teacher, open_vectors
from csekit.trainers.scripts.launch import use_all_cores
from csekit.trainers.scripts.run_arguments import RunArguments, parse_run_arguments
from csekit.trainers.scripts.runs import load_data, make_trainer, one_line_errors, run_folder, train_and_score

#: Defaults: the teacher's vectors alone. Batch and rate are those of Reimers and Gurevych (2020) as
#: sentence-transformers' example of the method has them.
DISTILLATION: dict[str, Any] = {
    "method": "joint",
    "objectives": ["distill"],
    "contrastive_weight": 0.0,
    "pooling": "mean",
    "per_device_train_batch_size": 64,
    "learning_rate": 2e-5,
    "num_train_epochs": 1,
    "max_seq_length": 128,
}

_ABOUT = """Train an encoder on the vectors of a frozen teacher: a smaller encoder, or one that reads another language.
For example: --teachers sentence-transformers/all-MiniLM-L6-v2 --model_name_or_path student --train_file texts.txt"""


def with_map(run: RunArguments, teachers: Sequence[str], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the model's fields with a projector: none, or a linear map to the size of the teacher's vectors.

    Raises:
        ValueError: not one teacher.
    """
    if len(teachers) != 1:
        raise ValueError(f"--teachers must name one teacher, got {' '.join(teachers) or 'none'}")
    if "projector" in fields or fields.get("distill_loss", fields.get("loss")) == "similarities":
        return {"projector": "none"} | fields
    if teachers[0].endswith(".npy"):
        size = int(open_vectors(Path(teachers[0])).shape[-1])
    else:
        size = int(load_teacher(teachers[0]).encode(["a"]).shape[1])
    own = int(load_pretrained(AutoConfig, str(run.model_name_or_path)).hidden_size)
    mapped = {"projector": "linear", "projector_size": size, "projector_at_inference": True}
    return ({"projector": "none"} if size == own else mapped) | fields


@one_line_errors()
def main(argv: Sequence[str] | None = None) -> int:
    """Run the distillation.

    Arguments:
        argv: the words of the command line; default: those of the process.

    Returns:
        the exit code: 0, or 143 if SIGTERM stopped the training. An error of the user ends the process with status 2
        (1 while it trains) and one line on stderr.
    """
    started = time.monotonic()
    use_all_cores()
    run, args, fields = parse_run_arguments(argv, defaults=DISTILLATION, about=_ABOUT)
    with one_line_errors():
        run.check()
        fields = with_map(run, args.teachers or [], fields)
    with run_folder(run, args):
        with one_line_errors():
            data = load_data(run, args)
            trainer = make_trainer(run, args, fields, data)
        return train_and_score(trainer, run, data, started)
