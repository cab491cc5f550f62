"""Distil an encoder into a static one: a vector for each token, and the mean over a text's tokens (model2vec's form).

Every token of the vocabulary is encoded alone, between the special tokens, by the teacher. The vectors lose their
lesser principal components, and frequent tokens get less weight.

Shape suffixes: T ordinary tokens, V tokens of the vocabulary, D size of the teacher's vectors, K kept components.
"""

import hashlib
import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, FileSystemLoader
from safetensors.torch import save_file
from sklearn.decomposition import PCA
from tqdm.auto import tqdm

from csekit.encoding.chunks import TokenizedChunk, embed_chunk
from csekit.encoding.encoder import TextEncoder
from csekit.encoding.files import encoder_settings
from csekit.encoding.provenance import array_bytes, write_atomically, write_json
from csekit.encoding.sentence_transformer import SentenceTransformerEncoder
from csekit.encoding.stores import comparable, first_difference
from csekit.modeling.drafts import is_unfinished, whole_files
from csekit.modeling.settings import check_number
from csekit.modeling.tokenization import sentence_frame

#: What token_vectors writes, and the drafts of it.
_PART = re.compile(r"\.?([0-9]{9}|settings)\..*")
#: Tokens that are encoded and kept on disk at a time, and the files of a static encoder.
BLOCK = 4096
FILES = ("modules.json", "config_sentence_transformers.json", "tokenizer.json", "model.safetensors", "1_Normalize",
         "distillation.json", "README.md")  # fmt: skip
CARDS = Path(__file__).resolve().parents[1] / "model_cards"


@dataclass(frozen=True)
class StaticDistillation:
    """Settings of a static encoder.

    Arguments:
        dims: K, principal components to keep; 0 keeps the teacher's vectors as they are.
        sif: a of the weight a/(a + p) of a token of probability p (smooth inverse frequency); 0 gives all tokens the
            weight 1. The vocabulary counts as sorted by frequency: the token of rank r has p ~ 1/(r + 1).

    Raises:
        ValueError: a value that is not allowed.
    """

    dims: int = 256
    sif: float = 1e-4

    def __post_init__(self) -> None:
        check_number("dims", self.dims, 0)
        check_number("sif", self.sif, 0, 1, open_ends="high")


def ordinary_tokens(encoder: TextEncoder) -> list[int]:
    """Return the ids of the tokens that are not special, ascending."""
    special = set(encoder.tokenizer.all_special_ids)
    return [token for token in sorted(encoder.tokenizer.get_vocab().values()) if token not in special]


def _alone(encoder: TextEncoder, tokens: list[int]) -> np.ndarray:
    """Return the teacher's vector of each token between the special tokens, (T, D)."""
    frame = sentence_frame(encoder.tokenizer, encoder.prompt_template)
    rows = [[*frame.before, token, *frame.after] for token in tokens]
    chunk = TokenizedChunk(list(range(len(rows))), rows, 0)
    return embed_chunk(encoder.model, encoder.tokenizer, chunk, encoder.batch_size, encoder.precision)


def token_vectors(encoder: TextEncoder, tokens: list[int], parts: Path, progress: bool = True) -> np.ndarray:
    """Return the teacher's vector of each token alone, (T, D). ``parts`` keeps finished blocks; a killed call goes on.

    Raises:
        ValueError: ``parts`` holds the vectors of another encoder.
        FileExistsError: ``parts`` holds something else.
    """
    digest = hashlib.sha256(json.dumps(tokens).encode()).hexdigest()
    made = json.loads(json.dumps({**encoder_settings(encoder), "tokens": digest}))
    settings = parts / "settings.json"
    if settings.exists():
        old = json.loads(settings.read_text(encoding="utf-8"))
        old.pop("name", None)  # earlier versions recorded it
        if difference := first_difference(old, comparable(old, made)):
            raise ValueError(
                f"{parts} holds the vectors of another encoder, its {difference[0]} differs: delete it to start again"
            )
    if not settings.exists() and parts.exists():
        strange = [path for path in sorted(parts.iterdir()) if not _PART.fullmatch(path.name)]
        if strange:
            raise FileExistsError(
                f"{parts} holds something else than parts of a static encoder, {strange[0].name}: move it away, or "
                "choose another name"
            )
        shutil.rmtree(parts)  # blocks without settings are of any encoder
    parts.mkdir(parents=True, exist_ok=True)
    write_json(settings, made)
    found = []
    with tqdm(total=len(tokens), unit=" tokens", disable=not progress) as bar:
        for start in range(0, len(tokens), BLOCK):
            own, path = tokens[start : start + BLOCK], parts / f"{start:09d}.npy"
            if not path.exists():
                write_atomically(path, array_bytes(_alone(encoder, own)))
            found.append(np.load(path))
            bar.update(len(own))
    return np.concatenate(found)


