"""Fail fast where the Hub cannot be reached: its libraries would try for minutes."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants

#: Seconds within which the Hub must answer.
_PATIENCE = 5.0


@contextmanager
def hub_or_cache(source: str | Path) -> Iterator[None]:
    """Inside the context, a name on the Hub is looked up in the cache alone if the Hub cannot be reached.

    Raises:
        FileNotFoundError: the Hub cannot be reached, or ``HF_HUB_OFFLINE`` is set, and the files of such a name were
            not found inside.
    """
    offline = constants.is_offline_mode()
    if Path(source).expanduser().exists() or (not offline and _reachable(constants.ENDPOINT)):
        yield
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    except OSError as error:
        why = "HF_HUB_OFFLINE is set" if offline else f"{constants.ENDPOINT} cannot be reached"
        raise FileNotFoundError(
            f"{str(source)!r} is no folder here and not in the cache, and {why}: "
            "give a local folder, or download it on another machine (hf download) and copy its cache (HF_HOME)"
        ) from error
    finally:
        constants.HF_HUB_OFFLINE = offline


def from_hub(auto_class: Any, source: str | Path, **options: Any) -> Any:
    """Call ``auto_class.from_pretrained`` for a folder or a name on the Hub. Code in the source is never run.

    Raises:
        FileNotFoundError: as for :func:`hub_or_cache`.
    """
    with hub_or_cache(source):
        return auto_class.from_pretrained(str(source), trust_remote_code=False, **options)


@lru_cache
def _reachable(endpoint: str) -> bool:
    """Say whether a connection can be opened. A proxy is trusted."""
    address = urlsplit(endpoint)
    if address.hostname is None or getproxies().get(address.scheme) or os.environ.get("ALL_PROXY"):
        return True
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname, port), timeout=_PATIENCE).close()
    except OSError:
        return False
    return True
