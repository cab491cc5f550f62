"""Export an encoder as an ONNX graph. onnxruntime runs it and torch's embeddings must agree before the folder appears.

``torch.onnx`` writes the graph with its newer exporter; the older one is deprecated. optimum's exporter is not used:
its latest release (optimum-onnx 0.1.0) pins ``transformers<4.58``.

Shape suffixes: b rows of a batch, L tokens, H hidden size, E embedding size.
"""

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from csekit.encoding.deploy import Source, check_output, copy_metadata, load_source, whole_folder, write_record
from csekit.encoding.encoder import TextEncoder, inference_head
from csekit.encoding.folders import Normalize
from csekit.encoding.onnx import EMBEDDING, ONNX_FILE, ONNX_FOLDER, STATES, ONNXEncoder, ONNXModel
from csekit.modeling import CSEModel
from csekit.modeling.fast_packing import PACKED_ATTENTION
from csekit.modeling.pooling import NEEDS_HIDDEN_STATES, pool
from csekit.modeling.tokenization import pad, sentence_frame

#: Largest allowed difference to torch for values up to 1; for larger values it is multiplied by the largest.
TOLERANCE = 1e-4
INT8_FILE = "model_int8.onnx"
#: (rows, tokens of the longest text) of the batches that are compared, truncated to the encoder's limit.
SHAPES = ((1, 1), (1, 40), (2, 512), (5, 17), (33, 9))


@dataclass(frozen=True)
class DevScore:
    """A dev set on which exported files are scored.

    Arguments:
        pairs: number of its sentence pairs.
        score: function that returns an encoder's Spearman × 100 on them.
    """

    pairs: int
    score: Callable[[TextEncoder], float]


class EncoderGraph(nn.Module):
    """The module that is exported. It turns ``input_ids`` and ``attention_mask`` (b, L) into ``last_hidden_state``
    (b, L, H). With ``pooled``, ``sentence_embedding`` (b, E) is its first output."""

    def __init__(self, model: Any, pooled: bool, normalize: bool) -> None:
        super().__init__()
        self.backbone = model.backbone
        self.pooled = pooled
        ours = isinstance(model, CSEModel)
        self.pooling = model.config.pooling if ours else model.pooling
        self.mask_offset = model.config.prompt_mask_offset if ours else model.mask_offset
        head = inference_head(model)
        self.head = nn.Sequential(head, Normalize()) if normalize else head

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        deep = self.pooled and self.pooling in NEEDS_HIDDEN_STATES
        output = self.backbone(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=deep)
        states_bLH = output.last_hidden_state
        if not self.pooled:
            return (states_bLH,)
        layers = output.hidden_states if deep else (states_bLH,)
        return self.head(pool(self.pooling, layers, attention_mask, self.mask_offset)), states_bLH

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs."""
        return [EMBEDDING, STATES] if self.pooled else [STATES]


def check_packages() -> None:
    """Raise ImportError where onnx, onnxruntime or onnxscript is missing."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f"--format onnx needs {error.name}: pip install 'csekit[onnx]'") from error


def check_batches(tokenizer: PreTrainedTokenizerBase, limit: int, template: str | None) -> list[dict[str, Tensor]]:
    """Return batches of sentences of several lengths; a fixed seed draws their tokens from the vocabulary."""
    frame = sentence_frame(tokenizer, template)
    special = set(tokenizer.all_special_ids)
    words = torch.tensor(sorted(set(tokenizer.get_vocab().values()) - special))
    generator = torch.Generator().manual_seed(0)
    batches = []
    for rows, longest in SHAPES:
        room = min(longest, limit - len(frame.before) - len(frame.after))
        lengths = [max(1, room - 3 * row) for row in range(rows)]
        drawn = [words[torch.randint(len(words), (length,), generator=generator)].tolist() for length in lengths]
        batches.append(pad(tokenizer, [[*frame.before, *row, *frame.after] for row in drawn]))
    return batches


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's reports of its steps, of missing torchvision and of torch's own deprecations."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "root")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def write_graph(graph: EncoderGraph, batch: dict[str, Tensor], file: Path, opset: int) -> None:
    """Trace the graph for any number of rows and tokens, and save it.

    Raises:
        ValueError: torch cannot export this encoder.
    """
    axes = {0: "batch", 1: "length"}
    names = ["input_ids", "attention_mask"]
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                graph.eval(),
                tuple(batch[name] for name in names),
                dynamo=True,
                verbose=False,
                opset_version=opset,
                input_names=names,
                output_names=graph.outputs,
                dynamic_shapes=(axes, axes),
            )
            assert program is not None
            program.save(str(file))
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"torch.onnx cannot export {type(graph.backbone).__name__}: {reason}") from error


@torch.no_grad()
def largest_difference(
    file: Path, batches: list[dict[str, Tensor]], wanted: list[tuple[Tensor, Tensor]]
) -> tuple[float, float]:
    """Return the largest difference between the outputs of the file and of torch, and the largest allowed one.

    Arguments:
        wanted: for each batch torch's embeddings (b, E) and last hidden states (b, L, H).

    Raises:
        ValueError: a difference is larger than allowed, or NaN.
    """
    model = ONNXModel(file)
    largest, allowed = 0.0, TOLERANCE
    for batch, (embeddings_bE, states_bLH) in zip(batches, wanted, strict=True):
        real_bL = batch["attention_mask"].bool()
        pairs = [(model.run(STATES, **batch)[real_bL], states_bLH[real_bL])]
        if EMBEDDING in model.outputs:
            pairs.append((model.run(EMBEDDING, **batch), embeddings_bE))
        for found, torchs in pairs:
            difference = float((found - torchs).abs().max())
            limit = TOLERANCE * max(1.0, float(torchs.abs().max()))
            if not difference <= limit:
                raise ValueError(
                    f"the ONNX graph differs from torch by {difference:.2g} in a batch of {tuple(real_bL.shape)} "
                    f"tokens, more than {limit:.1g}: nothing is written"
                )
            largest, allowed = max(largest, difference), max(allowed, limit)
    return largest, allowed


