"""Write a corpus of sentences with their next sentences: two columns, for `--condition_sentence next` or `both`.

    python examples/make_next_sentence.py ordered.txt pairs.tsv
    python examples/run_unsup.py --method diffcse --condition_sentence next --train_file pairs.tsv …

The input holds one sentence per line, in the order of the text; a blank line ends a document. The last sentence of a
document has no next one and is left out. Tabs within a sentence become blanks.
"""

import argparse
from collections.abc import Iterable, Iterator


def pairs(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each sentence with the next one of its document."""
    before = ""
    for line in lines:
        sentence = " ".join(line.split())
        if before and sentence:
            yield before, sentence
        before = sentence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", help="a sentence a line, blank lines between documents")
    parser.add_argument("output", help="the .tsv file to write, with columns sentence and next")
    arguments = parser.parse_args()
    if not arguments.output.endswith(".tsv"):  # readers recognise the format by the ending
        parser.error(f"output must end in .tsv, got {arguments.output!r}")
    with open(arguments.text, encoding="utf-8-sig") as source, open(arguments.output, "w", encoding="utf-8") as target:
        target.write("sentence\tnext\n")
        count = sum(target.write("\t".join(pair) + "\n") > 0 for pair in pairs(source))
    print(f"{arguments.output}: {count:,} sentences with the next one")


if __name__ == "__main__":
    main()
