"""Tiny random encoders of every family, batches for them, and the papers' formulas as naive loops."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedConfig, PreTrainedTokenizerFast

from csekit.modeling import InfoCSEModel
from csekit.modeling.auxiliary_head import AuxiliaryHead, lower_layers
from csekit.trainers.batches.collator import CSECollator

VOCABULARY, HIDDEN, POSITIONS = 97, 16, 40
_SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "hidden_size": HIDDEN}
_FROM_PAD = {"max_position_embeddings": POSITIONS + 2, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": _SIZES,
    "roberta": {**_SIZES, **_FROM_PAD},
    "xlm-roberta": {**_SIZES, **_FROM_PAD},
    "distilbert": {"n_layers": 2, "n_heads": 2, "hidden_dim": 24, "dim": HIDDEN},
    "electra": {**_SIZES, "embedding_size": 8},
    "mpnet": {**_SIZES, **_FROM_PAD, "relative_attention_num_buckets": 32},
    "modernbert": {
        **_SIZES,
        "num_hidden_layers": 3,
        "local_attention": 8,
        "embedding_dropout": 0.1,
        "mlp_dropout": 0.1,
        "attention_dropout": 0.1,
        "bos_token_id": 1,
        "cls_token_id": 1,
        "eos_token_id": 2,
        "sep_token_id": 2,
    },
    "deberta-v2": {
        **_SIZES,
        "relative_attention": True,
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
    },
    "albert": {**_SIZES, "embedding_size": 8, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with an argument ``family`` runs once for each family."""
    if "family" in metafunc.fixturenames:
        metafunc.parametrize("family", list(FAMILIES))


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    """Tiny matrices lose more by threads than they gain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _encoder_config(family: str, dropout: float | None = None, **fields: Any) -> PreTrainedConfig:
    common = {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS, "pad_token_id": 0}
    config = AutoConfig.for_model(family, **{**common, "initializer_range": 0.2, **FAMILIES[family], **fields})
    for name in [name for name in vars(config) if "dropout" in name and dropout is not None]:
        if isinstance(getattr(config, name), float):
            setattr(config, name, dropout)
    return config


@pytest.fixture(scope="session")
def encoder_config() -> Callable[..., PreTrainedConfig]:
    """``encoder_config(family, dropout=None, **fields)``: a tiny configuration."""
    return _encoder_config


def _tokenizer(family: str) -> PreTrainedTokenizerFast:
    special = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    if FAMILIES[family].get("pad_token_id", 0) == 0:
        special[:2] = reversed(special[:2])
    words = ["means", '"', "."]
    words += [f"w{i}" for i in range(VOCABULARY - len(special) - len(words))]
    ids = {token: i for i, token in enumerate(special + words)}
    backend = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[(t, ids[t]) for t in special]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        unk_token="[UNK]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "attention_mask"],
    )


@pytest.fixture(scope="session")
def tokenizer_of() -> Callable[[str], PreTrainedTokenizerFast]:
    """``tokenizer_of(family)``: a word-level tokenizer of the words w0, w1, … with the family's padding id."""
    return _tokenizer


def _disturb(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.fixture(scope="session")
def disturb() -> Callable[..., Any]:
    """``disturb(model)``: add noise to every parameter, so that none has the value of an initialisation."""
    return _disturb


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``checkpoint(family, dropout=None)``: a folder with a masked LM of the family and a tokenizer."""
    folders: dict[tuple[str, float | None], Path] = {}

    def make(family: str, dropout: float | None = None) -> Path:
        if (family, dropout) not in folders:
            folder = tmp_path_factory.mktemp(family)
            torch.manual_seed(1)
            _disturb(AutoModelForMaskedLM.from_config(_encoder_config(family, dropout))).save_pretrained(folder)
            _tokenizer(family).save_pretrained(folder)
            folders[family, dropout] = folder
        return folders[family, dropout]

    return make


@pytest.fixture(scope="session")
def stage1(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``stage1(family, dropout=None, head_layers=2, **fields)``: what InfoCSE's first stage leaves, a folder with a
    masked LM, an auxiliary head over its layer k and a tokenizer."""
    folders: dict[str, Path] = {}

    def make(family: str, dropout: float | None = None, head_layers: int = 2, **fields: Any) -> Path:
        key = repr((family, dropout, head_layers, fields))
        if key not in folders:
            folders[key] = folder = tmp_path_factory.mktemp(f"stage1-{family}")
            torch.manual_seed(1)
            config = _encoder_config(family, dropout, **fields)
            _disturb(AutoModelForMaskedLM.from_config(config)).save_pretrained(folder)
            _disturb(AuxiliaryHead(config, head_layers)).save(folder, lower_layers(config))
            _tokenizer(family).save_pretrained(folder)
        return folders[key]

    return make


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., dict[str, Tensor]]:
    """``make_batch(rows, columns, length, pad=0)``: random ids of ragged length, right-padded.

    ``columns=0`` gives (B, L), else (B, C, L).
    """

    def make(rows: int, columns: int = 1, length: int = 9, pad: int = 0, seed: int = 0) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        shape = (rows, columns) if columns else (rows,)
        ids = torch.randint(8, VOCABULARY, (*shape, length), generator=generator)
        lengths = torch.randint(3, length + 1, shape, generator=generator)
        lengths.view(-1)[0] = length
        mask = (torch.arange(length) < lengths[..., None]).long()
        return {"input_ids": torch.where(mask.bool(), ids, pad), "attention_mask": mask}

    return make


