"""Run by test_distributed.py, once a process: ``distributed_worker.py RANK PORT FOLDER``.

Writes what each case gives (terms, diagnostics, gradients, buffers) to ``FOLDER/<rank>.pt``; gradients averaged over
processes, as DDP leaves them. CSEKIT_TEST_SEED and CSEKIT_TEST_BF16 set other random numbers and autocast.
"""

import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForMaskedLM

from csekit.modeling import (
    CSEConfig,
    CSEModel,
    DeletionSpec,
    InfoCSEForPreTraining,
    InfoCSEPretrainingConfig,
    MaskingSpec,
    PerturbationSpec,
    PositivesSpec,
    RTDForPreTraining,
    RTDPretrainingConfig,
    SpanSpec,
    TargetSpec,
    modeling_rtd_pretraining,
)
from csekit.modeling.distributed import gather_rows, sum_over_processes, token_mean
from csekit.modeling.fast_cache import Chunks

WORLD, B, L = 2, 4, 8  # B rows of each process
RAGGED = [(1, 2, 3, 17, 33, 41, 57), (5, 50)]
RTD = {"columns": 2, "projector": "batchnorm", "rtd_weight": 1.0, "edit_sampling": "argmax"}
EDITED = {"columns": 2, "edited_weight": 1.0, "edit_sampling": "argmax"}
NO_NOISE = {"decoder_dropout": 0.0, "element_dropout": 0.0}
CLIMB = {"noise_times": 0.7, "noise_steps": 2, "noise_step_size": 0.5}
JOINT = {**RTD, "aux_mlm_weight": 0.5, **NO_NOISE}
#: Stand-ins for templates: what the random ids begin and end with, which differs between the views.
TEMPLATES = {
    "columns": 2,
    "pooling": "mask",
    "prompt_template": "{sentence} {mask}",
    "prompt_mask_offset": -2,
    "second_prompt_template": "{mask} {sentence}",
    "subtract_template": True,
    "prompt_frames": [
        {"before": [2], "after": [4, 3], "mask_offset": -2},
        {"before": [2, 4], "after": [3], "mask_offset": 1},
    ],
}
MEMORY = {"smoothing_size": 13, "smoothing_neighbors": 4}
ATTENTION = {"name": "attention", "weight": 9.0, "first_layer": 0, "last_layer": 0, "groups": 1, "samples": 0}
CASES: dict[str, dict[str, Any]] = {
    "pairs": {"columns": 2},
    "triplets": {"columns": 3, "hard_negative_weight": 0.7},
    "symmetric": {"columns": 2, "symmetric": True},
    "mask_identical": {"columns": 2, "mask_identical": True, "symmetric": True},
    "squared_norm": {"columns": 2, "reconstruction_weight": 0.4},
    "mse": {"columns": 2, "reconstruction_weight": 4.0, "reconstruction": "mse", "projector": "linear"},
    "batchnorm": {"columns": 2, "projector": "batchnorm", "reconstruction_weight": 0.4},
    "batchnorm_triplets": {"columns": 3, "projector": "batchnorm", "pooling": "mean"},
    "mlm": {"columns": 2, "mlm_weight": 1.0, "masked": [(1, 9, 10, 37, 60), ()]},
    "mlm_ragged": {"columns": 2, "mlm_weight": 1.0, "masked": RAGGED},
    "weight_0": {"columns": 2, "icm_weight": 0.0, "projector": "linear", **NO_NOISE},
    "mlm_none": {"columns": 2, "mlm_weight": 1.0, "masked": [(), ()]},
    "aux_mlm_scaled": {"columns": 2, "aux_mlm_weight": 0.5, "projector": "batchnorm", "masked": RAGGED},
    "aux_mlm_plain": {"columns": 2, "aux_mlm_weight": 0.5, "gradient": "plain", "masked": RAGGED},
    "aux_mlm_not_detached": {"columns": 2, "aux_mlm_weight": 0.5, "detach": False, "masked": RAGGED},
    "aux_mlm_one_view": {"columns": 2, "aux_mlm_weight": 0.5, "aux_mlm_views": 1, "masked": [(1, 9, 31), (17,)]},
    "aux_mlm_alone": {"columns": 2, "aux_mlm_weight": 0.5, "contrastive_weight": 0.0, "masked": [(9,), ()]},
    "both": {"columns": 2, "aux_mlm_weight": 0.5, "mlm_weight": 0.1, "contrastive_weight": 2.0, "masked": RAGGED},
    "rtd": {**RTD, "masked": [(1, 9, 10, 37, 60), ()]},
    "rtd_ragged": {**RTD, "masked": [(1, 2, 3, 17, 33, 41, 57), (5, 50)], "condition": "h"},
    "rtd_released": {**RTD, "masked": [(1, 2, 3), (9,)], "edit_scope": "all", "rtd_positions": "all"},
    "edited_negative": {**EDITED, "masked": [(1, 2, 9, 17), (3,)], "use_edited_as": "negative"},
    "dcm": {"columns": 2, "dcm_weight": 0.8},
    "dcm_sum": {"columns": 3, "dcm_weight": 0.1, "reduction": "sum", "representation": "z", "projector": "batchnorm"},
    "dcm_alone": {"columns": 2, "dcm_weight": 0.8, "contrastive_weight": 0.0, "pooling": "mean"},
    "icm": {"columns": 2, "icm_weight": 0.5, **NO_NOISE},
    "icm_denoising": {"columns": 2, "icm_weight": 0.5, "decoder": "denoising", "icm_target": "positive", **NO_NOISE},
    "icm_z": {"columns": 2, "icm_weight": 0.5, "contrastive_weight": 0.0, "representation": "z", **NO_NOISE},
    "msse": {"columns": 2, "dcm_weight": 0.8, "icm_weight": 0.2, "decoder_layers": 2, **NO_NOISE},
    "tsdae": {"columns": 2, "tsdae_weight": 0.5},
    "chunks_tsdae": {"columns": 2, "chunks": 3, "tsdae_weight": 0.5, "tsdae_decoder": "small", "decoder_dropout": 0.0},
    "matryoshka": {"columns": 2, "matryoshka_dims": [4, 9], "matryoshka_weights": [0.5, 2.0], "dcm_weight": 0.8},
    "chunks_matryoshka": {
        "columns": 2,
        "chunks": 3,
        "matryoshka_dims": [5],
        "projector": "none",
        "queue_weight": 1.0,
        "queue_size": 9,
        "consistency_weight": 0.7,
    },
    "consistency": {"columns": 2, "consistency_weight": 0.7},
    "rank_listmle": {"columns": 2, "rank_weight": 0.5, "rank_teachers": 2, "rank_mixture": 0.3},
    "rank_listnet": {"columns": 2, "rank_weight": 0.5, "rank_loss": "listnet", "contrastive_weight": 0.0},
    "rank_shuffled": {
        "columns": 2,
        "rank_weight": 0.5,
        "rank_loss": "listnet",
        "rank_against": "first",
        "rank_shuffle": 0.3,
        "rank_teachers": 2,
    },
    "rank_mse": {
        "columns": 2,
        "rank_weight": 4.0,
        "rank_loss": "mse",
        "rank_low": -0.4,
        "rank_high": 0.6,
        "rank_teachers": 2,
        "rank_references": 7,
    },
    "distill": {
        "columns": 2,
        "distill_weight": 1.0,
        "contrastive_weight": 0.0,
        "projector": "linear",
        "projector_size": 5,
    },
    "margin": {"columns": 3, "margin_weight": 0.5, "contrastive_weight": 0.0},
    "distill_similarities": {"columns": 2, "chunks": 3, "distill_weight": 1.0, "distill_loss": "similarities"},
    "chunks_rank": {
        "columns": 2,
        "chunks": 3,
        "rank_weight": 0.5,
        "consistency_weight": 0.7,
        "projector": "batchnorm",
    },
    "guided": {"columns": 2, "guided_weight": 1.0, "guided_threshold": 0.3, "symmetric": True},
    "guided_margin": {"columns": 3, "guided_weight": 0.7, "guided_rule": "margin", "guided_teacher": 1},
    "noise": {"columns": 2, "noise_weight": 1.0, **CLIMB},
    "noise_own_seeds": {"columns": 2, "noise_weight": 1.0, **CLIMB, "noise_against": "batch", "own_seeds": True},
    "queue": {"columns": 2, "queue_weight": 1.0, "queue_size": 13, "mask_identical": True, "symmetric": True},
    "queue_batchnorm": {"columns": 2, "queue_weight": 0.5, "queue_size": 5, "projector": "batchnorm"},
    "chunks_modifiers": {
        "columns": 2,
        "chunks": 3,
        "guided_weight": 1.0,
        "guided_threshold": 0.3,
        "noise_weight": 1.0,
        **CLIMB,
        "queue_weight": 1.0,
        "queue_size": 11,
        "angular_margin": 0.3,
    },
    "angular_margin": {"columns": 3, "angular_margin": 0.5, "symmetric": True, "hard_negative_weight": 0.7},
    "triplet": {"columns": 2, "triplet_weight": 0.7, "triplet_margin": 0.3, "angular_margin": 0.17},
    "chunks_triplet": {**TEMPLATES, "chunks": 3, "triplet_weight": 0.7, "triplet_margin": 0.3},
    "perturbed": {"columns": 3, "perturb_first": "feature_cutoff+shuffle", "perturb_second": "dropout", "chunks": 3},
    "towers": {"columns": 2, "towers_weight": 0.7, "towers_negatives": 5},
    "chunks_towers": {
        "columns": 2,
        "chunks": 3,
        "towers_weight": 0.7,
        "towers_negatives": 0,
        "towers_dropout": False,
        "contrastive_weight": 0.0,
        "matryoshka_dims": [5],
    },
    "token_information": {"columns": 2, "token_information_weight": 0.7, "token_information_channels": 6},
    "chunks_token_information": {
        "columns": 2,
        "chunks": 3,
        "token_information_weight": 0.7,
        "token_information_channels": 8,
        "token_information_kernels": "1+3",
        "token_information_sentence": "h",
        "contrastive_weight": 0.0,
        "matryoshka_dims": [5],
    },
    "same_view": {"columns": 3, "same_view_negatives": True, "symmetric": True, "mask_identical": True},
    "templates": TEMPLATES,
    "chunks_templates": {
        **TEMPLATES,
        "chunks": 3,
        "projector": "batchnorm",
        "symmetric": True,
        "mask_identical": True,
        "queue_weight": 1.0,
        "queue_size": 9,
    },
    "positives": {"columns": 2, "further_positives": "shuffle+column", "mask_identical": True, "angular_margin": 0.2},
    "group": {"columns": 3, "further_positives": "shuffle", "further_positives_weight": 0.0, "group_weight": 5.0},
    "peer": {"columns": 2, "peer_weight": 3.0, "contrastive_weight": 0.0, "further_positives": "delete"},
    "chunks_peer": {**TEMPLATES, "chunks": 3, "peer_weight": 3.0, "further_positives": "delete", "queue_weight": 1.0},
    "attention": {"columns": 2, "objectives": [ATTENTION], "contrastive_weight": 0.0},
    "chunks_attention": {**TEMPLATES, "chunks": 3, "objectives": [ATTENTION], "projector": "batchnorm"},
    "smoothing": {"columns": 2, "smoothing_weight": 0.7, **MEMORY},
    "chunks_smoothing": {"columns": 2, "chunks": 3, "smoothing_weight": 0.7, **MEMORY, "projector": "batchnorm"},
    "matryoshka_smoothing": {
        "columns": 2,
        "matryoshka_dims": [4],
        "projector": "none",
        "smoothing_weight": 0.7,
        **MEMORY,
        "smoothing_ramp_steps": 4,
    },
    "halves": {"columns": 2, "further_positives": "halves+shuffle", "second_view_weight": 0.0, "contrast_dims": 5},
    "chunks_halves": {
        **TEMPLATES,
        "chunks": 3,
        "further_positives": "halves",
        "composition": "first_last",
        "projector": "batchnorm",
        "contrast_dims": 7,
        "queue_weight": 1.0,
        "queue_size": 5,
    },
    "whitening": {"columns": 2, "whitening_groups": 8, "further_positives": "shuffle+column", "symmetric": True},
    "chunks_whitening": {
        **TEMPLATES,
        "chunks": 3,
        "whitening_groups": 8,
        "projector": "batchnorm",
        "queue_weight": 1.0,
        "queue_size": 5,
    },
    "edited_positive": {**EDITED, "masked": [(1, 2, 9, 17), (3,)], "use_edited_as": "positive"},
    "chunks": {"columns": 2, "chunks": 3, "projector": "batchnorm", "symmetric": True, "mask_identical": True},
    "chunks_joint": {
        **JOINT,
        "chunks": 3,
        "dcm_weight": 0.8,
        "icm_weight": 0.5,
        "reconstruction_weight": 0.4,
        "mlm_weight": 0.1,
        "masked": RAGGED,
    },
    "chunks_edited": {**EDITED, "chunks": 3, "masked": [(1, 2, 9, 17), (3,)], "use_edited_as": "positive"},
}


