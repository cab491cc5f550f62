"""Faster linear layers give what the model gives, family by family, and leave the model as it was."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    AlbertConfig,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    MPNetConfig,
    RobertaConfig,
)
from transformers import AutoModel as Auto
from transformers.activations import GELUActivation

from csekit.encoding import chunks, fast_cpu
from csekit.encoding.chunks import evaluating
from csekit.encoding.encoder import TextEncoder
from csekit.encoding.fast_cpu import fast_inference
from csekit.encoding.pooled import PooledBackbone
from csekit.modeling.fast_attention import fill_keys
from csekit.modeling.fast_half import tell_float32

GELUS = (GELUActivation, nn.GELU)
SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 64, "max_position_embeddings": 40}
FAMILIES: dict[str, Callable[[], Any]] = {
    "bert": lambda: BertConfig(**SIZES),
    "bert-tanh-gelu": lambda: BertConfig(**SIZES, hidden_act="gelu_new"),
    "roberta": lambda: RobertaConfig(**SIZES),
    "distilbert": lambda: DistilBertConfig(
        vocab_size=60, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=40
    ),
    "electra": lambda: ElectraConfig(**SIZES, embedding_size=16),
    "albert": lambda: AlbertConfig(**SIZES, embedding_size=16),
    "mpnet": lambda: MPNetConfig(**SIZES),
    "deberta": lambda: DebertaV2Config(**SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "modernbert": lambda: ModernBertConfig(**SIZES, pad_token_id=0, local_attention=4),
}


@pytest.fixture(autouse=True)
def small_batches_count_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_cpu, "FILLED", 1)


def build(family: str) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return PooledBackbone(Auto.from_config(FAMILIES[family]()), "mean")


def batch() -> dict[str, torch.Tensor]:
    ids = torch.arange(36).view(3, 12) % 50 + 5
    mask = (torch.arange(12) < torch.tensor([[12], [7], [3]])).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def embed(model: Any) -> torch.Tensor:
    with evaluating(model):
        return model(**batch()).sentence_embedding.float()


def replaced(model: nn.Module, *kinds: type[nn.Module]) -> int:
    """Count the modules of these classes whose ``forward`` is replaced during fast inference."""
    with fast_inference(model):
        return sum(type(module) in kinds and "forward" in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_is_the_model_to_rounding_and_the_others_are_near(family: str, bf16_computed: None) -> None:
    model = build(family)
    plain = embed(model)
    linears = sum(type(module) is nn.Linear for module in model.modules())
    assert replaced(model, nn.Linear) == linears
    with fast_inference(model):
        fast = embed(model)
    torch.testing.assert_close(fast, plain, atol=1e-5, rtol=1e-5)
    assert torch.equal(embed(model), plain)
    for precision, least in (("bf16", 0.999), ("int8", 0.99)):
        with fast_inference(model, precision):
            near = embed(model)
        assert not torch.equal(near, plain)
        assert torch.cosine_similarity(near, plain).min() > least, precision
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_a_processor_without_bf16_products_computes_float32(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: bf16 was up to 50 times slower than float32 there. With the fast paths off it is as torch has it."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    tell_float32.cache_clear()
    model = build("bert")
    with fast_inference(model):
        expected = embed(model)
    for _ in range(2):
        with fast_inference(model, "bf16"):
            assert torch.equal(embed(model), expected)
    assert caplog.text.count("precision bf16: this processor") == 1
    monkeypatch.setenv("CSEKIT_FAST", "0")
    with fast_inference(model, "bf16"):
        assert not torch.allclose(embed(model), expected, atol=1e-5)


@pytest.mark.parametrize("tiles", [True, False])
def test_int8_of_both_libraries(monkeypatch: pytest.MonkeyPatch, tiles: bool) -> None:
    """oneDNN's where the processor has tiles, else torch's default; the setting of the process stays."""
    engines: Any = torch.backends.quantized
    if "onednn" not in engines.supported_engines:
        pytest.skip("this build of torch has no oneDNN")
    prepack, seen, before = torch.ops.quantized.linear_prepack, [], engines.engine
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles, raising=False)
    monkeypatch.setattr(
        torch.ops.quantized, "linear_prepack", lambda *given: seen.append(engines.engine) or prepack(*given)
    )
    for family in ("bert", "bert-tanh-gelu"):
        model = build(family)
        plain = embed(model)
        with fast_inference(model, "int8"):
            near = embed(model)
        assert not torch.equal(near, plain)
        assert torch.cosine_similarity(near, plain).min() > 0.99
    assert set(seen) == {"onednn" if tiles else before}
    assert engines.engine == before


def test_gelu_is_fused_where_it_stands_behind_one_linear_layer() -> None:
    assert replaced(build("bert"), *GELUS) == 2
    assert replaced(build("distilbert"), *GELUS) == 2
    assert replaced(build("albert"), *GELUS) <= 1
    assert replaced(build("modernbert"), *GELUS) == 0  # the activation gets half of its layer's output
    assert replaced(build("bert-tanh-gelu"), *GELUS) == 0  # written out in Python


class Odd(nn.Module):
    """The activation stands before the layer, not behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(4, 4), nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.act(x))


def test_a_gelu_elsewhere_is_left_alone() -> None:
    shared = nn.GELU()
    assert replaced(Odd(), *GELUS) == 0
    two = nn.Sequential(nn.Sequential(nn.Linear(4, 4), shared), nn.Sequential(nn.Linear(4, 4), shared))
    assert replaced(two, *GELUS) == 0
    right = nn.Sequential(nn.Linear(4, 4), nn.GELU(approximate="tanh"))
    x = torch.linspace(-1, 1, 8).view(2, 4)
    with torch.no_grad():
        plain = right(x)
        with fast_inference(right):
            torch.testing.assert_close(right(x), plain, atol=1e-6, rtol=1e-5)


