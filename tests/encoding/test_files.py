"""A file of texts to a file of embeddings: every format, kills at any place, shards, and what is refused."""

import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding import encode_file, load_encoder, merge_shards, open_embeddings
from csekit.encoding import stores as embedding_files
from csekit.encoding.encoder import TextEncoder
from csekit.encoding.files import encoder_settings, parse_shard, text_column

WORDS = ["the", "man", "dog", "cat", "plays", "runs", "red", "ball", "house", "tree"]
TEXTS = [" ".join(WORDS[(i * k) % 10] for k in range(1, 2 + i % 7)) for i in range(50)]
TEXTS[7] = ""


@pytest.fixture
def encoder(tiny_folder: Path) -> TextEncoder:
    return load_encoder(tiny_folder, pooling="mean", device="cpu")


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


def close(a: Any, b: Any, atol: float = 1e-6) -> None:
    np.testing.assert_allclose(a, b, atol=atol, rtol=0)


def from_parquet(folder: Path) -> np.ndarray:
    table = pq.read_table(folder).sort_by("row")
    assert table["row"].to_pylist() == list(range(len(TEXTS))) and table["text"].to_pylist() == TEXTS
    return np.array(table["embedding"].to_pylist())


def write(path: Path, kind: str) -> dict[str, Any]:
    """The texts as a file of that kind, and what has to be said to encode it."""
    if kind == "parquet":
        pq.write_table(pa.table({"id": list(range(50)), "s": TEXTS}), path, row_group_size=8)
        return {}
    rows = [json.dumps({"id": i, "s": text, "t": "x"}) for i, text in enumerate(TEXTS)]
    content = {
        "jsonl": "\n".join(rows),
        "json": "[" + ",".join(rows) + "]",
        "tsv": "s\tt\n" + "\n".join(f"{text}\tx" for text in TEXTS),
        "csv": "id,s\n" + "\n".join(f'{i},"{text}"' for i, text in enumerate(TEXTS)),
        "txt": "\ufeff" + "\r\n".join(TEXTS) + "\r\n",
    }[kind]
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wb") as file:
        file.write(content.encode())
    return {"column": "s"} if kind in ("jsonl", "json", "tsv") else {}


@pytest.mark.parametrize(
    "name", ["a.txt", "a.txt.gz", "a.csv", "a.tsv.xz", "a.json", "a.jsonl", "a.jsonl.gz", "a.parquet"]
)
def test_every_kind_of_file_gives_a_row_a_row(encoder: TextEncoder, tmp_path: Path, name: str) -> None:
    more = write(tmp_path / name, name.split(".")[1])
    record = encode_file(encoder, tmp_path / name, tmp_path / "out.npy", chunk_rows=13, progress=False, **more)
    found = np.load(tmp_path / "out.npy", mmap_mode="r")
    assert found.shape == (50, 32) and found.dtype == np.float32
    close(found, encoder.encode(TEXTS))
    assert record["complete"]
    assert record["done"] == 50
    assert str(tmp_path) not in json.dumps(record)
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.npy", "out.npy.json"]


