"""Write positives for a corpus: each sentence translated into another language and back.

    python examples/back_translate.py sentences.txt pairs.tsv               # en -> de -> en, downloads two models
    python examples/back_translate.py sentences.txt pairs.tsv --forward Helsinki-NLP/opus-mt-en-fr \
        --backward Helsinki-NLP/opus-mt-fr-en
    python examples/run_unsup.py --train_file pairs.tsv …

The output has the columns sent0 (the sentence) and sent1 (its back-translation); `pairs.tsv.json` holds the settings.
Repeated sentences are translated once. After a kill, the same command continues: finished blocks are in
`pairs.tsv.parts` until the end. On a GPU it uses bf16. Marian models need `pip install csekit[translation]`.
"""

import argparse
import sys
from pathlib import Path

from csekit.trainers import load_corpus
from csekit.trainers.data.back_translation import BackTranslation, distinct, write_back_translations
from csekit.trainers.scripts.pretraining_runs import corpus_texts
from csekit.trainers.scripts.runs import one_line_errors


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help=".txt (a sentence a line), .csv, .tsv, .json, .jsonl or .parquet")
    parser.add_argument("pairs", type=Path, help="the .tsv or .csv file to write")
    parser.add_argument("--column", help="column of the corpus, if it has several")
    parser.add_argument("--max_samples", type=int, help="use only the first rows of the corpus")
    parser.add_argument("--forward", default=BackTranslation.forward, help="translation model, Hub id or folder")
    parser.add_argument("--backward", default=BackTranslation.backward, help="translation model of the way back")
    parser.add_argument("--languages", nargs=2, metavar="CODE", help="for multilingual models: eng_Latn deu_Latn")
    parser.add_argument("--prefixes", nargs=2, default=("", ""), metavar="TEXT", help="texts in front of the inputs")
    parser.add_argument("--batch_size", type=int, default=BackTranslation.batch_size)
    parser.add_argument("--num_beams", type=int, help="default: that of the models")
    parser.add_argument(
        "--max_length", type=int, default=BackTranslation.max_length, help="tokens; longer sentences are left out"
    )
    parser.add_argument("--block_size", type=int, default=BackTranslation.block_size, help="sentences of a block")
    parser.add_argument("--ratios", type=float, nargs=2, default=(0.5, 2.0), metavar=("LEAST", "MOST"),
                        help="leave out back-translations of another relative length")  # fmt: skip
    parser.add_argument(
        "--drop_identical", action="store_true", help="leave out back-translations that equal the sentence"
    )
    return parser.parse_args()


def main() -> int:
    given = vars(read_arguments())
    with one_line_errors():
        corpus = load_corpus(given["corpus"], columns=given["column"], max_samples=given["max_samples"], tell=False)
        if len(corpus.columns) != 1:
            raise ValueError(f"{corpus.name} has the columns {', '.join(corpus.columns)}: name one with --column")
        names = BackTranslation.__dataclass_fields__.keys() & given.keys()
        settings = BackTranslation(**{name: given[name] for name in names})
        texts = distinct(corpus_texts(corpus))
        print(f"{corpus.name}: {corpus.report.summary()}; {len(texts):,} different sentences")
        counts = write_back_translations(
            texts, given["pairs"], settings, ratios=tuple(given["ratios"]), drop_identical=given["drop_identical"]
        )
    print(f"{given['pairs']}: " + ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
