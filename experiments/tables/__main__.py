"""``python -m experiments.tables README.md docs/*.md``: renew the generated tables."""

import sys

from experiments.tables.render import main

if __name__ == "__main__":
    sys.exit(main())
