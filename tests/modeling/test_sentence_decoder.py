"""The small decoder: on CPU it computes real tokens alone, and gives what padded rows give."""

import pytest
import torch
from transformers import BertConfig

from csekit.modeling import sentence_decoder
from csekit.modeling.sentence_decoder import SentenceDecoder

CONFIG = BertConfig(hidden_size=8, num_attention_heads=2, vocab_size=30)
MASKS = {
    "right": [[1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]],
    "left": [[1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1], [0, 0, 0, 1, 1, 1]],
    "none": [[1, 1, 1, 1, 1, 1]] * 3,
}


def build(causal: bool) -> SentenceDecoder:
    torch.manual_seed(0)
    decoder = SentenceDecoder(CONFIG, causal=causal, layers=2, heads=2, dropout=0.0, element_dropout=0.0)
    for parameter in decoder.parameters():
        parameter.data.add_(0.3 * torch.randn(parameter.shape))
    return decoder


def run(causal, mask, repeated, dtype=torch.float64):
    """States of real tokens, and the gradients of all weights, the words apart, and of the vectors."""
    decoder = build(causal).to(dtype)
    ids = torch.randint(0, 30, mask.shape, generator=torch.Generator().manual_seed(1)).repeat(repeated, 1)
    mask = mask.repeat(repeated, 1)
    vectors = torch.randn(len(mask), 8, generator=torch.Generator().manual_seed(2), dtype=dtype).requires_grad_()
    words = torch.randn(30, 8, generator=torch.Generator().manual_seed(3), dtype=dtype)
    real = decoder(decoder.queries(ids, words), vectors, mask)[mask.bool()]
    (real * torch.linspace(-1, 1, real.numel(), dtype=dtype).view_as(real)).sum().backward()
    grads = {name: weight.grad for name, weight in decoder.named_parameters() if weight.grad is not None}
    return real.detach(), {**grads, "vectors": vectors.grad}


@pytest.mark.parametrize("repeated", [1, 25], ids=["few", "filled up"])
@pytest.mark.parametrize(
    ("causal", "side"),
    [(False, "right"), (False, "left"), (False, "none"), (True, "right"), (True, "none")],  # the collator pads right
)
def test_packed_rows_give_the_states_and_gradients_of_padded_ones(causal, side, repeated, monkeypatch):
    found = {}
    for switch in ("0", "1"):
        monkeypatch.setenv("CSEKIT_FAST", switch)
        found[switch] = run(causal, torch.tensor(MASKS[side]), repeated)
    torch.testing.assert_close(found["1"], found["0"])


@pytest.mark.parametrize("fast", ["0", "1"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_sentence_has_the_states_that_it_has_alone(causal, fast, monkeypatch):
    monkeypatch.setenv("CSEKIT_FAST", fast)
    decoder, words = build(causal), torch.randn(30, 8)
    ids, vectors, mask = torch.randint(0, 30, (3, 6)), torch.randn(3, 8), torch.tensor(MASKS["right"])
    together = decoder(decoder.queries(ids, words), vectors, mask)
    for row, count in enumerate(mask.sum(1).tolist()):
        own = slice(row, row + 1)
        alone = decoder(decoder.queries(ids[own, :count], words), vectors[own], mask[own, :count])
        torch.testing.assert_close(together[row, :count], alone[0])


def test_in_16_bits_training_takes_no_attention_that_is_slow_backwards():
    """Torch's kernel took the largest part of the decoder's time in bf16."""
    decoder, words, mask = build(True), torch.randn(30, 8), torch.tensor(MASKS["right"])
    ids, vectors = torch.randint(0, 30, (3, 6)), torch.randn(3, 8, requires_grad=True)
    sizes = []
    decoder.layers[0].feed_forward.register_forward_hook(lambda _, given, __: sizes.append(given[0].shape))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with torch.autocast("cpu", torch.bfloat16):
            states = decoder(decoder.queries(ids, words), vectors, mask)
        states.float().sum().backward()
    assert not [event.key for event in profile.key_averages() if "flash_attention" in event.key]
    assert sizes == [(10, 8)]
    assert sentence_decoder.PackedSentences(mask, True).sentence_T.tolist() == [0] * 6 + [1] + [2] * 3
