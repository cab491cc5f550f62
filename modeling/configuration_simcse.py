"""Configuration of SimCSE (Gao et al., 2021): the contrastive term alone. Defaults: unsupervised BERT-base."""

from .configuration_cse import CSEConfig


class SimCSEConfig(CSEConfig):
    """Configuration of SimCSE: :class:`CSEConfig` without objectives.

    ``mlm_weight=0.1`` adds the masked LM (SimCSE + MLM, InfoCSE Tables 1 and 10).
    """

    model_type = "simcse"
