"""Train a sentence encoder without labels: from a text file to a folder that AutoModel and SentenceTransformer load.

    python examples/run_unsup.py                                            # embedded demo, downloads nothing
    accelerate launch examples/run_unsup.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --data_dir SentEval/data --output_dir runs/my-encoder               # SimCSE, best by STS-B dev
    accelerate launch examples/run_unsup.py --config examples/configs/informin-bert-base.yaml --train_file …

`--help` lists every argument with its default. The root of `--output_dir` becomes the exported encoder, `training/`
what `--resume_from_checkpoint True` continues from, `results.json` what was measured. A folder that holds a run
already is refused unless `--overwrite` is given. SIGTERM saves and ends with 143.
"""

import sys
import time
from pathlib import Path

from transformers import AutoTokenizer, set_seed

from csekit.modeling import METHODS
from csekit.modeling.export import needs_code
from csekit.trainers import CSETrainer, load_corpus, parse_run_arguments
from csekit.trainers.demo import DEMO, with_demo
from csekit.trainers.runs import (
    before_and_after,
    check_output_dir,
    load_dev,
    load_tests,
    one_line_errors,
    score_run,
    write_run,
)

REAL_RUN = """For a real run:
  accelerate launch examples/run_unsup.py --model_name_or_path bert-base-uncased --train_file sentences.txt
  (or --dataset_name NAME from the Hub; --data_dir SentEval/data for STS-B dev and the STS test sets)"""


def main() -> int:
    started = time.monotonic()
    run, args, fields = parse_run_arguments()
    if demo := run.is_empty:  # no encoder and no corpus named: the embedded default
        run, args, fields = parse_run_arguments(defaults=DEMO)
        run.overwrite |= args.output_dir == DEMO["output_dir"]  # the demo's own folder can be made again

    with one_line_errors():
        check_output_dir(run, args)
        if demo:
            with args.main_process_first(desc="demo encoder"):
                run = with_demo(run, Path(__file__).parent / "demo")
        run.check()
        corpus = load_corpus(
            run.train_file,
            run.dataset_name,
            columns=run.columns,
            streaming=run.streaming,
            max_samples=run.max_train_samples,
        )
        dev, tests = load_dev(run), load_tests(run) if args.do_predict else []
        tokenizer = AutoTokenizer.from_pretrained(run.model_name_or_path)
        template = METHODS[run.method].config_class(**fields).prompt_template  # a method may bring its own
        fit = corpus.tokenizer_report(tokenizer, args.max_seq_length, prompt_template=template)
        print(f"{corpus.name}: {corpus.report.summary()}; {fit.summary()}")
        if fit.warning:
            print(f"warning: {fit.warning}", file=sys.stderr)

        set_seed(args.seed)
        model = METHODS[run.method].from_backbone(
            run.model_name_or_path, tokenizer=tokenizer, dropout=run.dropout, **fields
        )
        trainer = CSETrainer(model, args, corpus, tokenizer, dev)

    before = score_run(trainer, tests if run.test_file else [])
    training = time.monotonic()
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    if trainer.stop_on_terminate.interrupted:
        return 143
    seconds = {"train": time.monotonic() - training}

    folder = trainer.save_run()
    if trainer.is_world_process_zero():
        after = score_run(trainer, tests)
        seconds["total"] = time.monotonic() - started
        write_run(trainer, run, before, after, seconds)
        print(before_and_after(before, after))
        code = ", trust_remote_code=True" if needs_code(model.config) else ""
        print(f"\nThe encoder is in {folder}: SentenceTransformer({str(folder)!r}{code})")
        if demo:
            print(REAL_RUN)
    return 0


if __name__ == "__main__":
    sys.exit(main())