def seed(number: int) -> int:
    return number + 1000 * int(os.environ.get("CSEKIT_TEST_SEED", "0"))


def joined_batch(columns: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed(1))
    ids = torch.randint(5, 60, (WORLD * B, columns, L), generator=generator)
    lengths = torch.randint(4, L + 1, (WORLD * B, columns, 1), generator=generator)
    ids[5, :] = ids[2, :]  # the same text on two processes, as query and as positive
    ids[6, 0] = ids[1, 0]  # the same query with another positive
    lengths[5], lengths[6, 0] = lengths[2], lengths[1, 0]
    names = [f"teacher_{place}{column}" for column in ("", "_1", "_2") for place in (0, 1)]
    teachers = {name: torch.randn(WORLD * B, 5, generator=generator) for name in names}
    if columns == 3:  # margins of a cross-encoder
        teachers["teacher_0"] = teachers["teacher_0"][:, :1]
    return {"input_ids": ids, "attention_mask": (torch.arange(L) < lengths).long(), **teachers}


def further_positives(batch: dict[str, Tensor], texts: int) -> dict[str, Tensor]:
    """``texts`` times the first column, some ids changed, others in the first block than in the rest."""
    ids, mask = (batch[key][:, 0].repeat(texts, 1) for key in ("input_ids", "attention_mask"))
    later = (torch.arange(len(ids)) >= len(batch["input_ids"]))[:, None]
    return {"input_ids": torch.where((ids % 7 == 0) | (later & (ids % 5 == 0)), 9, ids), "attention_mask": mask}


