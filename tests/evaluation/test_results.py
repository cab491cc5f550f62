import errno
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

from csekit.encoding.provenance import checksum, environment
from csekit.evaluation import results as module
from csekit.evaluation.correlation import _ranks, spearman
from csekit.evaluation.results import (
    pack_similarities,
    read_results,
    read_similarities,
    similarities_path,
    unpack_similarities,
    write_results,
)

RUN = {"run": {"encoder": "a"}, "sts": {"avg": np.float32(76.25), "all": [1, float("nan")]}}


def values(n: int = 50, seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return {"STS12": (rng.uniform(-1, 1, n), rng.integers(0, 26, n) / 5)}


def test_round_trip_in_a_stable_layout(tmp_path: Path) -> None:
    path = write_results(tmp_path / "out/a.json", RUN, values())
    assert read_results(path)["sts"] == {"avg": 76.25, "all": [1, None]}
    similarities, gold = read_similarities(path)["STS12"]
    np.testing.assert_array_equal(similarities, values()["STS12"][0].astype(np.float32))
    assert np.array_equal(gold, values()["STS12"][1])
    first = path.read_bytes(), similarities_path(path).read_bytes()
    write_results(path, dict(reversed(RUN.items())), values())
    assert first == (path.read_bytes(), similarities_path(path).read_bytes())
    assert sorted(os.listdir(path.parent)) == ["a.json", "a.similarities.npz"]
    assert json.loads(path.read_text())["similarities"]["file"] == "a.similarities.npz"


def test_another_run_is_not_overwritten_unless_told(tmp_path: Path) -> None:
    path = write_results(tmp_path / "a.json", RUN)
    other = {"run": {"encoder": "b"}}
    with pytest.raises(FileExistsError, match="another run"):
        write_results(path, other)
    assert read_results(path)["run"] == {"encoder": "a"}
    write_results(path, {**RUN, "seconds": 3})  # the same run again
    write_results(path, other, overwrite=True)
    assert read_results(path)["run"] == {"encoder": "b"}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: Any) -> None:
    path = write_results(tmp_path / "a.json", RUN)
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(module.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_results(path, {**RUN, "seconds": 3})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_disk_that_is_full_after_the_similarities_leaves_both_old_files(tmp_path: Path, monkeypatch: Any) -> None:
    """The similarities were replaced and the scores were not: the file could be compared and added to no more."""
    path = write_results(tmp_path / "a.json", RUN, values())
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    synced: list[int] = []
    fsync = os.fsync

    def full(handle: int) -> None:
        synced.append(handle)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, "no space")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"a\.json: no space left on the disk"):
        write_results(path, {**RUN, "seconds": 3}, values(seed=1))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert list(read_similarities(path)) == ["STS12"]


