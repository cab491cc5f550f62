"""Turn texts into sentence embeddings. Each distinct text is encoded once, longest first, without random numbers.

Shape suffixes: N texts, n texts of a chunk, b rows of a batch, L tokens, H embedding size.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from scipy.sparse import csr_matrix, issparse
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from csekit.encoding.chunks import CHUNK, KeptTokens, embed_chunks
from csekit.encoding.chunks import evaluating as evaluating
from csekit.encoding.chunks import token_batches as token_batches
from csekit.encoding.fast_cpu import check_precision
from csekit.encoding.workers import WorkerPool, check_workers, device_of
from csekit.modeling.tokenization import tokenize

#: Role of a text in retrieval to the names that a model's prompt for it may have; the first one wins.
ROLE_PROMPTS = {"query": ("query",), "document": ("document", "passage", "corpus")}

#: Texts that show what a tokenizer does: letters and accents, white space, signs, numbers, other scripts, long words.
PROBES = (
    "The quick brown fox JUMPS over 13 lazy dogs, doesn't it?",
    "  Café naïve, Ångström; Straße\tİstanbul\n(½ of x²) -- “quotes” … ",
    "antidisestablishmentarianism internationalisation http://example.org/a_b?c=1,000.50 e-mail@example.org",
    "Быстрая лиса; 敏捷的狐狸跳过懒狗。 すばやい狐 민첩한 여우 الثعلب السريع चतुर लोमड़ी 🦊",
)

#: What the evaluations accept: a function ``texts -> (N, H)``, or an object whose ``encode`` is one.
Encoder = Any


def check_texts(texts: Sequence[str]) -> list[str]:
    """Return the texts as a list. Raises ValueError: no texts, a lone string, or an entry that is not a string."""
    if isinstance(texts, str):
        raise ValueError("texts must be a list of strings, got one string")
    texts = list(texts)
    if not texts:
        raise ValueError("texts must hold at least one string, got an empty list")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"texts must be strings, got {type(text).__name__} at texts[{i}]")
        if half_pair(text):
            raise ValueError(f"texts must be strings that UTF-8 can hold, got half a surrogate pair at texts[{i}]")
    return texts


def half_pair(text: str) -> bool:
    """Tell whether a text holds half a surrogate pair, as JSON allows and UTF-8 does not."""
    try:
        return not text.isascii() and text.encode() is None
    except UnicodeEncodeError:
        return True


def position_limit(model: nn.Module) -> int | None:
    """Return the number of tokens that the model has positions for; None where it names no limit.

    The position embeddings are counted, not the config: RoBERTa's table has two rows more than usable positions.
    """
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    config = getattr(model, "config", None)
    config = getattr(config, "encoder_config", None) or config
    limit = getattr(config, "max_position_embeddings", None)
    return limit if limit != -1 else None  # XLNet's way to name none


def truncation_length(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None, saved: int | None = None
) -> int:
    """Return the limit in tokens, special tokens included: ``max_length``, or the lowest of the tokenizer's, the
    model's and the ``saved`` limit.

    Arguments:
        saved: the limit in a SentenceTransformer's folder; None where it names none.

    Raises:
        ValueError: ``max_length`` exceeds the model's positions, or is None where nothing names a limit.
    """
    positions = position_limit(model)
    if max_length is not None:
        if positions is not None and max_length > positions:
            raise ValueError(f"max_length must be at most {positions} for this model, got {max_length}")
        return max_length
    limits = [limit for limit in (tokenizer.model_max_length, positions, saved) if limit is not None and limit < 10**6]
    if not limits:
        raise ValueError("max_length must be given: neither the tokenizer nor the model's config names a limit")
    return int(min(limits))


def encode(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    max_length: int | None = None,
    batch_size: int = 64,
    prompt_template: str | None = None,
    progress: bool = False,
    device: str | torch.device | None = None,
    precision: str = "fp32",
    num_workers: int = 1,
) -> np.ndarray:
    """Encode ``texts``: row i is the embedding of text i.

    Each distinct text is encoded once; batches hold texts of similar length. The model is put in eval mode and gets
    its training flags back afterwards; the global random state does not change. Use ``TextEncoder`` to also count the
    texts that were truncated.

    Arguments:
        model: called with ``input_ids`` and ``attention_mask`` (b, L), returns an object whose ``sentence_embedding``
            is (b, H).
        max_length: truncate to this many tokens, special tokens and template included. None: the model's own limit.
        batch_size: largest number of rows in a batch; batches of long texts are smaller (``chunks.MAX_BATCH_TOKENS``).
        prompt_template: a text with ``{sentence}`` and ``{mask}``.
        device: where to encode; the model is moved there. None: where the model is.
        precision: 'fp32', 'bf16' (autocast) or, on CPU, 'int8' (linear layers), see ``fast_cpu.fast_inference``.
        num_workers: number of processes, see ``workers.WorkerPool``.

    Returns:
        (N, H) float32.

    Raises:
        ValueError: there are no texts, an entry is not a string, the model has fewer positions than ``max_length``, or
            an embedding holds NaN or infinite values.
    """
    encoder = TextEncoder(
        model,
        tokenizer,
        max_length=max_length,
        batch_size=batch_size,
        prompt_template=prompt_template,
        device=device,
        precision=precision,
    )
    return encoder.encode(texts, progress, num_workers)


class TextEncoder:
    """A model with its tokenizer, which turns texts into embeddings.

    Arguments:
        model, tokenizer, max_length, batch_size, prompt_template, device, precision: as for ``encode``.
        name: for results files: a Hub id or the last part of a folder, never a path of this machine.
        pooling: for results files; None where the model does not name it.
        lowercase: lower the case of texts before tokenising (``do_lower_case`` of a SentenceTransformer folder).

    Attributes:
        truncated: number of distinct texts of the last ``encode`` that were truncated to ``max_length``.
        precision: as for ``encode``; may be set at any time.
        prompts: name (``query``, ``document``, …) to text before a sentence, from a SentenceTransformer folder.
        prompt: text that ``encode`` puts before every sentence; None: the model's default.
        role: ``query`` or ``document`` in a copy that ``for_role`` made, else None.
        similarity_fn_name: ``cosine``, ``dot``, ``euclidean`` or ``manhattan``: the similarity of the training.
        truncate_dim: embeddings are the first dimensions of the model's, this many; None: all.
        modules: digest of the settings of the modules that sentence-transformers runs; None where csekit runs them.
        kept_tokens: a dictionary in which ``encode`` keeps the tokens of its texts, for the next call with the same
            ones; None: they are not kept.
        loading: what ``load_encoder`` was told: ``model``, and ``pooling``, ``max_length``, ``prompt_template`` and
            ``truncate_dim`` where given.
    """

    loading: Mapping[str, Any] = MappingProxyType({})
    prompts: Mapping[str, str] = MappingProxyType({})
    prompt: str | None = None
    role: str | None = None
    similarity_fn_name: str = "cosine"
    truncate_dim: int | None = None
    modules: str | None = None
    kept_tokens: KeptTokens | None = None

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str = "encoder",
        pooling: str | None = None,
        max_length: int | None = None,
        batch_size: int = 64,
        prompt_template: str | None = None,
        lowercase: bool = False,
        device: str | torch.device | None = None,
        precision: str = "fp32",
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.model = model if device is None else model.to(device)
        self.tokenizer = tokenizer
        self.name = name
        self.pooling = pooling
        self.max_length = truncation_length(model, tokenizer, max_length)
        self.batch_size = batch_size
        self.prompt_template = prompt_template
        self.lowercase = lowercase
        self.precision = precision
        self.truncated = 0

    def encode(self, texts: Sequence[str], progress: bool = False, num_workers: int = 1) -> np.ndarray:
        """Return (N, H) float32, row i for text i. Raises ValueError as ``encode`` does."""
        texts = check_texts(texts)
        place = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        distinct = sorted(place, key=len, reverse=True)
        size = CHUNK if num_workers == 1 else min(CHUNK, -(-len(distinct) // (4 * max(1, num_workers))))
        chunks = [distinct[start : start + size] for start in range(0, len(distinct), size)]
        embeddings: np.ndarray | None = None
        with tqdm(total=len(distinct), desc="encode", unit=" texts", disable=not progress) as bar:
            found = self.encode_chunks(chunks, num_workers, bar.update)
            for chunk, rows_nH in zip(chunks, found, strict=True):
                if embeddings is None:
                    embeddings = np.empty((len(distinct), rows_nH.shape[1]), dtype=np.float32)
                if (row := first_not_finite(rows_nH)) is not None:
                    raise ValueError(f"the embedding of {chunk[row]!r:.100} holds NaN or infinite values")
                embeddings[[place[text] for text in chunk]] = rows_nH
        assert embeddings is not None
        return embeddings if len(distinct) == len(texts) else embeddings[[place[text] for text in texts]]

    __call__ = encode

    def check_settings(self, num_workers: int = 1) -> None:
        """Raise ValueError for a precision or a number of processes that this encoder cannot encode with."""
        device = device_of(self.model)
        check_precision(self.precision, device, self.model)
        check_workers(num_workers, device)

    def encode_chunks(
        self,
        chunks: Iterable[Sequence[str]],
        num_workers: int = 1,
        advance: Callable[[int], object] = lambda rows: None,
    ) -> Generator[np.ndarray, None, None]:
        """Yield the embeddings (n, H) float32 of each chunk of texts. The next chunk is read and tokenised meanwhile.

        Arguments:
            num_workers: processes that share the chunks.
            advance: called with the number of distinct texts that were just done.
        """
        self.check_settings(num_workers)
        self.truncated = 0
        if num_workers != 1:
            with WorkerPool(self, num_workers) as pool:
                for rows_nH, truncated in pool.encode_chunks(chunks, advance):
                    self.truncated += truncated
                    yield rows_nH[:, : self.truncate_dim]
            return
        for rows_nH, truncated in self.embedded(chunks, advance):
            self.truncated += truncated
            yield rows_nH[:, : self.truncate_dim]

    def embedded(
        self, chunks: Iterable[Sequence[str]], advance: Callable[[int], object] = lambda rows: None
    ) -> Iterator[tuple[np.ndarray, int]]:
        """Yield each chunk's embeddings and the number of its truncated texts; all in this process."""
        return embed_chunks(
            self.model,
            self.tokenizer,
            map(self.given, chunks),
            self.max_length,
            self.batch_size,
            self.prompt_template,
            self.precision,
            advance,
            self.kept_tokens,
        )

    def given(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the texts as the tokenizer gets them: with the prompt, in lower case if ``lowercase``."""
        texts = [self.prompt + text for text in texts] if self.prompt else texts
        return [text.lower() for text in texts] if self.lowercase else texts

    def for_role(self, role: str | None, prompt: str | None = None) -> Self:
        """Return a copy that encodes texts in a role, with the prompt that the model has for it.

        Arguments:
            role: ``query``, ``document``, or None for neither.
            prompt: use this prompt instead. None: the first of the model's own for the role (``ROLE_PROMPTS``).

        Raises:
            ValueError: an unknown role.
        """
        if role is not None and role not in ROLE_PROMPTS:
            raise ValueError(f"role must be 'query', 'document' or None, got {role!r}")
        encoder = copy.copy(self)
        encoder.role, encoder.prompt = role, prompt
        if prompt is None and role is not None:
            encoder.prompt = next((self.prompts[name] for name in ROLE_PROMPTS[role] if name in self.prompts), "")
        return encoder

    def __repr__(self) -> str:
        settings = {name: value for name, value in self.describe().items() if value is not None}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"

    def describe(self) -> dict[str, Any]:
        """Return what results files record about the encoder; prompts, similarity and size only if not the default."""
        parameter = next(self.model.parameters(), None)
        prompts = {name: text for name, text in self.prompts.items() if text}
        return {
            **({"prompts": prompts} if prompts else {}),
            **({"similarity_fn_name": self.similarity_fn_name} if self.similarity_fn_name != "cosine" else {}),
            **({"truncate_dim": self.truncate_dim} if self.truncate_dim is not None else {}),
            "name": self.name,
            "class": type(getattr(self.model, "backbone", self.model)).__name__,
            "pooling": self.pooling,
            "max_length": self.max_length,
            "prompt_template": self.prompt_template,
            "precision": self.precision if self.precision != "fp32" or parameter is None else str(parameter.dtype)[6:],
        }


def weights_digest(model: nn.Module) -> str:
    """Return the SHA-256 of a model's tensors with their names, types and shapes."""
    state = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, torch.Tensor):
            state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            state.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


