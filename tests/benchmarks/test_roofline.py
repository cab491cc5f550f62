"""The products of a step are all found, with their shapes."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from csekit.evaluation.results import read_results
from experiments.tables.render import update


def test_products_and_operations(script: Callable[[str], ModuleType]) -> None:
    module = script("roofline")
    layer, x = nn.Linear(5, 7), torch.randn(3, 5, requires_grad=True)
    heads = torch.randn(2, 4, 6, 8, requires_grad=True)

    def step() -> None:
        layer(x).sum().backward()
        nn.functional.scaled_dot_product_attention(heads, heads, heads).sum().backward()

    found = module.record(step)
    assert sum(found.values()) == 3 + 7
    assert found[((3, 5), (5, 7), torch.float32, False)] == 1
    assert module.operations(found) == 3 * 2 * 3 * 5 * 7 + 7 * 2 * 8 * 6 * 6 * 8
    module.replay(found, "cpu")()


def test_the_script(script: Callable[[str], ModuleType], masked_lm: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("the man plays guitar\na woman sings\nthe dog runs in the house\n")
    output = tmp_path / "roofline" / "tiny.json"
    files = ["--train_file", str(tmp_path / "texts.txt"), "--output", str(output)]
    setting = ["--device", "cpu", "--threads", "1", "--batch_size", "2", "--max_seq_length", "16"]
    setting += ["--repetitions", "2", "--texts", "3"]
    script("roofline").main(["--model_name_or_path", str(masked_lm), *files, *setting])
    encoder, whole, encoding = read_results(output)["rows"]
    assert encoder["share"] > 0
    assert encoder["operations"] > 0
    assert len(whole["all_seconds"]) == 2
    page = update("<!-- table:roofline/tiny -->\n<!-- end table -->\n", tmp_path)
    assert "| encoder, forward and backward |" in page and "| encoding 3 texts |" in page
    assert 0 < encoding["operations"] < encoder["operations"]


def test_products_of_an_encoding_with_packed_weights(script: Callable[[str], ModuleType]) -> None:
    module = script("roofline")
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    weight = torch.ops.mkldnn._reorder_linear_weight(torch.randn(7, 5), 64)
    x = torch.randn(2, 64, 5)
    found = module.record(lambda: torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], ""))
    assert found == {((128, 5), (5, 7), torch.float32, True): 1}
    assert module.operations(found) == 2 * 128 * 5 * 7
    module.replay(found, "cpu")()
