"""A training checkpoint together with its method's code, for ``AutoModel`` with ``trust_remote_code=True``.

Most users want the plain export, which needs no code. This form returns the method's own class without csekit: its
pooling, template, projector and objectives.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from .drafts import whole_files
from .export import EXPORTABLE_POOLINGS, MODEL_FILES, length_limit, needs_code, save_tokenizer, write_modules
from .modeling_cse import CSEModel
from .quiet import quiet_weights


def export_with_code(model: CSEModel, path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Write the model, the source files of its class, and the tokenizer with the template to ``path``.

    ``config.json`` names the classes (``auto_map``). If sentence-transformers supports the pooling, its metadata are
    written too; it then needs ``trust_remote_code=True`` as well. A projector kept at inference becomes its ``Dense``
    modules, as in :func:`export_encoder`.

    Raises:
        ValueError: the model has a template, and the tokenizer cannot hold it.
        DiskFullError: there is no room for it.
    """
    limit = length_limit(model.backbone, tokenizer)
    with whole_files(path, MODEL_FILES) as draft:
        save_tokenizer(tokenizer, draft, limit, model.config.prompt_template)
        if model.config.pooling in EXPORTABLE_POOLINGS and not needs_code(model.config):
            write_modules(model, draft, limit)
        with _auto_classes(model), quiet_weights():
            model.save_pretrained(draft)
    return path


@contextmanager
def _auto_classes(model: CSEModel) -> Iterator[None]:
    """Let ``save_pretrained`` write the code inside the context. A lasting registration would do so at every
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
