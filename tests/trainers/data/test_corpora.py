import gzip
import hashlib
import itertools
import json
import logging
import lzma
import os
import resource
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from csekit.encoding.text_files import Scan
from csekit.trainers.data.corpora import CorpusError, load_corpus
from csekit.trainers.data.datasets import EpochMixin, SentenceDataset, SetEpochCallback

LINES = ["first sentence", "", "second  one ", "   ", "first sentence", "ünï 日本"]
USED = [LINES[i] for i in (0, 2, 4, 5)]


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        data = content if isinstance(content, bytes) else content.encode()
        opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
        with opener(path, "wb") as file:
            file.write(data)
        return path

    return write


@pytest.fixture
def load(tmp_path):
    def load(*args, **kwargs):
        return load_corpus(*args, cache_dir=tmp_path / "cache", **kwargs)

    return load


def texts(corpus):
    return [item["texts"] for item in corpus.dataset]


def identity(items):
    return items


@pytest.mark.parametrize("name", ["wiki.txt", "wiki.txt.gz", "wiki.txt.xz"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_text_files(write, load, name, end, bom):
    path = write(name, bom + end.join(LINES) + end)
    corpus = load(path)
    assert texts(corpus) == [[text] for text in USED]
    assert list(corpus.dataset) == list(load(path, streaming=True).dataset)
    report = corpus.report
    assert (report.rows, report.used, report.blank, report.duplicates) == (6, 4, 2, 1)
    assert corpus.columns == ("text",)
    assert corpus.name == name
    assert corpus.checksum == hashlib.sha256(path.read_bytes()).hexdigest()


def test_items_and_batches(write, load):
    dataset = load(write("a.txt", "\n".join(LINES))).dataset  # no line end at the end
    assert len(dataset) == 4
    assert dataset[3] == dataset[-1] == {"texts": ["ünï 日本"], "index": 3, "epoch": 0}
    assert dataset.__getitems__([2, 0]) == [dataset[2], dataset[0]]
    with pytest.raises(IndexError, match="index 4 of a corpus of 4 rows"):
        dataset[4]


PAIRS = [{"a": "x, y", "b": 'say "z"'}, {"a": "", "b": "q"}, {"a": "1984", "b": "NA"}, {"a": "None", "b": "null"}]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json", "json.gz", "parquet"])
def test_formats_agree(write, load, tmp_path, kind):
    """Regression: csv readers turn NA, None and null into missing values; here they are words."""
    content = {
        "csv": 'a,b\n"x, y","say ""z"""\n,q\n1984,NA\nNone,null\n',
        "tsv": 'a\tb\nx, y\tsay "z"\n\tq\n1984\tNA\nNone\tnull\n',
        "jsonl": "\n".join(map(json.dumps, PAIRS)),
        "json": json.dumps(PAIRS, indent=1),
    }
    path = tmp_path / f"pairs.{kind}"
    if kind == "parquet":
        datasets.Dataset.from_list(PAIRS).to_parquet(path)
    else:
        write(path.name, content[kind.removesuffix(".gz")])
    want = [["x, y", 'say "z"'], ["1984", "NA"], ["None", "null"]]
    for corpus in (load(path), load(path, streaming=True), load(path, columns=("a", "b"))):
        assert texts(corpus) == want
        assert corpus.columns == ("a", "b")
    assert load(path).report.blank == 1
    assert texts(load(path, columns=("b", "a")))[0] == ['say "z"', "x, y"]
    assert [row for (row,) in texts(load(path, columns="b"))] == ['say "z"', "q", "NA", "null"]


def test_default_columns_are_the_ones_that_hold_text(write, load):
    scored = write("scored.csv", "id,s0,s1,score\n1,a b,c d,0.5\n2,e f,g h,1\n")
    assert load(scored).columns == ("s0", "s1")
    wide = write("wide.csv", "a,b,c,d\nw,x,y,z\nw,x,y,q\n")
    with pytest.raises(CorpusError, match=r"wide\.csv: 4 columns hold text, .* the columns are a, b, c, d"):
        load(wide)
    assert load(wide, columns=["a", "c", "d"]).columns == ("a", "c", "d")


def test_hub_like_table_and_fingerprint(load, monkeypatch):
    table = datasets.Dataset.from_dict({"s": ["one", " ", "two", "one"], "n": [1, 2, 3, 4]})
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *a, **k: table.to_iterable_dataset() if k["streaming"] else table
    )
    corpus = load(dataset_name="owner/name")
    assert texts(corpus) == texts(load(dataset_name="owner/name", streaming=True)) == [["one"], ["two"], ["one"]]
    assert corpus.checksum is None
    assert corpus.fingerprint
    assert corpus.name == "owner/name"
    with pytest.raises(CorpusError, match=r"owner/name, row 1: column 'n' holds 1, not text"):
        load(dataset_name="owner/name", columns="n")
    assert texts(load(dataset_name="owner/name", deduplicate=True)) == [["one"], ["two"]]
    table = datasets.Dataset.from_dict({"s": ["one", None, "two"]})
    with pytest.raises(CorpusError, match=r"owner/name, row 2: column 's' holds nothing \(null\), not text"):
        load(dataset_name="owner/name")


BROKEN = [
    ("latin.txt", b"good\nalso good\ncaf\xe9 au lait\n", r"latin\.txt, line 3: not UTF-8, byte 4 of the line is 0xE9"),
    ("wide.txt", "a\nb\n".encode("utf-16"), r"wide\.txt, line 1: not UTF-8, .* looks like UTF-16"),
    ("latin.csv", b"t\nok\ncaf\xe9\n", r"latin\.csv, line 3: not UTF-8, byte 4"),
    ("empty.txt", b"", r"empty\.txt: the file is empty"),
    ("empty.txt.gz", b"", r"empty\.txt\.gz: no usable row"),
    ("blank.txt", b"\n \n\n", r"blank\.txt: no usable row; contrastive training needs at least 2"),
    ("one.txt", b"\nalone\n", r"one\.txt: one usable row"),
    ("bad.pdf", b"x", r"bad\.pdf: the suffix must be one of \.txt"),
    ("ragged.csv", b"a,b\nx,y\n\nx,y,z\n", r"ragged\.csv, line 4: 3 fields, the header has 2"),
    (
        "quote.csv",
        b'a,b\nx,y\n"' + b"x" * 200_000,
        r"quote\.csv, line 3: an unbalanced quote opens here: unexpected end of data",
    ),
    ("numbers.csv", b"n\n1\n2.5\n", r"numbers\.csv: 0 columns hold text, .* the columns are n"),
    ("broken.jsonl", b'{"t": "a"}\n\n{"t": \n', r"broken\.jsonl, line 3: not JSON"),
    ("list.jsonl", b'{"t": "a"}\n["b"]\n', r"list\.jsonl, line 2: an object is wanted, got list"),
    ("key.jsonl", b'{"t": "a"}\n{"u": "b"}\n', r"key\.jsonl, line 1: no field 'u', it has t"),
    ("half.jsonl", b'{"t": "a"}\n{"t": "\\ud800"}\n', r"half\.jsonl, line 2: column 't' holds half a surrogate"),
    ("broken.parquet", b"not parquet at all", r"broken\.parquet: not readable as parquet"),
    ("cut.csv.gz", b"", r"cut\.csv\.gz: damaged archive"),
    ("cut.txt.gz", b"", r"cut\.txt\.gz: damaged archive"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN, ids=[case[0] for case in BROKEN])
def test_errors_name_file_and_line(write, load, name, content, message):
    path = write(name, content)
    if name.startswith("cut."):
        path.write_bytes(gzip.compress(b"some text\n" * 1000)[:-12])
    with pytest.raises(CorpusError, match=message):
        load(path)


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("a.csv", b"s,n\nx,1\ny,2\n", "n", r"a\.csv, line 2: column 'n' holds only numbers, not text \(here '1'\)"),
        ("a.jsonl", b'{"t": "a"}\n{"t": 5}\n', "t", r"a\.jsonl, line 2: column 't' holds 5 \(int\), not text"),
        ("b.jsonl", b'{"t": "a"}\n{"t": null}\n', "t", r"b\.jsonl, line 2: column 't' holds nothing \(null\)"),
        ("c.jsonl", b'{"t": "a"}\n{"u": "b"}\n', "t", r"c\.jsonl, line 2: no field 't', it has u"),
        ("a.csv", b"s,t\nx,y\nz,w\n", ("s", "v"), r"a\.csv: no column 'v'; the columns are s, t"),
        ("a.txt", b"x\ny\n", "sentence", r"a\.txt: no column 'sentence'; the columns are text"),
        ("a.csv", b"s,t\nx,y\nz,w\n", ("s", "s"), "columns must be one to three different names"),
    ],
)
def test_errors_with_chosen_columns(write, load, name, content, columns, message):
    path = write(name, content)
    with pytest.raises(CorpusError, match=message):
        load(path, columns=columns)


