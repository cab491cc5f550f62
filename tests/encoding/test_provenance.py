"""Files are written whole or not at all."""

import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from csekit.encoding import provenance
from csekit.encoding.provenance import checksum, environment, weights_of, write_atomically


def test_the_draft_of_a_killed_process_goes_with_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "results.json"
    write_atomically(file, b"old")
    if (child := os.fork()) == 0:
        monkeypatch.setattr(os, "replace", lambda *names: os.kill(os.getpid(), signal.SIGKILL))
        write_atomically(file, b"new")
    os.waitpid(child, 0)
    assert file.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 2
    write_atomically(file, b"newer")
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_a_full_disk_is_told_with_path_and_space_and_the_old_file_stays(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    write_atomically(file, b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(
            OSError, match=r"results\.json: no space left on the disk, [\d,.]+ MB free \(File too large"
        ):
            write_atomically(file, bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_the_weights_of_modules_belong_to_an_encoder(tmp_path: Path) -> None:
    """Two encoders that differ in a Dense module alone counted as one: scores went into the same results file."""
    dense = tmp_path / "2_Dense/model.safetensors"
    dense.parent.mkdir()
    dense.write_bytes(b"dense")
    (tmp_path / "checkpoint_1").mkdir()
    (tmp_path / "checkpoint_1/model.safetensors").write_bytes(b"other")
    assert set(weights_of(tmp_path)) == {"2_Dense/model.safetensors", "checkpoint_1/model.safetensors"}
    (tmp_path / "model.safetensors").write_bytes(b"root")
    found = weights_of(tmp_path)
    assert set(found) == {"model.safetensors", "2_Dense/model.safetensors"}
    assert found["2_Dense/model.safetensors"] == checksum(dense)


def test_a_copy_without_git_has_the_commit_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_git", lambda *_: None)  # as where .git did not come along
    monkeypatch.delenv("CSEKIT_COMMIT", raising=False)
    assert environment()["commit"] is None
    monkeypatch.setenv("CSEKIT_COMMIT", "0123abc")
    assert environment() | {"commit": "0123abc", "dirty": None} == environment()


def test_results_of_a_series_do_not_make_a_checkout_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run of a series was told to come from changed code, because the first had written its results."""
    source = tmp_path / "src/csekit/__init__.py"
    source.parent.mkdir(parents=True)
    source.write_text("")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    monkeypatch.setattr(provenance.csekit, "__file__", str(source))
    results = tmp_path / "experiments/results/field"
    results.mkdir(parents=True)
    (results / "seed=42.json").write_text("{}")
    assert environment()["dirty"] is False
    (tmp_path / "experiments/plan.yaml").write_text("seeds: [42]")
    assert environment()["dirty"] is True
