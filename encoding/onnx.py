"""Run a sentence encoder in an ONNX file, as ``csekit export --format onnx`` writes it, with onnxruntime.

Shape suffixes: b rows of a batch, L tokens, H embedding size.
"""

import glob
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerBase

from csekit.encoding.encoder import TextEncoder, position_limit
from csekit.encoding.folders import (
    beyond_csekit,
    load_head,
    model_name,
    module_kinds,
    prompts_and_similarity,
    read_settings,
    saved_size,
)
from csekit.encoding.pooled import PooledOutput
from csekit.encoding.pretrained import load_tokenizer
from csekit.encoding.text_files import sha256
from csekit.modeling.pooling import pool
from csekit.modeling.tokenization import own_template

#: The folder of an export's graphs, and the graph that is loaded by default.
ONNX_FOLDER, ONNX_FILE = "onnx", "model.onnx"
#: Names of the graph's outputs.
EMBEDDING, STATES = "sentence_embedding", "last_hidden_state"


def onnx_file(path: str | Path) -> Path | None:
    """Return the graph that ``path`` stands for: the file itself, or ``onnx/model.onnx`` of a folder without other
    weights; None for any other path."""
    path = Path(path).expanduser()
    if path.suffix == ".onnx":
        return path
    weights = [*path.glob("*.safetensors"), *path.glob("pytorch_model*.bin")]
    file = path / ONNX_FOLDER / ONNX_FILE
    return file if file.is_file() and not weights else None


def graph_files(file: Path) -> list[Path]:
    """Return the files of a graph: itself, and beside it those with its weights if they have a file of their own
    (``model.onnx_data``, ``model.onnx.data``)."""
    return [file, *sorted(path for path in file.parent.glob(f"{glob.escape(file.name)}[._]*") if path.is_file())]


