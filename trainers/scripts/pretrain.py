"""Pre-train an encoder, new or from a checkpoint: stage 1 of InfoCSE, a plain masked LM, or replaced-token detection.

    csekit pretrain --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --output_dir runs/stage1                              # stage 1: encoder and head that InfoCSE starts from
    csekit pretrain --vocab_size 8000 --objective mlm --small_budget_init --train_file sentences.txt \
        --output_dir runs/my-bert                             # a new tokenizer and a new BERT
    csekit pretrain --model_name_or_path bert-base-uncased --objective rtd --train_file sentences.txt \
        --output_dir runs/rtd                                 # a discriminator that DiffCSE starts from

`examples/run_pretrain.py` of the repository is the same program. The root of `--output_dir` becomes the checkpoint: a
plain masked LM that AutoModel loads, its tokenizer, and with `--objective condenser` the auxiliary head in a
subfolder. With `--objective rtd` it is a plain encoder, and `objectives/` holds what DiffCSE starts from. `training/`
holds the checkpoints for `--resume_from_checkpoint True`, `results.json` the measurements. The program refuses a
folder that holds a run unless you give `--overwrite`. On SIGTERM it saves a checkpoint and ends with status 143.
"""

import time
from collections.abc import Sequence

from transformers import set_seed

from csekit.trainers.batches.packing import pack
from csekit.trainers.data.corpora import Corpus
from csekit.trainers.pretraining import PretrainingTrainer
from csekit.trainers.scripts.launch import use_all_cores
from csekit.trainers.scripts.output_folder import clear_output_dir
from csekit.trainers.scripts.pretraining_runs import (
    PretrainRunArguments,
    check_networks,
    heldout_table,
    load_texts,
    make_model,
    make_tokenizer,
    next_command,
    parse_pretrain_arguments,
    tell_texts,
    write_pretraining,
)
from csekit.trainers.scripts.runs import one_line_errors, run_folder

_ABOUT = """Pre-train an encoder on plain text: a checkpoint, or with --vocab_size or --tokenizer_name a new one.
For example: --model_name_or_path bert-base-uncased --train_file sentences.txt --output_dir runs/stage1"""


@one_line_errors()
def main(argv: Sequence[str] | None = None) -> int:
    """Run the pre-training.

    Arguments:
        argv: the words of the command line; default: those of the process.

    Returns:
        the exit code: 0, or 143 if SIGTERM stopped the training. An error of the user ends the process with status 2
        (1 while it trains) and one line on stderr.
    """
    started = time.monotonic()
    use_all_cores()
    run, args = parse_pretrain_arguments(argv, _ABOUT)

    with one_line_errors():
        run.check()
    with run_folder(run, args):
        with one_line_errors():
            check_networks(run)
            corpus, texts, unseen = load_texts(run)
            tokenizer = make_tokenizer(run, texts)
            tell_texts(corpus, tokenizer, args)
            blocks = pack(texts, tokenizer, args.block_length, args.whole_word_masking)
            heldout = pack(unseen, tokenizer, args.block_length, args.whole_word_masking) if unseen else None
            print(
                f"{corpus.name}: {corpus.report.summary()}; {blocks.lengths_N.sum():,} tokens of {len(tokenizer):,} "
                f"kinds in {len(blocks):,} blocks, {len(heldout) if heldout is not None else 0:,} held out"
            )
            set_seed(args.seed)
            model = make_model(run, tokenizer, blocks)
            trainer = PretrainingTrainer(model, args, blocks, tokenizer, heldout)
            trainer.check_resume(args.resume_from_checkpoint)
            clear_output_dir(run, args)
        return train_and_export(trainer, run, corpus, started)


def train_and_export(trainer: PretrainingTrainer, run: PretrainRunArguments, corpus: Corpus, started: float) -> int:
    """Score the held-out text, train, export, score again; write the results file. Return the exit code."""
    before = trainer.heldout_scores()
    training = time.monotonic()
    trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
    if trainer.stop_on_terminate.interrupted:
        return 143
    seconds = {"train": time.monotonic() - training}

    folder = trainer.save_run()
    after = trainer.heldout_scores()
    if trainer.is_world_process_zero():
        seconds["total"] = time.monotonic() - started
        write_pretraining(trainer, run, corpus, before, after, seconds)
        print(heldout_table(before, after))
        print(f"\nThe checkpoint is in {folder}: {next_command(trainer.model.config, folder)}")
    return 0
