"""Stateless random numbers.

Every number is a hash of (seed, epoch, sample index, stream, place). A sentence is therefore drawn upon in the same
way in any batch, at any padding, in any worker or process, and after any resume.

Shape suffix: N rows.
"""

import hashlib
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
Integers: TypeAlias = int | Sequence[int] | np.ndarray


def mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser: a bijection of uint64 in which every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fold_in(key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return keys that also depend on ``value``; both are uint64 and broadcast."""
    return mix(key ^ ((np.atleast_1d(value) + np.uint64(1)) * GOLDEN))  # never 0-d: numpy warns of overflow in scalars


def stream_id(name: str) -> int:
    """Return a 64-bit number for a name, the same in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def row_keys(seed: int, epoch: Integers, index: Integers, stream: str) -> np.ndarray:
    """Return one key per sample: (N,) uint64.

    Arguments:
        seed: any integer.
        epoch: one for all samples, or (N,).
        index: (N,) sample indices.
        stream: name of the purpose; different names give independent numbers.
    """
    key = np.zeros(1, dtype=np.uint64)
    for value in ([seed % 2**64], unsigned(epoch), [stream_id(stream)], unsigned(index)):
        key = fold_in(key, np.asarray(value, dtype=np.uint64))
    return key


def unsigned(numbers: Integers) -> np.ndarray:
    """Return int64 numbers as uint64, negative ones modulo 2**64."""
    return np.asarray(numbers, dtype=np.int64).astype(np.uint64)


def unit(keys: np.ndarray) -> np.ndarray:
    """Turn keys into float64 in [0, 1), from their upper 53 bits."""
    return (keys >> np.uint64(11)) * 2.0**-53


def uniform(seed: int, epoch: Integers, index: Integers, stream: str, shape: Sequence[int] = ()) -> np.ndarray:
    """Draw uniform numbers in [0, 1) for N samples: (N, *shape) float64.

    A number depends on its sample and its place only: a larger ``shape`` or another batch holds the same numbers at
    the same places.

    Arguments:
        seed: the seed of the run.
        epoch: one for all samples, or (N,).
        index: (N,) sample indices.
        stream: name of the purpose, e.g. ``"train_fraction"``; streams are independent of each other.
        shape: shape of the numbers of one sample.
    """
    keys = row_keys(seed, epoch, index, stream)
    for size in shape:
        keys = fold_in(keys[..., None], np.arange(size, dtype=np.uint64))
    return unit(keys)