def test_new_weights_are_seen_and_an_error_leaves_nothing_behind() -> None:
    model = build("bert")
    with fast_inference(model):
        before = embed(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    with pytest.raises(ZeroDivisionError), fast_inference(model):
        assert not torch.allclose(embed(model), before, atol=1e-3)
        raise ZeroDivisionError
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_attention_fills_its_keys_inside_and_is_the_model_s_own_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[int] = []

    def fill(key: torch.Tensor, value: torch.Tensor, mask: Any) -> Any:
        filled.append(key.shape[2])
        return fill_keys(key, value, mask)

    monkeypatch.setattr("csekit.modeling.fast_packing.fill_keys", fill)
    model = build("bert")
    plain = embed(model)
    assert filled == []
    with pytest.raises(ZeroDivisionError), fast_inference(model):
        torch.testing.assert_close(embed(model), plain, atol=1e-5, rtol=1e-5)
        assert filled == [12, 12]  # one in each layer
        raise ZeroDivisionError
    assert model.backbone.config._attn_implementation == "sdpa"
    eager = PooledBackbone(Auto.from_config(FAMILIES["bert"](), attn_implementation="eager"), "mean")
    with fast_inference(eager):
        embed(eager)
        assert eager.backbone.config._attn_implementation == "eager"
    assert len(filled) == 2


def test_a_forward_of_somebody_else_stays() -> None:
    model = build("bert")
    linear = model.backbone.encoder.layer[0].output.dense
    plain = linear.forward
    linear.forward = lambda x: plain(x) + 1.0
    hooked = embed(model)
    with fast_inference(model):
        torch.testing.assert_close(embed(model), hooked, atol=1e-5, rtol=1e-5)
    assert "forward" in linear.__dict__


def test_hooks_still_run() -> None:
    model, seen = build("bert"), []
    model.backbone.encoder.layer[0].output.dense.register_forward_hook(lambda *_: seen.append(1))
    with fast_inference(model):
        embed(model)
    assert seen == [1]


def test_few_rows_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel for every number of rows stays in memory."""
    model, kernels = build("bert"), []
    plain = embed(model)
    packed = fast_cpu._packed

    def remember(*arguments: Any) -> Any:
        forward = packed(*arguments)
        return lambda x: (kernels.append(x.numel() // x.shape[-1]), forward(x))[1]

    monkeypatch.setattr(fast_cpu, "_packed", remember)
    for least, expected in ((36, {2, 36}), (37, {2})):  # two rows are the probe's
        monkeypatch.setattr(fast_cpu, "FILLED", least)
        kernels.clear()
        with fast_inference(model):
            torch.testing.assert_close(embed(model), plain, atol=1e-5, rtol=1e-4)
        assert set(kernels) == expected


def test_the_encoder_takes_the_fast_way_for_many_tokens(monkeypatch: Any, tiny_bert: Any, tiny_tokenizer: Any) -> None:
    encoder = TextEncoder(PooledBackbone(tiny_bert, "mean"), tiny_tokenizer)
    texts = ["the man plays", "a dog runs fast", "cat"]
    plain = encoder.encode(texts)
    entered: list[str] = []

    def remember(model: Any, precision: str) -> Any:
        entered.append(precision)
        return fast_inference(model, precision)

    monkeypatch.setattr(chunks, "fast_inference", remember)
    encoder.encode(texts)
    assert not entered
    monkeypatch.setattr(chunks, "FEW_TOKENS", 0)
    np.testing.assert_allclose(encoder.encode(texts), plain, atol=1e-5)
    encoder.precision = "int8"
    rough = encoder.encode(texts)
    assert entered == ["fp32", "int8"] and 0 < abs(rough - plain).max() < 0.2
    assert encoder.describe()["precision"] == "int8"


def test_bad_precision() -> None:
    with (
        pytest.raises(ValueError, match="precision must be one of 'fp32', 'bf16', 'int8', got 'fp8'"),
        fast_inference(nn.Linear(2, 2), "fp8"),
    ):
        pass
    with (
        pytest.raises(ValueError, match="'int8' is for CPU only, the model is on meta"),
        fast_inference(nn.Linear(2, 2, device="meta"), "int8"),
    ):
        pass


@pytest.mark.parametrize(
    ("precision", "dtype", "allowed"),
    [
        ("bf16", torch.float16, "bfloat16 or float32"),
        ("int8", torch.float16, "float32"),
        ("int8", torch.bfloat16, "float32"),
    ],
)
def test_weights_in_16_bits(tiny_tokenizer: Any, precision: str, dtype: torch.dtype, allowed: str) -> None:
    """Regression: float16 weights in bf16 ended in torch's "mixed dtype", and int8 computed no product in 8 bits."""
    model, name = build("bert").to(dtype), str(dtype).removeprefix("torch.")
    message = f"precision '{precision}' needs weights in {allowed} on CPU, got {name}: use 'fp32'"
    encoder = TextEncoder(model, tiny_tokenizer, precision=precision)
    with pytest.raises(ValueError, match=message):
        encoder.encode(["the man", "cat"])
    with pytest.raises(ValueError, match=message), fast_inference(model, precision):
        pass
    encoder.precision = "fp32"
    assert encoder.encode(["the man", "cat"]).dtype == np.float32