def test_a_kill_between_the_two_files_leaves_the_earlier_results_usable(tmp_path: Path, monkeypatch: Any) -> None:
    """Regression: the file could be compared and added to no more, since the similarities beside it were newer."""
    path = write_results(tmp_path / "a.json", RUN, values())
    replace = os.replace
    for grown in (values() | {"own": values(9, 3)["STS12"]}, values(seed=1)):
        if (child := os.fork()) == 0:

            def killed(draft: Any, target: Any) -> None:
                replace(draft, target)
                os.kill(os.getpid(), signal.SIGKILL)

            monkeypatch.setattr(os, "replace", killed)
            write_results(path, {**RUN, "seconds": 3}, grown)
        os.waitpid(child, 0)
        assert "seconds" not in read_results(path)
        if "own" in grown:
            found = read_similarities(path)
            assert list(found) == ["STS12"]
            assert np.array_equal(found["STS12"][0], values()["STS12"][0].astype(np.float32))
    with pytest.raises(ValueError, match=r"not the similarities of a\.json"):  # of another run
        read_similarities(path)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"data": "/home/someone/data"}, r"results\.data must hold no machine's path"),
        ({"files": [Path("a.txt")]}, r"results\.files\[0\] must hold no machine's path"),
        ({"model": object()}, r"results\.model must be JSON .*, got object"),
    ],
)
def test_what_may_not_be_stored(tmp_path: Path, bad: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_results(tmp_path / "a.json", bad)
    assert os.listdir(tmp_path) == []


def test_broken_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(FileNotFoundError, match="no such results file"):
        read_results(path)
    twice = ('{"format": 1, "name": "a", "name": "b"}', "a.json: 'name' must be given once in an object, got it twice")
    for content, message in [
        ("{", "not a JSON file"),
        ("[]", "not a results file"),
        ('{"format": 9}', "got 9"),
        twice,
    ]:
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            read_results(path)


def test_similarities_of_another_run_are_refused(tmp_path: Path) -> None:
    path = write_results(tmp_path / "a.json", RUN, values())
    similarities_path(path).write_bytes(pack_similarities(values(seed=1)))
    with pytest.raises(ValueError, match="its sha256 differs"):
        read_similarities(path)
    similarities_path(path).unlink()
    with pytest.raises(FileNotFoundError, match="refers to it"):
        read_similarities(path)


def seven_sets() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Cosines of a narrow cone, within 0.01 of each other, with ties: the hardest case for ranks."""
    rng = np.random.default_rng(0)
    sizes = {"STS12": 3108, "STS13": 1500, "STS14": 3750, "STS15": 3000, "STS16": 1186, "STS-B": 1379, "SICK-R": 4927}
    runs = {}
    for name, n in sizes.items():
        gold = rng.integers(0, 101, n) / 20
        cosines = (0.99 + 0.001 * (gold / 5 + rng.normal(size=n))).astype(np.float32)
        cosines[::40] = 1
        runs[name] = (cosines.astype(np.float64), gold)
    return runs


def test_seven_sets_stay_small_and_keep_their_ranks() -> None:
    runs = seven_sets()
    data = pack_similarities(runs)
    pairs = sum(len(gold) for _, gold in runs.values())
    assert len(data) <= 6 * pairs + 1000, "the bound that pack_similarities documents"
    for name, (similarities, gold) in unpack_similarities(data).items():
        assert spearman(similarities, gold) == spearman(*runs[name])


@pytest.mark.parametrize("levels", [65_536, 65_537])
def test_every_pair_may_have_its_own_gold_score(levels: int) -> None:
    """More than 65,536 were refused, when everything was encoded and scored: the scores were not written."""
    rng = np.random.default_rng(0)
    gold = rng.permutation(levels) / 7
    (found,) = unpack_similarities(pack_similarities({"teacher": (rng.uniform(-1, 1, levels), gold)})).values()
    assert np.array_equal(found[1], gold)


def test_files_of_16_bit_steps_are_still_read(tmp_path: Path) -> None:
    """The layout of files written before: steps between the lowest and the highest similarity of a task."""
    runs = {"STS13": values(seed=1)["STS12"], "STS12": values(30)["STS12"]}
    steps = [np.rint((x - x.min()) / (np.ptp(x) / 65535)).astype(int) for x, _ in runs.values()]
    levels, codes = np.unique(np.concatenate([gold for _, gold in runs.values()]), return_inverse=True)
    planes = [np.stack([part >> 8, part & 255]).astype(np.uint8) for part in (np.concatenate(steps), codes)]
    path = write_results(tmp_path / "a.json", RUN, runs)
    np.savez_compressed(
        similarities_path(path),
        tasks=np.array(list(runs)),
        sizes=np.array([len(gold) for _, gold in runs.values()]),
        ranges=np.array([(x.min(), x.max()) for x, _ in runs.values()]),
        steps=planes[0],
        levels=levels,
        gold=planes[1],
    )
    found = unpack_similarities(similarities_path(path).read_bytes())
    assert list(found) == ["STS13", "STS12"]
    for name, (similarities, gold) in found.items():
        np.testing.assert_allclose(similarities, runs[name][0], atol=2e-5)
        np.testing.assert_array_equal(gold, runs[name][1])


def test_checksum_of_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_text("1")
    (tmp_path / "y").write_text("2")
    first = checksum(tmp_path)
    assert first == checksum(tmp_path)
    assert len(first) == 64
    (tmp_path / "y").rename(tmp_path / "z")
    assert checksum(tmp_path) != first
    assert checksum(tmp_path / "z") == "d4735e3a265e16eee03f59718b9b5d03019c07d8b6c51f90da3a666eec13ab35"
    with pytest.raises(FileNotFoundError):
        checksum(tmp_path / "nothing")


def test_environment_can_be_stored(tmp_path: Path) -> None:
    found = environment()
    assert found["versions"].keys() == {"csekit", "torch", "transformers", "numpy", "scipy", "scikit-learn"}
    assert {"python", "platform", "device", "threads", "commit", "dirty"} <= found.keys()
    write_results(tmp_path / "a.json", {"environment": found})
    assert read_results(tmp_path / "a.json")["environment"] == found


def test_environment_holds_what_the_processor_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 takes other times and rounds otherwise with matrix units, and other times on AMD's AVX-512."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    described = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").is_file() else ""
    vendors = set(re.findall(r"^vendor_id\s*:\s*(.*?)\s*$", described, re.MULTILINE)) or {None}
    for has in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda has=has: has, raising=False)
        found = environment()["cpu"]
        assert {found.pop("vendor")} == vendors and found == {"capability": "AVX2", "amx": has}
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported")
    assert environment()["cpu"]["amx"] is None


@pytest.mark.parametrize("values", [[1.5, 2, 2, 0, 2], [3.0], [1, 1, 1, 1], [0.5, float("nan"), 2]])
def test_ranks_are_scipy_s(values: list[float]) -> None:
    found = _ranks(np.array(values))
    assert np.array_equal(found, rankdata(values), equal_nan=True)
