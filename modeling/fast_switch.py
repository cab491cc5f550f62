"""The one switch of the fast paths: ``CSEKIT_FAST=0`` in the environment turns all of them off.

The files ``fast_*.py`` hold what exists for speed or memory alone. docs/fast_paths.md says what each of them replaces.
"""

import os

VARIABLE = "CSEKIT_FAST"


def fast() -> bool:
    """Return False if the environment variable ``CSEKIT_FAST`` is ``0``, else True.

    Set it before the model is built: some paths are chosen when a model is built or loaded, others at every step.

    Raises:
        ValueError: the variable is neither ``0`` nor ``1``.
    """
    value = os.environ.get(VARIABLE, "1")
    if value not in ("0", "1"):
        raise ValueError(f"the environment variable {VARIABLE} must be '0' or '1', got {value!r}")
    return value == "1"
