"""Turn texts into vectors: load any encoder, encode texts and files, deploy. Names are loaded on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from csekit.encoding.deploy import export_sentence_transformer as export_sentence_transformer
    from csekit.encoding.encoder import TextEncoder as TextEncoder
    from csekit.encoding.encoder import encode as encode
    from csekit.encoding.files import encode_file as encode_file
    from csekit.encoding.files import merge_shards as merge_shards
    from csekit.encoding.load import load_encoder as load_encoder
    from csekit.encoding.onnx import ONNXEncoder as ONNXEncoder
    from csekit.encoding.onnx_export import export_onnx as export_onnx
    from csekit.encoding.provenance import checksum as checksum
    from csekit.encoding.provenance import environment as environment
    from csekit.encoding.ray import encode_with_ray as encode_with_ray
    from csekit.encoding.stored import StoredEmbeddings as StoredEmbeddings
    from csekit.encoding.stored import open_embeddings as open_embeddings

_PUBLIC = {
    "deploy": ("export_sentence_transformer",),
    "encoder": (
        "TextEncoder",
        "encode",
    ),
    "files": (
        "encode_file",
        "merge_shards",
    ),
    "load": ("load_encoder",),
    "onnx": ("ONNXEncoder",),
    "onnx_export": ("export_onnx",),
    "provenance": (
        "checksum",
        "environment",
    ),
    "ray": ("encode_with_ray",),
    "stored": (
        "StoredEmbeddings",
        "open_embeddings",
    ),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"csekit.encoding.{_HOME[name]}"), name)
    raise AttributeError(f"module 'csekit.encoding' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_HOME)
