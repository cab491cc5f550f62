"""Cached gradients (GradCache, Gao et al., 2021) for batches that do not fit: what of a model allows them.

The mechanism is ``csekit.modeling.gradient_cache``: the networks see chunks of rows, the losses the whole batch.
"""

from csekit.modeling import CSEModel
from csekit.modeling.gradient_cache import Chunks, batch_statistics


def cache_gradients(model: CSEModel, chunk_size: int) -> None:
    """Let the model's networks see ``chunk_size`` rows at once from now on; 0: all of a batch.

    A row is one text: a sentence alone, which is encoded twice, makes two.

    Raises:
        ValueError: an objective, or a layer, for which this would not be the same loss.
    """
    if chunk_size:
        for objective in model.auxiliaries():
            if not objective.cacheable:
                raise ValueError(
                    f"cache_chunk_size must be 0 with the objective {objective.config.name!r}, which does not say "
                    f"that it can be computed in chunks ({type(objective).__name__}.cacheable), got {chunk_size}"
                )
        for part in ("backbone", "objectives"):
            for name in batch_statistics(getattr(model, part)):
                raise ValueError(
                    f"cache_chunk_size must be 0 with the layer {part}.{name}, whose statistics are those of the "
                    f"whole batch, got {chunk_size}"
                )
    model.chunks = Chunks(chunk_size)
