"""Benchmark of filled rows: what the two sides write, and the table made of it."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from csekit.evaluation.results import read_results
from csekit.modeling.fast_half import computes_bf16
from experiments.tables.render import update


@pytest.fixture
def filled_rows(script: Callable[[str], ModuleType]) -> ModuleType:
    for name in ("encode_memory", "train_step"):
        script(name)
    return script("filled_rows")


def test_points_count_kernels_and_the_summary_compares_quarters(filled_rows: ModuleType) -> None:
    made = "onednn_verbose,v1,primitive,create:cache_miss,cpu,matmul,brg_matmul,undef"
    kept = made.replace("cache_miss", "cache_hit")
    lines = [made, made, kept, "point 50 100", made, "point 100 200", "point 150 210", made, "point 200 231"]
    found = filled_rows.points(lines)
    assert [point["kernels"] for point in found] == [2, 3, 3, 4]
    row = filled_rows.summary("exact", found)
    assert row["kernels"] == 4 and row["late_kernels_a_step"] == 1 / 50
    assert row["memory"] == 231 and row["growth"] == 231 / 200


def test_both_sides_train_and_the_table_names_them(
    filled_rows: ModuleType, masked_lm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{'the dog sings ' * (1 + n % 4)}in the house" for n in range(160)]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    output = tmp_path / "benchmarks" / "kernels-tiny.json"
    argv = ["--model_name_or_path", str(masked_lm), "--train_file", str(tmp_path / "texts.txt"), "--threads", "1"]
    argv += ["--output", str(output), "--steps", "6", "--batch_size", "40", "--precision", "bf16"]
    filled_rows.main(argv)
    results = read_results(output)
    filled, exact = results["rows"]
    assert [row["name"] for row in results["rows"]] == ["filled", "exact"]
    assert all(row["points"][-1]["step"] == 6 and row["memory"] > 2**20 for row in results["rows"])
    if exact["kernels"] and computes_bf16("cpu"):  # a processor whose bfloat16 products oneDNN computes
        assert filled["kernels"] < exact["kernels"]
    page = tmp_path / "page.md"
    page.write_text("<!-- table:benchmarks/kernels-tiny -->\n<!-- end table -->\n")
    text = update(page.read_text(), tmp_path)
    assert "6 steps of SimCSE over 40 sentences" in text and "rows of every number" in text


@pytest.mark.parametrize("given", [["--device", "cuda"], ["--steps", "0"]])
def test_bad_options(
    filled_rows: ModuleType, masked_lm: Path, tmp_path: Path, given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--model_name_or_path", str(masked_lm), "--train_file", "texts.txt", "--output", str(tmp_path / "o.json")]
    with pytest.raises(SystemExit):
        filled_rows.main([*argv, *given])
    assert f"{given[0]} must be" in capsys.readouterr().err
