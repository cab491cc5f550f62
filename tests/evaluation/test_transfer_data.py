"""Transfer tasks as files: each oddity survives, each broken file is named before any work."""

from pathlib import Path
from typing import Any

import pytest

from csekit.evaluation import transfer_data
from csekit.evaluation.transfer_data import TRANSFER_TASKS, load_transfer, resolve_transfer

BOM = b"\xef\xbb\xbf"
FILES = {
    "MR": {"MR/rt-polarity.pos": b"a fine  film .\ngood\n", "MR/rt-polarity.neg": b"bad\xe9 .\r\nno\n"},
    "CR": {"CR/custrev.pos": b"i love it !\n \n", "CR/custrev.neg": b"weak\n\nbroken screen\n"},
    "SST2": {
        "SST/binary/sentiment-train": "cr\u00e8me\t1\nso-so . \t0\n".encode(),
        "SST/binary/sentiment-dev": b"fine\t1\n",
        "SST/binary/sentiment-test": b"bleak\t0",
    },
    "TREC": {
        "TREC/train_5500.label": b"LOC:city Which sister\xf0city ?\nDESC:manner How : why ?\n",
        "TREC/TREC_10.label": b"NUM:dist How far ?\n",
    },
    "MRPC": {
        "MRPC/msr_paraphrase_train.txt": BOM
        + b'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tHe said "no\tShe "\n',
        "MRPC/msr_paraphrase_test.txt": BOM + b"Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t3\t4\ta\tb c\n",
    },
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Any) -> Path:
    counts: dict[str, dict[str, int]] = {}
    for task, files in FILES.items():
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            lines = content.count(b"\n") + (not content.endswith(b"\n")) - (task == "MRPC")
            counts.setdefault(task, {})[name] = lines
    monkeypatch.setattr(transfer_data, "COUNTS", counts)
    return tmp_path


def test_latin_1_and_white_space(folder: Path) -> None:
    (task,) = load_transfer(folder, "MR")
    assert task.splits["all"].columns == (("no", "good", "bad\u00e9 .", "a fine film ."),)
    assert task.splits["all"].labels.tolist() == [0, 1, 0, 1]


def test_blank_lines_are_examples(folder: Path) -> None:
    """CR and MPQA have some, and the papers' 3,775 and 10,606 count them."""
    (task,) = load_transfer(folder, "CR")
    assert len(task) == 5
    assert task.splits["all"].columns == ((".", ".", "weak", "broken screen", "i love it !"),)
    assert task.splits["all"].labels.tolist() == [0, 1, 0, 0, 1]


def test_sst_is_utf8_with_the_label_behind_a_tab(folder: Path) -> None:
    (task,) = load_transfer(folder, "SST2")
    assert list(task.splits) == ["train", "dev", "test"]
    assert task.splits["train"].columns == (("cr\u00e8me", "so-so ."),)
    assert task.splits["train"].labels.tolist() == [1, 0] and task.splits["test"].labels.tolist() == [0]


def test_trec_is_latin_1_and_its_coarse_class_the_label(folder: Path) -> None:
    """0xF0 stands in the real training file; a question may hold a colon."""
    (task,) = load_transfer(folder, "TREC")
    assert task.splits["train"].columns == (("Which sister\u00f0city ?", "How : why ?"),)
    assert task.splits["train"].labels.tolist() == [4, 1] and task.splits["test"].labels.tolist() == [5]


def test_mrpc_has_a_byte_order_mark_a_header_and_bare_quotes(folder: Path) -> None:
    (task,) = load_transfer(folder, "MRPC")
    assert task.splits["train"].columns == (('He said "no',), ('She "',))
    assert task.splits["train"].labels.tolist() == [1] and task.splits["test"].columns == (("a",), ("b c",))


