"""Count the memory that training a decoder language model as an encoder takes: all weights, or adapters alone.

    python -m experiments.decoder_memory --output experiments/results/decoder-memory/qwen2.5.json

Nothing is loaded or trained: models of published sizes are built without memory for their weights, and the bytes of
weights, gradients, AdamW's moments and a lower bound of the activations are counted, as csekit counts them before a
training. The table of the results file is printed.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoConfig

from csekit.encoding import environment
from csekit.evaluation.results import write_results
from csekit.modeling import CSEConfig, CSEModel
from csekit.trainers.memory import bytes_of_activations, bytes_of_states
from experiments.tables.decoders import decoder_memory_table

#: The sizes of Qwen2.5 as its configurations publish them.
SIZES: dict[str, dict[str, Any]] = {
    "0.5 B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
              "num_key_value_heads": 2, "vocab_size": 151936},
    "7 B": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
            "num_key_value_heads": 4, "vocab_size": 152064},
}  # fmt: skip
ROWS, TOKENS, RANK = 64, 32, 16


def count(size: str, lora: int | None, chunk: int) -> dict[str, Any]:
    """Return parameters and bytes of one setting: ``ROWS`` sentences of ``TOKENS`` tokens, encoded twice.

    Arguments:
        lora: rank of the adapters; None trains all weights.
        chunk: rows that cached gradients process at once; 0 turns this off.
    """
    config = CSEConfig(encoder_config=AutoConfig.for_model("qwen2", **SIZES[size]), pooling="last", lora=lora)
    with torch.device("meta"):
        model = CSEModel(config)
    arguments: Any = SimpleNamespace(
        per_device_train_batch_size=ROWS,
        cache_chunk_size=chunk,
        gradient_checkpointing=False,
        bf16=True,
        fp16=False,
        device=torch.device("cuda"),
        optim="adamw_torch_fused",
    )
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    states = sum(bytes_of_states(model, arguments)) - weights
    activations = bytes_of_activations(model, arguments, 1, TOKENS)
    return {
        "model": size,
        "trains": "all weights" if lora is None else f"LoRA of rank {lora}",
        "cache_chunk_size": chunk,
        "parameters": sum(p.numel() for p in model.parameters()),
        "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "bytes": {"weights": weights, "gradients_and_moments": states, "activations": activations},
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.decoder_memory", description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="results file")
    args = parser.parse_args(argv)
    settings = [count(size, lora, chunk) for size in SIZES for lora, chunk in ((None, 0), (RANK, 0), (RANK, 8))]
    record = {"rows": ROWS, "tokens": TOKENS, "settings": settings, "environment": environment()}
    write_results(args.output, record, overwrite=True)
    caption, head, rows = decoder_memory_table(record)
    print("\n".join([f"written: {args.output}: {caption}", *(" | ".join(row) for row in [head, *rows])]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