def test_parquet_out(encoder: TextEncoder, lines: Path, tmp_path: Path) -> None:
    encode_file(encoder, lines, tmp_path / "out.parquet", chunk_rows=20, dtype="float16", progress=False)
    assert len(list((tmp_path / "out.parquet").glob("rows-*.parquet"))) == 3
    found = from_parquet(tmp_path / "out.parquet")
    assert pq.read_schema(tmp_path / "out.parquet" / "rows-000000000000.parquet").field("embedding").type == pa.list_(
        pa.float16(), 32
    )
    close(found, encoder.encode(TEXTS), atol=2e-3)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_killed_anywhere_it_goes_on_and_ends_with_the_same_bytes(
    encoder: TextEncoder, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Every write to disk is a place to be killed at, behind it and in front of it."""
    whole, broken = tmp_path / f"whole.{suffix}", tmp_path / f"broken.{suffix}"
    encode_file(encoder, lines, whole, chunk_rows=20, progress=False)
    write_record, replace = embedding_files.write_record, os.replace
    steps: Iterator[int] = iter(())

    def killable(real: Any) -> Any:
        def act(*arguments: Any, **kwargs: Any) -> None:
            if next(steps, None) == 0:
                raise Killed
            real(*arguments, **kwargs)
            if next(steps, None) == 0:
                raise Killed

        return act

    monkeypatch.setattr("csekit.encoding.files.write_record", killable(write_record))
    monkeypatch.setattr("csekit.encoding.stores.os.replace", killable(replace))
    kills = 0
    for place in range(30):
        steps = iter([1] * place + [0])
        try:
            encode_file(encoder, lines, broken, chunk_rows=20, progress=False)
        except Killed:
            kills += 1
            assert suffix == "parquet" or not broken.exists() or np.array_equal(np.load(broken), np.load(whole))
    assert kills >= 3
    if suffix == "npy":
        assert broken.read_bytes() == whole.read_bytes()
        assert not broken.with_name("broken.npy.partial").exists()
    else:
        assert sorted(p.name for p in broken.iterdir()) == sorted(p.name for p in whole.iterdir())
        assert np.array_equal(from_parquet(broken), from_parquet(whole))


@pytest.mark.slow
def test_a_killed_process_goes_on_where_it_was(tiny_folder: Path, lines: Path, tmp_path: Path) -> None:
    """SIGKILL in the middle of a chunk: nothing done before is done again."""
    script = tmp_path / "run.py"
    script.write_text(
        "import os, signal, sys\n"
        "from csekit.encoding import encode_file, load_encoder\n"
        "encoder = load_encoder(sys.argv[1], pooling='mean', device='cpu')\n"
        "rows = 0\n"
        "def count(module, arguments, kwargs):\n"
        "    global rows\n"
        "    rows += len(kwargs['input_ids'])\n"
        "    if rows > 25:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "encoder.model.backbone.register_forward_pre_hook(count, with_kwargs=True)\n"
        "encode_file(encoder, sys.argv[2], sys.argv[3], chunk_rows=10, progress=False)\n"
    )
    out = tmp_path / "out.npy"
    done = subprocess.run([sys.executable, str(script), str(tiny_folder), str(lines), str(out)], capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert not out.exists()
    safe = json.loads((tmp_path / "out.npy.json").read_text())["done"]
    assert 10 <= safe < 50
    encoder, seen = load_encoder(tiny_folder, pooling="mean", device="cpu"), []
    encoder.model.backbone.register_forward_pre_hook(
        lambda module, arguments, kwargs: seen.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    encode_file(encoder, lines, out, chunk_rows=10, progress=False)
    assert sum(seen) <= 50 - safe
    close(np.load(out), encoder.encode(TEXTS))
    seen.clear()
    assert encode_file(encoder, lines, out, chunk_rows=10, progress=False)["complete"]
    assert not seen


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_shards_make_the_whole(encoder: TextEncoder, lines: Path, tmp_path: Path, suffix: str) -> None:
    out, whole = tmp_path / f"out.{suffix}", tmp_path / "whole.npy"
    encode_file(encoder, lines, whole, progress=False)
    with pytest.raises(FileNotFoundError, match=r"no shard of it is there"):
        merge_shards(out)
    for i in (3, 1):
        encode_file(encoder, lines, out, shard=f"{i}/3", chunk_rows=6, progress=False)
    with pytest.raises(FileNotFoundError, match="shard 2/3 is missing"):
        merge_shards(out)
    with pytest.raises(ValueError, match=r"output.chunk_rows is 6, in shard 1 6|dtype is 'float16', in shard 1"):
        encode_file(encoder, lines, out, shard="2/3", chunk_rows=6, dtype="float16", progress=False)
        merge_shards(out)
    encode_file(encoder, lines, out, shard="2/3", chunk_rows=6, progress=False, overwrite=True)
    record = next(tmp_path.glob("**/*2-of-3*.json"))
    good = record.read_text()
    record.write_text(json.dumps({**json.loads(good), "complete": False, "done": 6}))
    with pytest.raises(ValueError, match=r"not complete, 6 of 17 rows"):
        merge_shards(out)
    record.write_text(good)
    merge_shards(out)
    close(np.load(out) if suffix == "npy" else from_parquet(out), np.load(whole))
    assert not list(tmp_path.glob("**/*-of-*"))
    seen = encode_file(encoder, lines, out, chunk_rows=6, progress=False)  # the whole is known as such
    assert seen["done"] == 50
    assert seen["complete"]


def stopped_after(encoder: TextEncoder, chunks: int, call: Callable[[], object]) -> None:
    """Run ``call``, in which the encoder is interrupted behind some chunks."""
    encode_chunks = encoder.encode_chunks

    def some(*arguments: Any) -> Iterator[Any]:
        yield from islice(encode_chunks(*arguments), chunks)
        raise KeyboardInterrupt

    encoder.encode_chunks = some  # type: ignore[method-assign, assignment]
    try:
        call()
    finally:
        del encoder.encode_chunks


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
@pytest.mark.parametrize("deleted", [0, 1, 2, 3])
def test_a_merge_killed_while_it_deletes_the_shards_goes_on(
    encoder: TextEncoder, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, deleted: int
) -> None:
    """Regression: the same command said that a shard was missing, and left the others for good."""
    out, left = tmp_path / f"out.{suffix}", deleted
    for i in (1, 2, 3):
        encode_file(encoder, lines, out, shard=f"{i}/3", progress=False)
    unlink = Path.unlink

    def until_killed(path: Path, missing_ok: bool = False) -> None:
        nonlocal left
        if "-of-" in path.name:
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", until_killed)
    with suppress(KeyboardInterrupt):
        merge_shards(out)
    monkeypatch.undo()
    whole = open_embeddings(out)
    assert whole.rows == 50
    if list(tmp_path.glob("**/*-of-*")):
        assert merge_shards(out) == out
    assert not list(tmp_path.glob("**/*-of-*"))
    close(np.load(out) if suffix == "npy" else from_parquet(out), encoder.encode(TEXTS), 1e-5)


def test_a_draft_shorter_than_its_record_is_refused(encoder: TextEncoder, lines: Path, tmp_path: Path) -> None:
    """Regression: rows of zeros filled the gap, without a word; a copy made while the command ran is such a draft."""
    out, draft = tmp_path / "out.npy", tmp_path / "out.npy.partial"
    with suppress(KeyboardInterrupt):
        stopped_after(encoder, 3, lambda: encode_file(encoder, lines, out, chunk_rows=10, progress=False))
    done = embedding_files.load_record(tmp_path / "out.npy.json")["done"]
    assert 0 < done < 50
    os.truncate(draft, draft.stat().st_size - 32 * 4)
    with pytest.raises(ValueError, match=rf"out\.npy\.partial: holds fewer than the {done} rows of its record"):
        encode_file(encoder, lines, out, chunk_rows=10, progress=False)
    encode_file(encoder, lines, out, chunk_rows=10, progress=False, overwrite=True)
    close(np.load(out), encoder.encode(TEXTS))


def test_rows_of_parquet_that_are_lost_meanwhile_are_seen(encoder: TextEncoder, lines: Path, tmp_path: Path) -> None:
    """Regression: the first call said that all rows are written, and only a second one missed some."""
    out = tmp_path / "out.parquet"
    with suppress(KeyboardInterrupt):
        stopped_after(encoder, 3, lambda: encode_file(encoder, lines, out, chunk_rows=10, progress=False))
    (out / "rows-000000000010.parquet").unlink()
    with pytest.raises(ValueError, match=r"out\.parquet: row 10 is missing"):
        encode_file(encoder, lines, out, chunk_rows=10, progress=False)


def test_the_draft_of_a_killed_merge_takes_no_space(
    encoder: TextEncoder, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: what the first call had written counted as used, and the second one found too little space."""
    out = tmp_path / "out.npy"
    for i in (1, 2):
        encode_file(encoder, lines, out, shard=f"{i}/2", progress=False)
    (tmp_path / "out.npy.partial").write_bytes(bytes(6000))

    def usage(path: Path) -> Any:
        used = sum(file.stat().st_size for file in tmp_path.glob("*.partial"))
        return SimpleNamespace(free=10_000 - used)

    monkeypatch.setattr(embedding_files.shutil, "disk_usage", usage)
    assert np.load(merge_shards(out)).shape == (50, 32)


def test_a_missing_shard_beside_another_whole_is_told(encoder: TextEncoder, lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    encode_file(encoder, lines, out, progress=False)
    encode_file(encoder, lines, out, shard="1/2", dtype="float16", progress=False)
    with pytest.raises(FileNotFoundError, match="shard 2/2 is missing"):
        merge_shards(out)
    assert (tmp_path / "out.1-of-2.npy").exists()


def test_a_parquet_row_that_is_missing_is_seen(encoder: TextEncoder, lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    for i in (1, 2):
        encode_file(encoder, lines, out, shard=f"{i}/2", chunk_rows=10, progress=False)
    (out / "rows-000000000010.parquet").unlink()
    with pytest.raises(ValueError, match=r"row 10 is missing, rows-000000000020.parquet begins with 20"):
        merge_shards(out)


def test_another_input_or_other_settings_are_refused(encoder: TextEncoder, lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    encode_file(encoder, lines, out, progress=False)
    with pytest.raises(ValueError, match=r"output.dtype was 'float32' there and is 'float16' now"):
        encode_file(encoder, lines, out, dtype="float16", progress=False)
    encoder.precision = "bf16"
    with pytest.raises(ValueError, match=r"encoder.precision was 'float32' there and is 'bf16' now"):
        encode_file(encoder, lines, out, progress=False)
    encoder.precision = "fp32"
    parameter = next(encoder.model.parameters()).data
    original = parameter.clone()
    parameter += 1
    with pytest.raises(ValueError, match=r"encoder.weights was"):
        encode_file(encoder, lines, out, progress=False)
    parameter.copy_(original)
    lines.write_text("another\n" * 50)
    with pytest.raises(ValueError, match=r"input.sha256 was"):
        encode_file(encoder, lines, out, progress=False)
    before = np.load(out)
    encode_file(encoder, lines, out, progress=False, overwrite=True)
    assert not np.allclose(np.load(out), before)
    (tmp_path / "foreign.npy").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"foreign.npy: exists, and not of this command"):
        encode_file(encoder, lines, tmp_path / "foreign.npy", progress=False)


def test_another_tokenizer_beside_the_same_weights_is_refused(tiny_folder: Path, lines: Path, tmp_path: Path) -> None:
    """Regression: the rows of the earlier tokenizer were called finished, or the rest was added to them, and search
    compared them with queries of the new one."""
    out, file = tmp_path / "out.npy", tiny_folder / "tokenizer.json"
    record = encode_file(load_encoder(tiny_folder, "mean", device="cpu"), lines, out, progress=False)
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["dog"], vocabulary["cat"] = vocabulary["cat"], vocabulary["dog"]
    file.write_text(json.dumps(content))
    changed = load_encoder(tiny_folder, "mean", device="cpu")
    with pytest.raises(ValueError, match=r"out\.npy\.json: encoder\.tokenizer was"):
        encode_file(changed, lines, out, progress=False)
    with pytest.raises(ValueError, match=r"encoded with another encoder than .*: tokenizer is"):
        open_embeddings(out).encoder(device="cpu")
    del record["settings"]["encoder"]["tokenizer"]  # an earlier version wrote none
    embedding_files.write_record(tmp_path / "out.npy.json", record)
    assert encode_file(changed, lines, out, progress=False)["complete"]
    assert open_embeddings(out).encoder(device="cpu").encode(["dog"]).shape == (1, 32)


@pytest.mark.parametrize(("given", "out"), [("x.parquet/rows-0.parquet", "x.parquet"), ("x.npy.json", "x.npy")])
def test_an_input_that_the_output_would_destroy_is_refused(
    tiny_folder: Path, tmp_path: Path, given: str, out: str
) -> None:
    """Regression: with --overwrite the rows that were to be read were deleted, or the record took their place."""
    file = tmp_path / given
    file.parent.mkdir(exist_ok=True)
    if given.endswith(".json"):
        file.write_text(json.dumps([{"text": "the man"}, {"text": "a dog"}]))
    else:
        pq.write_table(pa.table({"text": ["the man", "a dog"]}), file)
    before = file.read_bytes()
    words = ["encode", file, "-m", tiny_folder, "--pooling", "mean", "-o", tmp_path / out, "--overwrite"]
    found = CliRunner().invoke(main, [str(word) for word in [*words, "--device", "cpu", "--no_progress"]])
    assert file.is_file() and file.read_bytes() == before
    assert found.exit_code == 2 and "must not hold the input" in found.output, found.output


def test_layers_behind_the_pooling_belong_to_the_encoder(tiny_folder: Path, lines: Path, tmp_path: Path) -> None:
    """Regression: an output stayed as it was when a Normalize module, which has no weights, was added."""
    out, pooling = tmp_path / "out.npy", tiny_folder / "1_Pooling"
    pooling.mkdir()
    (pooling / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"}
        for path, kind in (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    ]
    (tiny_folder / "modules.json").write_text(json.dumps(modules[:2]))
    record = encode_file(load_encoder(tiny_folder, device="cpu"), lines, out, progress=False)
    (tiny_folder / "modules.json").write_text(json.dumps(modules))
    changed = load_encoder(tiny_folder, device="cpu")
    with pytest.raises(ValueError, match=r"out\.npy\.json: encoder\.layers was \[\] there and is \['Normalize'\]"):
        encode_file(changed, lines, out, progress=False)
    with pytest.raises(ValueError, match=r"encoded with another encoder than .*: layers is"):
        open_embeddings(out).encoder(device="cpu")
    del record["settings"]["encoder"]["layers"]  # an earlier version wrote none
    embedding_files.write_record(tmp_path / "out.npy.json", record)
    assert encode_file(changed, lines, out, progress=False)["complete"]


@pytest.mark.parametrize("setting", ["lowercase", "normalizer"])
def test_what_the_tokenizer_does_with_letters_belongs_to_it(tiny_folder: Path, setting: str) -> None:
    before = encoder_settings(load_encoder(tiny_folder, "mean", device="cpu"))
    assert encoder_settings(load_encoder(tiny_folder, "mean", device="cpu")) == before
    file = tiny_folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["normalizer"] = {**content["normalizer"], "lowercase": False} if setting == "lowercase" else None
    file.write_text(json.dumps(content))
    (tiny_folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    after = encoder_settings(load_encoder(tiny_folder, "mean", device="cpu"))
    assert after["tokenizer"] != before["tokenizer"] and after["weights"] == before["weights"]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_shard_does_not_enter_another_encoding(encoder: TextEncoder, lines: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "out.parquet", tmp_path / "other.txt"
    other.write_text("\n".join(reversed(TEXTS)) + "\n")
    encode_file(encoder, lines, out, chunk_rows=10, progress=False)
    before = contents(out)
    with pytest.raises(ValueError, match=r"_encode.json: exists, and not of this command: choose .* say overwrite"):
        encode_file(encoder, other, out, shard="2/2", chunk_rows=10, progress=False)
    assert contents(out) == before
    (out / "_encode.json").unlink()
    for shard in ("1/1", "2/2"):  # rows without a record are of another command, too
        with pytest.raises(ValueError, match=r"rows-0000000000\d0.parquet: exists, and not of this command"):
            encode_file(encoder, other, out, shard=shard, chunk_rows=10, progress=False)
    encode_file(encoder, lines, out, chunk_rows=10, progress=False, overwrite=True)
    for i in (2, 1):
        encode_file(encoder, other, out, shard=f"{i}/2", chunk_rows=10, progress=False, overwrite=True)
        assert not (out / "_encode.json").exists()
    with pytest.raises(ValueError, match=r"_encode.1-of-2.json: exists, and not of this command"):
        encode_file(encoder, other, out, chunk_rows=10, progress=False)
    merge_shards(out)
    assert pq.read_table(out).sort_by("row")["text"].to_pylist() == TEXTS[::-1]


def test_files_of_ray_are_replaced_with_overwrite_alone(tiny_folder: Path, lines: Path, tmp_path: Path) -> None:
    """As ``csekit encode --engine ray`` names them. They stayed, and readers of the folder got both encodings."""
    out = tmp_path / "out.parquet"
    out.mkdir()
    theirs = out / f"0353RiIGo28wR5TwDrWIln_{'0f' * 16}_000001-0.parquet"
    pq.write_table(pa.table({"s": ["a"], "embedding": [[1.0]]}), theirs)
    words = ["encode", lines, "--model", tiny_folder, "--pooling", "mean", "-o", out, "--no_progress"]
    refused = CliRunner().invoke(main, [str(word) for word in words])
    assert refused.exit_code == 2
    assert f"{theirs}: exists, and not of this command" in " ".join(refused.output.split())
    (out / "notes.parquet").touch()  # of nobody's encoding
    done = CliRunner().invoke(main, [*map(str, words), "--overwrite"])
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in out.iterdir()) == [
        "_encode.json",
        "notes.parquet",
        "rows-000000000000.parquet",
    ]


@pytest.mark.parametrize("wrong", [["--precision", "fp8"], ["--num_workers", "0"]])
@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_a_refused_setting_leaves_every_file_as_it_is(
    tiny_folder: Path, lines: Path, tmp_path: Path, suffix: str, wrong: list[str]
) -> None:
    """With --overwrite the finished rows were deleted first; without, a record stayed that refused the right call."""
    out = tmp_path / f"out.{suffix}"
    words = ["encode", lines, "-m", tiny_folder, "--pooling", "mean", "--device", "cpu", "-o", out, "--no_progress"]
    command = [str(word) for word in words]
    first = CliRunner().invoke(main, [*command, *wrong])
    assert first.exit_code == 2
    assert f"{wrong[0][2:]} must be" in first.output
    assert not list(tmp_path.glob("out*"))
    assert CliRunner().invoke(main, command).exit_code == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    assert CliRunner().invoke(main, [*command, *wrong, "--overwrite"]).exit_code == 2
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("before", ["1/1", "2/2", "3/3"])
@pytest.mark.parametrize("shards", [1, 2])
def test_overwrite_leaves_nothing_of_the_earlier_encoding(
    encoder: TextEncoder, lines: Path, tmp_path: Path, before: str, shards: int
) -> None:
    out, shorter = tmp_path / "out.parquet", tmp_path / "shorter.txt"
    shorter.write_text("\n".join(TEXTS[:20]) + "\n")
    encode_file(encoder, lines, out, shard=before, chunk_rows=5, progress=False)
    (out / "rows-of-mine.parquet").write_text("not of this command")
    for i in range(1, shards + 1):
        shard = f"{i}/{shards}"
        encode_file(encoder, shorter, out, shard=shard, chunk_rows=5, progress=False, overwrite=True)
    if shards > 1:
        merge_shards(out)
    (out / "rows-of-mine.parquet").unlink()
    assert sorted(contents(out)) == ["_encode.json", *(f"rows-{row:012d}.parquet" for row in (0, 5, 10, 15))]
    assert pq.read_table(out).sort_by("row")["text"].to_pylist() == TEXTS[:20]


@pytest.mark.parametrize("shard", ["1/1", "1/2"])
def test_a_kill_while_the_earlier_rows_are_deleted(
    encoder: TextEncoder, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard: str
) -> None:
    out, shorter = tmp_path / "out.parquet", tmp_path / "shorter.txt"
    shorter.write_text("\n".join(TEXTS[:20]) + "\n")
    encode_file(encoder, lines, out, chunk_rows=5, progress=False)
    unlink, steps = Path.unlink, iter([1, 1, 1, 0])

    def killable(path: Path, missing_ok: bool = False) -> None:
        if path.parent == out and not next(steps):
            raise Killed
        unlink(path, missing_ok)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Path, "unlink", killable)
        encode_file(encoder, shorter, out, shard=shard, chunk_rows=5, progress=False, overwrite=True)
    with pytest.raises((ValueError, FileNotFoundError), match=r"0 of 20 rows are there|no record of csekit encode"):
        open_embeddings(out)
    assert encode_file(encoder, shorter, out, shard=shard, chunk_rows=5, progress=False)["complete"]
    assert pq.read_table(out).sort_by("row")["text"].to_pylist() == TEXTS[: 20 if shard == "1/1" else 10]


@pytest.mark.parametrize("recorded", [True, False])
def test_merge_leaves_another_array_alone(
    encoder: TextEncoder, lines: Path, tmp_path: Path, recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, other = tmp_path / "out.npy", tmp_path / "other.txt"
    other.write_text("\n".join(reversed(TEXTS)) + "\n")
    if recorded:
        encode_file(encoder, other, out, progress=False)
    else:
        np.save(out, np.zeros(3))
    for i in (1, 2):
        encode_file(encoder, lines, out, shard=f"{i}/2", progress=False)
    before = contents(tmp_path)
    found = CliRunner().invoke(main, ["merge", str(out)])
    assert found.exit_code == 2, found.output
    assert "out.npy: exists, and not of these shards" in found.output
    assert contents(tmp_path) == before
    out.unlink()
    out.with_name("out.npy.json").unlink(missing_ok=True)

    def killed(path: Path, record: dict[str, Any]) -> None:
        if record["complete"]:
            raise Killed
        embedding_files.write_record(path, record)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("csekit.encoding.files.write_record", killed)
        merge_shards(out)
    assert out.exists()
    for _ in range(2):  # after a kill, and once more
        merge_shards(out, keep=True)
        close(np.load(out), encoder.encode(TEXTS))


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ('{"s": "a"}\n{"s": 3}', {"column": "s"}, r"line 2: column 's' holds 3 \(int\), not text"),
        ('{"s": "a"}\n{"s": null}', {"column": "s"}, r"line 2: column 's' holds nothing \(null\)"),
        ('{"s": "a"}\n{"s": "\\ud800"}', {}, r"line 2: column 's' holds '\\ud800' \(str\), not text"),
        ('{"s": "a", "t": "b"}', {}, "2 columns hold text, name one; the columns are s, t"),
        ('{"s": "a"}', {"column": "x"}, "no column 'x'; the columns are s"),
        ('{"s": "a"}', {"shard": "1/2"}, "1 rows cannot make 2 parts"),
        ('{"s": "a"}', {"shard": "0/2"}, "shard must be i/n with 1 <= i <= n, such as 2/8, got '0/2'"),
        ('{"s": "a"}', {"dtype": "int8"}, "dtype must be one of 'float32', 'float16', got 'int8'"),
        ('{"s": "a"}', {"chunk_rows": 0}, "chunk_rows must be at least 1, got 0"),
        ('{"s": "a"}', {"output": "out.bin"}, "output must end in .npy or .parquet, got 'out.bin'"),
    ],
)
def test_bad_input_is_named_before_any_work(
    encoder: TextEncoder, tmp_path: Path, content: str, arguments: dict[str, Any], message: str
) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    given = {"output": "out.npy", "progress": False, **arguments}
    given["output"] = tmp_path / given["output"]
    with pytest.raises(ValueError, match=message):
        encode_file(encoder, tmp_path / "a.jsonl", **given)
    assert not list(tmp_path.glob("out*"))


def test_text_of_a_dictionary_is_text(encoder: TextEncoder, tmp_path: Path) -> None:
    """Regression: a column that pandas holds as categories was said to hold no text; training reads it."""
    table = pa.table({"id": list(range(50)), "s": pa.array(TEXTS).dictionary_encode()})
    pq.write_table(table, tmp_path / "a.parquet")
    encode_file(encoder, tmp_path / "a.parquet", tmp_path / "out.npy", progress=False)
    close(np.load(tmp_path / "out.npy"), encoder.encode(TEXTS))


def test_a_parquet_column_that_is_there_twice_is_refused(encoder: TextEncoder, tmp_path: Path) -> None:
    """Regression: the first one was encoded."""
    pq.write_table(pa.table([pa.array(["a"]), pa.array(["b"])], names=["s", "s"]), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet: the schema names 's' more than once, in columns 1 and 2"):
        encode_file(encoder, tmp_path / "a.parquet", tmp_path / "out.npy", progress=False)


def test_names() -> None:
    assert parse_shard("2/8") == (2, 8)
    with pytest.raises(FileNotFoundError, match="no such file"):
        text_column(Path("nowhere.txt"))


@pytest.mark.slow
def test_two_workers_keep_the_order(tiny_folder: Path, lines: Path, tmp_path: Path) -> None:
    encoder = load_encoder(tiny_folder, pooling="cls", device="cpu")
    plain = encoder.encode(TEXTS)
    encode_file(encoder, lines, tmp_path / "out.npy", chunk_rows=7, num_workers=2, progress=False)
    close(np.load(tmp_path / "out.npy"), plain)
    with pytest.raises(ValueError, match=r"num_workers must be at least 1, got 0"):
        encoder.encode(TEXTS, num_workers=0)


def test_the_command(tiny_folder: Path, lines: Path, tmp_path: Path) -> None:
    def run(*arguments: Any) -> Any:
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    out = tmp_path / "out.npy"
    common = ("--model", tiny_folder, "-o", out, "--device", "cpu")
    for i in (1, 2):
        found = run("encode", lines, *common, "--pooling", "mean", "--shard", f"{i}/2")
        assert found.exit_code == 0, found.output
        assert f"shard {i}/2, 25 rows" in found.output
    assert "25/25" in found.output
    found = run("merge", out)
    assert found.exit_code == 0, found.output
    assert "2 shards, 50 rows" in found.output
    close(np.load(out), load_encoder(tiny_folder, pooling="mean", device="cpu").encode(TEXTS))
    for arguments, message in (
        (("encode", lines, *common), "pooling must be one of"),
        (("encode", lines, *common, "--engine", "x"), "--engine must be local or ray"),
        (("encode", lines, *common, "--engine", "ray", "--shard", "1/2"), "--shard is not for --engine ray"),
        (("merge", tmp_path / "none.npy"), "no shard of it is there"),
    ):
        found = run(*arguments)
        assert found.exit_code == 2, found.output
        assert message in found.output
        assert found.output.count("\n") == 1


def with_prompts(folder: Path, **further: Any) -> Path:
    """Make the plain encoder a SentenceTransformer folder that names prompts."""
    kinds = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [
        {"idx": i, "name": str(i), "type": f"sentence_transformers.models.{kind}", "path": path}
        for i, (kind, path) in enumerate(kinds.items())
    ]
    (folder / "1_Pooling").mkdir()
    (folder / "modules.json").write_text(json.dumps(modules))
    pooling = {"pooling_mode": "mean", "embedding_dimension": 32, "word_embedding_dimension": 32}
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    prompts = {"query": "the cat ", "document": "red house "}
    settings = {"prompts": prompts, "similarity_fn_name": "cosine", **further}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


def test_prompt_and_role_are_recorded(tiny_folder: Path, lines: Path, tmp_path: Path) -> None:
    """The same file in another role got the vectors without the prompt, and a killed run went on with another one."""
    encoder, out = load_encoder(with_prompts(tiny_folder), device="cpu"), tmp_path / "out.npy"
    encode_file(encoder, lines, out, progress=False)
    assert not {"prompt", "role"} & set(encode_file(encoder, lines, out, progress=False)["settings"]["encoder"])
    with pytest.raises(ValueError, match=r"prompt was None there and is 'red house ' now"):
        encode_file(encoder.for_role("document"), lines, out, progress=False)
    encode_file(encoder.for_role("document"), lines, out, progress=False, overwrite=True)
    wanted = encoder.encode(["red house " + text for text in TEXTS])
    close(np.load(out), wanted)
    close(open_embeddings(out).encoder(device="cpu").encode(TEXTS), wanted)
    asked = CliRunner().invoke(main, ["search", str(out), "--query", "dog", "--format", "json", "--device", "cpu"])
    assert asked.exit_code == 0, asked.output
    query, found = encoder.encode(["the cat dog"])[0], json.loads(asked.stdout.splitlines()[0])
    row = wanted[found["row"]]
    assert found["score"] == pytest.approx(query @ row / np.linalg.norm(query) / np.linalg.norm(row), abs=1e-5)


def test_settings_of_modules_that_sentence_transformers_runs_are_recorded(
    tiny_folder: Path, lines: Path, tmp_path: Path
) -> None:
    """Pooling and default prompt could change between two parts of one file; the same command could not go on, since
    a pooler that nothing reads had other weights at each load."""
    pytest.importorskip("sentence_transformers", reason="needs the extra st")
    out, pooling = tmp_path / "out.npy", tiny_folder / "1_Pooling/config.json"
    with_prompts(tiny_folder, default_prompt_name="query")

    def encode() -> dict[str, Any]:
        return encode_file(load_encoder(tiny_folder, device="cpu"), lines, out, progress=False)

    record = encode()
    (tiny_folder / "results.json").write_text("{}")  # not one of its settings
    assert encode() == record
    with_max = json.loads(pooling.read_text()) | {"pooling_mode": "max"}
    pooling.write_text(json.dumps(with_max))
    with pytest.raises(ValueError, match=r"encoder\.modules was"):
        encode()
    del record["settings"]["encoder"]["modules"]  # an earlier version wrote none
    embedding_files.write_record(tmp_path / "out.npy.json", record)
    assert encode()["complete"]
    assert open_embeddings(out).encoder(device="cpu").encode(["dog"]).shape == (1, 32)


def test_shards_of_a_longer_name_are_not_merged(encoder: TextEncoder, lines: Path, tmp_path: Path) -> None:
    """``OUT.v2.1-of-2.npy`` was taken for a shard of ``OUT.npy``."""
    for name in ("out.npy", "out.v2.npy"):
        for shard in ("1/2", "2/2"):
            encode_file(encoder, lines, tmp_path / name, shard=shard, progress=False)
    merge_shards(tmp_path / "out.npy")
    merge_shards(tmp_path / "out.v2.npy")
    assert np.array_equal(np.load(tmp_path / "out.npy"), np.load(tmp_path / "out.v2.npy"))