def _check_dims(dims: int, tokens: int, size: int) -> None:
    """Raise ValueError if there are fewer tokens or dimensions than components."""
    if dims > min(tokens, size):
        raise ValueError(
            f"dims must be at most {min(tokens, size)}, the least of the teacher's {size} dimensions and {tokens} "
            f"tokens, got {dims}"
        )


def weighted_components(vectors_TD: np.ndarray, settings: StaticDistillation) -> np.ndarray:
    """Return the vectors' first principal components, weighted by the tokens' ranks, (T, K).

    Raises:
        ValueError: there are fewer tokens or dimensions than components.
    """
    if settings.dims:
        _check_dims(settings.dims, *vectors_TD.shape)
        vectors_TD = PCA(settings.dims, svd_solver="covariance_eigh").fit_transform(vectors_TD.astype(np.float64))
    if settings.sif:
        p_T = 1 / np.arange(2, len(vectors_TD) + 2)
        p_T /= p_T.sum()
        vectors_TD = vectors_TD * (settings.sif / (settings.sif + p_T))[:, None]
    return vectors_TD.astype(np.float32)


def parts_of(folder: Path) -> Path:
    """Return the folder of the finished blocks of a static encoder."""
    return folder.with_name(f"{folder.name}.parts")


def check_folder(folder: Path, overwrite: bool) -> None:
    """Raise FileExistsError for a folder that holds something else than a static encoder, or, without ``overwrite``,
    one that is complete. A call that was killed goes on."""
    if not folder.exists() or not any(folder.iterdir()) or is_unfinished(folder, last="modules.json"):
        return
    if not (folder / "distillation.json").is_file():
        raise FileExistsError(f"{folder} holds something else than a static encoder: choose another folder")
    if not overwrite and not parts_of(folder).exists():
        raise FileExistsError(f"{folder} holds a static encoder already: choose another folder or say overwrite")


def distill_static(
    encoder: TextEncoder,
    folder: Path,
    settings: StaticDistillation | None = None,
    progress: bool = True,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write a static encoder that sentence-transformers and model2vec load, and return what its record says.

    Special tokens have the vector 0, so that an unknown word does not turn a text's vector. Until the end the
    finished blocks are in ``<folder>.parts``.

    Arguments:
        encoder: the teacher, with a tokenizer in Rust.
        folder: a new folder, or one of a call that was killed.
        overwrite: replace an earlier static encoder in the folder.

    Raises:
        ValueError: csekit does not run the teacher itself; its tokenizer is not in Rust; too many dimensions; parts of
            another teacher.
        FileExistsError: the folder holds something else, or a static encoder and ``overwrite`` is False.
    """
    settings = settings or StaticDistillation()
    if isinstance(encoder, SentenceTransformerEncoder) or not isinstance(encoder.model, torch.nn.Module):
        raise ValueError(f"the teacher must be an encoder that csekit runs itself, got {encoder!r}")
    tokenizer: Any = encoder.tokenizer
    if not tokenizer.is_fast:
        raise ValueError(f"the teacher must have a fast tokenizer, got {type(tokenizer).__name__}")
    check_folder(folder, overwrite)
    tokens = ordinary_tokens(encoder)
    if settings.dims:
        _check_dims(settings.dims, len(tokens), _alone(encoder, tokens[:1]).shape[1] if tokens else 0)
    parts = parts_of(folder)
    rows_TK = weighted_components(token_vectors(encoder, tokens, parts, progress), settings)
    table_VK = np.zeros((max(len(tokenizer), tokens[-1] + 1), rows_TK.shape[1]), dtype=np.float32)
    table_VK[tokens] = rows_TK
    record = {**asdict(settings), "teacher": encoder.describe(), "tokens": len(tokens), "dimensions": rows_TK.shape[1]}
    with whole_files(folder, FILES, last="modules.json") as draft:
        _write_static(draft, tokenizer, table_VK, record)
    done = parts.with_name(f"{parts.name}.done")  # a kill must not leave some of the parts under their name
    shutil.rmtree(done, ignore_errors=True)
    shutil.rmtree(parts.rename(done))
    return record


def _write_static(folder: Path, tokenizer: Any, table_VK: np.ndarray, record: dict[str, Any]) -> None:
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    save_file({"embedding.weight": torch.from_numpy(table_VK)}, folder / "model.safetensors")
    kinds = {"": "StaticEmbedding", "1_Normalize": "Normalize"}
    (folder / "1_Normalize").mkdir()
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(kinds.items())
    ]
    write_json(folder / "modules.json", modules)
    write_json(folder / "config_sentence_transformers.json", {"prompts": {}, "similarity_fn_name": "cosine"})
    write_json(folder / "distillation.json", record)
    cards = Environment(loader=FileSystemLoader(CARDS), autoescape=False, keep_trailing_newline=True)
    (folder / "README.md").write_text(cards.get_template("static.md.jinja").render(record), encoding="utf-8")
