"""Back-translation: order, lengths and filters; a run that is killed ends with the file of one that was not."""

import csv
import json
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import MarianConfig, MarianMTModel, MarianTokenizer, PreTrainedTokenizerFast

from csekit.trainers import load_corpus
from csekit.trainers.data import back_translation
from csekit.trainers.data.back_translation import BackTranslation, _settle, distinct, write_back_translations

SCRIPT = Path(__file__).parents[3] / "examples" / "back_translate.py"
PAD, EOS, UNK = 0, 1, 2


def write_translator(folder: Path, words: list[str]) -> Path:
    """A random Marian model over whole words; a bias towards the end token gives translations of many lengths."""
    tokens = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *words])}
    inner = Tokenizer(models.WordLevel(tokens, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", EOS)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=64, **special).save_pretrained(folder)
    config = MarianConfig(
        vocab_size=len(tokens),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=64,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
        init_std=0.5,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MarianMTModel(config)
    model.final_logits_bias[0, EOS] = 2.0
    model.final_logits_bias[0, [PAD, UNK]] = -1e4
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pair(small: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("marian")
    there = write_translator(folder / "there", small.WORDS)
    back = write_translator(folder / "back", small.WORDS[::-1])
    return {"forward": str(there), "backward": str(back)}


@pytest.fixture(scope="module")
def texts(small: ModuleType) -> list[str]:
    rng = random.Random(3)
    return distinct(small.sentence(rng) for _ in range(24))


# The models


def test_batches_of_like_length_give_what_single_sentences_give(pair: dict[str, str], texts: list[str]) -> None:
    forward, _ = BackTranslation(**pair, batch_size=7, num_beams=1).translators()
    done: list[int] = []
    got = forward([None, *texts], done.append)
    assert got[0] is None
    assert sum(done) == len(texts) + 1
    assert max(done[1:]) == 7
    ended = 0
    for text, translation in zip(texts, got[1:], strict=True):
        inputs = forward.tokenizer(text, return_tensors="pt")
        ids = forward.model.generate(**inputs, max_new_tokens=50, num_beams=1)
        alone = forward.tokenizer.decode(ids[0], skip_special_tokens=True).split()
        words = str(translation).split()
        # a batch ends behind twice its longest sentence: there a translation without end is cut
        assert words == alone[: len(words)]
        assert len(words) == min(len(alone), 50) or len(words) >= 2 * (len(text.split()) + 1) + 10
        ended += words == alone
    assert ended > 5
    assert len(set(got[1:])) > 8


def test_long_sentences_are_left_out_and_prefixes_and_languages_reach_the_model(
    pair: dict[str, str], texts: list[str]
) -> None:
    short = BackTranslation(**pair, max_length=6, num_beams=1).translators()[0]
    got = short(texts)
    assert [translation is None for translation in got] == [len(text.split()) + 1 > 6 for text in texts]
    assert 0 < sum(translation is None for translation in got) < len(texts)

    plain, _ = BackTranslation(**pair, num_beams=1).translators()
    settings = BackTranslation(**pair, num_beams=1, prefixes=("tree ", ""), languages=("red", "blue"))
    there, back = settings.translators()
    assert (there.tokenizer.src_lang, back.tokenizer.src_lang) == ("red", "blue")
    assert all(str(text).startswith("blue") for text in there(texts[:5]))
    assert all(str(text).startswith("red") for text in back(texts[:5]))
    del there.options["forced_bos_token_id"]
    assert there(texts[:5]) == plain([f"tree {text}" for text in texts[:5]]) != plain(texts[:5])
    with pytest.raises(ValueError, match=r"languages must be codes that .* knows, got 'xx'"):
        BackTranslation(**pair, languages=("red", "xx")).translators()


def test_what_is_empty_stays_empty(pair: dict[str, str], texts: list[str]) -> None:
    _, back = BackTranslation(**pair, num_beams=1).translators()
    done: list[int] = []
    first, nothing, blank, last = back([texts[0], None, "", texts[1]], done.append)
    assert (nothing, blank) == (None, "")
    assert [first, last] == back(texts[:2])
    assert sum(done) == 4


def test_marian_models_with_their_own_tokenizer(texts: list[str], pair: dict[str, str], tmp_path: Path) -> None:
    """SentencePiece for either language, as in the Hub's translation models."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="needs the extra 'translation'")
    (tmp_path / "texts.txt").write_text("\n".join(texts * 20), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "texts.txt"), model_prefix=str(tmp_path / "spm"), vocab_size=40, minloglevel=2
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    words = [pieces.id_to_piece(i) for i in range(3, len(pieces))]
    folders = [write_translator(tmp_path / name, words) for name in ("there", "back")]
    for folder in folders:
        (folder / "tokenizer.json").unlink()
        vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *words])}
        (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
        own = MarianTokenizer(str(tmp_path / "spm.model"), str(tmp_path / "spm.model"), str(tmp_path / "vocab.json"))
        own.save_pretrained(folder)
    settings = BackTranslation(*map(str, folders), num_beams=1, batch_size=5)
    forward, _ = settings.translators()
    assert isinstance(forward.tokenizer, MarianTokenizer)
    assert forward.tokenizer.decode(forward.tokenizer(texts[0])["input_ids"], skip_special_tokens=True) == texts[0]
    counts = write_back_translations(texts, tmp_path / "pairs.tsv", settings, ratios=(0, 100))
    assert counts["pairs"] > 5
    corpus = load_corpus(tmp_path / "pairs.tsv", cache_dir=tmp_path / "cache")
    assert {row["texts"][0] for row in corpus.dataset} <= set(texts)
    assert all("\u2581" not in row["texts"][1] for row in corpus.dataset)


def test_bf16_on_a_gpu_and_fp32_elsewhere(pair: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    monkeypatch.setattr(MarianMTModel, "to", lambda self, device: asked.append(device) or self)
    settings = BackTranslation(**pair)
    for there, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        forward, _ = settings.translators()
        assert forward.model.dtype == dtype
        assert asked[-1] == torch.device("cuda" if there else "cpu")


def test_each_text_once() -> None:
    assert distinct(["a  b", "", "c\t d", "a b", " ", "a\u2028b", "c d"]) == ["a b", "c d"]


# The file


def finished_parts(target: Path, translations: dict[str, str | None], block_size: int = 3) -> BackTranslation:
    """The parts of a run whose models have done all their work."""
    settings = BackTranslation(forward="no/such", backward="no/models", block_size=block_size)
    parts = target.with_name(f"{target.name}.parts")
    parts.mkdir()
    _settle(parts, list(translations), settings)
    for block, start in enumerate(range(0, len(translations), block_size)):
        (parts / f"{block:06d}.json").write_text(json.dumps([*translations.values()][start : start + block_size]))
    return settings


MADE: dict[str, str | None] = {
    'He said "no", and left.': 'He said "no" and went.',
    "same": "same",
    "an endless one": "and " * 20,
    "much is lost here": "much",
    "too long for the model": None,
    "nothing comes back": "",
    "just within two": "j" * 30,
    "ünï 日本": "uni 日本",
}


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.csv"])
def test_what_is_kept_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    settings = finished_parts(target, MADE)
    counts = write_back_translations([*MADE], target, settings)
    assert counts == {"sentences": 8, "pairs": 4, "too_long": 1, "empty": 1, "ratio": 2, "identical": 1}
    corpus = load_corpus(target, cache_dir=tmp_path / "cache")
    kept = [text for text, back in MADE.items() if back and back[:2] not in ("an", "mu")]
    assert corpus.columns == ("sent0", "sent1")
    assert [row["texts"] for row in corpus.dataset] == [[text, MADE[text]] for text in kept]
    if target.suffix == ".csv":
        with target.open(encoding="utf-8", newline="") as file:
            assert next(csv.DictReader(file)) == {"sent0": kept[0], "sent1": MADE[kept[0]]}
    made = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert (made["forward"], made["ratios"], made["counts"]) == ("no/such", [0.5, 2.0], counts)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", name, f"{name}.json"]


def test_the_filters_are_options_that_ask_for_no_further_translation(tmp_path: Path) -> None:
    settings = finished_parts(tmp_path / "a.tsv", MADE)
    counts = write_back_translations([*MADE], tmp_path / "a.tsv", settings, ratios=(0.1, 10), drop_identical=True)
    assert counts == {"sentences": 8, "pairs": 5, "too_long": 1, "empty": 1, "ratio": 0, "identical": 1}


def test_a_run_goes_on_with_smaller_batches_and_beside_remains(tmp_path: Path) -> None:
    """Remains: of a run that was killed while it removed its parts."""
    settings = finished_parts(tmp_path / "a.tsv", MADE)
    (tmp_path / "a.tsv.parts.done").mkdir()
    (tmp_path / "a.tsv.parts.done/000000.json").write_text("[]")
    counts = write_back_translations([*MADE], tmp_path / "a.tsv", replace(settings, batch_size=1))
    assert counts["pairs"] == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tsv", "a.tsv.json"]


def test_what_cannot_be_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    settings = finished_parts(tmp_path / "a.tsv", MADE)
    with pytest.raises(ValueError, match=r"holds parts of another run \(num_beams: None there, 4 now\)"):
        write_back_translations(
            [*MADE], tmp_path / "a.tsv", BackTranslation("no/such", "no/models", num_beams=4, block_size=3)
        )
    with pytest.raises(ValueError, match=r"holds parts of another run \(sentences: 8 there, 7 now; sha256"):
        write_back_translations([*MADE][1:], tmp_path / "a.tsv", settings)
    with pytest.raises(ValueError, match=r"must end in .tsv or .csv, got 'a.txt'"):
        write_back_translations([*MADE], tmp_path / "a.txt", settings)
    with pytest.raises(ValueError, match=r"ratios must enclose 1, got 1\.2 and 2"):
        write_back_translations([*MADE], tmp_path / "a.tsv", settings, ratios=(1.2, 2))
    with pytest.raises(ValueError, match="there is no text"):
        write_back_translations([], tmp_path / "b.tsv", settings)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        BackTranslation(batch_size=0)
    write_back_translations([*MADE], tmp_path / "a.tsv", settings)
    with pytest.raises(FileExistsError, match=r"a.tsv exists already"):
        write_back_translations([*MADE], tmp_path / "a.tsv", settings)


def test_filters_that_leave_nothing_are_an_error_and_the_translations_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The file had a header alone, the exit code was 0, and hours of translations were deleted."""
    texts = {"a man": "a man", "the dog": "the dog"}
    settings = finished_parts(tmp_path / "a.tsv", texts)
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    words = [str(tmp_path / "texts.txt"), str(tmp_path / "a.tsv"), "--forward", "no/such", "--backward", "no/models"]
    words += ["--block_size", "3", "--drop_identical"]
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(sys, "argv", ["back_translate.py", *words])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(SCRIPT))["main"]()
    assert end.value.code == 2
    told = "a.tsv: no pair of 2 sentences is left (too_long 0, empty 0, ratio 0, identical 2): change the filters"
    assert told in capsys.readouterr().err
    assert not (tmp_path / "a.tsv").exists()
    assert write_back_translations([*texts], tmp_path / "a.tsv", settings)["pairs"] == 2


# The script


def test_parts_of_another_translator_of_the_same_name_are_refused(
    pair: dict[str, str], texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that was killed went on with the translator that took the folder's place, without a word."""
    folder, target = shutil.copytree(pair["backward"], tmp_path / "back"), tmp_path / "pairs.tsv"
    settings = BackTranslation(pair["forward"], str(folder), block_size=len(texts) - 2, num_beams=1)
    real = back_translation.write_json

    def killed_at_the_second_block(path: Path, value: Any) -> None:
        if path.name == "000001.json":
            raise KeyboardInterrupt
        real(path, value)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(back_translation, "write_json", killed_at_the_second_block)
        write_back_translations(texts, target, settings, ratios=(0.0, 100.0))
    weights = (folder / "model.safetensors").read_bytes()
    model = MarianMTModel.from_pretrained(folder)
    model.final_logits_bias[0, EOS] = 3.0
    model.save_pretrained(folder)
    with pytest.raises(ValueError, match=r"holds parts of another run \(backward_weights: "):
        write_back_translations(texts, target, settings, ratios=(0.0, 100.0))
    (folder / "model.safetensors").write_bytes(weights)
    write_back_translations(texts, target, settings, ratios=(0.0, 100.0))
    made = json.loads(target.with_name("pairs.tsv.json").read_text(encoding="utf-8"))
    assert {"forward_weights", "forward_tokenizer", "backward_weights", "backward_tokenizer"} <= made.keys()


KILLED = """
import os, runpy, signal, sys
replace = os.replace
def killing(source, target):
    if str(target).endswith("000002.json"):  # the third block is written, but has not its name yet
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = killing
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_a_run_that_was_killed_ends_like_one_that_was_not(
    pair: dict[str, str],
    texts: list[str],
    small: ModuleType,
    small_backbone: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join([*texts, texts[3], texts[0], ""]), encoding="utf-8")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    options = ["--block_size", "5", "--batch_size", "4", "--num_beams", "1", "--ratios", "0.01", "100"]
    options += [word for name, folder in pair.items() for word in (f"--{name}", folder)]

    def words(name: str) -> list[str]:
        return [str(SCRIPT), str(tmp_path / "texts.txt"), str(tmp_path / name), *options]

    def start(name: str) -> int:
        monkeypatch.setattr(sys, "argv", words(name))
        try:
            return int(runpy.run_path(str(SCRIPT))["main"]())
        except SystemExit as end:
            return int(end.code or 0)

    environment = {**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", KILLED, *words("killed.tsv")], capture_output=True, env=environment)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    parts = tmp_path / "killed.tsv.parts"
    assert sorted(path.name for path in parts.glob("0*")) == ["000000.json", "000001.json"]
    assert not (tmp_path / "killed.tsv").exists()

    assert start("straight.tsv") == start("killed.tsv") == 0
    printed = capsys.readouterr().out
    assert f"{len(texts)} different sentences" in printed
    assert f"killed.tsv: sentences {len(texts)}, pairs" in printed
    assert (tmp_path / "killed.tsv").read_bytes() == (tmp_path / "straight.tsv").read_bytes()
    assert not parts.exists()
    assert start("killed.tsv") == 2
    assert "exists already" in capsys.readouterr().err

    corpus = load_corpus(tmp_path / "killed.tsv", cache_dir=tmp_path / "cache")
    rows = [row["texts"][0] for row in corpus.dataset]
    assert len(rows) > 5
    assert len(set(rows)) == len(rows)
    assert set(rows) <= set(texts)
    trainer = small.make_trainer(small_backbone, tmp_path / "killed.tsv", tmp_path / "run", max_steps=2)
    trainer.train()
    assert trainer.state.global_step == 2


def test_errors_of_the_script_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "pairs.csv").write_text("a,b\nx,y\nz,w\n")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for more, message in (
        ([], "pairs.csv has the columns a, b: name one with --column"),
        (["--column", "a", "--forward", str(tmp_path / "nowhere")], "nowhere"),
        (["--column", "a", "--batch_size", "0"], "batch_size must be at least 1, got 0"),
    ):
        monkeypatch.setattr(
            sys, "argv", ["back_translate.py", str(tmp_path / "pairs.csv"), str(tmp_path / "o.tsv"), *more]
        )
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(SCRIPT))["main"]()
        assert end.value.code == 2
        assert message in capsys.readouterr().err.splitlines()[-1]
