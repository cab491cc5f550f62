"""A training checkpoint with the code of its method beside it, for ``AutoModel`` with ``trust_remote_code=True``.

The plain export needs no code and is what most people want. This one gives back the method's own class where csekit
is not installed: embeddings by the method's pooling and template, projector and objectives included.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from .export import EXPORTABLE_POOLINGS, length_limit, needs_code, save_tokenizer, write_modules

if TYPE_CHECKING:
    from .modeling_cse import CSEModel


def export_with_code(model: "CSEModel", path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Write the whole model, the files its class is made of, and the tokenizer with the template in it, to ``path``.

    ``config.json`` names the classes (``auto_map``). For sentence-transformers the pooling's metadata are written
    where it has such a pooling; it needs ``trust_remote_code=True`` as well, and computes the state before the
    projector and its ``Dense`` modules behind it, as in :func:`export_encoder`.

    Raises:
        ValueError: a template, and a tokenizer that cannot hold it.
    """
    path.mkdir(parents=True, exist_ok=True)
    limit = length_limit(model.backbone, tokenizer)
    save_tokenizer(tokenizer, path, limit, model.config.prompt_template)
    if model.config.pooling in EXPORTABLE_POOLINGS and not needs_code(model.config):
        write_modules(model, path, limit)  # before the code, whose template_pooling.py it would take for a stale one
    with _auto_classes(model):
        model.save_pretrained(path)
    return path


@contextmanager
def _auto_classes(model: "CSEModel") -> Iterator[None]:
    """Inside, ``save_pretrained`` writes the code too. Registered for good, the classes would do so at every
    checkpoint."""
    kinds: dict[Any, str] = {type(model): "AutoModel", type(model.config): "AutoConfig"}
    try:
        for kind, auto_class in kinds.items():
            kind.register_for_auto_class(auto_class)
        yield
    finally:
        for kind in kinds:
            kind._auto_class = None
        vars(model.config).pop("auto_map", None)