@pytest.fixture(scope="session")
def masked_batch(make_batch: Callable[..., dict[str, Tensor]]) -> Callable[..., tuple[dict[str, Tensor], Tensor]]:
    """``masked_batch(rows, length, pad=0, first=True)``: a batch of pre-training with seven masked tokens, and
    the places from which they were drawn: all real ones, or without ``first`` those behind a row's first."""

    def make(rows: int, length: int, pad: int = 0, first: bool = True) -> tuple[dict[str, Tensor], Tensor]:
        plain = make_batch(rows, 0, length, pad=pad)
        places = plain["attention_mask"].flatten().nonzero().squeeze(1)
        places = places if first else places[places % length > 0]
        chosen = places[torch.randperm(len(places), generator=torch.Generator().manual_seed(3))[:7]].sort().values
        labels = plain["input_ids"].flatten()[chosen]
        ids = plain["input_ids"].flatten().index_fill(0, chosen, 4).view(rows, length)
        return {**plain, "input_ids": ids, "masked_positions": chosen, "labels": labels}, places

    return make


EDIT_TEXTS = [
    ["w1 w2 w3 w4 w5 w6", "w7 w8"],
    ["w9 w10", "w11 w12 w13 unknown w14 w15 w16 w17"],
    ["w18 w19 w20 w21 w22", "w23"],
    ["w24", "w25 w26 w27 [MASK] w28"],
    ["w29 w30 w31 w32 w33 w34 w35 w36", "w37 w38 w39 w40"],
]


@pytest.fixture(scope="session")
def batch_of() -> Callable[..., dict[str, Tensor]]:
    """``batch_of(model, family="bert")``: five pairs, so that views differ without dropout, with the copies that the
    model's objectives want; at most 12 tokens a row, a template's on top."""

    def make(model: Any, family: str = "bert") -> dict[str, Tensor]:
        templates = {
            "prompt_template": model.config.prompt_template,
            "second_template": model.config.second_prompt_template,
        }
        collator = CSECollator(_tokenizer(family), 12, model.batch_specs, **templates)
        batch = collator([{"texts": texts, "index": i, "epoch": 0} for i, texts in enumerate(EDIT_TEXTS)])
        return {name: value for name, value in batch.items() if name not in ("index", "return_loss")}

    return make