def tokenizer_digest(encoder: TextEncoder) -> str | None:
    """Return the digest of an encoder's tokenizer, see :func:`digest_of`; None where it is not one of Transformers."""
    tokenizer = getattr(encoder, "tokenizer", None)
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return None
    return digest_of(tokenizer, encoder.prompt_template)


def digest_of(tokenizer: PreTrainedTokenizerBase, prompt_template: str | None) -> str:
    """Return the SHA-256 of a tokenizer's vocabulary and of the ids that it gives to ``PROBES`` in the template."""
    ids = tokenize(tokenizer, PROBES, 10**6, prompt_template).input_ids
    content = json.dumps([sorted(tokenizer.get_vocab().items()), ids])
    return hashlib.sha256(content.encode()).hexdigest()


def inference_head(model: Any) -> nn.Module:
    """Return the layers that a model applies to the pooled vector: a SentenceTransformer's Dense and Normalize, or the
    projector of a checkpoint that keeps it at inference; an Identity for none."""
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Module) and getattr(getattr(model, "config", None), "projector_at_inference", False):
        head = model.projector
    return head if isinstance(head, nn.Module) else nn.Identity()


def layers_of(model: nn.Module) -> list[str]:
    """Return the classes of the layers of ``inference_head``. Some have no weights: Normalize, an activation."""
    layers = [layer for layer in inference_head(model).modules() if not list(layer.children())]
    return [type(layer).__name__ for layer in layers if not isinstance(layer, nn.Identity)]


