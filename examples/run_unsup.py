"""Train a sentence encoder without labels: from a text file to a folder that AutoModel and SentenceTransformer load.

    python examples/run_unsup.py                                            # demo, no download
    python examples/run_unsup.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --data_dir SentEval/data --output_dir runs/my-encoder               # SimCSE, best by STS-B dev
    python examples/run_unsup.py --config examples/configs/informin-bert-base.yaml --train_file …

`--help` lists every argument with its default. The root of `--output_dir` becomes the exported encoder; `training/`
holds the checkpoints for `--resume_from_checkpoint True`, `results.json` the measurements. The script refuses a folder
that holds a run unless you give `--overwrite`. On SIGTERM it saves a checkpoint and ends with status 143.
`--import my_module` imports a module first, which registers objectives of your own (docs/extend.md).
"""

import sys
import time
from pathlib import Path

from csekit.trainers import parse_run_arguments
from csekit.trainers.scripts.demo import DEMO, with_demo
from csekit.trainers.scripts.runs import load_data, make_trainer, one_line_errors, run_folder, train_and_score

REAL_RUN = """For a real run:
  python examples/run_unsup.py --model_name_or_path bert-base-uncased --train_file sentences.txt
  (or --dataset_name NAME from the Hub; --data_dir SentEval/data for STS-B dev and the STS test sets)"""


@one_line_errors()
def main() -> int:
    started = time.monotonic()
    run, args, fields = parse_run_arguments()
    if demo := run.is_empty:  # no encoder and no corpus named: the demo
        run, args, fields = parse_run_arguments(defaults=DEMO)
        run.overwrite |= args.output_dir == DEMO["output_dir"]  # the demo replaces its own earlier run

    with run_folder(run, args):
        with one_line_errors():
            if demo:
                with args.main_process_first(desc="demo encoder"):
                    run = with_demo(run, Path(__file__).parent / "demo")
            run.check()
            data = load_data(run, args)
            trainer = make_trainer(run, args, fields, data)
        status = train_and_score(trainer, run, data, started)
    if demo and status == 0 and trainer.is_world_process_zero():
        print(REAL_RUN)
    return status


if __name__ == "__main__":
    sys.exit(main())
