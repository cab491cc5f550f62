"""The base of objectives with a second encoder."""

from copy import deepcopy
from typing import Any

from transformers import PreTrainedConfig

from .backbone import build_backbone, load_backbone
from .objectives import Objective


class SecondEncoder(Objective):
    """Base of the objectives whose second encoder trains beside the first.

    It starts from the backbone's checkpoint. Only training checkpoints hold it: embeddings are the first encoder's.
    """

    from_all_layers = True

    def __init__(self, config: Any, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.encoder = build_backbone(deepcopy(encoder_config))

    def init_from_checkpoint(self, name_or_path: str) -> None:
        self.encoder = load_backbone(name_or_path, self.encoder.config, type(self.encoder))
