"""An encoder as an ONNX graph, checked against torch by onnxruntime before it has its place.

``torch.onnx`` writes it. optimum's exporter is not used: its latest release (optimum-onnx 0.1.0) pins
``transformers<4.58``. Of torch's two exporters the older one is deprecated.

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
from csekit.encoding.encoder import TextEncoder
from csekit.encoding.folders import Normalize
from csekit.encoding.onnx import EMBEDDING, ONNX_FILE, ONNX_FOLDER, STATES, ONNXEncoder, ONNXModel
from csekit.modeling import CSEModel
from csekit.modeling.fast_packing import PACKED_ATTENTION
from csekit.modeling.pooling import NEEDS_HIDDEN_STATES, pool
from csekit.modeling.tokenization import pad, sentence_frame

#: Largest difference to torch that passes, for values up to 1 (above, times the largest of them).
TOLERANCE = 1e-4
INT8_FILE = "model_int8.onnx"
#: (rows, tokens of the longest) of the batches that are compared; at most so many tokens as the encoder takes.
SHAPES = ((1, 1), (1, 40), (2, 512), (5, 17), (33, 9))


@dataclass(frozen=True)
class DevScore:
    """A dev set that exported files are scored on.

    Arguments:
        pairs: the number of its sentence pairs.
        score: an encoder to its Spearman × 100 on them.
    """

    pairs: int
    score: Callable[[TextEncoder], float]


class EncoderGraph(nn.Module):
    """What is exported: (b, L) ``input_ids`` and ``attention_mask`` to ``last_hidden_state`` (b, L, H), with
    ``pooled`` to ``sentence_embedding`` (b, E) before it."""

    def __init__(self, model: Any, pooled: bool, normalize: bool) -> None:
        super().__init__()
        self.backbone = model.backbone
        self.pooled = pooled
        ours = isinstance(model, CSEModel)
        self.pooling = model.config.pooling if ours else model.pooling
        self.mask_offset = model.config.prompt_mask_offset if ours else model.mask_offset
        head = (model.projector if model.config.projector_at_inference else nn.Identity()) if ours else model.head
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
        """Their names."""
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
    """Batches of sentences of several lengths, their tokens drawn from the vocabulary by a fixed seed."""
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
    """The exporter reports its steps, its missing torchvision and torch's own deprecations."""
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
    """Trace the graph, its rows and tokens of any number, and save it.

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
    """Largest difference of the file's outputs to torch's, and the largest that passes.

    Arguments:
        wanted: of each batch the embeddings (b, E) and the last hidden states (b, L, H).

    Raises:
        ValueError: a difference is larger, or not a number.
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
    """Weights of matrix products and embeddings in 8 bits, activations rounded at each call. One scale for each
    output. Weights have 7 bits of their 8: without VNNI, sums of products of 8 bits overflow, and the file does not
    know where it will run."""
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
        pooled: pooling, and a projector that is kept at inference, are in the graph: ``sentence_embedding`` beside
            ``last_hidden_state``.
        normalize: with ``pooled``, embeddings of length 1.
        int8: also ``onnx/model_int8.onnx``.
        opset: of ONNX, at least 18.
        dev: how every file, and torch, are scored on a dev set.

    Returns:
        what ``export.json`` holds: settings, ``check``, and ``stsb`` with the Spearman of each (×100).

    Raises:
        ImportError: onnx, onnxruntime or onnxscript is missing.
        ValueError: a pooling of several layers without ``pooled``; a difference above ``TOLERANCE``; what
            ``load_source`` and ``check_output`` raise.
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
    """Everything but the record; what it says of checks and scores."""
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
        found["int8"] = {"least_cosine": _least_cosine(files[-1], batches, wanted)}
    if dev is not None:
        scores |= {f.stem: dev.score(ONNXEncoder(f, encoder.max_length)) for f in files}
        found["stsb"] = {"pairs": dev.pairs, "spearman": scores}
    return found


@torch.no_grad()
def _references(
    encoder: TextEncoder, batches: list[dict[str, Tensor]], normalize: bool
) -> list[tuple[Tensor, Tensor]]:
    """Of each batch the embeddings and the last hidden states as torch computes them."""
    model: Any = encoder.model.eval()
    after = Normalize() if normalize else nn.Identity()
    return [(after(model(**b).sentence_embedding), model.backbone(**b).last_hidden_state) for b in batches]


@torch.no_grad()
def _least_cosine(file: Path, batches: list[dict[str, Tensor]], wanted: list[tuple[Tensor, Tensor]]) -> float:
    """Of the file's embeddings to torch's."""
    model = ONNXEncoder(file).model
    embeddings = zip([model(**batch).sentence_embedding for batch in batches], wanted, strict=True)
    return min(float(nn.functional.cosine_similarity(found, torchs).min()) for found, (torchs, _) in embeddings)