def quantize(file: Path, target: Path) -> None:
    """Write the graph with 8-bit weights, one scale for each output, and activations that are rounded at each call.

    Weights use 7 of their 8 bits: sums of 8-bit products overflow on processors without VNNI, and the file may run on
    such a processor.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it advises a pre-processing that these graphs do not need
    try:
        quantize_dynamic(file, target, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)
    finally:
        root.setLevel(level)


def export_onnx(
    path_or_id: str | Path,
    output: str | Path,
    *,
    pooled: bool = False,
    normalize: bool = False,
    int8: bool = False,
    opset: int = 18,
    pooling: str | None = None,
    prompt_template: str | None = None,
    dev: DevScore | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write ``onnx/model.onnx`` with tokenizer and metadata, checked against torch.

    Arguments:
        path_or_id, pooling, prompt_template: as for ``load_encoder``.
        output: the folder to write.
        pooled: put the pooling and a projector kept at inference into the graph; ``sentence_embedding`` becomes an
            output beside ``last_hidden_state``.
        normalize: scale embeddings to length 1; needs ``pooled``.
        int8: also write ``onnx/model_int8.onnx``.
        opset: ONNX opset, at least 18.
        dev: a dev set on which torch and every file are scored.
        overwrite: replace an earlier export.

    Returns:
        the content of ``export.json``: settings, ``check``, and ``stsb`` with the Spearman × 100 of each file.

    Raises:
        ImportError: onnx, onnxruntime or onnxscript is missing.
        ValueError: the pooling reads several layers and ``pooled`` is False; a difference is above ``TOLERANCE``;
            ``load_source`` or ``check_output`` refuses.
    """
    output = Path(output).expanduser()
    if normalize and not pooled:
        raise ValueError("--normalize needs --pooled: a graph of token states has no embedding to normalise")
    if opset < 18:
        raise ValueError(f"--opset must be at least 18, got {opset}")
    check_output(output, overwrite)
    check_packages()
    with tempfile.TemporaryDirectory() as work, whole_folder(output) as new:
        source = load_source(path_or_id, Path(work), pooling, prompt_template)
        encoder = source.encoder
        if not pooled and not source.native:
            raise ValueError(
                f"pooling {encoder.pooling!r} reads several layers, the graph gives the last: add --pooled"
            )
        settings = {"format": "onnx", "encoder": encoder.name, "pooled": pooled, "normalize": normalize}
        settings |= {"opset": opset, "pooling": encoder.pooling, "max_length": encoder.max_length}
        return write_record(new, settings | _write(source, new, settings, int8, dev))


def _write(
    source: Source, new: Path, settings: dict[str, Any], int8: bool, dev: DevScore | None
) -> dict[str, dict[str, Any]]:
    """Write all files but the record, and return its part about checks and scores."""
    encoder = source.encoder
    graph = EncoderGraph(encoder.model, settings["pooled"], settings["normalize"]).eval()
    batches = check_batches(encoder.tokenizer, encoder.max_length, encoder.prompt_template)
    scores = {} if dev is None else {"torch": dev.score(encoder)}
    wanted = _references(encoder, batches, settings["normalize"])
    if graph.backbone.config._attn_implementation == PACKED_ATTENTION:
        graph.backbone.set_attn_implementation("sdpa")
    copy_metadata(source.folder, new)
    file = new / ONNX_FOLDER / ONNX_FILE
    file.parent.mkdir()
    write_graph(graph, batches[3], file, settings["opset"])
    difference, allowed = largest_difference(file, batches, wanted)
    shapes = [list(batch["input_ids"].shape) for batch in batches]
    found: dict[str, dict[str, Any]] = {
        "check": {"largest_difference": difference, "allowed": allowed, "batches": shapes}
    }
    files = [file]
    if int8:
        files.append(file.with_name(INT8_FILE))
        quantize(file, files[-1])
        found["int8"] = {"least_cosine": _least_cosine(ONNXEncoder(files[-1], encoder.max_length), batches, wanted)}
    if dev is not None:
        scores |= {f.stem: dev.score(ONNXEncoder(f, encoder.max_length)) for f in files}
        found["stsb"] = {"pairs": dev.pairs, "spearman": scores}
    return found


@torch.no_grad()
def _references(
    encoder: TextEncoder, batches: list[dict[str, Tensor]], normalize: bool
) -> list[tuple[Tensor, Tensor]]:
    """Return torch's embeddings and last hidden states for each batch."""
    model: Any = encoder.model.eval()
    after = Normalize() if normalize else nn.Identity()
    return [(after(model(**b).sentence_embedding), model.backbone(**b).last_hidden_state) for b in batches]


@torch.no_grad()
def _least_cosine(
    encoder: ONNXEncoder, batches: list[dict[str, Tensor]], wanted: list[tuple[Tensor, Tensor]]
) -> float:
    """Return the minimum cosine between ONNX and torch embeddings."""
    model = encoder.model
    embeddings = zip([model(**batch).sentence_embedding for batch in batches], wanted, strict=True)
    return min(float(nn.functional.cosine_similarity(found, torchs).min()) for found, (torchs, _) in embeddings)
