"""The objectives of the package, registered by name in the order in which help texts and messages list them."""

from .objective_attention import AttentionInformation
from .objective_aux_mlm import AuxiliaryMaskedLM
from .objective_conditional import ConditionalMaskedLM, CorrectiveLM
from .objective_consistency import RankingConsistency
from .objective_dcm import DimensionContrast
from .objective_distill import Distillation
from .objective_edited import EditedContrast
from .objective_group import GroupContrast
from .objective_guided import GuidedNegatives
from .objective_icm import InformationCompensation
from .objective_margin import MarginDistillation
from .objective_mlm import MaskedLM
from .objective_noise import NoiseNegatives
from .objective_peer import PeerCooperation
from .objective_queue import MomentumQueue
from .objective_rank import RankingDistillation
from .objective_reconstruction import Reconstruction
from .objective_rtd import ReplacedTokenDetection
from .objective_smoothing import InstanceSmoothing
from .objective_token_information import TokenInformation
from .objective_towers import TwoTowers
from .objective_triplet import MaskedTriplet
from .objective_tsdae import Denoising
from .objectives import OBJECTIVES, register_objective, registered

for _objective in (
    Reconstruction,
    MaskedLM,
    AuxiliaryMaskedLM,
    ReplacedTokenDetection,
    EditedContrast,
    ConditionalMaskedLM,
    CorrectiveLM,
    DimensionContrast,
    InformationCompensation,
    Denoising,
    RankingConsistency,
    RankingDistillation,
    Distillation,
    MarginDistillation,
    MaskedTriplet,
    GroupContrast,
    PeerCooperation,
    InstanceSmoothing,
    AttentionInformation,
    GuidedNegatives,
    NoiseNegatives,
    MomentumQueue,
    TwoTowers,
    TokenInformation,
):
    register_objective(_objective)

__all__ = ["OBJECTIVES", "registered"]
