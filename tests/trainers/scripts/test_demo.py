"""The embedded demo: sentences of the language reference, the pairs, the encoder."""

import csv
import os
import random
import re
import signal
from collections import Counter
from pathlib import Path
from pydoc_data import topics as pydoc_topics

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer, BertForMaskedLM

from csekit.modeling import InfoCSEForPreTraining
from csekit.trainers.scripts import demo
from csekit.trainers.scripts.demo import DemoSettings, demo_encoder, demo_sentences

PAIRS = Path(__file__).parents[3] / "examples" / "demo"
TINY = DemoSettings(vocab_size=400, hidden_size=16, layers=1, heads=2, steps=2, batch_size=2, block_length=16)


def plain(sentence: str) -> str:
    return " ".join(re.findall(r"\w+", sentence.lower()))


@pytest.fixture(scope="module")
def pairs() -> list[dict[str, str]]:
    rows = []
    for split in ("dev", "test"):
        with (PAIRS / f"{split}.tsv").open(encoding="utf-8", newline="") as file:
            rows += [{"split": split, **row} for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    return rows


def test_sentences_are_many_clean_and_the_same_again() -> None:
    sentences = demo_sentences()
    assert len(sentences) > 1500
    assert sentences == demo_sentences()
    assert len(set(sentences)) == len(sentences)
    for sentence in sentences:
        assert 6 <= len(sentence.split()) <= 50
        assert not re.search(r"::=|>>>|\n|  |\"", sentence), sentence
        assert sentence[-1] in ".!?"


def test_markup_code_and_grammar_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """The "glow" statement
********************

   glow_stmt ::= "glow" [expression]

The "glow" statement *lights* every lamp that a non-
local name refers to. [1]  It has no effect, e.g. In daylight, on
lamps that are off.

   >>> glow lamp
   "A lamp is glowing here and there and everywhere."

lamp.dim(level)

   Called to lower the light of the lamp to the given level.  Added
   by popular demand for the evening hours.

   Changed in version 3.9: The level of the light may be negative in dark rooms.

* The first of several points about the lamps in
  the room.

+------+------+
| A table of many words that is no sentence at all. |
+------+------+

Too short.
"""
    monkeypatch.setattr(pydoc_topics, "topics", {"glow": text, "again": text})
    assert demo_sentences() == [
        "The glow statement lights every lamp that a non-local name refers to.",
        "It has no effect, e.g. In daylight, on lamps that are off.",
        "Called to lower the light of the lamp to the given level.",
        "Added by popular demand for the evening hours.",
        "The level of the light may be negative in dark rooms.",
        "The first of several points about the lamps in the room.",
    ]


def test_pairs_are_well_formed(pairs: list[dict[str, str]]) -> None:
    assert list(pairs[0]) == ["split", "sentence1", "sentence2", "score"]
    splits = Counter(pair["split"] for pair in pairs)
    assert set(splits) == {"dev", "test"}
    assert min(splits.values()) >= 140
    for split in splits:
        grades = Counter(float(pair["score"]) for pair in pairs if pair["split"] == split)
        assert set(grades) == {half / 2 for half in range(11)}
        assert min(grades[grade] for grade in (0, 1, 2, 3, 4, 5)) >= 15
    for pair in pairs:
        for sentence in (pair["sentence1"], pair["sentence2"]):
            assert (sentence == sentence.strip() and sentence[0].isupper()) or sentence[0] == "_", sentence
            assert sentence.endswith("."), sentence


def test_no_sentence_twice_and_none_from_the_training_text(pairs: list[dict[str, str]]) -> None:
    counts = Counter(plain(pair[side]) for pair in pairs for side in ("sentence1", "sentence2"))
    assert [sentence for sentence, count in counts.items() if count > 1] == []
    assert counts.keys() & {plain(sentence) for sentence in demo_sentences()} == set()


def test_shared_words_do_not_give_the_scores_away(pairs: list[dict[str, str]]) -> None:
    from scipy.stats import spearmanr

    for split in ("dev", "test"):
        rows = [pair for pair in pairs if pair["split"] == split]
        words = [(set(plain(row["sentence1"]).split()), set(plain(row["sentence2"]).split())) for row in rows]
        jaccard = [len(a & b) / len(a | b) for a, b in words]
        assert spearmanr(jaccard, [float(row["score"]) for row in rows]).statistic < 0.5


def test_encoder_is_made_once_and_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "demo_sentences", lambda: SENTENCES)
    state = torch.get_rng_state()
    path = demo_encoder(tmp_path / "cache", TINY, progress=False)
    assert torch.equal(state, torch.get_rng_state())
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    written = (path / "model.safetensors").stat().st_mtime_ns
    assert demo_encoder(tmp_path / "cache", TINY, progress=False) == path
    assert (path / "model.safetensors").stat().st_mtime_ns == written
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = BertForMaskedLM.from_pretrained(path)
    assert model.config.hidden_dropout_prob > 0
    assert model.config.vocab_size == len(tokenizer)
    batch = tokenizer(["The statement binds a name.", "A name."], padding=True, return_tensors="pt")
    assert AutoModel.from_pretrained(path)(**batch).last_hidden_state.shape[::2] == (2, 16)
    stage1 = InfoCSEForPreTraining.from_backbone(path)  # backbone, masked-LM head and auxiliary head
    head = load_file(path / "auxiliary_head" / "model.safetensors")
    assert stage1.auxiliary_head is not None
    assert len(stage1.auxiliary_head.layers) == 2
    assert all(torch.equal(value, head[name]) for name, value in stage1.auxiliary_head.model.state_dict().items())