class ONNXModel(nn.Module):
    """A graph as the model of a :class:`TextEncoder`.

    Arguments:
        file: ``input_ids`` and ``attention_mask`` (b, L) int64 in; ``sentence_embedding`` (b, H) out, or
            ``last_hidden_state`` (b, L, H), which is pooled here.
        pooling, mask_offset, head: as for ``PooledBackbone``; for a graph without ``sentence_embedding``.

    Raises:
        ImportError: onnxruntime is not installed.
        ValueError: onnxruntime cannot load the file, or it has other inputs or outputs.
    """

    def __init__(
        self,
        file: Path,
        pooling: str | None = None,
        mask_offset: int | None = None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.file, self.pooling, self.mask_offset = file, pooling, mask_offset
        if pooling == "lasttoken":
            self.pooling, self.mask_offset = "mask", -1
        self.head = head or nn.Identity()
        digest = bytes.fromhex(sha256(graph_files(file)))
        self.register_buffer("digest", torch.tensor(list(digest), dtype=torch.uint8))  # for ``weights_digest``
        self._session: Any = None
        self.outputs = [output.name for output in self.session.get_outputs()]
        inputs = [value.name for value in self.session.get_inputs()]
        if inputs != ["input_ids", "attention_mask"] or not {EMBEDDING, STATES} & set(self.outputs):
            raise ValueError(
                f"{file}: inputs must be input_ids and attention_mask, and {EMBEDDING} or {STATES} an output, "
                f"got inputs {inputs} and outputs {self.outputs}"
            )

    @property
    def session(self) -> Any:
        """The ``onnxruntime.InferenceSession``; each process makes its own when it first needs it."""
        if self._session is None:
            try:
                import onnxruntime
            except ImportError as error:
                raise ImportError(f"{self.file} needs onnxruntime: pip install 'csekit[onnx]'") from error
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            try:
                self._session = onnxruntime.InferenceSession(str(self.file), options, ["CPUExecutionProvider"])
            except Exception as error:  # its own classes, none of them public
                reason = " ".join(str(error).split())[:300]
                raise ValueError(f"{self.file}: onnxruntime cannot load it: {reason}") from error
        return self._session

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}  # a session cannot go to another process

    def run(self, name: str, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return one output of the graph."""
        inputs = {"input_ids": input_ids.cpu().numpy(), "attention_mask": attention_mask.cpu().numpy()}
        return torch.from_numpy(self.session.run([name], inputs)[0])

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> PooledOutput:
        if EMBEDDING in self.outputs:
            return PooledOutput(self.run(EMBEDDING, input_ids, attention_mask))
        if self.pooling is None:
            raise ValueError(f"{self.file} returns token states, and its folder names no pooling for them")
        states_bLH = self.run(STATES, input_ids, attention_mask)
        return PooledOutput(self.head(pool(self.pooling, (states_bLH,), attention_mask.cpu(), self.mask_offset)))


def _saved_limit(settings: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the length limit of a SentenceTransformer's folder; None where it names none."""
    limit = settings.get("max_seq_length")
    return None if limit is None else min(int(limit), tokenizer.model_max_length)


def _positions(folder: Path) -> int | None:
    """Return how many tokens the graph's encoder has positions for, by its ``config.json``; None where that is not
    known."""
    if not (folder / "config.json").is_file():
        return None
    try:
        with torch.device("meta"):
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            model = AutoModel.from_config(config, trust_remote_code=False)
    except Exception:  # a family or a file that Transformers does not know; the graph runs without
        return None
    return position_limit(model)


class ONNXEncoder(TextEncoder):
    """The encoder of an ONNX export: texts in, embeddings out, on CPU.

    Arguments:
        path: the export's folder, or one of the files in its ``onnx/``.
        max_length, batch_size: as for ``encode``.

    Raises:
        FileNotFoundError: there is no such file.
        ImportError: onnxruntime is not installed.
        ValueError: onnxruntime cannot load the graph, or it has other inputs or outputs; the tokenizer is missing;
            the folder has modules or settings that only sentence-transformers follows; ``max_length`` exceeds the
            limit of the export or the encoder's positions.
    """

    def __init__(self, path: str | Path, max_length: int | None = None, batch_size: int = 64) -> None:
        file = Path(path).expanduser()
        file = file if file.suffix == ".onnx" else file / ONNX_FOLDER / ONNX_FILE
        if not file.is_file():
            raise FileNotFoundError(f"{path}: no ONNX file {file.name} there")
        folder = file.parent.parent if file.parent.name == ONNX_FOLDER else file.parent
        record = read_settings(folder, "export.json")
        pooling, mask_offset, head = None, None, None
        if (folder / "modules.json").is_file():
            kinds, pooling, mask_offset = module_kinds(folder)
            if (what := beyond_csekit(folder, kinds, pooling)) is not None:
                raise ValueError(f"{folder}: csekit does not run {what} with an ONNX graph")
            head = load_head(folder)
            self.prompts, _, self.similarity_fn_name = prompts_and_similarity(folder)
            self.truncate_dim = saved_size(folder)
        pooling = pooling or record.get("pooling")
        rows = read_settings(folder, "config.json").get("vocab_size")
        tokenizer = load_tokenizer(folder, rows if isinstance(rows, int) else None, pooling)
        settings = read_settings(folder, "sentence_bert_config.json")
        limits = [limit for limit in (record.get("max_length"), _positions(folder)) if limit is not None]
        if max_length is not None and limits and max_length > min(limits):
            raise ValueError(f"max_length must be at most {min(limits)} for this graph, got {max_length}")
        if (saved := _saved_limit(settings, tokenizer)) is not None and not record.get("max_length"):
            limits.append(saved)
        if max_length is None and limits:
            max_length = min(*limits, tokenizer.model_max_length)
        super().__init__(
            ONNXModel(file, pooling, mask_offset, head),
            tokenizer,
            name=model_name(folder),
            pooling=pooling,
            max_length=max_length,
            batch_size=batch_size,
            prompt_template=own_template(tokenizer),
            lowercase=bool(settings.get("do_lower_case")),
        )
        self.file = file

    def check_settings(self, num_workers: int = 1) -> None:
        if self.precision != "fp32":
            raise ValueError(
                f"precision must be 'fp32' for {self.file}, whose graph has its own, got {self.precision!r}: csekit "
                "export --int8 writes an int8 graph"
            )
        super().check_settings(num_workers)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "file": f"{ONNX_FOLDER}/{self.file.name}"}