@pytest.fixture
def whole_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last layer is computed whole wherever it is read: with dropout it draws other random numbers cut short."""
    monkeypatch.setattr("csekit.modeling.fast_packing.attention_output", lambda model: None)


@pytest.fixture(scope="session")
def add_copies() -> Callable[..., dict[str, Tensor]]:
    """``add_copies(batch, views, share, name="mlm")``: the masked copies of an objective, all by mask id 4."""

    def add(
        batch: dict[str, Tensor], views: int = 2, share: float = 0.4, seed: int = 0, name: str = "mlm"
    ) -> dict[str, Tensor]:
        ids, mask = (batch[name].transpose(0, 1).flatten(0, 1) for name in ("input_ids", "attention_mask"))
        rows = batch["input_ids"].shape[0]
        if batch["input_ids"].shape[1] == 1:
            ids, mask = ids.repeat(2, 1), mask.repeat(2, 1)
        ids, mask = ids[: views * rows], mask[: views * rows]
        chosen = (torch.rand(ids.shape, generator=torch.Generator().manual_seed(seed)) < share) & mask.bool()
        positions = chosen.flatten().nonzero().squeeze(1)
        copies = {f"{name}_input_ids": ids.masked_fill(chosen, 4), f"{name}_positions": positions}
        return {**batch, **copies, f"{name}_labels": ids.flatten()[positions]}

    return add


@pytest.fixture
def infocse(stage1: Callable[..., Path]) -> Callable[..., InfoCSEModel]:
    """``infocse(**fields)``: a BERT of four layers without dropout, its head from stage 1, in training mode."""

    def build(dropout: float = 0.0, **fields: Any) -> InfoCSEModel:
        return InfoCSEModel.from_backbone(stage1("bert", dropout, num_hidden_layers=4), **fields).train()

    return build


@pytest.fixture
def batch_with(make_batch: Callable[..., Any], add_copies: Callable[..., Any]) -> Callable[..., dict[str, Tensor]]:
    """``batch_with(columns=2, views=2, pad=0)``: four rows of nine tokens with the copies of ``aux_mlm``."""

    def make(columns: int = 2, views: int = 2, pad: int = 0, **options: Any) -> dict[str, Tensor]:
        return add_copies(make_batch(4, columns, 9, pad=pad), views, name="aux_mlm", **options)

    return make


# The formulas, as loops over float64


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / ((a * a).sum().sqrt() * (b * b).sum().sqrt())


def _info_nce(
    queries: Tensor,
    keys: Tensor,
    temperature: float,
    bonus: dict[tuple[int, int], float] | None = None,
    excluded: set[tuple[int, int]] | None = None,
) -> Tensor:
    """(1/B) Σ_i −log exp(cos(q_i, k_i)/τ) / Σ_j exp(cos(q_i, k_j)/τ + bonus_ij), pairs ``excluded`` left out."""
    total = queries.new_zeros(())
    for i in range(len(queries)):
        denominator = queries.new_zeros(())
        for j in range(len(keys)):
            if j == i or (i, j) not in (excluded or set()):
                logit = _cosine(queries[i], keys[j]) / temperature + (bonus or {}).get((i, j), 0.0)
                denominator = denominator + logit.exp()
        total = total - ((_cosine(queries[i], keys[i]) / temperature).exp() / denominator).log()
    return total / len(queries)


def _squared_norm(z1: Tensor, z2: Tensor) -> Tensor:
    """(1/B) Σ_i ‖ẑ1_i − ẑ2_i‖²"""
    total = z1.new_zeros(())
    for a, b in zip(z1, z2, strict=True):
        for x, y in zip(a / (a * a).sum().sqrt(), b / (b * b).sum().sqrt(), strict=True):
            total = total + (x - y) ** 2
    return total / len(z1)


def _token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Σ_t −log softmax(logits_t)[label_t]"""
    total = logits.new_zeros(())
    for row, label in zip(logits, labels, strict=True):
        total = total - (row[label].exp() / sum(x.exp() for x in row)).log()
    return total


def _pool(pooling: str, states: tuple[Tensor, ...]) -> Tensor:
    """(L, H) states of one sentence without padding, all layers → (H,)."""
    layers = {"mean": [-1], "first_last_mean": [1, -1], "top2_mean": [-2, -1]}
    if pooling == "cls":
        return states[-1][0]
    chosen = [states[layer] for layer in layers[pooling]]
    return sum(state[t] for state in chosen for t in range(len(state))) / (len(chosen) * len(chosen[0]))


def _conditioned(encoder: Any, ids: Tensor, mask: Tensor, vector: Tensor) -> Tensor:
    """One row through BERT, the output of its embedding layer replaced at position 0."""
    states = encoder.embeddings(input_ids=ids[None])
    states = torch.cat([vector[None, None], states[:, 1:]], dim=1)
    additive = (1.0 - mask.double())[None, None, None] * -1e30
    for layer in encoder.encoder.layer:
        states = layer(states, attention_mask=additive)
        states = states if torch.is_tensor(states) else states[0]
    return states[0]


@pytest.fixture(scope="session")
def naive() -> SimpleNamespace:
    """The papers' formulas as loops."""
    return SimpleNamespace(
        cosine=_cosine,
        info_nce=_info_nce,
        squared_norm=_squared_norm,
        token_loss=_token_loss,
        pool=_pool,
        conditioned=_conditioned,
    )


@pytest.fixture
def drawn(monkeypatch) -> list[Tensor]:
    """Every result of ``torch.rand``, in order."""
    found, draw = [], torch.rand

    def rand(*size, **options):
        found.append(draw(*size, **options))
        return found[-1]

    monkeypatch.setattr(torch, "rand", rand)
    return found