def test_errors_in_arguments(write, load, tmp_path):
    path = write("a.txt", "x\ny\n")
    with pytest.raises(FileNotFoundError, match=r"train_file .*nowhere\.txt does not exist"):
        load(tmp_path / "nowhere.txt")
    with pytest.raises(CorpusError, match="must be a file, got the folder"):
        load(tmp_path)
    with pytest.raises(ValueError, match="either train_file or dataset_name"):
        load()
    with pytest.raises(ValueError, match="max_samples must be at least 2, got 1"):
        load(path, max_samples=1)
    with pytest.raises(ValueError, match="deduplicate must be False with streaming=True"):
        load(path, streaming=True, deduplicate=True)
    with pytest.raises(CorpusError, match="must name files of one kind, got csv, text"):
        load([path, write("b.csv", "t\nx\n")])
    with pytest.raises(CorpusError, match=r"b\.csv: columns u, but .*b0\.csv has t"):
        load([write("b0.csv", "t\nx\n"), write("b.csv", "u\nx\n")])


def test_stream_names_the_line_of_a_late_error(write, load):
    path = write("late.txt", b"a fine line\n" * 800_000 + b"caf\xe9\n")
    stream = load(path, streaming=True).dataset  # the head is fine
    with pytest.raises(CorpusError, match=r"late\.txt, line 800001: not UTF-8, byte 4"):
        for _ in stream:
            pass