def vectors(encoder: Encoder, texts: Sequence[str], progress: bool = False) -> Any:
    """Encode with an encoder of any kind, as :func:`embed` does, but let a sparse (N, V) matrix (``TfidfEncoder``)
    pass.

    Raises:
        ValueError: the answer is not (N, H), or holds NaN or infinite values.
    """
    texts = check_texts(texts)
    function: Callable[..., Any] = encoder.encode if hasattr(encoder, "encode") else encoder
    answer = function(texts, progress=progress) if isinstance(encoder, TextEncoder) else function(texts)
    if isinstance(answer, torch.Tensor):
        answer = answer.detach().float().cpu()
    sparse = issparse(answer)
    array = csr_matrix(answer) if sparse else np.asarray(answer, dtype=np.float32)
    if array.ndim != 2 or array.shape[0] != len(texts):
        raise ValueError(f"the encoder must return an array ({len(texts)}, H), got shape {array.shape}")
    if not sparse and (row := first_not_finite(array)) is not None:
        raise ValueError(f"the encoder returned values that are not finite for {texts[row]!r:.100}")
    return array


def first_not_finite(rows_nH: np.ndarray) -> int | None:
    """Return the first row that holds NaN or infinite values; None where there is none."""
    finite_n = np.isfinite(rows_nH).all(axis=1)
    return None if finite_n.all() else int(finite_n.argmin())


def embed(encoder: Encoder, texts: Sequence[str], progress: bool = False) -> np.ndarray:
    """Encode with an encoder of any kind and check its answer. The encoder is a ``TextEncoder``, an object with
    ``encode`` (such as a SentenceTransformer), or a function.

    Returns:
        (N, H) float32.

    Raises:
        ValueError: the answer is not (N, H), is sparse, or holds NaN or infinite values.
    """
    array = vectors(encoder, texts, progress)
    if issparse(array):
        raise ValueError(f"the encoder must return an array ({len(texts)}, H), got a sparse matrix {array.shape}")
    return array
