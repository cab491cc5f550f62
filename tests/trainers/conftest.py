"""Three small tokenizers trained on the spot, one of each kind that encoders come with."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "A man is playing a guitar on the street.",
    "Two women are embracing while holding packages.",
    "It rains.",
    "In the late 1980s, physics was a rich source of insight in mathematics, and it still is one today.",
    "Naïve cafés don't exist; déjà vu does!",
    "Children play football near an old stone bridge.",
    "He said: \"No\", and left.",
]  # fmt: skip


def build(kind: str) -> PreTrainedTokenizerFast:
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
        trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=list(special.values()))
    elif kind == "bytelevel":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        special = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
        trainer = trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=list(special.values()),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        special = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
        trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=list(special.values()), unk_token="<unk>")
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    cls, sep = special["cls"], special["sep"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)]
    )
    names = {f"{name}_token": token for name, token in special.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=128, **names)


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    return {kind: build(kind) for kind in ("wordpiece", "bytelevel", "unigram")}


@pytest.fixture(params=["wordpiece", "bytelevel", "unigram"])
def tokenizer(request, tokenizers):
    return tokenizers[request.param]


@pytest.fixture
def wordpiece(tokenizers):
    return tokenizers["wordpiece"]


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    return SENTENCES


@pytest.fixture(scope="session")
def small() -> ModuleType:
    """The functions of ``small_runs.py``, which is also a script that tests start."""
    spec = importlib.util.spec_from_file_location("small_runs", Path(__file__).with_name("small_runs.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def small_backbone(small: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_backbone(tmp_path_factory.mktemp("small") / "tiny-bert")


@pytest.fixture(scope="session")
def small_run(small: ModuleType, small_backbone: Path) -> Callable[..., Any]:
    """``small_run(output_dir, rows=…, columns=…, …)``: a trainer on random words, see ``make_trainer``."""

    def make(output_dir: Path, rows: int = 40, columns: int = 1, dev: bool = False, **options: Any) -> Any:
        suffix = ".txt" if columns == 1 else ".tsv"
        texts = small.write_texts(output_dir.parent / f"texts{suffix}", rows, columns)
        pairs = small.write_pairs(output_dir.parent / "dev.tsv") if dev else None
        return small.make_trainer(small_backbone, texts, output_dir, dev=pairs, **options)

    return make
