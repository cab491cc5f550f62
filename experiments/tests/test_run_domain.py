"""Ways of adapting an encoder, followed command by command, and their table."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments import run_domain
from experiments.tables import domains
from experiments.tables.cells import processor
from experiments.tables.render import TableError, render

DOMAIN: dict[str, Any] = {
    "title": "Letters",
    "starts": {"small": {"title": "a small one", "variables": {"START": "${SMALL}"}}},
    "variables": {"STEPS": "3"},
    "score": 'echo "{\\"found\\": {\\"score\\": $(cat $ENCODER/score), \\"checksum\\": \\"abc\\"}}" > $RESULTS',
    "metrics": {"accuracy": ["found", "score"]},
    "ways": {
        "none": {"title": "as it is", "commands": "", "encoder": "$START", "seeds": False},
        "more": {"title": "trained", "commands": "mkdir new; echo $STEPS$SEED > new/score", "encoder": "new"},
        "twice": {
            "title": "trained twice",
            "commands": "cp -r $MORE_WAY/new new; echo 9 > new/score",
            "encoder": "new",
        },
    },
}


@pytest.fixture
def domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "start").mkdir()
    (tmp_path / "start/score").write_text("10.5")
    monkeypatch.setenv("SMALL", str(tmp_path / "start"))
    path = tmp_path / "letters.yaml"
    path.write_text(yaml.safe_dump(DOMAIN, sort_keys=False))
    return path


def call(path: Path, *words: str) -> int:
    target = path.parent / "results/domains/letters"
    return run_domain.main([str(path), "--folder", str(path.parent / "runs"), "--results_dir", str(target), *words])


def test_every_way_is_followed_scored_and_kept(domain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(domain, "--seeds", "1", "2") == 0
    results = domain.parent / "results/domains/letters"
    names = sorted(path.stem for path in results.iterdir())
    assert names == ["small-more-1", "small-more-2", "small-none-1", "small-twice-1", "small-twice-2"]
    record = json.loads((results / "small-more-2.json").read_text())
    assert record["scores"] == {"accuracy": 32.0}
    assert record["checksums"] == {"found": "abc"}
    assert record["costs"]["memory"] > 0
    assert str(domain.parent) not in json.dumps(record)
    monkeypatch.setattr(domains, "DOMAINS", domain.parent)
    rows = render("domains/letters", domain.parent / "results").splitlines()
    assert rows[-3].startswith("| a small one | as it is | 10.50 | – | – | 1 |")
    changed = {**DOMAIN, "ways": {**DOMAIN["ways"], "none": {**DOMAIN["ways"]["none"], "title": "untouched"}}}
    domain.write_text(yaml.safe_dump(changed, sort_keys=False))
    assert "| a small one | untouched | 10.50 |" in render("domains/letters", domain.parent / "results")
    assert rows[-2].startswith("| a small one | trained | 31.50 ± 0.71 | +21.00 ± 0.71 |")
    with pytest.raises(TableError, match="holds no results"):
        render("domains/letters", domain.parent)


def test_a_call_goes_on_where_the_last_one_ended(domain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A call that found all results files said nothing, and left the reader with those of somebody else."""
    assert call(domain, "--ways", "more") == 0
    kept = domain.parent / "results/domains/letters/small-more-42.json"
    before = kept.stat().st_mtime_ns
    capsys.readouterr()
    assert call(domain) == 0
    assert f"small-more-42: left out, {kept} is there" in capsys.readouterr().out
    assert kept.stat().st_mtime_ns == before
    assert kept.with_name("small-twice-42.json").exists()


