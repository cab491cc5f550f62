"""Ray on a local cluster, a worker killed half-way: no row is lost or there twice."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding import encode_with_ray, load_encoder

ROWS = 6000
WORDS = ["the", "man", "dog", "cat", "plays", "runs", "red", "ball", "house", "tree"]


def actors() -> list[int]:
    """Processes that carry the actor's name and descend from this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"_Actor" not in (path / "cmdline").read_bytes():
                continue
            parent = int(path.name)
            while parent > 1 and parent != os.getpid():
                parent = int((Path("/proc") / str(parent) / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == os.getpid():
                found.append(int(path.name))
        except (OSError, ValueError):
            continue
    return found


@pytest.mark.slow
def test_a_killed_worker_costs_nothing(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="needs ray: pip install 'csekit[ray]'")
    if not Path("/proc").is_dir():
        pytest.skip("looks for the worker's process in /proc")
    texts = [" ".join(WORDS[(i * k) % 10] for k in range(1, 2 + i % 9)) for i in range(ROWS)]
    pq.write_table(pa.table({"id": np.arange(ROWS), "s": texts}), tmp_path / "in.parquet", row_group_size=500)
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    loading = {"pooling": "mean", "device": "cpu"}
    killed: list[int] = []
    output = tmp_path / "out.parquet"

    def kill() -> None:
        """As soon as the first rows are written; the last ones are far away then."""
        while not killed:
            time.sleep(0.02)
            if list(output.glob("*.parquet")):
                assert not (output / "_encode.json").exists()
                for pid in actors()[:1]:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(len(list(output.glob("*.parquet"))))

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        rows = encode_with_ray(
            str(tiny_folder),
            tmp_path / "in.parquet",
            output,
            num_workers=2,
            batch_rows=50,
            loading=loading,
        )
        assert rows == ROWS
        assert killed, "no actor was killed"
        assert killed[0] < len(list(output.glob("*.parquet")))
        table = pq.read_table(output).sort_by("id")
        assert table["id"].to_pylist() == list(range(ROWS))
        assert table["s"].to_pylist() == texts
        plain = load_encoder(tiny_folder, pooling="mean", device="cpu").encode(texts)
        np.testing.assert_allclose(np.array(table["embedding"].to_pylist()), plain, atol=1e-5)
        with pytest.raises(ValueError, match="exists; Ray does not go on"):
            encode_with_ray(str(tiny_folder), tmp_path / "in.parquet", output, loading=loading)
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_the_actors_of_a_killed_driver_end_with_it(tiny_folder: Path, tmp_path: Path) -> None:
    """With a cluster that the command started itself; another cluster's own processes stay."""
    pytest.importorskip("ray", reason="needs ray: pip install 'csekit[ray]'")
    texts = [f"the man plays a red guitar {i}" for i in range(100_000)]
    pq.write_table(pa.table({"s": texts}), tmp_path / "in.parquet", row_group_size=500)
    output = tmp_path / "out.parquet"
    options = ["--model", str(tiny_folder), "--pooling", "mean", "--engine", "ray", "--device", "cpu"]
    argv = [sys.executable, "-c", "from csekit.cli import main; main()", "encode", str(tmp_path / "in.parquet")]
    with subprocess.Popen([*argv, "-o", str(output), *options], stderr=subprocess.DEVNULL) as driver:
        try:
            stop = time.monotonic() + 300
            while not list(output.glob("*.parquet")):
                assert driver.poll() is None
                assert time.monotonic() < stop
                time.sleep(0.1)
            children = psutil.Process(driver.pid).children(recursive=True)
            assert any("_Actor" in " ".join(child.cmdline()) for child in children)
        finally:
            driver.kill()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert [child for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []


def test_what_ray_cannot_do_is_said_first(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs ray: pip install 'csekit[ray]'")
    with pytest.raises(ValueError, match=r"reads and writes parquet, got 'a.txt'"):
        encode_with_ray("model", tmp_path / "a.txt", tmp_path / "out.parquet")
    with pytest.raises(FileNotFoundError, match="no such file"):
        encode_with_ray("model", tmp_path / "a.parquet", tmp_path / "out.parquet")


@pytest.mark.parametrize("statistics", [True, False])
def test_a_cell_without_text_is_refused_as_without_ray(
    tiny_folder: Path, tmp_path: Path, statistics: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray", reason="needs ray: pip install 'csekit[ray]'")
    (tmp_path / "in.parquet").mkdir()
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray was started"))
    for name, texts in (("a", ["x", "y"]), ("b", ["x", None])):
        table, path = pa.table({"s": pa.array(texts, pa.string())}), tmp_path / "in.parquet" / f"{name}.parquet"
        pq.write_table(table, path, write_statistics=statistics)
    words = ["encode", tmp_path / "in.parquet", "--model", tiny_folder, "-o", tmp_path / "out.parquet"]
    found = CliRunner().invoke(main, [*map(str, words), "--engine", "ray", "--pooling", "mean", "--device", "cpu"])
    assert found.exit_code == 2, found.output
    assert "b.parquet, row 2: column 's' holds nothing (null), not text" in found.output
    assert found.output.count("\n") == 1
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("wrong", ["output", "around", "column"])
def test_an_input_that_the_output_would_destroy_is_refused(
    tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: with --overwrite Ray deleted the rows that it was to read; a column ``embedding`` was replaced."""
    ray = pytest.importorskip("ray", reason="needs ray: pip install 'csekit[ray]'")
    monkeypatch.setattr(ray.data, "read_parquet", lambda *_, **__: pytest.fail("Ray was asked to read"))
    file = tmp_path / "in.parquet/a.parquet"
    file.parent.mkdir()
    columns = {"s": ["x", "y"], **({"embedding": [1, 2]} if wrong == "column" else {})}
    pq.write_table(pa.table(columns), file)
    given = file if wrong == "around" else file.parent
    output = tmp_path / "out.parquet" if wrong == "column" else file.parent
    words = ["encode", given, "--model", "model", "-o", output, "--column", "s", "--engine", "ray", "--overwrite"]
    found = CliRunner().invoke(main, list(map(str, words)))
    assert found.exit_code == 2, found.output
    assert ("must have no column 'embedding'" if wrong == "column" else "must not hold the input") in found.output
    assert pq.read_table(file)["s"].to_pylist() == ["x", "y"]


@pytest.mark.slow
def test_overwriting_ray_s_output_without_ray_leaves_none_of_its_files(tiny_folder: Path, tmp_path: Path) -> None:
    """Readers of the folder got both encodings."""
    ray = pytest.importorskip("ray", reason="needs ray: pip install 'csekit[ray]'")
    texts = [f"the man runs {i}" for i in range(30)]
    pq.write_table(pa.table({"s": texts}), tmp_path / "in.parquet")
    output = tmp_path / "out.parquet"
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    try:
        encode_with_ray(
            str(tiny_folder),
            tmp_path / "in.parquet",
            output,
            batch_rows=3,
            loading={"pooling": "mean", "device": "cpu"},
        )
    finally:
        ray.shutdown()
    assert len(list(output.glob("*.parquet"))) > 1
    words = ["encode", tmp_path / "in.parquet", "--model", tiny_folder, "--pooling", "mean", "-o", output]
    done = CliRunner().invoke(main, [*map(str, words), "--overwrite", "--no_progress"])
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in output.iterdir()) == ["_encode.json", "rows-000000000000.parquet"]
    assert pq.read_table(output)["text"].to_pylist() == texts


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"precision": "fp8"}, "precision must be one of"), ({"num_workers": 0}, "num_workers must be")],
)
def test_wrong_settings_are_refused_before_anything_is_read(tmp_path: Path, wrong: dict[str, Any], told: str) -> None:
    """The actors refused the precision, after the rows of an earlier output were deleted."""
    with pytest.raises(ValueError, match=told):
        encode_with_ray("no-model", tmp_path / "no.parquet", tmp_path / "out.parquet", **wrong)
