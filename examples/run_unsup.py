"""Train a sentence encoder without labels; the same as `csekit train`.

    python examples/run_unsup.py                                            # demo, no download
    python examples/run_unsup.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --data_dir SentEval/data --output_dir runs/my-encoder               # SimCSE, best by STS-B dev
    python examples/run_unsup.py --config examples/configs/informin-bert-base.yaml --train_file …
"""

import sys

from csekit.trainers.scripts.train import main

if __name__ == "__main__":
    sys.exit(main())
