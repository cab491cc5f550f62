"""Load and save weights without Transformers' bars and reports, which a few seconds of work do not need."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging as transformers_logging


@contextmanager
def quiet_weights() -> Iterator[None]:
    """Inside the context, Transformers shows no bars ``Loading weights`` and ``Writing model shards`` and does not
    report weights that a checkpoint lacks or has too many. Bars of downloads from the Hub stay."""
    verbosity, hook = transformers_logging.get_verbosity(), transformers_logging.set_tqdm_hook(_no_bar)
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        transformers_logging.set_tqdm_hook(hook)


def _no_bar(factory: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    return factory(*args, **{**options, "disable": True})
