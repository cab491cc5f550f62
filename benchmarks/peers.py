"""Training steps to compare csekit's with: sentence-transformers' recipe, and naive forms of InfoCSE and DiffCSE.

The naive forms train the same networks as csekit's, with the costs of the released research code: padded batches,
logits of the whole vocabulary at every position, generated tokens at every position, values read from the device at
every step.

Shape suffixes: N rows, L tokens, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from csekit.modeling import METHODS, CSEModel, DiffCSEModel, InfoCSEModel
from csekit.modeling.auxiliary_head import AuxiliaryHead
from csekit.modeling.fast_dropout import LanesDropout
from csekit.trainers import CSECollator

LEARNING_RATE, MAX_GRAD_NORM, SEED, TEMPERATURE = 3e-5, 1.0, 42, 0.05


def to_device(value: Any, device: str) -> Any:
    return value.to(device) if torch.is_tensor(value) else value


def optimizer_step(
    parameters: list[nn.Parameter], loss_of: Callable[[list[dict[str, Any]]], Tensor], setting: Any
) -> Callable[[list[dict[str, Any]]], None]:
    """Return an optimiser step: forward, backward, clipping, AdamW."""
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)

    def step(rows: list[dict[str, Any]]) -> None:
        with torch.autocast(setting.device, torch.bfloat16, enabled=setting.precision == "bf16"):
            loss = loss_of(rows)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()

    return step


def sentence_transformers_step(setting: Any) -> Callable[[list[dict[str, Any]]], None]:
    """Build SimCSE as sentence-transformers documents it: MultipleNegativesRankingLoss, each sentence with itself."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.models import Pooling, Transformer

    whole = {"dtype": torch.float32}  # also of a checkpoint in 16 bits, which it would train as it is
    encoder = Transformer(setting.backbone, max_seq_length=setting.max_seq_length, model_kwargs=whole)
    pooling = Pooling(AutoConfig.from_pretrained(setting.backbone).hidden_size, pooling_mode="cls")
    model = SentenceTransformer(modules=[encoder, pooling], device=setting.device).train()
    loss = MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)
    tokenize = model.preprocess if hasattr(model, "preprocess") else model.tokenize  # the name before ST 6

    def loss_of(rows: list[dict[str, Any]]) -> Tensor:
        texts = [row["texts"][0] for row in rows]
        columns = [tokenize(texts) for _ in range(2)]
        labels = torch.zeros(len(texts), device=setting.device)
        return loss([{n: to_device(v, setting.device) for n, v in column.items()} for column in columns], labels)

    return optimizer_step([p for p in model.parameters() if p.requires_grad], loss_of, setting)


def undo_speed(model: nn.Module) -> None:
    """Restore padded batches and PyTorch's own dropout."""
    for module in list(model.modules()):
        if hasattr(module, "set_attn_implementation"):
            module.set_attn_implementation("sdpa")
        for name, child in list(module.named_children()):
            if type(child) is LanesDropout:
                setattr(module, name, nn.Dropout(child.p).train(child.training))


def contrast(z: Tensor) -> Tensor:
    """SimCSE's loss of two views, view-major."""
    first, second = F.normalize(z.float(), dim=-1).chunk(2)
    return F.cross_entropy(first @ second.T / TEMPERATURE, torch.arange(len(first), device=z.device))


def encode_views(model: CSEModel, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Encode each sentence twice: [CLS] of the last layer (2N, H), its projection, and the mask."""
    ids, mask = (batch[name].squeeze(1).repeat(2, 1) for name in ("input_ids", "attention_mask"))
    h = model.backbone(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
    return h, model.projector(h), mask


def naive_infocse_loss(model: InfoCSEModel, batch: dict[str, Tensor]) -> Tensor:
    """InfoCSE's loss with the head's logits at every position; the loss ignores positions that are not masked."""
    objective: Any = model.objectives["aux_mlm"]
    h, z, mask = encode_views(model, batch)
    ids = batch["aux_mlm_input_ids"]
    with torch.no_grad():
        lower = objective.lower.model(input_ids=ids, attention_mask=mask).last_hidden_state
    mixed = torch.cat([h.unsqueeze(1).to(lower.dtype), lower[:, 1:]], dim=1)
    head: AuxiliaryHead = objective.head
    states = head.model(inputs_embeds=mixed, attention_mask=mask).last_hidden_state
    logits = objective.lm_head.logits(states.flatten(0, 1))
    labels = torch.full_like(ids, -100).flatten().index_copy(0, batch["aux_mlm_positions"], batch["aux_mlm_labels"])
    own, auxiliary = contrast(z), F.cross_entropy(logits.float(), labels)
    for value in (own, auxiliary):
        value.item()
    return own + objective.config.weight * auxiliary


def naive_diffcse_loss(model: DiffCSEModel, generator: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """DiffCSE's loss with the generator's likeliest token at every position, from the logits of all positions."""
    objective: Any = model.objectives["rtd"]
    _, z, _ = encode_views(model, batch)
    masked, mask, original = (batch[f"rtd_{key}"] for key in ("input_ids", "attention_mask", "originals"))
    own = torch.zeros_like(masked, dtype=torch.bool).flatten().index_fill(0, batch["rtd_own"], True).view_as(masked)
    with torch.no_grad():
        filled = generator(input_ids=masked, attention_mask=mask).logits.argmax(-1)
    edited = torch.where(own, filled, original.where(mask.bool(), masked))
    labels = ((edited != original) & own).long()
    states = objective.discriminator(edited, mask, z).unflatten(0, edited.shape)
    logits = objective.head(states).float()
    right = ((logits.argmax(-1) == labels) & own).sum().item() / own.sum().item()
    both = contrast(z), F.cross_entropy(logits[own], labels[own])
    assert right <= 1 and all(value.item() >= 0 for value in both)
    return both[0] + objective.config.weight * both[1]


def naive_step(setting: Any, method: str, fields: dict[str, Any]) -> Callable[[list[dict[str, Any]]], None]:
    """Build the naive step of ``infocse`` or ``diffcse``."""
    model = METHODS[method].from_backbone(setting.backbone, **fields).to(setting.device).train()
    undo_speed(model)
    collator = CSECollator(
        AutoTokenizer.from_pretrained(setting.backbone), setting.max_seq_length, model.batch_specs, SEED
    )
    generator = None
    if method == "diffcse":
        generator = AutoModelForMaskedLM.from_pretrained(setting.backbone, dtype=torch.float32)
        generator.to(setting.device).train()

    def loss_of(rows: list[dict[str, Any]]) -> Tensor:
        batch = {name: to_device(value, setting.device) for name, value in collator(rows).items()}
        if generator is None:
            return naive_infocse_loss(model, batch)
        return naive_diffcse_loss(model, generator, batch)

    return optimizer_step([p for p in model.parameters() if p.requires_grad], loss_of, setting)
