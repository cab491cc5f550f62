"""The table of targets: what counts as met, and which files it reads."""

from pathlib import Path

import pytest

from csekit.evaluation.results import write_results
from experiments.tables.render import render
from experiments.tables.targets import TARGETS, targets_table

AMX = {"cpu": {"amx": True, "capability": "AVX512"}}
AVX2 = {"cpu": {"amx": False, "capability": "AVX2"}}


def _peers(path: Path, ratio: float, environment: dict[str, object]) -> None:
    methods = [{"name": "st-bf16", "time_ratio": ratio}]
    write_results(
        path, {"format": 1, "environment": environment, "methods": methods, "run": {"backbone": "mini-wiki"}}
    )


def _run(path: Path, memory_ratio: float, **run: object) -> None:
    rows = [{"name": "csekit", "growth": 1.034}, {"name": "sentence-transformers", "memory_ratio": memory_ratio}]
    run = {"precision": "fp32", "max_steps": 100, **run}
    write_results(path, {"format": 1, "environment": AVX2, "rows": rows, "run": run})


@pytest.mark.parametrize(("vendor", "kind"), [("AuthenticAMD", "AVX-512 of AMD"), ("GenuineIntel", "AVX-512")])
def test_amds_processors_with_avx_512_are_a_kind_of_their_own(tmp_path: Path, vendor: str, kind: str) -> None:
    """Their bfloat16 products are twice as fast as float32's, Intel's without matrix units are not."""
    cpu = {"amx": False, "capability": "AVX512", "vendor": vendor}
    _peers(tmp_path / "peers/mini-wiki-cpu.json", 2.5, {"cpu": cpu})
    assert targets_table(tmp_path)[2][0][2] == f"**2.50\N{NO-BREAK SPACE}×** ({kind})"


def test_a_target_is_met_as_it_is_shown(tmp_path: Path) -> None:
    _peers(tmp_path / "peers/mini-wiki-cpu.json", 1.996, AMX)
    _peers(tmp_path / "peers/mini-wiki-cpu-avx2.json", 1.99, AVX2)
    _, head, (row, *others) = targets_table(tmp_path)
    assert head == ["", "target", "mini-wiki", "minilm-wiki"]
    assert row[1:] == [
        "at least 2.00\N{NO-BREAK SPACE}×",
        "1.99\N{NO-BREAK SPACE}× (AVX2); **2.00\N{NO-BREAK SPACE}×** (AMX)",
        "–",
    ]
    assert len(others) == len(TARGETS) - 1 and all(cells[2:] == ["–", "–"] for cells in others)


def test_memory_is_that_of_plain_runs_and_growth_that_of_long_ones(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks"
    _run(folder / "runs-mini-wiki-cpu-fp32.json", 1.26)
    _run(folder / "runs-mini-wiki-250k-cpu-fp32.json", 9.0, vocabulary=250_002)
    _run(folder / "runs-mini-wiki-tunable-cpu-fp32.json", 9.0, also_with=["A=1"])
    _run(folder / "runs-minilm-wiki-mlm-cpu-fp32.json", 9.0, task="mlm")
    _run(folder / "runs-minilm-wiki-cpu-fp32.json", 1.2, max_steps=2000)
    rows = {row[0]: row[2:] for row in targets_table(tmp_path)[2]}
    space = "\N{NO-BREAK SPACE}"
    memory, growth = rows["peak memory of a run, beside sentence-transformers'"], rows[TARGETS[6].title]
    assert memory == [f"**0.79{space}×** (fp32, AVX2)", f"0.83{space}× (fp32, AVX2)"]
    assert growth == ["–", f"**1.03{space}×** (fp32, AVX2)"]


def test_the_projects_own_results_fill_every_row() -> None:
    rows = targets_table(Path(__file__).parents[1] / "results")[2]
    assert all(row[2] != "–" or row[3] != "–" for row in rows)


@pytest.mark.parametrize("share", [0.0404, 0.0406])
def test_shares_are_percent(tmp_path: Path, share: float) -> None:
    rows = {"dev_bf16": {"steps": 125 * share / (1 - share)}}
    path = tmp_path / "benchmarks/selection-mini-wiki-cpu-bf16.json"
    write_results(path, {"format": 1, "environment": {}, "rows": rows, "run": {"backbone": "mini-wiki"}})
    mark = "**" if share < 0.0405 else ""
    assert f"| {mark}4.{'0' if mark else '1'}\N{NO-BREAK SPACE}%{mark} | – |" in render("targets", tmp_path)
