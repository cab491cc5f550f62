"""Models, losses and objectives. Importing this registers the methods with ``AutoConfig`` and ``AutoModel``."""

from transformers import AutoConfig, AutoModel, AutoModelForPreTraining

from .conditional_lm import ConditionalMaskedLM, CorrectiveLM
from .configuration_cse import CSEConfig
from .configuration_diffcse import (
    ConditionalMaskedLMConfig,
    CorrectiveLMConfig,
    DiffCSEConfig,
    EditedContrastConfig,
    ReplacedTokenDetectionConfig,
)
from .configuration_infocse import AuxiliaryMaskedLMConfig, InfoCSEConfig
from .configuration_infocse_pretraining import InfoCSEPretrainingConfig
from .configuration_informin import InforMinConfig, ReconstructionConfig
from .configuration_msse import DimensionContrastConfig, InformationCompensationConfig, MSSEConfig
from .configuration_simcse import SimCSEConfig
from .masked_lm import MaskedLM, MaskedLMConfig
from .modeling_cse import CSEModel
from .modeling_diffcse import DiffCSEModel, EditedContrast, ReplacedTokenDetection
from .modeling_infocse import AuxiliaryMaskedLM, InfoCSEModel
from .modeling_infocse_pretraining import InfoCSEForPreTraining, PretrainingOutput
from .modeling_informin import InforMinModel, Reconstruction
from .modeling_msse import DimensionContrast, InformationCompensation, MSSEModel
from .modeling_simcse import SimCSEModel
from .objectives import EditSpec, Encode, MaskingSpec, Objective, ObjectiveConfig, TargetSpec, Views
from .outputs import ContrastiveOutput, SentenceEmbeddingOutput
from .registry import METHODS, OBJECTIVES

for _model in METHODS.values():
    AutoConfig.register(_model.config_class.model_type, _model.config_class, exist_ok=True)
    AutoModel.register(_model.config_class, _model, exist_ok=True)
AutoConfig.register(InfoCSEPretrainingConfig.model_type, InfoCSEPretrainingConfig, exist_ok=True)
AutoModelForPreTraining.register(InfoCSEPretrainingConfig, InfoCSEForPreTraining, exist_ok=True)

__all__ = [
    "METHODS",
    "OBJECTIVES",
    "AuxiliaryMaskedLM",
    "AuxiliaryMaskedLMConfig",
    "CSEConfig",
    "CSEModel",
    "ConditionalMaskedLM",
    "ConditionalMaskedLMConfig",
    "ContrastiveOutput",
    "CorrectiveLM",
    "CorrectiveLMConfig",
    "DiffCSEConfig",
    "DiffCSEModel",
    "DimensionContrast",
    "DimensionContrastConfig",
    "EditSpec",
    "EditedContrast",
    "EditedContrastConfig",
    "Encode",
    "InfoCSEConfig",
    "InfoCSEForPreTraining",
    "InfoCSEModel",
    "InfoCSEPretrainingConfig",
    "InforMinConfig",
    "InforMinModel",
    "InformationCompensation",
    "InformationCompensationConfig",
    "MSSEConfig",
    "MSSEModel",
    "MaskedLM",
    "MaskedLMConfig",
    "MaskingSpec",
    "Objective",
    "ObjectiveConfig",
    "PretrainingOutput",
    "Reconstruction",
    "ReconstructionConfig",
    "ReplacedTokenDetection",
    "ReplacedTokenDetectionConfig",
    "SentenceEmbeddingOutput",
    "SimCSEConfig",
    "SimCSEModel",
    "TargetSpec",
    "Views",
]
