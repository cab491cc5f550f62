"""``python -m experiments.pictures [NAME …]``: draw the pictures of the documents from the results files."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.pictures.drawings import draw


def main(argv: Sequence[str] | None = None) -> int:
    """Return exit code 0, or 2 for a wrong name or missing results."""
    parser = argparse.ArgumentParser(prog="python -m experiments.pictures", description=__doc__)
    parser.add_argument("names", nargs="*", help="pictures to draw; default: all whose results are there")
    parser.add_argument("--results", type=Path, default=Path("experiments/results"), help="folder of results files")
    parser.add_argument("--output", type=Path, default=Path("docs/pictures"), help="folder of the pictures")
    args = parser.parse_args(argv)
    try:
        written, missing = draw(args.results, args.output, args.names)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path in written:
        print(f"written: {path} ({path.stat().st_size / 1000:.0f} kB)")
    for name, reason in missing.items():
        print(f"not drawn: {name}: {' '.join(reason.split())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
