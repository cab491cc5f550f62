"""Train a sentence encoder on pairs or triplets: sentence, positive and, where there is one, hard negative.

    csekit train-pairs --model_name_or_path bert-base-uncased --train_file nli.csv \\
        --columns sent0 sent1 hard_neg --data_dir SentEval/data --output_dir runs/my-encoder
    csekit train-pairs --config my-preset.yaml --train_file …

`examples/run_sup.py` of the repository is the same program. It has the methods and arguments of `csekit train` and
writes the same folder. Its defaults are SimCSE's for labelled data: 512 rows per step, learning rate 5e-5, 3 epochs,
and the projector is kept at test time and exported as `2_Dense` (`--projector_at_inference False` leaves it out).
`--hard_negative_weight w` adds w to the logit of a row's own hard negative. `results.json` counts training rows that
hold a sentence of an evaluation set; `--filter_overlap` leaves them out.
"""

import time
from collections.abc import Sequence

from csekit.trainers.scripts.launch import use_all_cores
from csekit.trainers.scripts.run_arguments import parse_run_arguments
from csekit.trainers.scripts.runs import (
    SUPERVISED,
    check_positives,
    load_data,
    make_trainer,
    one_line_errors,
    run_folder,
    train_and_score,
)

_ABOUT = """Train a sentence encoder on pairs or triplets: sentence, positive and, where there is one, hard negative.
For example: --model_name_or_path bert-base-uncased --train_file nli.csv --columns sent0 sent1 hard_neg"""


@one_line_errors()
def main(argv: Sequence[str] | None = None) -> int:
    """Run the training on pairs or triplets.

    Arguments:
        argv: the words of the command line; default: those of the process.

    Returns:
        the exit code: 0, or 143 if SIGTERM stopped the training. An error of the user ends the process with status 2
        (1 while it trains) and one line on stderr.
    """
    started = time.monotonic()
    use_all_cores()
    run, args, fields = parse_run_arguments(argv, defaults=SUPERVISED, about=_ABOUT)
    with one_line_errors():
        run.check()
    with run_folder(run, args):
        with one_line_errors():
            data = load_data(run, args)
            check_positives(data.corpus)
            trainer = make_trainer(run, args, fields, data)
        return train_and_score(trainer, run, data, started)
