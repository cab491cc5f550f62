"""Write a corpus of sentences with their next sentences: two columns, for `--condition_sentence next` or `both`.

    python examples/make_next_sentence.py ordered.txt pairs.tsv
    python examples/run_unsup.py --method diffcse --condition_sentence next --train_file pairs.tsv …

The input holds one sentence per line, in the order of the text; a blank line ends a document. The last sentence of a
document has no next one and is left out. Tabs within a sentence become blanks.
"""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path


def pairs(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each sentence with the next one of its document."""
    before = ""
    for line in lines:
        sentence = " ".join(line.split())
        if before and sentence:
            yield before, sentence
        before = sentence


def write(text: Path, output: Path) -> int:
    """Write the pairs, and return their number. An error leaves an earlier output as it was.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: the text is not UTF-8, holds no pair, or is itself the output.
    """
    if text.resolve() == output.resolve():
        raise ValueError(f"output must be another file than the text, got {output}")
    draft = output.with_name(f"{output.name}.draft")
    try:
        with text.open(encoding="utf-8-sig") as source, draft.open("w", encoding="utf-8") as target:
            target.write("sentence\tnext\n")
            count = sum(target.write("\t".join(pair) + "\n") > 0 for pair in pairs(source))
        if not count:
            raise ValueError(f"{text}: must hold two sentences in a row, a line each, got none")
        draft.replace(output)
    except UnicodeDecodeError as error:
        raise ValueError(f"{text}: must be UTF-8, got the byte 0x{error.object[error.start]:02x}") from None
    finally:
        draft.unlink(missing_ok=True)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a sentence a line, blank lines between documents")
    parser.add_argument("output", type=Path, help="the .tsv file to write, with columns sentence and next")
    arguments = parser.parse_args()
    if arguments.output.suffix != ".tsv":  # readers recognise the format by the ending
        parser.error(f"output must end in .tsv, got {str(arguments.output)!r}")
    try:
        count = write(arguments.text, arguments.output)
    except (OSError, ValueError) as error:
        parser.exit(2, f"error: {error}\n")
    print(f"{arguments.output}: {count:,} sentences with the next one")


if __name__ == "__main__":
    main()
