"""Train a sentence encoder on pairs or triplets: sentence, positive and, where there is one, hard negative.

    python examples/run_sup.py --model_name_or_path bert-base-uncased --train_file nli.csv \
        --columns sent0 sent1 hard_neg --data_dir SentEval/data --output_dir runs/my-encoder
    python examples/run_sup.py --config examples/configs/simcse-bert-base-supervised.yaml --train_file …

It has the methods and arguments of run_unsup.py and writes the same folder. Its defaults are SimCSE's for labelled
data: 512 rows per step, learning rate 5e-5, 3 epochs, and the projector is kept at test time and exported as `2_Dense`
(`--projector_at_inference False` leaves it out). `--hard_negative_weight w` adds w to the logit of a row's own hard
negative. `results.json` counts training rows that hold a sentence of an evaluation set; `--filter_overlap` leaves them
out.
"""

import sys
import time

from csekit.trainers import parse_run_arguments
from csekit.trainers.scripts.runs import (
    SUPERVISED,
    check_positives,
    load_data,
    make_trainer,
    one_line_errors,
    run_folder,
    train_and_score,
)


@one_line_errors()
def main() -> int:
    started = time.monotonic()
    run, args, fields = parse_run_arguments(defaults=SUPERVISED)
    with one_line_errors():
        run.check()
    with run_folder(run, args):
        with one_line_errors():
            data = load_data(run, args)
            check_positives(data.corpus)
            trainer = make_trainer(run, args, fields, data)
        return train_and_score(trainer, run, data, started)


if __name__ == "__main__":
    sys.exit(main())
