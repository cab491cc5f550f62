"""Random numbers of an objective's own.

Terms are compared on equal dropout draws of the encoder. An objective that drew from the global generators would move
them on, and the encoder would get other numbers in the next step than it gets without the objective.
"""

import hashlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def state_seed(device: torch.device) -> int:
    """Return a seed, 48 bits, that follows from the state of the global generators, which stays as it is.

    Arguments:
        device: where the networks draw, besides the CPU.
    """
    states = [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])
    digest = hashlib.blake2b(digest_size=6)
    for state in states:
        digest.update(state.numpy().data)
    return int.from_bytes(digest.digest(), "little")


@contextmanager
def own_stream(name: str, seed: int, device: torch.device) -> Iterator[None]:
    """Seed the generators inside the context by ``name`` and ``seed``; restore the global random state afterwards.

    Arguments:
        name: the objective's; objectives with different names draw different numbers in the same step.
        seed: from :func:`state_seed`.
        device: where the networks draw, besides the CPU.
    """
    own = (seed << 16) ^ zlib.crc32(name.encode())
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(own)
        if device.type == "cuda":
            torch.cuda.manual_seed(own)
        yield
