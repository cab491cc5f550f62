"""Objectives and methods by name: the one place where a saved config or a command line finds its classes."""

from .conditional_lm import ConditionalMaskedLM, CorrectiveLM
from .masked_lm import MaskedLM
from .modeling_cse import CSEModel
from .modeling_diffcse import DiffCSEModel, EditedContrast, ReplacedTokenDetection
from .modeling_infocse import AuxiliaryMaskedLM, InfoCSEModel
from .modeling_informin import InforMinModel, Reconstruction
from .modeling_msse import DimensionContrast, InformationCompensation, MSSEModel
from .modeling_simcse import SimCSEModel
from .objectives import Objective

OBJECTIVES: dict[str, type[Objective]] = {
    "reconstruction": Reconstruction,
    "mlm": MaskedLM,
    "aux_mlm": AuxiliaryMaskedLM,
    "rtd": ReplacedTokenDetection,
    "edited": EditedContrast,
    "conditional_mlm": ConditionalMaskedLM,
    "corrective_lm": CorrectiveLM,
    "dcm": DimensionContrast,
    "icm": InformationCompensation,
}

METHODS: dict[str, type[CSEModel]] = {
    "simcse": SimCSEModel,
    "informin": InforMinModel,
    "infocse": InfoCSEModel,
    "diffcse": DiffCSEModel,
    "msse": MSSEModel,
    "joint": CSEModel,
}
