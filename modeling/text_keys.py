"""A hash of each text, by which identical texts of a batch are found.

Shape suffixes: N rows, L tokens.
"""

from torch import Tensor

#: The batch key of the hashes of the original texts, for views that hold changed ones.
TEXT_KEYS = "text_keys"


def text_keys(input_ids_NL: Tensor, attention_mask_NL: Tensor) -> Tensor:
    """Hash the texts, whatever their padding, (N,) int64. Different texts collide with probability 2⁻⁶⁴."""
    positions = attention_mask_NL.cumsum(1)
    mixed = (input_ids_NL + 1) * 0x1E3779B97F4A7C15 + positions * 0x3F58476D1CE4E5B9
    for _ in range(2):
        mixed = (mixed ^ (mixed >> 29)) * 0x14D049BB133111EB
    return ((mixed ^ (mixed >> 32)) * attention_mask_NL).sum(1)