@pytest.mark.parametrize(
    ("task", "file", "old", "new", "message"),
    [
        ("MR", "MR/rt-polarity.pos", b"good\n", b"", r"rt-polarity\.pos: expected 2 examples, found 1"),
        ("CR", "CR/custrev.neg", b"\n\n", b"\n", r"custrev\.neg: expected 3 examples, found 2"),
        ("SST2", "SST/binary/sentiment-train", b"0\n", b"0\nx\t1\n", r"sentiment-train: expected 2 examples, found 3"),
        ("SST2", "SST/binary/sentiment-test", b"\t0", b"", r"sentiment-test, line 1: .* \['0', '1'\], got 'bleak'"),
        ("SST2", "SST/binary/sentiment-dev", b"fine", b" ", r"sentiment-dev, line 1: the sentence is missing"),
        ("SST2", "SST/binary/sentiment-dev", b"fine", b"\xff", r"sentiment-dev, line 1: must be UTF-8, got .* 0xFF"),
        ("TREC", "TREC/TREC_10.label", b"NUM:", b"NUM ", r"TREC_10\.label, line 1: label must be one of \['ABBR',"),
        ("MRPC", "MRPC/msr_paraphrase_train.txt", b'\tShe "', b"", r"train\.txt, line 2: expected 5 columns, found 4"),
        ("MRPC", "MRPC/msr_paraphrase_test.txt", b"0\t3", b"2\t3", r"test\.txt, line 2: label must be .* got '2'"),
    ],
)
def test_broken_files_are_named(folder: Path, task: str, file: str, old: bytes, new: bytes, message: str) -> None:
    path = folder / file
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(ValueError, match=message):
        load_transfer(folder, task)


def test_a_missing_file_and_a_missing_folder(folder: Path) -> None:
    (folder / "MR/rt-polarity.neg").unlink()
    with pytest.raises(FileNotFoundError, match=r"rt-polarity\.neg: no such file"):
        load_transfer(folder, "MR")
    with pytest.raises(FileNotFoundError, match="data_dir must be a folder"):
        load_transfer(folder / "nowhere")


@pytest.mark.parametrize("inside", ["senteval", "downstream"])
def test_the_folder_above_will_do(folder: Path, tmp_path: Path, inside: str) -> None:
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / inside).symlink_to(folder)
    assert load_transfer(tmp_path / "up", "MR")[0].checksum() == load_transfer(folder, "MR")[0].checksum()


def test_checksum_sees_texts_and_labels(folder: Path) -> None:
    before = {task: load_transfer(folder, task)[0].checksum() for task in ("MR", "SST2")}
    (folder / "MR/rt-polarity.pos").write_bytes(b"a fine  film .\nnice\n")
    path = folder / "SST/binary/sentiment-test"
    path.write_bytes(b"bleak\t1")
    assert all(load_transfer(folder, task)[0].checksum() != before[task] for task in before)


def test_names() -> None:
    assert resolve_transfer("transfer") == list(TRANSFER_TASKS) == ["MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC"]
    assert resolve_transfer("TREC, MR") == ["TREC", "MR"]
    with pytest.raises(ValueError, match="got 'SST'"):
        resolve_transfer("SST")
    with pytest.raises(ValueError, match="each task once"):
        resolve_transfer("transfer,MR")


@pytest.mark.data
def test_real_tasks_have_their_counts(data_dir: Path) -> None:
    tasks = load_transfer(data_dir)
    sizes = {task.name: [len(split) for split in task.splits.values()] for task in tasks}
    assert sizes == {
        "MR": [10662],
        "CR": [3775],
        "SUBJ": [10000],
        "MPQA": [10606],
        "SST2": [67349, 872, 1821],
        "TREC": [5452, 500],
        "MRPC": [4076, 1725],
    }
    by_name = {task.name: task.splits for task in tasks}
    assert by_name["MRPC"]["test"].labels.sum() == 1147 and set(by_name["TREC"]["test"].labels.tolist()) == set(
        range(6)
    )
    assert sum(text == "." for text in by_name["CR"]["all"].columns[0]) == 4
    assert all(text.strip() for splits in by_name.values() for s in splits.values() for c in s.columns for text in c)
