"""csekit: sentence embeddings without labels, on Transformers.

Public names are loaded on first use, so that ``import csekit`` costs nothing.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC: dict[str, str] = {
    **dict.fromkeys(
        (
            "AttentionInformation",
            "AttentionInformationConfig",
            "AuxiliaryMaskedLM",
            "AuxiliaryMaskedLMConfig",
            "CSEConfig",
            "CSEModel",
            "InfoCSEConfig",
            "InfoCSEModel",
            "ConditionalMaskedLM",
            "ConditionalMaskedLMConfig",
            "CorrectiveLM",
            "CorrectiveLMConfig",
            "ConsistencyConfig",
            "Denoising",
            "DenoisingConfig",
            "DiffCSEConfig",
            "DiffCSEModel",
            "DimensionContrast",
            "DimensionContrastConfig",
            "Distillation",
            "DistillationConfig",
            "EditedContrast",
            "EditedContrastConfig",
            "InfoCSEForPreTraining",
            "InfoCSEPretrainingConfig",
            "InforMinConfig",
            "InforMinModel",
            "InformationCompensation",
            "InformationCompensationConfig",
            "InstanceSmoothing",
            "InstanceSmoothingConfig",
            "MSSEConfig",
            "MSSEModel",
            "MarginDistillation",
            "MarginDistillationConfig",
            "MaskedLM",
            "MaskedLMConfig",
            "MaskedTriplet",
            "MaskedTripletConfig",
            "GroupContrast",
            "GroupContrastConfig",
            "PeerCooperation",
            "PeerCooperationConfig",
            "Objective",
            "RankingConsistency",
            "RankingDistillation",
            "RankingDistillationConfig",
            "ContrastModifier",
            "Negatives",
            "GuidedNegatives",
            "GuidedNegativesConfig",
            "NoiseNegatives",
            "NoiseNegativesConfig",
            "MomentumQueue",
            "MomentumQueueConfig",
            "ObjectiveConfig",
            "RTDForPreTraining",
            "RTDPretrainingConfig",
            "Reconstruction",
            "ReconstructionConfig",
            "ReplacedTokenDetection",
            "ReplacedTokenDetectionConfig",
            "SimCSEConfig",
            "SimCSEModel",
            "TokenInformation",
            "TokenInformationConfig",
            "TwoTowers",
            "TwoTowersConfig",
            "register_objective",
        ),
        "csekit.modeling",
    ),
    **dict.fromkeys(
        (
            "CSECollator",
            "CSETrainer",
            "CSETrainingArguments",
            "Corpus",
            "PretrainingArguments",
            "PretrainingTrainer",
            "load_corpus",
            "pack",
            "push_run",
            "train_tokenizer",
        ),
        "csekit.trainers",
    ),
    **dict.fromkeys(("encode", "encode_file", "load_encoder"), "csekit.encoding"),
    **dict.fromkeys(
        (
            "compare_runs",
            "evaluate_pairs",
            "evaluate_sts",
            "evaluate_transfer",
            "load_sts",
            "load_transfer",
            "read_pairs",
        ),
        "csekit.evaluation",
    ),
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'csekit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
