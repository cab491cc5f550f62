"""The memory of decoder language models, counted by hand for the small size."""

from experiments.decoder_memory import count
from experiments.tables.decoders import decoder_memory_table


def test_parameters_and_bytes() -> None:
    whole, adapters = count("0.5 B", None, 0), count("0.5 B", 2, 0)
    layer = 896 * (896 + 2 * 128) + 896 + 2 * 128 + 896 * 896 + 3 * 896 * 4864 + 2 * 896
    encoder = 151936 * 896 + 24 * layer + 896
    projector = 896 * 896 + 896
    assert whole["parameters"] == encoder + projector
    assert whole["bytes"]["weights"] == 4 * (encoder + projector)
    assert whole["bytes"]["gradients_and_moments"] == 12 * (encoder + projector)
    ranks = 2 * (2 * (896 + 896) + 2 * (896 + 128) + 3 * (896 + 4864))  # q and o, k and v, the feed-forward part
    assert adapters["trained"] == projector + 24 * ranks
    _, head, rows = decoder_memory_table({"rows": 64, "tokens": 32, "settings": [whole, adapters]})
    assert len(head) == len(rows[0]) == len(rows[1])
    assert rows[0][3] == f"{whole['bytes']['weights'] / 1e9:.1f}"
