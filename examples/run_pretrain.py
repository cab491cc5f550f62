"""Pre-train an encoder, new or from a checkpoint; the same as `csekit pretrain`.

    python examples/run_pretrain.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --output_dir runs/stage1                              # stage 1: encoder and head that InfoCSE starts from
    python examples/run_pretrain.py --config examples/configs/pretraining/mlm-small-cpu.yaml \
        --train_file sentences.txt --output_dir runs/my-bert  # a new tokenizer and a small new BERT, on a CPU
"""

import sys

from csekit.trainers.scripts.pretrain import main

if __name__ == "__main__":
    sys.exit(main())
