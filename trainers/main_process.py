"""Let one of several processes speak."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

#: Libraries whose warnings each process would repeat.
_LOGGERS = ("csekit", "transformers", "datasets", "accelerate", "torch")


@contextmanager
def quiet_unless_main(process: int) -> Iterator[None]:
    """Inside the context, a process other than the first prints nothing on stdout and gives no warnings. Its errors
    stay.

    Arguments:
        process: index of this process.
    """
    if process == 0:
        yield
        return
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
