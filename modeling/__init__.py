"""Models, losses and objectives. Importing this registers the methods with ``AutoConfig`` and ``AutoModel``."""

from transformers import AutoConfig, AutoModel, AutoModelForPreTraining

from .configuration_cse import CSEConfig
from .configuration_diffcse import DiffCSEConfig
from .configuration_infocse import InfoCSEConfig
from .configuration_infocse_pretraining import InfoCSEPretrainingConfig
from .configuration_informin import InforMinConfig
from .configuration_msse import MSSEConfig
from .configuration_rtd_pretraining import RTDPretrainingConfig
from .configuration_simcse import SimCSEConfig
from .methods import METHODS
from .modeling_cse import CSEModel
from .modeling_diffcse import DiffCSEModel
from .modeling_infocse import InfoCSEModel
from .modeling_infocse_pretraining import InfoCSEForPreTraining
from .modeling_informin import InforMinModel
from .modeling_msse import MSSEModel
from .modeling_rtd_pretraining import RTDForPreTraining
from .modeling_simcse import SimCSEModel
from .objective_attention import AttentionInformation, AttentionInformationConfig
from .objective_aux_mlm import AuxiliaryMaskedLM, AuxiliaryMaskedLMConfig
from .objective_conditional import (
    ConditionalMaskedLM,
    ConditionalMaskedLMConfig,
    CorrectiveLM,
    CorrectiveLMConfig,
)
from .objective_consistency import ConsistencyConfig, RankingConsistency
from .objective_dcm import DimensionContrast, DimensionContrastConfig
from .objective_distill import Distillation, DistillationConfig
from .objective_edited import EditedContrast, EditedContrastConfig
from .objective_group import GroupContrast, GroupContrastConfig
from .objective_guided import GuidedNegatives, GuidedNegativesConfig
from .objective_icm import InformationCompensation, InformationCompensationConfig
from .objective_margin import MarginDistillation, MarginDistillationConfig
from .objective_mlm import MaskedLM, MaskedLMConfig
from .objective_noise import NoiseNegatives, NoiseNegativesConfig
from .objective_peer import PeerCooperation, PeerCooperationConfig
from .objective_queue import MomentumQueue, MomentumQueueConfig
from .objective_rank import RankingDistillation, RankingDistillationConfig
from .objective_reconstruction import Reconstruction, ReconstructionConfig
from .objective_rtd import ReplacedTokenDetection, ReplacedTokenDetectionConfig
from .objective_smoothing import InstanceSmoothing, InstanceSmoothingConfig
from .objective_token_information import TokenInformation, TokenInformationConfig
from .objective_towers import TwoTowers, TwoTowersConfig
from .objective_triplet import MaskedTriplet, MaskedTripletConfig
from .objective_tsdae import Denoising, DenoisingConfig
from .objectives import (
    ContrastModifier,
    DeletionSpec,
    EditedCopy,
    EditSpec,
    Encode,
    MaskedCopy,
    MaskingSpec,
    Negatives,
    Objective,
    PerturbationSpec,
    PositivesSpec,
    SpanSpec,
    TargetCopy,
    TargetSpec,
    Views,
    register_objective,
)
from .outputs import ContrastiveOutput, SentenceEmbeddingOutput
from .pretraining import EncoderForPreTraining, PretrainingOutput
from .registry import OBJECTIVES
from .settings import ObjectiveConfig

for _model in METHODS.values():
    AutoConfig.register(_model.config_class.model_type, _model.config_class, exist_ok=True)
    AutoModel.register(_model.config_class, _model, exist_ok=True)
_pretraining: tuple[type[EncoderForPreTraining], ...] = (InfoCSEForPreTraining, RTDForPreTraining)
for _kind in _pretraining:
    AutoConfig.register(_kind.config_class.model_type, _kind.config_class, exist_ok=True)
    AutoModelForPreTraining.register(_kind.config_class, _kind, exist_ok=True)

__all__ = [
    "METHODS",
    "OBJECTIVES",
    "AttentionInformation",
    "AttentionInformationConfig",
    "AuxiliaryMaskedLM",
    "AuxiliaryMaskedLMConfig",
    "CSEConfig",
    "CSEModel",
    "ConditionalMaskedLM",
    "ConditionalMaskedLMConfig",
    "ConsistencyConfig",
    "ContrastModifier",
    "ContrastiveOutput",
    "CorrectiveLM",
    "CorrectiveLMConfig",
    "DeletionSpec",
    "Denoising",
    "DenoisingConfig",
    "DiffCSEConfig",
    "DiffCSEModel",
    "DimensionContrast",
    "DimensionContrastConfig",
    "Distillation",
    "DistillationConfig",
    "EditSpec",
    "EditedContrast",
    "EditedContrastConfig",
    "EditedCopy",
    "Encode",
    "EncoderForPreTraining",
    "GroupContrast",
    "GroupContrastConfig",
    "GuidedNegatives",
    "GuidedNegativesConfig",
    "InfoCSEConfig",
    "InfoCSEForPreTraining",
    "InfoCSEModel",
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
    "MaskedCopy",
    "MaskedLM",
    "MaskedLMConfig",
    "MaskedTriplet",
    "MaskedTripletConfig",
    "MaskingSpec",
    "MomentumQueue",
    "MomentumQueueConfig",
    "Negatives",
    "NoiseNegatives",
    "NoiseNegativesConfig",
    "Objective",
    "ObjectiveConfig",
    "PeerCooperation",
    "PeerCooperationConfig",
    "PerturbationSpec",
    "PositivesSpec",
    "PretrainingOutput",
    "RTDForPreTraining",
    "RTDPretrainingConfig",
    "RankingConsistency",
    "RankingDistillation",
    "RankingDistillationConfig",
    "Reconstruction",
    "ReconstructionConfig",
    "ReplacedTokenDetection",
    "ReplacedTokenDetectionConfig",
    "SentenceEmbeddingOutput",
    "SimCSEConfig",
    "SimCSEModel",
    "SpanSpec",
    "TargetCopy",
    "TargetSpec",
    "TokenInformation",
    "TokenInformationConfig",
    "TwoTowers",
    "TwoTowersConfig",
    "Views",
    "register_objective",
]