def test_the_encoder_is_the_same_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the global random states: its own seed alone."""
    monkeypatch.setattr(demo, "demo_sentences", lambda: SENTENCES)
    files = []
    for name in ("one", "two"):
        states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
        files.append(demo_encoder(tmp_path / name, TINY, progress=False))
        assert random.getstate() == states[0]
        assert np.random.get_state()[1].tolist() == states[1]
        assert torch.equal(torch.get_rng_state(), states[2])
        random.random(), np.random.rand(), torch.rand(1)
    for file in ("model.safetensors", "auxiliary_head/model.safetensors", "tokenizer.json", "sentences.txt"):
        assert (files[0] / file).read_bytes() == (files[1] / file).read_bytes(), file


def test_encoder_folder_depends_on_settings_sentences_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = demo._key(TINY, SENTENCES)
    assert key == demo._key(TINY, list(SENTENCES))
    assert key != demo._key(DemoSettings(), SENTENCES)
    assert key != demo._key(TINY, SENTENCES[1:])
    monkeypatch.setattr(demo, "__version__", "another")
    assert key != demo._key(TINY, SENTENCES)


def test_nothing_is_left_behind_when_saving_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **settings: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(demo, "demo_sentences", lambda: SENTENCES)
    monkeypatch.setattr(BertForMaskedLM, "save_pretrained", fail)
    with pytest.raises(OSError, match="disk full"):
        demo_encoder(tmp_path, TINY, progress=False)
    assert list(tmp_path.iterdir()) == []


SENTENCES = [
    f"The {kind} statement {verb} a {thing} in the {place}."
    for kind in ("simple", "compound", "nested")
    for verb in ("binds", "deletes", "returns")
    for thing in ("name", "value", "reference")
    for place in ("module", "block", "class body")
]


def test_the_minute_of_pre_training_is_explained_and_fills_no_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bar had no name, and a log got a line of it for each step."""
    monkeypatch.setattr(demo, "demo_sentences", lambda: SENTENCES)
    capfd.readouterr()
    folder = demo_encoder(tmp_path, TINY)
    printed = capfd.readouterr()
    assert printed.out.splitlines() == [
        f"Pre-training a small encoder on {len(SENTENCES)} sentences, 2 steps. This is done once: {folder}"
    ]
    assert printed.err == ""
    assert demo_encoder(tmp_path, TINY) == folder
    assert capfd.readouterr().out == ""


def test_a_stopped_training_leaves_no_encoder_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM ends the training early; the next run once took the half-trained encoder."""

    class Stop(demo.Bar):
        def on_step_begin(self, *args: object, **kwargs: object) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(demo, "Bar", Stop)
    with pytest.raises(SystemExit) as end:
        demo_encoder(tmp_path, DemoSettings(steps=3))
    assert end.value.code == 143
    assert list(tmp_path.iterdir()) == []
