"""Refuse a training that cannot fit into memory, before it starts."""

import psutil
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from csekit.modeling import CSEModel
from csekit.modeling.layer_memory import CONTROL_GROUP, group_bytes
from csekit.trainers.arguments import CSETrainingArguments
from csekit.trainers.data.corpora import Corpus

#: Numbers that a layer keeps for the backward pass, in hidden sizes per token. A layer of BERT keeps over 16: its
#: input, queries, keys, values, the attention's output, LayerNorms, and the feed-forward part before and after GELU.
KEPT = 8
#: The sentences whose length is measured.
SAMPLE = 256
#: Optimisers that keep two float32 numbers for every weight. What others keep is not counted.
ADAMW = ("adamw_torch", "adamw_torch_fused")


def check_memory(
    model: CSEModel, args: CSETrainingArguments, corpus: Corpus, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Compare what training takes at least with what is free on its device.

    Raises:
        ValueError: it cannot fit; the message names both and what to change.
    """
    held, gradients = bytes_of_states(model, args)
    tokens = mean_tokens(corpus, tokenizer, args.max_seq_length)
    activations = bytes_of_activations(model, args, len(corpus.columns), tokens)
    # a batch's gradients come as its activations go, but those of the batches before it stay
    step = gradients + activations if args.gradient_accumulation_steps > 1 else max(gradients, activations)
    free = free_bytes(args.device)
    if held + step > free:
        raise ValueError(
            f"training needs at least {_gb(held + step)} of memory (optimiser{_weights(args)} {_gb(held)}, gradients "
            f"{_gb(gradients)}, activations of a batch {_gb(activations)}), {args.device} has {_gb(free)}: lower "
            f"per_device_train_batch_size, {args.per_device_train_batch_size}, set cache_chunk_size, or take a "
            "smaller encoder"
        )


def bytes_of_states(model: CSEModel, args: CSETrainingArguments) -> tuple[int, int]:
    """Return the bytes that stay between steps, AdamW's two moments in float32 and on a GPU the weights, and those of
    the gradients. On a CPU embeddings are left out, of which only the rows that are read have either."""
    gpu = args.device.type == "cuda"
    read = set() if gpu else {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad and id(p) not in read)
    weights = sum(p.numel() * p.element_size() for p in model.parameters()) if gpu else 0
    moments = 8 * trained if getattr(args.optim, "value", args.optim) in ADAMW else 0
    return weights + moments, 4 * trained


def _weights(args: CSETrainingArguments) -> str:
    return " and weights" if args.device.type == "cuda" else ""


def bytes_of_activations(model: CSEModel, args: CSETrainingArguments, columns: int, tokens: float) -> int:
    """Return a lower bound of what the encoder keeps of a batch for the backward pass, in bytes.

    Arguments:
        columns: the corpus's; a single one is encoded twice, or once with ``single_view``.
        tokens: mean tokens of a text.
    """
    texts = args.per_device_train_batch_size * max(columns, 1 if model.single_view else 2)
    texts = min(texts, args.cache_chunk_size) if args.cache_chunk_size else texts
    config = model.backbone.config
    kept = 1 if args.gradient_checkpointing else KEPT
    size = 2 if args.bf16 or args.fp16 else 4
    layers = max(config.num_hidden_layers - 1, 0)  # the last one may compute a state of each text alone
    return int(texts * tokens * layers * config.hidden_size * kept * size)


def mean_tokens(corpus: Corpus, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> float:
    """Return the mean number of tokens of the corpus's first texts of a sample."""
    texts = [row[0] for row in corpus.sample(SAMPLE)]
    found = tokenizer(texts, truncation=True, max_length=max_seq_length, add_special_tokens=False)
    return sum(map(len, found["input_ids"])) / len(texts)


def free_bytes(device: torch.device) -> int:
    """Return the free bytes of a device's memory; on a CPU also within the limit of the process's control group."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available + psutil.swap_memory().free)
    limit, used = (group_bytes(name) for name in ("memory.max", "memory.current"))
    return free if limit is None or used is None else min(free, max(limit - used, 0) + _reclaimable())


def _reclaimable() -> int:
    """Return the bytes of file caches that the control group counts as used."""
    try:
        lines = (CONTROL_GROUP / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.split()[0] in ("inactive_file", "active_file"))


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"
