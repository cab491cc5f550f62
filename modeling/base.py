"""Base classes of the models around an encoder: a config that holds the encoder's config, and the model's flags."""

from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel


class EncoderWrapperConfig(PreTrainedConfig):
    """Base of the configurations of models around an encoder.

    Arguments:
        encoder_config: configuration of the encoder, as an object or a dict with ``model_type`` (default: BERT).

    Raises:
        ValueError: a dict without ``model_type``.
    """

    sub_configs: ClassVar[dict[str, Any]] = {"encoder_config": AutoConfig}

    encoder_config: Any = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.encoder_config is None:
            self.encoder_config = AutoConfig.for_model("bert")
        elif isinstance(self.encoder_config, dict):
            fields = dict(self.encoder_config)
            if "model_type" not in fields:
                raise ValueError(f"encoder_config must have a 'model_type', got {self.encoder_config!r}")
            self.encoder_config = AutoConfig.for_model(fields.pop("model_type"), **fields)
        super().__post_init__(**kwargs)
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):  # else the trainer would fill them in
            setattr(self, name, getattr(self.encoder_config, name, None))

    @property
    def initializer_range(self) -> float:
        """Standard deviation of new weights, the same as the encoder's."""
        return float(getattr(self.encoder_config, "initializer_range", 0.02))

    @property
    def hidden_size(self) -> int:
        """H of the encoder."""
        return int(self.encoder_config.hidden_size)

    def to_dict(self) -> dict[str, Any]:
        output = super().to_dict()
        output["encoder_config"].pop("_name_or_path", None)  # a local path, meaningless elsewhere
        return output


class EncoderWrapper(PreTrainedModel):
    """Base of the models around an encoder, which is their attribute ``backbone``."""

    config_class = EncoderWrapperConfig
    base_model_prefix = "backbone"
    main_input_name = "input_ids"
    accepts_loss_kwargs = False
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
