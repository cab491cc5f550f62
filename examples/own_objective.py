"""An objective of your own beside the contrast: the variance term of VICReg (Bardes et al., 2022), in forty lines.

    python examples/own_objective.py bert-base-uncased sentences.txt runs/variance

Its weight, its fields and its loss term are like those of the package: in config.json, in the log, in the checkpoint.
"""

import sys
from dataclasses import dataclass
from typing import ClassVar

import torch
from transformers import AutoTokenizer

from csekit import (
    CSEModel,
    CSETrainer,
    CSETrainingArguments,
    Objective,
    ObjectiveConfig,
    load_corpus,
    register_objective,
)
from csekit.modeling import Encode, Views


@dataclass
class VarianceConfig(ObjectiveConfig):
    """weight: λ; target: γ, the standard deviation that each dimension shall have."""

    name: ClassVar[str] = "variance"
    weight: float = 0.1
    target: float = 0.05


@register_objective
class Variance(Objective):
    """L = L_NCE + λ·v(z), v(z) = mean over views and dimensions of max(0, γ − std(ẑ_j)), ẑ = z / ‖z‖."""

    config_class = VarianceConfig
    cacheable = True  # it has no network that could couple rows: cached gradients may cut the batch

    def forward(
        self, views: Views, batch: dict[str, torch.Tensor], encode: Encode
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        z_VBH = torch.nn.functional.normalize(views.z.float(), dim=-1)
        std_VH = torch.sqrt(z_VBH.var(dim=1, correction=min(1, z_VBH.shape[1] - 1)) + 1e-6)
        loss = torch.relu(self.config.target - std_VH).mean()
        return {"variance": self.config.weight * loss}, {"std": std_VH.mean().detach()}


def main(backbone: str, corpus: str, output_dir: str) -> None:
    model = CSEModel.from_backbone(backbone, objectives=[VarianceConfig(weight=1.0)])
    args = CSETrainingArguments(output_dir, num_train_epochs=1, logging_steps=1)
    trainer = CSETrainer(model, args, load_corpus(corpus), AutoTokenizer.from_pretrained(backbone))
    trainer.train()
    trainer.save_run()


if __name__ == "__main__":
    main(*sys.argv[1:])
