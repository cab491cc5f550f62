"""The methods by name: a command line and a converted checkpoint find their model classes here."""

from .modeling_cse import CSEModel
from .modeling_diffcse import DiffCSEModel
from .modeling_infocse import InfoCSEModel
from .modeling_informin import InforMinModel
from .modeling_msse import MSSEModel
from .modeling_simcse import SimCSEModel

METHODS: dict[str, type[CSEModel]] = {
    "simcse": SimCSEModel,
    "informin": InforMinModel,
    "infocse": InfoCSEModel,
    "diffcse": DiffCSEModel,
    "msse": MSSEModel,
    "joint": CSEModel,
}