def test_a_way_that_fails_is_told_and_the_others_go_on(domain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    domain.write_text(domain.read_text().replace("mkdir new;", "nosuchcommand;"))
    assert call(domain, "--ways", "more", "none") == 1
    assert "error: small-more-42: ended with 127" in capsys.readouterr().err
    assert [path.stem for path in (domain.parent / "results/domains/letters").iterdir()] == ["small-none-42"]


def test_a_helper_is_made_once_and_its_costs_count(domain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = "python -c 'x = sum(i * i for i in range(3_000_000))'"
    helped = {"title": "helped", "encoder": "new", "helpers": ["the-writer"]}
    helped["commands"] = "mkdir new; cp $THE_WRITER_HELPER/score new/score"
    changed = DOMAIN | {"ways": DOMAIN["ways"] | {"helped": helped}}
    changed["helpers"] = {"the-writer": {"title": "writes", "commands": f"{work}; echo 7 >> score"}}
    domain.write_text(yaml.safe_dump(changed, sort_keys=False))
    assert call(domain, "--ways", "none", "helped", "--seeds", "1", "2") == 0
    results = domain.parent / "results/domains/letters"
    records = [json.loads((results / f"small-helped-{seed}.json").read_text()) for seed in (1, 2)]
    assert [record["scores"] for record in records] == [
        {"accuracy": 7.0}
    ] * 2  # a second helper would have written 7 7
    costs = json.loads((results / "helpers/the-writer.json").read_text())["costs"]
    assert [record["helpers"] for record in records] == [{"the-writer": costs}] * 2
    assert costs["cpu_seconds"] > records[0]["costs"]["cpu_seconds"]
    monkeypatch.setattr(domains, "DOMAINS", domain.parent)
    cell = render("domains/letters", domain.parent / "results").splitlines()[-1].split(" | ")[4]
    own = sum(record["costs"]["cpu_seconds"] for record in records) / 2
    assert cell == f"{(own + costs['cpu_seconds']) / 60:.1f} ({processor(records[0]['environment'])})"


def test_results_of_other_commands_or_settings_are_refused(domain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After a change of the YAML file, a call left every run out and showed the earlier results as those of the new
    commands; of a change of variables the files did not even hold a trace."""
    assert call(domain, "--ways", "none", "more") == 0
    kept = domain.parent / "results/domains/letters/small-more-42.json"
    before, text = kept.read_bytes(), domain.read_text()
    for old, new, told in (
        ("echo $STEPS$SEED", "echo $SEED", "commands"),
        ("STEPS: '3'", "STEPS: '4'", "variables"),
        ("${SMALL}", "${SMALL}/.", "variables"),
    ):
        assert old in text
        domain.write_text(text.replace(old, new))
        capsys.readouterr()
        assert call(domain, "--ways", "more") == 1
        assert f"small-more-42: {kept} is of a run with other {told}: move it away" in capsys.readouterr().err
    assert kept.read_bytes() == before
    record = json.loads(before)  # a file from before the variables were recorded
    kept.write_text(json.dumps({name: value for name, value in record.items() if name != "variables"}))
    domain.write_text(text)
    assert call(domain, "--ways", "more") == 0


def test_a_way_without_seeds_runs_once(domain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call with other seeds scored it again, and the table said ``± 0.00`` of two seeds."""
    text = domain.read_text().replace("cp -r $MORE_WAY/new new", "cp -r $FIXED_WAY/new new")
    fixed = {"title": "fixed", "commands": "mkdir new; echo 5 > new/score", "encoder": "new", "seeds": False}
    changed = yaml.safe_load(text)
    changed["ways"] = {"fixed": fixed, **changed["ways"]}
    domain.write_text(yaml.safe_dump(changed, sort_keys=False))
    for seeds in (["1"], ["2", "3"]):
        assert call(domain, "--ways", "none", "fixed", "twice", "--seeds", *seeds) == 0
    names = sorted(path.stem for path in (domain.parent / "results/domains/letters").iterdir())
    assert names == ["small-fixed-1", "small-none-1", "small-twice-1", "small-twice-2", "small-twice-3"]
    monkeypatch.setattr(domains, "DOMAINS", domain.parent)
    rows = render("domains/letters", domain.parent / "results").splitlines()
    assert [row for row in rows if "| as it is | 10.50 | – | – | 1 |" in row]


def test_a_table_refuses_rows_of_unequal_runs(domain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It averaged runs of other commands, and two files of one run, as if they were seeds."""
    assert call(domain, "--ways", "none", "more", "--seeds", "1", "2") == 0
    results = domain.parent / "results/domains/letters"
    monkeypatch.setattr(domains, "DOMAINS", domain.parent)
    second = json.loads((results / "small-more-2.json").read_text())
    (results / "small-more-2.json").write_text(json.dumps(second | {"commands": "echo 1"}))
    with pytest.raises(TableError, match="small-more: the runs of a row must have the same commands"):
        render("domains/letters", domain.parent / "results")
    (results / "small-more-2.json").write_text(json.dumps(second))
    (results / "small-none-2.json").write_bytes((results / "small-none-1.json").read_bytes())
    with pytest.raises(TableError, match="small-none: must have one results file for each seed"):
        render("domains/letters", domain.parent / "results")


def test_processor_minutes_of_two_kinds_of_processors_are_not_averaged(
    domain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minutes of a processor with matrix units and of one without, which needs twice as many, had one mean."""
    assert call(domain, "--ways", "more", "--seeds", "1", "2", "3") == 0
    results = domain.parent / "results/domains/letters"
    kinds = (None, {"capability": "AVX512", "amx": False}, {"capability": "AVX512", "amx": False})
    for seed, seconds, cpu in zip((1, 2, 3), (120, 240, 360), kinds, strict=True):
        path = results / f"small-more-{seed}.json"
        record = json.loads(path.read_text())
        record["costs"]["cpu_seconds"], record["environment"]["cpu"] = seconds, cpu
        path.write_text(json.dumps(record))
    monkeypatch.setattr(domains, "DOMAINS", domain.parent)
    assert "| 2.0; 5.0 (AVX-512) | 3 |" in render("domains/letters", domain.parent / "results")


def test_relative_folders_work(domain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands run in folders of their own, where ``$MORE_WAY`` of a relative folder led nowhere."""
    monkeypatch.chdir(domain.parent)
    words = ["letters.yaml", "--folder", "runs", "--results_dir", "results", "--ways", "more", "twice"]
    assert run_domain.main(words) == 0


@pytest.mark.parametrize(
    ("score", "told"),
    [
        ("true", "score wrote no $RESULTS"),
        ('echo "{\\"found\\": {\\"score\\": null}}" > $RESULTS', "metric 'accuracy': must be a number"),
        ('echo "{\\"found\\": 3}" > $RESULTS', "metric 'accuracy': the results have no 'score', only 3"),
    ],
)
def test_a_scoring_without_a_number_ends_that_run_alone(
    domain: Path, capsys: pytest.CaptureFixture[str], score: str, told: str
) -> None:
    """It ended the call in a traceback, and the ways behind it did not run."""
    plain = yaml.safe_load(domain.read_text())
    domain.write_text(yaml.safe_dump(plain | {"score": score}, sort_keys=False))
    assert call(domain, "--ways", "none", "more") == 1
    captured = capsys.readouterr()
    assert told in captured.err
    assert "[2/2] small-more-42" in captured.out


@pytest.mark.parametrize(
    ("change", "words", "told"),
    [
        (
            {"ways": {"bare": {"title": "x", "commands": "", "encoder": "y", "helpers": ["z"]}}, "helpers": {"w": {}}},
            [],
            "ways.bare.helpers: z must be among w",
        ),
        ({}, ["--ways", "nothing"], "nothing must be among none, more, twice"),
        ({"score": ""}, [], "score is missing"),
        ({"ways": {"bare": {"title": "x"}}}, [], "ways.bare must have title, commands and encoder, got title"),
    ],
)
def test_what_is_wrong_is_told_first(
    domain: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], words: list[str], told: str
) -> None:
    domain.write_text(yaml.safe_dump(DOMAIN | change, sort_keys=False))
    assert call(domain, *words) == 2
    assert told in capsys.readouterr().err
    assert not (domain.parent / "runs").exists()


def test_the_domains_of_the_repository_can_be_read() -> None:
    files = sorted(domains.DOMAINS.glob("*.yaml"))
    assert files
    for path in files:
        run_domain.read_domain(path)


def test_a_signal_ends_the_commands_as_well(domain: Path, tmp_path: Path) -> None:
    """A killed call left its training running, beside which the next call started another in the same folder."""
    changed = dict(
        DOMAIN, ways={"slow": {"title": "slow", "commands": "sleep 60 & echo $! > pid\nwait", "encoder": "new"}}
    )
    domain.write_text(yaml.safe_dump(changed, sort_keys=False))
    words = [str(domain), "--folder", str(tmp_path / "runs"), "--results_dir", str(tmp_path / "results")]
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.run_domain", *words],
        cwd=run_domain.REPOSITORY,
        stderr=subprocess.PIPE,
        text=True,
    )
    note = tmp_path / "runs/small/slow/42/pid"
    wait_until(lambda: note.is_file() and note.read_text().strip())
    sleeper = Path("/proc") / note.read_text().strip()
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert errors == "stopped: the same command goes on\n"
    wait_until(lambda: not sleeper.exists() or "(zombie)" in (sleeper / "status").read_text())


def wait_until(happened: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)