def test_overlong_and_duplicates_are_told(write, load, caplog):
    path = write("long.txt", "a\nb\n" + "x" * 100_001 + "\na\n" + "y" * 100_002 + "\na\n")
    with caplog.at_level(logging.WARNING):
        corpus = load(path)
    told = "6 of 6 rows used; 2 exact duplicates kept; 2 texts over 100,000 characters, the first in long.txt, line 3"
    assert corpus.report.summary() == told
    assert f"long.txt: {told}" in caplog.messages
    again = load(path, deduplicate=True)
    assert len(again.dataset) == again.report.used == 4
    assert "2 exact duplicates dropped" in again.report.summary()
    assert [item["index"] for item in again.dataset] == [0, 1, 2, 3]


def test_max_samples(write, load):
    path = write("a.txt", "\n".join(["a", "", "a", "b", "c", "d"]))
    assert (
        texts(load(path, max_samples=3)) == texts(load(path, streaming=True, max_samples=3)) == [["a"], ["a"], ["b"]]
    )
    assert texts(load(path, max_samples=3, deduplicate=True)) == [["a"], ["b"], ["c"]]
    assert load(path, max_samples=3).report.used == 3
    assert len(load(path).dataset) == 5


def test_the_report_of_a_stream_counts_no_row_behind_max_samples(write, load):
    """Regression: it counted all of the first 10,000 rows as used."""
    path = write("c.txt", "a\n\na\nb\nb\nc\n")
    report = load(path, streaming=True, max_samples=3).report
    assert (report.used, report.duplicates, report.complete) == (3, 1, False)
    assert load(path, streaming=True, max_samples=9).report.used == load(path, streaming=True).report.used == 5