def simple_copies(spec: MaskingSpec, batch: dict[str, Tensor]) -> dict[str, Tensor] | None:
    """The copies that follow from each row alone; None for those of masked tokens."""
    first = [batch[key][:, 0] for key in ("input_ids", "attention_mask")]
    if isinstance(spec, SpanSpec):
        short, long = (first[0].index_fill(1, torch.arange(2, stop), 4) for stop in (3, 5))
        return {"input_ids": torch.cat([short, long])}
    if isinstance(spec, PositivesSpec):
        return further_positives(batch, sum(spec.texts))
    if isinstance(spec, PerturbationSpec):
        ids = batch["input_ids"][:, :2].transpose(0, 1).flatten(0, 1)
        order = torch.stack([torch.arange(L).roll(int(row.sum()) % 2) for row in ids])
        features = (ids.sum(1, keepdim=True) + torch.arange(16)) % 5 > 0
        elements = (ids[:, :, None] + torch.arange(16)) % 3 > 0
        return {"order": order, "tokens": ids % 7 != 0, "features": features, "elements": elements}
    if isinstance(spec, DeletionSpec | TargetSpec):
        view = spec.view if isinstance(spec, TargetSpec) else 0
        ids, mask = (batch[key][:, view] for key in ("input_ids", "attention_mask"))
        chosen = (mask * (torch.arange(L) > 0)).flatten().nonzero().squeeze(1)
        kept = slice(L) if isinstance(spec, TargetSpec) else slice(L - 3)
        values = {"input_ids": ids[:, kept], "attention_mask": mask[:, kept]}
        return values | {"positions": chosen, "labels": ids.flatten()[chosen]}
    return None


