"""Train a sentence encoder without labels: from a text file to a folder that AutoModel and SentenceTransformer load.

    csekit train                                            # demo, no download
    csekit train --model_name_or_path bert-base-uncased --train_file sentences.txt \\
        --data_dir SentEval/data --output_dir runs/my-encoder               # SimCSE, best by STS-B dev
    csekit train --config my-preset.yaml --train_file …

`examples/run_unsup.py` of the repository is the same program. The root of `--output_dir` becomes the exported encoder;
`training/` holds the checkpoints for `--resume_from_checkpoint True`, `results.json` the measurements. The program
refuses a folder that holds a run unless you give `--overwrite`. On SIGTERM it saves a checkpoint and ends with status
143. `--import my_module` imports a module first, which registers objectives of your own (docs/extend.md).
"""

import time
from collections.abc import Sequence
from pathlib import Path

from csekit.trainers.scripts.demo import DEMO, with_demo
from csekit.trainers.scripts.launch import use_all_cores
from csekit.trainers.scripts.run_arguments import parse_run_arguments
from csekit.trainers.scripts.runs import load_data, make_trainer, one_line_errors, run_folder, train_and_score

#: Scored pairs of the demo, in a clone and in the installed package.
_PAIRS = Path(__file__).resolve().parents[2] / "examples" / "demo"

_ABOUT = """Train a sentence encoder on plain text, without labels. Without encoder and text it runs the demo.
For example: --model_name_or_path bert-base-uncased --train_file sentences.txt --output_dir runs/my-encoder"""

_REAL_RUN = """For a real run:
  csekit train --model_name_or_path bert-base-uncased --train_file sentences.txt
  (or --dataset_name NAME from the Hub; --data_dir SentEval/data for STS-B dev and the STS test sets)"""


@one_line_errors()
def main(argv: Sequence[str] | None = None) -> int:
    """Run the training; without an encoder and a corpus, the demo.

    Arguments:
        argv: the words of the command line; default: those of the process.

    Returns:
        the exit code: 0, or 143 if SIGTERM stopped the training. An error of the user ends the process with status 2
        (1 while it trains) and one line on stderr.
    """
    started = time.monotonic()
    use_all_cores()
    run, args, fields = parse_run_arguments(argv, about=_ABOUT)
    if demo := run.is_empty:  # no encoder and no corpus named: the demo
        run, args, fields = parse_run_arguments(argv, defaults=DEMO, about=_ABOUT)
        run.overwrite |= args.output_dir == DEMO["output_dir"]  # the demo replaces its own earlier run

    with run_folder(run, args):
        with one_line_errors():
            if demo:
                with args.main_process_first(desc="demo encoder"):
                    run = with_demo(run, _PAIRS)
            run.check()
            data = load_data(run, args)
            trainer = make_trainer(run, args, fields, data)
        status = train_and_score(trainer, run, data, started)
    if demo and status == 0 and trainer.is_world_process_zero():
        print(_REAL_RUN)
    return status
