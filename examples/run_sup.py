"""Train a sentence encoder on pairs or triplets; the same as `csekit train-pairs`.

    python examples/run_sup.py --model_name_or_path bert-base-uncased --train_file nli.csv \
        --columns sent0 sent1 hard_neg --data_dir SentEval/data --output_dir runs/my-encoder
    python examples/run_sup.py --config examples/configs/simcse-bert-base-supervised.yaml --train_file …
"""

import sys

from csekit.trainers.scripts.train_pairs import main

if __name__ == "__main__":
    sys.exit(main())