def batch_of(
    rank: int | None, columns: int, masked: list[tuple[int, ...]] | None, specs: dict[str, MaskingSpec]
) -> dict[str, Tensor]:
    """The rows of one process, or all, with what objectives ask for. ``masked`` are positions in the flattened copies
    (2·B·L) of each process; of ``edited`` those in the first view; a target has all its tokens but the first."""
    full = joined_batch(columns)
    ranks = range(WORLD) if rank is None else [rank]
    rows = torch.cat([torch.arange(r * B, (r + 1) * B) for r in ranks])
    batch = {name: value[rows] for name, value in full.items()}
    for name, spec in specs.items():
        count = spec.views
        if (values := simple_copies(spec, batch)) is not None:
            batch |= {f"{name}_{key}": value for key, value in values.items()}
            continue
        ids = batch["input_ids"][:, :count].transpose(0, 1).flatten(0, 1)
        positions = []
        for r in ranks:
            for position in (masked or [()] * WORLD)[r]:
                view, rest = divmod(position, B * L)
                positions.append(view * len(rows) * L + (r * B * L if rank is None else 0) + rest)
        chosen = torch.tensor(sorted(positions), dtype=torch.int64)
        copies = ids.flatten().index_fill(0, chosen, 4).view_as(ids)
        labels = ids.flatten()[chosen]
        mask = batch["attention_mask"][:, :count].transpose(0, 1).flatten(0, 1)
        own = (mask * (torch.arange(L) > 0)).flatten().nonzero().squeeze(1)
        values = {"input_ids": copies, "attention_mask": mask, "originals": ids}
        values |= {"positions": chosen, "labels": labels, "own": own, "scored": own}
        batch |= {f"{name}_{key}": value for key, value in values.items()}
    return batch


def encoder_config() -> BertConfig:
    return BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
        initializer_range=0.2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def write_generator(folder: Path) -> None:
    torch.manual_seed(11)
    BertForMaskedLM(encoder_config()).save_pretrained(folder)


