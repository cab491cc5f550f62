"""The demo encoder: trained in about a minute on two CPU cores, without a download.

Its text is the Python language reference, which every Python installation holds as the topics of ``help()``
(``pydoc_data.topics``). It is large enough to watch the methods work and far too small for useful embeddings.
"""

import hashlib
import json
import logging
import os
import random
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig

from csekit import __version__
from csekit.modeling import InfoCSEForPreTraining, InfoCSEPretrainingConfig
from csekit.trainers.arguments import PretrainingArguments
from csekit.trainers.batches.packing import pack
from csekit.trainers.data.tokenizer_training import train_tokenizer
from csekit.trainers.pretraining import PretrainingTrainer, small_budget_init_
from csekit.trainers.progress import ProgressLines
from csekit.trainers.scripts.run_arguments import RunArguments

logger = logging.getLogger(__name__)

_MARKUP = re.compile(r"::=|>>>|^\s*\.\.\. |[=*~^#-]{4,}|\|.*\||^\s*[+|]", re.MULTILINE)
_BULLET = re.compile(r"^(\s*)(\*|[0-9]+\.|\[[0-9]+\])(\s+)")
_VERSION_NOTE = re.compile(r"^(New|Added|Changed|Deprecated|Removed) (in|since) version [0-9.]+(, [a-z ]+[0-9.]+)?:? ")
_LABEL = re.compile(r"^(Note|Warning|CPython implementation detail|See also|Caution|Important):\s+")
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}([\w][^*]*?)\*{1,2}(?![\w*])")
_FOOTNOTE = re.compile(r"\s*\[[0-9]+\]")
_BOUNDARY = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)(?<!cf\.)[)”]?\s+(?=[(“]?[A-Z])")
_START = re.compile(r"[A-Z]|[a-z_.]+(\(\))? [a-z]+ [a-z]+ ")  # a capital, or a name in code
_WORD = re.compile(r"[(“‘]?[A-Za-z]+(['’-][A-Za-z]+)*[)”’]?[,;:.!?]?[)”’]?")


def demo_sentences() -> list[str]:
    """Return several thousand plain English sentences of the Python language reference, in the order of its topics.

    They come from the running interpreter: another Python version gives slightly different sentences. Headings,
    grammar, code, tables, markup, repeated sentences and those of fewer than 6 or more than 50 words are left out.
    """
    from pydoc_data.topics import topics

    found: dict[str, None] = {}
    for name in sorted(topics):
        for paragraph in _paragraphs(topics[name]):
            found.update(dict.fromkeys(filter(_is_prose, _sentences(_plain(paragraph)))))
    return list(found)


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the blocks between blank lines, split where the indentation changes (a term and its definition)."""
    for block in re.split(r"\n\s*\n", text.expandtabs()):
        if _MARKUP.search(block):
            continue
        indent = -1
        lines: list[str] = []
        for line in block.splitlines():
            line = _BULLET.sub(lambda match: " " * len(match[0]), line)
            level = len(line) - len(line.lstrip())
            if level != indent and lines:
                yield "\n".join(lines)
                lines = []
            indent = level
            lines.append(line.strip())
        yield "\n".join(lines)


def _plain(paragraph: str) -> str:
    """Return one line without quotation marks around code, emphasis, footnote marks and labels."""
    text = re.sub(r"(?<=\w)-\n(?=[a-z])", "-", paragraph).replace("\n", " ")
    text = _FOOTNOTE.sub("", _EMPHASIS.sub(r"\1", text.replace('"', "")))
    text = " ".join(text.split())
    text = _LABEL.sub("", _VERSION_NOTE.sub("", text))
    return re.sub(r":$", ".", text)  # the code behind the colon is left out


def _sentences(text: str) -> Iterator[str]:
    for sentence in _BOUNDARY.split(text):
        closed = sentence[:1] == "(" and sentence.find(")") in (-1, len(sentence) - 1)  # all of it in parentheses
        yield sentence.strip("()") if closed else sentence


def _is_prose(sentence: str) -> bool:
    words = sentence.split()
    if not 6 <= len(words) <= 50 or not _START.match(sentence) or sentence[-1] not in ".!?":
        return False
    return sum(_WORD.fullmatch(word) is not None for word in words) >= 0.75 * len(words)


#: Defaults of ``csekit train`` without arguments. Pooling and dropout were chosen by the scores of both halves of the
#: demo pairs, so that training shows an effect.
DEMO: dict[str, Any] = {
    "output_dir": "runs/demo",
    "learning_rate": 3e-4,
    "dropout": 0.3,
    "pooling": "mean",
    "max_steps": 100,
    "eval_steps": 25,
    "logging_steps": 25,
}


def with_demo(run: RunArguments, folder: str | Path) -> RunArguments:
    """Fill in the demo's encoder, text and pairs. The encoder is trained if it is not in the cache.

    Arguments:
        run: arguments that name neither encoder nor corpus.
        folder: the folder with ``dev.tsv`` and ``test.tsv``.
    """
    print("No encoder and no corpus named: the embedded demo, Python's own documentation and 300 hand-written pairs.")
    cache = Path(os.environ.get("CSEKIT_CACHE", Path.home() / ".cache" / "csekit"))
    encoder = demo_encoder(cache)
    text = encoder / "sentences.txt"
    dev, test = run.dev_file or f"{folder}/dev.tsv", run.test_file or f"{folder}/test.tsv"
    return replace(run, model_name_or_path=str(encoder), train_file=str(text), dev_file=dev, test_file=test)


@dataclass(frozen=True)
class DemoSettings:
    """Size and training of the demo encoder. The defaults were chosen by the scores of both halves of the demo
    pairs."""

    vocab_size: int = 5000
    hidden_size: int = 128
    layers: int = 2
    heads: int = 4
    steps: int = 500
    learning_rate: float = 1e-3
    batch_size: int = 16
    block_length: int = 64
    objective: str = "condenser"
    seed: int = 0


def demo_encoder(cache_dir: str | Path, settings: DemoSettings | None = None, progress: bool = True) -> Path:
    """Train the demo encoder, or find it in the cache.

    Stage 1 of InfoCSE trains tokenizer and encoder on `demo_sentences`; one sentence in twenty is held out. The
    folder's name is a hash of the package's version, the settings and the sentences. The folder is written under
    another name and then renamed, so it is always complete.

    Arguments:
        cache_dir: the folder of the cache, which is created if it does not exist.
        settings: size and training; default: those of :class:`DemoSettings`.
        progress: True to say what is done, with a live bar on a terminal.

    Returns:
        A folder with a ``BertForMaskedLM``, its tokenizer, the auxiliary head in a subfolder, and ``sentences.txt``.
    """
    settings = settings or DemoSettings()
    sentences = demo_sentences()
    target = Path(cache_dir) / f"demo-encoder-{_key(settings, sentences)}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    if progress:
        told = f"Pre-training a small encoder on {len(sentences):,} sentences, {settings.steps} steps"
        print(f"{told}. This is done once: {target}", flush=True)
    part = Path(tempfile.mkdtemp(prefix=".demo-encoder-", dir=target.parent))
    try:
        with preserved_rng():
            _pretrain(sentences, settings, part, progress)
        shutil.rmtree(part / "unused", ignore_errors=True)  # the trainer's output folder, in which nothing is saved
        (part / "sentences.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
        os.replace(part, target)
    except OSError:
        if not target.is_dir():  # else another process finished first, with the same result
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _pretrain(sentences: list[str], settings: DemoSettings, folder: Path, progress: bool) -> None:
    """Run stage 1 of InfoCSE on the sentences and export the encoder to a folder."""
    heldout, train = sentences[::20], [text for index, text in enumerate(sentences) if index % 20]
    tokenizer = train_tokenizer(train, settings.vocab_size)
    encoder = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=4 * settings.hidden_size,
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
    )
    blocks, unseen = (pack(texts, tokenizer, settings.block_length) for texts in (train, heldout))
    torch.manual_seed(settings.seed)
    model = InfoCSEForPreTraining(InfoCSEPretrainingConfig(encoder_config=encoder, objective=settings.objective))
    small_budget_init_(model, blocks, tokenizer)
    args = PretrainingArguments(
        output_dir=str(folder / "unused"),
        max_steps=settings.steps,
        learning_rate=settings.learning_rate,
        warmup_steps=0.05,
        per_device_train_batch_size=settings.batch_size,
        seed=settings.seed,
        save_strategy="no",
        eval_strategy="no",
        logging_steps=100,
        disable_tqdm=not progress,
        report_to="none",
        use_cpu=True,
    )
    trainer = PretrainingTrainer(model, args, blocks, tokenizer, unseen)
    trainer.remove_callback(ProgressLines)
    if progress:
        trainer.add_callback(Bar(label="pre-train"))
    trainer.train()
    if trainer.stop_on_terminate.interrupted:
        raise SystemExit(143)  # a half-trained encoder never enters the cache
    logger.info("held-out masked LM of the demo encoder: %s", trainer.heldout_scores())
    model.export_checkpoint(folder, tokenizer)


class Bar(ProgressLines):
    """The live bar of a training without its lines."""

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        pass


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Restore the global random states of torch, numpy and Python afterwards: a Trainer seeds all three."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _key(settings: DemoSettings, sentences: Sequence[str]) -> str:
    content = json.dumps([__version__, asdict(settings), list(sentences)])
    return hashlib.sha256(content.encode()).hexdigest()[:16]
