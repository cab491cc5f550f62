"""The table of trainings with 16-bit states beside the field's records."""

import json
import shutil
from pathlib import Path

import pytest

from experiments.tables.selection import half_states_table

RESULTS = Path(__file__).parents[1] / "results"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name in ("half-states/seed=43.json", "field/simcse/seed=43.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(RESULTS / name, tmp_path / name)
    return tmp_path


def change(path: Path, **arguments: float) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    content["arguments"] |= arguments
    path.write_text(json.dumps(content), encoding="utf-8")


def test_a_seed_has_two_rows_and_the_largest_difference_stands_above(results: Path) -> None:
    caption, head, rows = half_states_table(results)
    assert head[:3] == ["seed", "states", "25"]
    assert [row[:2] for row in rows] == [["43", "float32"], ["43", "16 bits"]]
    apart = max(abs(float(one) - float(other)) for one, other in zip(rows[0][2:], rows[1][2:], strict=True))
    assert float(caption.removesuffix(".").rpartition(" ")[2]) == pytest.approx(apart, abs=0.01)


def test_trainings_with_other_arguments_are_refused(results: Path) -> None:
    change(results / "half-states" / "seed=43.json", learning_rate=1e-5)
    with pytest.raises(ValueError, match="other arguments"):
        half_states_table(results)


def test_without_results(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no results of trainings with 16-bit states"):
        half_states_table(tmp_path)