def objective_references(objective: Any) -> None:
    """Set the vectors that a trainer would: of each teacher for each reference."""
    generator = torch.Generator().manual_seed(seed(3))
    rows = [torch.randn(objective.references, 5, generator=generator) for _ in range(objective.teachers)]
    objective.set_references(rows)


def run(
    rank: int | None,
    generator: Path,
    columns: int,
    masked: Any = None,
    chunks: int = 0,
    own_seeds: bool = False,
    **fields: Any,
) -> dict[str, Any]:
    """Two steps of one case, on the rows of one process or (None) on all, without DDP and without chunks.

    With ``own_seeds`` each process draws other random numbers, as after batches of different lengths."""
    encoder, bf16 = encoder_config(), os.environ.get("CSEKIT_TEST_BF16") == "1"
    torch.manual_seed(seed(7))
    model = CSEModel(CSEConfig(encoder_config=encoder, **{"temperature": 0.2, **fields})).train()
    for objective in model.config.objectives:
        if hasattr(objective, "generator"):
            objective.generator = str(generator)
        objective_references(model.objectives[objective.name])
    model.load_frozen()
    model.chunks = Chunks(0 if rank is None else chunks)
    module = model if rank is None else DistributedDataParallel(model, find_unused_parameters=False)
    batch = batch_of(rank, columns, masked, model.batch_specs)
    if own_seeds:
        torch.manual_seed(seed(20) + (rank or 0))
    for _ in range(2):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            output = module(**batch)
        output.loss.backward()
    return {
        "loss_dict": output.loss_dict,
        "metrics": output.metrics,
        "gradients": {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad},
        "buffers": {name: value for name, value in model.named_buffers() if name.startswith(("proj", "objectives."))},
    }


def pretrain(rank: int | None, objective: str = "condenser") -> dict[str, Any]:
    """One step of pre-training on a process's rows, with five masked tokens on the first process and two on the
    second. A generator takes its likeliest tokens."""
    encoder = BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
        initializer_range=0.2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(7)
    stage1 = objective == "condenser"
    model: Any = InfoCSEForPreTraining(InfoCSEPretrainingConfig(encoder_config=encoder)) if stage1 else None
    model = (model or RTDForPreTraining(RTDPretrainingConfig(encoder_config=encoder))).train()
    module = model if rank is None else DistributedDataParallel(model, find_unused_parameters=False)
    ids = torch.randint(5, 60, (WORLD * B, L), generator=torch.Generator().manual_seed(1))
    masked = [torch.tensor([1, 9, 10, 20, 31]), torch.tensor([3, 30])]
    if rank is None:
        positions = torch.cat([masked[r] + r * B * L for r in range(WORLD)])
    else:
        ids, positions = ids[rank * B : rank * B + B], masked[rank]
    labels = ids.flatten()[positions]
    scored = () if stage1 else (torch.arange(ids.numel())[torch.arange(ids.numel()) % L > 0],)
    with mock.patch.object(modeling_rtd_pretraining, "draw", lambda logits: logits.argmax(-1)):
        output = module(ids.flatten().index_fill(0, positions, 4).view_as(ids), None, positions, labels, *scored)
    output.loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"loss_dict": output.loss_dict, "metrics": output.metrics, "gradients": gradients}


def collectives(rank: int) -> dict[str, Tensor]:
    """Gradients of a scalar of each process, whose mean over processes is the loss."""
    rows = torch.arange(6.0).view(3, 2).add(10 * rank).requires_grad_()
    weights = torch.arange(12.0).view(6, 2) * (rank + 1)
    gathered = gather_rows(rows)
    (gathered * weights).sum().backward()
    value = torch.tensor([1.0, 2.0]).add(rank).requires_grad_()
    total = sum_over_processes(value)
    (total.square() * (rank + 1)).sum().backward()
    part = torch.tensor(3.0 + rank, requires_grad=True)
    mean = token_mean(part * 2, [5, 0][rank])
    mean.backward()
    return {
        "gathered": gathered.detach(),
        "gather_gradient": rows.grad,
        "sum": total.detach(),
        "sum_gradient": value.grad,
        "mean": mean.detach(),
        "mean_gradient": part.grad,
    }


def main(rank: int, port: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    results: dict[str, Any] = {"collectives": collectives(rank)}
    for name, case in CASES.items():
        results[name] = run(rank, Path(folder) / "generator", **case)
    results |= {"pretrain": pretrain(rank), "pretrain_rtd": pretrain(rank, "rtd")}
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
