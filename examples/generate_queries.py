"""Write queries for passages with a sequence-to-sequence model, as pairs that training and mining read.

    python examples/generate_queries.py passages.jsonl pairs.jsonl --column text        # downloads a T5 of MS MARCO
    csekit mine pairs.jsonl --model sentence-transformers/all-MiniLM-L6-v2 --output triplets.jsonl
    csekit train-pairs --config gpl-distilbert-base --train_file triplets.jsonl …

The output has the columns query and passage; `pairs.jsonl.json` holds the settings. Queries are sampled, several for a
passage. After a kill, the same command continues: finished blocks are in `pairs.jsonl.parts` until the end.
"""

import argparse
import sys
from pathlib import Path

from csekit.trainers import load_corpus
from csekit.trainers.data.query_generation import QueryGeneration, write_queries
from csekit.trainers.scripts.runs import one_line_errors


def read_arguments() -> argparse.Namespace:
    own = QueryGeneration
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="passages: .txt (one a line), .csv, .tsv, .json, .jsonl or .parquet")
    parser.add_argument("pairs", type=Path, help="the .jsonl or .csv file to write")
    parser.add_argument("--column", help="column of the corpus, if it has several")
    parser.add_argument("--max_samples", type=int, help="use only the first rows of the corpus")
    parser.add_argument("--model", default=own.model, help="sequence-to-sequence model, Hub id or folder")
    parser.add_argument("--prefix", default=own.prefix, help="text in front of each passage")
    parser.add_argument("--queries", type=int, default=own.queries, help="queries of a passage")
    parser.add_argument("--top_k", type=int, default=own.top_k, help="sample among this many tokens; 0: among all")
    parser.add_argument("--top_p", type=float, default=own.top_p, help="sample among tokens of this total probability")
    parser.add_argument("--temperature", type=float, default=own.temperature)
    parser.add_argument(
        "--max_length", type=int, default=own.max_length, help="tokens; longer passages lose their end"
    )
    parser.add_argument("--max_query_length", type=int, default=own.max_query_length, help="tokens of a query")
    parser.add_argument("--batch_size", type=int, default=own.batch_size, help="passages of a batch")
    parser.add_argument("--block_size", type=int, default=own.block_size, help="passages that are written together")
    parser.add_argument("--seed", type=int, default=own.seed)
    return parser.parse_args()


def main() -> int:
    given = vars(read_arguments())
    with one_line_errors():
        names = QueryGeneration.__dataclass_fields__.keys() & given.keys()
        settings = QueryGeneration(**{name: given[name] for name in names})
        corpus = load_corpus(given["corpus"], columns=given["column"], max_samples=given["max_samples"], tell=False)
        print(f"{corpus.name}: {corpus.report.summary()}")
        counts = write_queries(corpus, given["pairs"], settings)
    print(f"{given['pairs']}: " + ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
