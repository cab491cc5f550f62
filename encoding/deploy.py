"""Write an encoder as a folder for deployment, whole or not at all. ``onnx_export`` writes ONNX; here is what it
shares with the export in another dtype, and that export."""

import copy
import json
import shutil
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from csekit.encoding.encoder import TextEncoder
from csekit.encoding.folders import metadata_folder
from csekit.encoding.json_files import read_json
from csekit.encoding.load import load_encoder
from csekit.encoding.onnx import ONNX_FOLDER
from csekit.encoding.pooled import PooledBackbone
from csekit.encoding.provenance import check_writable, checksum, environment
from csekit.modeling import CSEModel, SimCSEConfig, SimCSEModel
from csekit.modeling.backbone import build_backbone
from csekit.modeling.drafts import whole_folder as whole_folder
from csekit.modeling.export import EXPORTABLE_POOLINGS, export_encoder, length_limit, plain_weights, save_tokenizer
from csekit.modeling.lora import merged_weights
from csekit.modeling.quiet import quiet_weights

#: The record of an export: settings, checks, a checksum of each file of weights.
RECORD = "export.json"
FORMATS = ("onnx", "sentence-transformers")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
#: The files of a model's folder that an export copies; weights and results are not among them.
_METADATA = (
    "config.json",
    "*token*.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.jinja",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "template_pooling.py",
    "README.md",
)


@dataclass(frozen=True)
class Source:
    """An encoder to export, with its files.

    Arguments:
        encoder: the encoder, on CPU.
        folder: a folder with its metadata and, but for a SentenceTransformer, its weights.
        native: True where sentence-transformers has its pooling.
    """

    encoder: TextEncoder
    folder: Path
    native: bool


def load_source(path_or_id: str | Path, work: Path, pooling: str | None = None, template: str | None = None) -> Source:
    """Load the encoder and find its metadata: in its own folder for a SentenceTransformer (such as a run's root), else
    written to ``work``.

    Raises:
        ValueError: ``load_encoder`` refuses the folder; it is a SentenceTransformer with modules that only
            sentence-transformers can run; it is an ONNX export.
    """
    encoder = load_encoder(path_or_id, pooling=pooling, prompt_template=template, device="cpu")
    model: Any = encoder.model
    if not isinstance(model, CSEModel | PooledBackbone):
        raise ValueError(
            f"{path_or_id}: {type(model).__name__} cannot be exported, only an encoder with its own pooling"
        )
    folder = metadata_folder(path_or_id)
    if isinstance(model, PooledBackbone) and (folder / "modules.json").is_file():
        return Source(encoder, folder, native=True)
    if isinstance(model, PooledBackbone):
        model = _as_cse_model(model, template)
    native = model.config.pooling in EXPORTABLE_POOLINGS
    if native:
        export_encoder(model, work, encoder.tokenizer)
    else:
        with quiet_weights():
            model.backbone.save_pretrained(work, state_dict=merged_weights(model.backbone))
        limit = length_limit(model.backbone, encoder.tokenizer)
        save_tokenizer(encoder.tokenizer, work, limit, model.config.prompt_template)
    return Source(encoder, work, native)


def _as_cse_model(model: PooledBackbone, template: str | None) -> CSEModel:
    """Turn a plain encoder with a pooling into a csekit model without a projector."""
    backbone: Any = model.backbone
    config = copy.deepcopy(backbone.config)  # building a model around it changes its attention
    fields: dict[str, Any] = {"pooling": model.pooling, "projector": "none", "prompt_template": template}
    with torch.device("meta"):
        skeleton = build_backbone(config)
    wrapped = SimCSEModel(
        SimCSEConfig(encoder_config=config, prompt_mask_offset=model.mask_offset, **fields), skeleton
    )
    wrapped.backbone = backbone
    return wrapped


def copy_metadata(source: Path, target: Path) -> None:
    """Copy the small files of a model's folder and the folders of its modules."""
    target.mkdir(parents=True, exist_ok=True)
    folders = [path for path in source.glob("[0-9]_*") if path.is_dir()]
    for folder in folders:
        shutil.copytree(folder, target / folder.name, dirs_exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and any(fnmatch(file.name, pattern) for pattern in _METADATA):
            shutil.copyfile(file, target / file.name)


def check_output(output: Path, overwrite: bool | None) -> None:
    """Refuse to write into a folder that holds files, unless it is an earlier export and ``overwrite`` is True.

    Arguments:
        overwrite: None: the command has no such option.

    Raises:
        ValueError: it holds files that may not be replaced, or it is a file.
        OSError: it cannot be made, see ``check_writable``.
    """
    if not output.exists():
        check_writable(output, folder=True)
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not output.is_dir():
        raise ValueError(f"--output must be a folder, {output} is a file")
    if not overwrite:
        instead = "" if overwrite is None else ", or --overwrite an earlier export"
        raise ValueError(f"{output} holds files already: choose another --output{instead}")
    if not (output / RECORD).is_file():
        raise ValueError(f"{output} holds files and no {RECORD}: it is no earlier export, and stays as it is")


def write_record(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Write ``export.json`` with checksums of the files of weights. Return its content."""
    weights = sorted([*folder.glob(f"{ONNX_FOLDER}/*"), *folder.rglob("*.safetensors")])
    files = {str(f.relative_to(folder)): {"bytes": f.stat().st_size, "sha256": checksum(f)} for f in weights}
    record = {**record, "files": files, "environment": environment()}
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return record


def export_sentence_transformer(
    path_or_id: str | Path,
    output: str | Path,
    *,
    dtype: str = "float32",
    pooling: str | None = None,
    prompt_template: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the plain encoder with its pooling metadata, weights in ``dtype``.

    Arguments:
        path_or_id, pooling, prompt_template: as for ``load_encoder``.
        output: the folder to write.
        dtype: 'float32', 'float16' or 'bfloat16'.
        overwrite: replace an earlier export.

    Returns:
        the content of ``export.json``.

    Raises:
        ValueError: the dtype is unknown; sentence-transformers does not have the pooling; :func:`load_source` or
            :func:`check_output` refuses.
    """
    output = Path(output).expanduser()
    if dtype not in DTYPES:
        raise ValueError(f"--dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    check_output(output, overwrite)
    with tempfile.TemporaryDirectory() as work, whole_folder(output) as new:
        source = load_source(path_or_id, Path(work), pooling, prompt_template)
        if not source.native:
            raise ValueError(
                f"sentence-transformers has no pooling {source.encoder.pooling!r}: --format onnx --pooled has it in "
                "the graph"
            )
        copy_metadata(source.folder, new)
        backbone: Any = source.encoder.model.backbone
        assert isinstance(backbone, PreTrainedModel)
        with quiet_weights():
            backbone.save_pretrained(new, state_dict=plain_weights(backbone))
        for file in new.rglob("*.safetensors"):
            state = {name: _cast(value, DTYPES[dtype]) for name, value in load_file(file).items()}
            save_file(state, file, metadata={"format": "pt"})
        config = {**read_json(new / "config.json"), "dtype": dtype}
        (new / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        encoder = source.encoder
        settings = {"format": "sentence-transformers", "encoder": encoder.name, "dtype": dtype}
        return write_record(new, {**settings, "pooling": encoder.pooling, "max_length": encoder.max_length})


def _cast(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return value.to(dtype) if value.is_floating_point() else value