@pytest.mark.parametrize("streaming", [False, True])
def test_a_column_without_text_in_the_first_row_is_a_column_of_texts(load, tmp_path, streaming):
    """Regression: a stream without features left such a column out, and pairs were trained as single sentences."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "train.csv").write_text("query,passage\na,\n" + "".join(f"a {i},b {i}\n" for i in range(9)))
    with pytest.raises(CorpusError, match=r"folder, row 1: column 'passage' holds nothing \(null\), not text"):
        load(dataset_name=str(folder), streaming=streaming)
    assert load(dataset_name=str(folder), streaming=streaming, columns="query").columns == ("query",)


@pytest.mark.parametrize("kind", ["txt", "parquet"])
def test_duplicates_behind_max_samples_are_not_counted(write, load, tmp_path, kind):
    lines = ["a", "b", "a", "c", "a", "a", "c"]
    path = write("a.txt", "\n".join(lines))
    if kind == "parquet":
        path = tmp_path / "a.parquet"
        datasets.Dataset.from_dict({"text": lines}).to_parquet(path)
    assert [load(path, max_samples=rows).report.duplicates for rows in (2, 3, 6, 9)] == [0, 1, 3, 4]
    assert load(path, max_samples=2, deduplicate=True).report.duplicates == 4


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["part[1].parquet", "part?.parquet", "part*.parquet", "[1]/part.parquet"])
def test_a_name_is_no_pattern(load, tmp_path, name, streaming):
    """part[1].parquet gave the rows of part1.parquet."""
    for other, word in (("part1.parquet", "other"), ("1/part.parquet", "other"), (name, "own")):
        (tmp_path / other).parent.mkdir(exist_ok=True)
        datasets.Dataset.from_dict({"text": [f"{word} {i}" for i in range(3)]}).to_parquet(tmp_path / other)
    assert texts(load(tmp_path / name, streaming=streaming)) == [["own 0"], ["own 1"], ["own 2"]]


def test_a_parquet_file_that_was_replaced_is_read_again(load, tmp_path):
    """Regression: with the time of the earlier file, as cp -p, tar and rsync set it, the cache gave the earlier rows,
    under the checksum of the new file."""
    found = []
    for word in ("earlier", "new"):
        datasets.Dataset.from_dict({"text": [f"{word} {i}" for i in range(3)]}).to_parquet(tmp_path / "a.parquet")
        os.utime(tmp_path / "a.parquet", (1e9, 1e9))
        found.append(texts(load(tmp_path / "a.parquet")))
    assert found == [[[f"{word} {i}"] for i in range(3)] for word in ("earlier", "new")]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_parquet_column_that_is_there_twice_is_refused(load, tmp_path, streaming):
    """Regression: a stream ended in the words of pyarrow, without the file."""
    table = pa.table([pa.array(["a", "b"]), pa.array(["c", "d"])], names=["s", "s"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match=r"a\.parquet: the schema names 's' more than once, in columns 1 and 2"):
        load(tmp_path / "a.parquet", streaming=streaming)


@pytest.mark.parametrize("where", ["rows", "places"])
def test_a_full_disk_under_the_cache(write, load, tmp_path, monkeypatch, where):
    """Regression: numpy said nothing where the places of the distinct rows found no room. What it had written stayed
    in the cache, and no later call could read the corpus."""
    path = write("a.txt", "".join(f"{i % 300}\n" for i in range(3500)))
    before, first_occurrences = resource.getrlimit(resource.RLIMIT_FSIZE), Scan.first_occurrences

    def on_a_full_disk(scan):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        return first_occurrences(scan)

    monkeypatch.setattr(Scan, "first_occurrences", on_a_full_disk)
    if where == "rows":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=r"cache.csekit: no space left on the disk, [\d,.]+ MB free"):
            load(path, deduplicate=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list((tmp_path / "cache" / "csekit").iterdir())
    monkeypatch.undo()
    assert len(texts(load(path, deduplicate=True))) == 300


def test_several_files(write, load):
    paths = [write("a.txt", "a\nb"), write("b.txt", "c\n\nd\n")]
    corpus = load(paths)
    assert texts(corpus) == texts(load(paths, streaming=True)) == [["a"], ["b"], ["c"], ["d"]]
    assert corpus.name == "a.txt+b.txt"
    assert corpus.checksum == hashlib.sha256(b"a\nbc\n\nd\n").hexdigest()


def test_text_that_moves_into_the_next_file_is_read_again(write, load):
    """Regression: files with the same bytes in all had one place in the cache."""
    paths = [write("a.txt", "a\nb"), write("b.txt", "c\nd\n")]
    assert texts(load(paths)) == [["a"], ["b"], ["c"], ["d"]]
    write("a.txt", "a\n"), write("b.txt", "bc\nd\n")
    assert texts(load(paths)) == [["a"], ["bc"], ["d"]]


def test_description_holds_no_folder(write, load, tmp_path):
    corpus = load(write("a.txt", "x" * 100_001 + "\ny\n"))
    description = json.loads(json.dumps(corpus.describe()))
    assert str(tmp_path) not in json.dumps(description)
    assert description["name"] == "a.txt"
    assert description["used"] == 2
    assert description["columns"] == ["text"]


def test_second_start_reads_the_store(write, load, monkeypatch):
    path = write("a.txt", "a\nb\na\n")
    first = load(path, deduplicate=True)
    monkeypatch.setattr("csekit.trainers.data.corpora._write_store", None)
    second = load(path, deduplicate=True)
    assert second.report == first.report
    assert texts(second) == texts(first)
    monkeypatch.undo()
    path.write_text("a\nc\n")
    assert texts(load(path, deduplicate=True)) == [["a"], ["c"]]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_see_set_epoch(write, load, streaming, persistent):
    dataset = load(write("a.txt", "\n".join(map(str, range(10)))), streaming=streaming).dataset
    assert isinstance(dataset, EpochMixin)
    loader = DataLoader(dataset, batch_size=3, num_workers=2, persistent_workers=persistent, collate_fn=identity)
    for epoch in (0, 1, 5):
        dataset.set_epoch(epoch)
        items = [item for batch in loader for item in batch]
        assert {item["epoch"] for item in items} == {epoch}
        assert sorted(item["index"] for item in items) == list(range(10))


def test_stream_with_workers_gives_the_same_batches(write, load):
    dataset = load(write("a.txt", "\n".join(map(str, range(23)))), streaming=True).dataset
    dataset.block_size = 4
    want = list(DataLoader(dataset, batch_size=4, collate_fn=identity))
    for workers in (1, 2):
        assert list(DataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=identity)) == want


@pytest.mark.parametrize("workers", [0, 2])
def test_stream_over_processes_and_resume(write, load, workers):
    """Two processes see the two halves of each global batch; skipping batches leaves the indices as they were."""
    dataset = load(write("a.txt", "\n".join(map(str, range(24)))), streaming=True).dataset
    dataset.block_size = 6
    loader = DataLoader(dataset, batch_size=3, num_workers=workers, collate_fn=identity)
    shards = [
        prepare_data_loader(loader, num_processes=2, process_index=rank, put_on_device=False, dispatch_batches=False)
        for rank in (0, 1)
    ]
    seen = [[[item["index"] for item in batch] for batch in shard] for shard in shards]
    assert [one + other for one, other in zip(*seen, strict=True)] == [list(range(6 * k, 6 * k + 6)) for k in range(4)]
    resumed = [[item["index"] for item in batch] for batch in skip_first_batches(shards[1], 2)]
    assert resumed == seen[1][2:]


@pytest.mark.parametrize("workers", [0, 2])
def test_stream_that_repeats(write, load, workers):
    dataset = load(write("a.txt", "a\n\nb\nc\n"), streaming=True).dataset
    dataset.repeat, dataset.block_size = True, 2
    loader = DataLoader(dataset, batch_size=2, num_workers=workers, collate_fn=identity)
    got = [(item["epoch"], item["index"]) for batch in itertools.islice(loader, 4) for item in batch]
    assert got == [(epoch, index) for epoch in range(3) for index in range(3)][:8]


class Recorder(nn.Module):
    """Says which samples it was given, and in which epoch."""

    def __init__(self):
        super().__init__()
        self.weight, self.seen = nn.Parameter(torch.ones(1)), []

    def forward(self, seen, return_loss=True):
        self.seen.append(seen.tolist())
        return {"loss": self.weight.sum()}


def record(items):
    return {"seen": torch.tensor([[item["epoch"], item["index"]] for item in items])}


@pytest.mark.parametrize("streaming", [False, True])
def test_resumed_in_the_middle_of_an_epoch(write, load, tmp_path, streaming):
    """Regression: a run resumed in epoch 1 was given items of epoch 0, and a stream began its pass anew."""
    path = write("a.txt", "\n".join(map(str, range(10))))

    def train(checkpoint=None):
        dataset = load(path, streaming=streaming).dataset
        length = {"max_steps": 10} if streaming else {"num_train_epochs": 2}
        dataset.repeat = streaming
        arguments = TrainingArguments(
            str(tmp_path / "run"),
            per_device_train_batch_size=2,
            save_steps=7,
            logging_strategy="no",
            use_cpu=True,
            remove_unused_columns=False,
            disable_tqdm=True,
            **length,
        )
        callbacks = None if streaming else [SetEpochCallback(dataset)]
        model = Recorder()
        Trainer(model, arguments, record, dataset, callbacks=callbacks).train(resume_from_checkpoint=checkpoint)
        return model.seen

    whole = train()
    assert [batch[0][0] for batch in whole] == [0] * 5 + [1] * 5
    assert train(tmp_path / "run" / "checkpoint-7") == whole[7:]


def test_tokenizer_report(write, load, wordpiece, sentences):
    corpus = load(write("en.txt", "\n".join(sentences)))
    report = corpus.tokenizer_report(wordpiece, 16)
    full = [len(row) for row in wordpiece(sentences)["input_ids"]]
    assert report.texts == len(sentences)
    assert report.unknown_share == 0
    assert report.warning is None
    assert report.truncated_share == sum(length > 16 for length in full) / len(full)
    assert report.mean_tokens == sum(min(length, 16) for length in full) / len(full)
    foreign = load(write("ja.txt", "日本語の文\nこれは本です\n"), streaming=True).tokenizer_report(wordpiece, 16)
    assert foreign.unknown_share == 1
    assert "wrong one for this language" in str(foreign.warning)
    assert corpus.tokenizer_report(wordpiece, 16, sample=3).texts == 3


@pytest.mark.data
def test_wikipedia(load):
    folder = os.environ.get("CSEKIT_DATA")
    path = Path(folder or ".") / "wikipedia" / "wiki_100k.txt"
    if not folder or not path.exists():
        pytest.skip("needs CSEKIT_DATA, a folder with wikipedia/wiki_100k.txt")
    corpus = load(path)
    lines = path.read_text(encoding="utf-8").split("\n")
    lines = [line for line in lines if line.strip()]
    assert len(corpus.dataset) == corpus.report.used == len(lines)
    assert corpus.report.duplicates == len(lines) - len(set(lines))
    assert [corpus.dataset[i]["texts"] for i in (0, 777, -1)] == [[lines[i]] for i in (0, 777, -1)]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("drawn", [False, True])
def test_what_was_read_is_given_back(load, write, monkeypatch, drawn):
    """The same rows, and no page of the file left in memory, nor once the file is removed."""
    lines = [f"sentence {i} " + "x" * 200 for i in range(4000)]
    path = write("a.txt", "\n".join([*lines, *lines[:1000]]))
    monkeypatch.setattr(SentenceDataset, "KEPT", 10**9)
    dataset = load(path, deduplicate=drawn).dataset

    def in_memory():
        blocks = Path("/proc/self/smaps").read_text().split("VmFlags")
        return [int(b.split("Rss:")[1].split()[0]) for b in blocks if dataset.rows.cache_files[0]["filename"] in b]

    def read():
        return [row["texts"][0] for row in dataset.__getitems__(range(4000))]

    assert read() == lines
    assert sum(in_memory()) > 500  # kB
    monkeypatch.setattr(SentenceDataset, "KEPT", 10)
    assert read() == lines
    assert in_memory() == [0]
    Path(dataset.rows.cache_files[0]["filename"]).unlink()
    assert read() == lines
