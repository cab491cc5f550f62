"""Weights that no gradient reaches stop a training in several processes, unless they are frozen."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModel, BertConfig

from csekit.modeling import CSEModel
from csekit.trainers.unused_weights import freeze_unused, unused_weights

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
         "vocab_size": 97, "max_position_embeddings": 64, "pad_token_id": 0}  # fmt: skip
FAMILIES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "squeezebert": ({"embedding_size": 16}, {"pooler"}),
    "layoutlm": ({"max_2d_position_embeddings": 32}, {"pooler"}),
    "longformer": ({"attention_window": [4, 4]}, {"query_global", "key_global", "value_global"}),
    "luke": (
        {"entity_vocab_size": 7, "entity_emb_size": 8},
        {"entity_embeddings", "w2e_query", "e2w_query", "e2e_query"},
    ),
}  # fmt: skip


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def two_steps(model: CSEModel) -> None:
    parallel = DistributedDataParallel(model)
    ids = torch.randint(5, 97, (4, 1, 9), generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        parallel(input_ids=ids, attention_mask=torch.ones_like(ids)).loss.backward()


@pytest.mark.parametrize("objectives", [[], ["towers"]])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_with_unused_weights_trains_in_several_processes(
    group: None, tmp_path: Path, family: str, objectives: list[str]
) -> None:
    """The second step stopped: "Expected to have finished reduction in the prior iteration"."""
    fields, parts = FAMILIES[family]
    AutoModel.from_config(AutoConfig.for_model(family, **SIZES, **fields)).save_pretrained(tmp_path)
    model = CSEModel.from_backbone(tmp_path, pooling="mean", objectives=objectives).train()
    with pytest.raises(RuntimeError, match="Expected to have finished reduction"):
        two_steps(model)
    model.zero_grad()
    unused = unused_weights(model.backbone)
    assert parts == {part for name in unused for part in parts if part in name.split(".")}
    freeze_unused(model)
    frozen = {name for name, weight in model.backbone.named_parameters() if not weight.requires_grad}
    assert frozen == unused
    assert model.backbone.training
    two_steps(model)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert all(p.grad is not None for p in trained.values())


def test_every_weight_of_bert_is_used() -> None:
    model = AutoModel.from_config(BertConfig(**SIZES), add_pooling_layer=False)
    assert unused_weights(model) == set()
    model.requires_grad_(False)
    assert unused_weights(model) == set()
