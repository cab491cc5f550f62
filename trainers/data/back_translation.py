"""Positives by back-translation: a sentence into another language and back (MSSE, §3.1, after Xie et al. 2020).

Sentences are translated in blocks. Each finished block is written to a file of its own, atomically. A run that was
killed continues behind its last block and writes the same pairs.
"""

import csv
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from csekit.encoding.provenance import write_json
from csekit.evaluation.pairs import normal
from csekit.modeling.hub import from_hub
from csekit.modeling.quiet import quiet_weights
from csekit.trainers.data.row_files import make_parts, settle_writers, settled_writers, writer_digests

COLUMNS = ("sent0", "sent1")
SUFFIXES = (".tsv", ".csv")


@dataclass(frozen=True)
class BackTranslation:
    """Settings of back-translation.

    Arguments:
        forward, backward: translation models, Hub ids or folders.
        languages: codes of the source and the pivot language, for multilingual models (NLLB, M2M100, mBART).
        prefixes: text before each input, forward and backward (``">>deu<< "``, ``"translate English to …: "``).
        batch_size: sentences of a batch, which have similar lengths.
        num_beams: default: the models' own generation config.
        max_length: tokens; longer sentences are left out, since a truncated translation is no positive.
        block_size: sentences of a block, which are sorted by length and written together.

    Raises:
        ValueError: a number below 1.
    """

    forward: str = "Helsinki-NLP/opus-mt-en-de"
    backward: str = "Helsinki-NLP/opus-mt-de-en"
    languages: tuple[str, str] | None = None
    prefixes: tuple[str, str] = ("", "")
    batch_size: int = 64
    num_beams: int | None = None
    max_length: int = 128
    block_size: int = 8192

    def __post_init__(self) -> None:
        for name in ("batch_size", "num_beams", "max_length", "block_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    def translators(self) -> "tuple[Translator, Translator]":
        """Load the models of both directions."""
        there = self.languages or (None, None)
        return (
            Translator(self.forward, self, self.prefixes[0], *there),
            Translator(self.backward, self, self.prefixes[1], *reversed(there)),
        )


class Translator:
    """Translate in one direction, in bf16 on a GPU, else in fp32.

    Arguments:
        name: a sequence-to-sequence model, Hub id or folder.
        settings: batch size, beams and length.
        prefix: text before each input.
        source, target: language codes, for multilingual models.

    Raises:
        ValueError: the tokenizer does not know a language.
    """

    def __init__(
        self,
        name: str,
        settings: BackTranslation,
        prefix: str = "",
        source: str | None = None,
        target: str | None = None,
    ) -> None:
        self.settings, self.prefix = settings, prefix
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer: Any = from_hub(AutoTokenizer, name)
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        with quiet_weights():
            model: Any = from_hub(AutoModelForSeq2SeqLM, name, dtype=dtype)
        self.model = model.to(self.device).eval()
        self.room = getattr(self.model.config, "max_position_embeddings", None) or 1024
        self.options = {} if settings.num_beams is None else {"num_beams": settings.num_beams}
        if source is not None and target is not None:
            for language in (source, target):
                self._language_id(language, name)
            self.tokenizer.src_lang = source
            self.options["forced_bos_token_id"] = self._language_id(target, name)

    def _language_id(self, language: str, name: str) -> int:
        codes = getattr(self.tokenizer, "lang_code_to_token", {})  # M2M100 writes "__en__" for "en"
        found = self.tokenizer.convert_tokens_to_ids(codes.get(language, language))
        if found is None or found == self.tokenizer.unk_token_id:
            raise ValueError(f"languages must be codes that {name} knows, got {language!r}")
        return int(found)

    @torch.inference_mode()
    def __call__(
        self, texts: Sequence[str | None], progress: Callable[[int], Any] = lambda count: None
    ) -> list[str | None]:
        """Translate texts, in their order. The result is None for None and for texts of more than ``max_length``
        tokens, and "" for "".

        Arguments:
            progress: called with the number of texts that were finished.
        """
        given = [i for i, text in enumerate(texts) if text]
        ids = self.tokenizer([f"{self.prefix}{texts[i]}" for i in given])["input_ids"] if given else []
        longest = min(self.settings.max_length, self.room)
        rows = {i: row for i, row in zip(given, ids, strict=True) if len(row) <= longest}
        order = sorted(rows, key=lambda i: -len(rows[i]))
        progress(len(texts) - len(order))
        result: list[str | None] = ["" if text == "" else None for text in texts]
        for start in range(0, len(order), self.settings.batch_size):
            places = order[start : start + self.settings.batch_size]
            batch = self.tokenizer.pad({"input_ids": [rows[i] for i in places]}, return_tensors="pt").to(self.device)
            length = min(2 * batch["input_ids"].shape[1] + 10, self.room - 1)  # generation may not end by itself
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
            ids = self.model.generate(**inputs, max_new_tokens=length, **self.options)
            for i, translation in zip(places, self.tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
                result[i] = normal(translation)
            progress(len(places))
        return result


def distinct(texts: Iterable[str]) -> list[str]:
    """Return each text once, with white space as single blanks and without blank texts."""
    return [text for text in dict.fromkeys(map(normal, texts)) if text]


def write_back_translations(
    texts: Sequence[str],
    target: Path,
    settings: BackTranslation,
    *,
    ratios: tuple[float, float] = (0.5, 2.0),
    drop_identical: bool = False,
) -> dict[str, int]:
    """Write sentence and back-translation as columns sent0 and sent1; the settings, and digests of the models, as
    ``<target>.json``.

    Until the end the finished blocks are in ``<target>.parts``. Another call with the same texts, settings and models
    (``batch_size`` may differ) continues from them; if all blocks are finished, it only filters.

    Arguments:
        texts: distinct, as :func:`distinct` makes them.
        target: a ``.tsv`` (without quoting) or ``.csv`` file that does not exist yet.
        ratios: least and greatest length of a back-translation divided by that of its sentence, in characters.
        drop_identical: leave out back-translations that equal the sentence.

    Returns:
        counts: ``sentences`` and ``pairs``; left out: ``too_long``, ``empty``, ``ratio``, ``identical`` (these are
        among the pairs unless they are dropped).

    Raises:
        ValueError: a target with another ending, parts of other texts, settings or models, no text, or no pair left.
        FileExistsError: the target exists, or ``<target>.parts`` holds something else.
    """
    if target.suffix not in SUFFIXES:
        raise ValueError(f"the file to write must end in {' or '.join(SUFFIXES)}, got {target.name!r}")
    if not 0 <= ratios[0] <= 1 <= ratios[1]:
        raise ValueError(f"ratios must enclose 1, got {ratios[0]} and {ratios[1]}")
    if not texts:
        raise ValueError("there is no text to translate")
    parts = target.with_name(f"{target.name}.parts")
    if target.exists() and not parts.exists():
        raise FileExistsError(f"{target} exists already: move it away, or choose another name")
    make_parts(parts)
    made = _settle(parts, texts, settings)
    _translate_blocks(parts, texts, settings)
    counts = _write_pairs(parts / target.name, parts, texts, settings.block_size, ratios, drop_identical)
    if not counts["pairs"]:
        reasons = ", ".join(f"{name} {counts[name]:,}" for name in ("too_long", "empty", "ratio", "identical"))
        raise ValueError(
            f"{target}: no pair of {len(texts):,} sentences is left ({reasons}): change the filters; the translations "
            f"stay in {parts}"
        )
    os.replace(parts / target.name, target)
    made |= settled_writers(parts) | {"ratios": list(ratios), "drop_identical": drop_identical, "counts": counts}
    write_json(target.with_name(f"{target.name}.json"), made)
    done = parts.with_name(f"{parts.name}.done")  # a kill must not leave some of the parts under their name
    shutil.rmtree(done, ignore_errors=True)  # left by a run that was killed at its very end
    shutil.rmtree(parts.rename(done))
    return counts


def _settle(parts: Path, texts: Sequence[str], settings: BackTranslation) -> dict[str, Any]:
    """Record texts and settings beside the parts. Raises ValueError for parts of other texts or settings."""
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    made = json.loads(json.dumps({**asdict(settings), "sentences": len(texts), "sha256": digest}))
    path = parts / "settings.json"
    if path.exists():
        old = json.loads(path.read_text(encoding="utf-8"))
        changed = [
            f"{name}: {old.get(name)!r} there, {made[name]!r} now"
            for name in made
            if old.get(name) != made[name]
            and name != "batch_size"  # a run that needed too much memory continues with a smaller one
        ]
        if changed:
            raise ValueError(f"{parts} holds parts of another run ({'; '.join(changed)}): delete it to start again")
    else:
        write_json(path, made)
    names = {"forward": settings.forward, "backward": settings.backward}
    return {**made, **{name: Path(value).name if Path(value).exists() else value for name, value in names.items()}}


def _block_path(parts: Path, block: int) -> Path:
    return parts / f"{block:06d}.json"


def _translate_blocks(parts: Path, texts: Sequence[str], settings: BackTranslation) -> None:
    """Translate the blocks that are missing."""
    starts = range(0, len(texts), settings.block_size)
    missing = [block for block in range(len(starts)) if not _block_path(parts, block).exists()]
    if not missing:
        return
    forward, backward = settings.translators()
    for name, translator in (("forward", forward), ("backward", backward)):
        digests = writer_digests(translator.model, translator.tokenizer)
        settle_writers(parts, {f"{name}_{part}": digest for part, digest in digests.items()})
    left = sum(len(texts[starts[block] : starts[block] + settings.block_size]) for block in missing)
    bar = tqdm(
        total=2 * len(texts), initial=2 * (len(texts) - left), desc="translate", unit=" translations", smoothing=0.05
    )
    with closing(bar):
        for block in missing:
            own = texts[starts[block] : starts[block] + settings.block_size]
            write_json(_block_path(parts, block), backward(forward(own, bar.update), bar.update))


def _translations(parts: Path, count: int, block_size: int) -> Iterator[str | None]:
    for block in range(-(-count // block_size)):
        yield from json.loads(_block_path(parts, block).read_text(encoding="utf-8"))


def _write_pairs(
    path: Path,
    parts: Path,
    texts: Sequence[str],
    block_size: int,
    ratios: tuple[float, float],
    drop_identical: bool,
) -> dict[str, int]:
    counts = Counter(sentences=len(texts), pairs=0, too_long=0, empty=0, ratio=0, identical=0)
    translations = _translations(parts, len(texts), block_size)
    with path.open("w", encoding="utf-8", newline="") as file:
        quoted = csv.writer(file, lineterminator="\n")
        for pair in chain([COLUMNS], _kept(texts, translations, ratios, drop_identical, counts)):
            if path.suffix == ".csv":
                quoted.writerow(pair)
            else:
                file.write("\t".join(pair) + "\n")
    return dict(counts)


def _kept(
    texts: Sequence[str],
    translations: Iterable[str | None],
    ratios: tuple[float, float],
    drop_identical: bool,
    counts: Counter[str],
) -> Iterator[tuple[str, str]]:
    """Yield the pairs that pass the filters; count all."""
    for text, back in zip(texts, translations, strict=True):
        if back is None:
            counts["too_long"] += 1
        elif not back:
            counts["empty"] += 1
        elif not ratios[0] <= len(back) / len(text) <= ratios[1]:
            counts["ratio"] += 1
        else:
            counts["identical"] += back == text
            if back != text or not drop_identical:
                counts["pairs"] += 1
                yield text, back
