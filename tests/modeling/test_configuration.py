"""Defaults, flat access to the objectives' fields, round trips and messages."""

import json

import pytest
from transformers import AutoConfig, AutoModel, BertConfig, RobertaConfig

from csekit.modeling import (
    METHODS,
    OBJECTIVES,
    AuxiliaryMaskedLMConfig,
    CSEConfig,
    CSEModel,
    DimensionContrastConfig,
    InfoCSEConfig,
    InfoCSEPretrainingConfig,
    InformationCompensationConfig,
    InforMinConfig,
    InforMinModel,
    MaskedLMConfig,
    MSSEConfig,
    ReconstructionConfig,
    RTDPretrainingConfig,
    SimCSEConfig,
    SimCSEModel,
)
from csekit.modeling.backbone import dropout_fields

CONFIGS = [CSEConfig, SimCSEConfig, InforMinConfig, InfoCSEConfig]


@pytest.mark.parametrize("kind", [CSEConfig, InfoCSEConfig, InfoCSEPretrainingConfig, RTDPretrainingConfig])
def test_what_a_config_takes_from_its_encoders(kind):
    encoder = {"model_type": "roberta", "hidden_size": 24, "num_attention_heads": 2, "initializer_range": 0.03}
    config = kind(encoder_config={**encoder, "pad_token_id": 1, "_name_or_path": "/home/somebody/roberta"})
    assert isinstance(config.encoder_config, RobertaConfig)
    assert (config.hidden_size, config.initializer_range, config.pad_token_id) == (24, 0.03, 1)
    assert "_name_or_path" not in config.to_dict()["encoder_config"]
    assert kind.from_dict(json.loads(config.to_json_string())).to_dict() == config.to_dict()
    with pytest.raises(ValueError, match="encoder_config must have a 'model_type'"):
        kind(encoder_config={"hidden_size": 24})


def test_defaults_are_the_papers():
    for config in (kind() for kind in CONFIGS):
        assert (config.pooling, config.temperature, config.contrastive_weight) == ("cls", 0.05, 1.0)
        assert config.projector == ("batchnorm" if isinstance(config, InfoCSEConfig) else "tanh")
        assert not (config.projector_at_inference or config.symmetric or config.mask_identical)
        assert config.hard_negative_weight == 0 and config.prompt_template is None
        assert isinstance(config.encoder_config, BertConfig)
    assert CSEConfig().objectives == SimCSEConfig().objectives == []
    assert InforMinConfig().objectives == [ReconstructionConfig()]
    assert InfoCSEConfig().objectives == [AuxiliaryMaskedLMConfig()]
    assert ReconstructionConfig() == ReconstructionConfig(weight=0.4, reconstruction="squared_norm")
    assert MaskedLMConfig() == MaskedLMConfig(weight=0.1, probability=0.15, views=2, tied=True)
    assert AuxiliaryMaskedLMConfig() == AuxiliaryMaskedLMConfig(
        weight=1e-5,
        probability=0.4,
        views=2,
        layer=0,
        head_layers=2,
        detach=True,
        gradient="scaled",
        head_init="pretrained",
        lower_dropout=False,
    )


def test_defaults_of_msse_are_the_paper_s_and_its_dimension_loss_that_of_the_repository():
    config = MSSEConfig()
    assert (config.pooling, config.projector, config.temperature) == ("mask", "linear", 0.05)
    assert config.prompt_template == '"{sentence}" means {mask}.'
    dcm = DimensionContrastConfig(weight=0.002, reduction="released", representation="h")
    assert config.objectives == [dcm, InformationCompensationConfig()]
    assert (config.icm_weight, config.icm_decoder, config.icm_target, config.icm_representation) == (
        *(0.2, "causal"),
        *("original", "h"),
    )
    assert (config.decoder_layers, config.decoder_heads, config.word_dropout) == (1, 0, 0.0)
    assert config.element_dropout == 0.825


def test_the_template_of_msse_belongs_to_its_pooling(tmp_path):
    """Fig. 7 compares poolings; [CLS] and the means are those of the sentence alone."""
    assert MSSEConfig(pooling="cls").prompt_template is None
    assert MSSEConfig(pooling="cls", prompt_template="{sentence} {mask}").prompt_template == "{sentence} {mask}"
    assert MSSEConfig(prompt_template="{sentence} {mask}").prompt_template == "{sentence} {mask}"
    MSSEConfig(pooling="mean", dcm_reduction="sum", icm_decoder="denoising").save_pretrained(tmp_path)
    again = MSSEConfig.from_pretrained(tmp_path)
    assert (again.prompt_template, again.pooling) == (None, "mean")
    assert (again.dcm_reduction, again.icm_decoder) == ("sum", "denoising")


def test_instances_share_no_objective():
    changed, other = InforMinConfig(), InforMinConfig()
    changed.reconstruction_weight = 4.0
    assert other.reconstruction_weight == 0.4


def test_flat_access():
    config = InforMinConfig(reconstruction="mse", reconstruction_weight=4.0)
    assert config.objectives == [ReconstructionConfig(weight=4.0, reconstruction="mse")]
    assert config.reconstruction == config.reconstruction_reconstruction == "mse"
    config.reconstruction = "squared_norm"
    config.reconstruction_weight = 1.0
    assert config.objectives == [ReconstructionConfig(weight=1.0)]
    assert "reconstruction" not in vars(config) and "reconstruction_weight" not in vars(config)
    with pytest.raises(AttributeError, match="no attribute 'mlm_weight'"):
        _ = config.mlm_weight
    with pytest.raises(AttributeError, match="no attribute 'weight'"):
        _ = config.weight


@pytest.mark.parametrize("kind", [*CONFIGS, MSSEConfig])
def test_a_weight_adds_its_objective(kind):
    """Was lost where the list was empty: SimCSE + MLM trained SimCSE alone."""
    config = kind(mlm_weight=0.2)
    assert config.objectives == [*kind.default_objectives(), MaskedLMConfig(weight=0.2)]


def test_fields_may_come_before_the_weight_that_adds_their_objective():
    config = SimCSEConfig(probability=0.3, mlm_views=1, mlm_weight=0.2)
    assert config.objectives == [MaskedLMConfig(weight=0.2, probability=0.3, views=1)]


@pytest.mark.parametrize("given", [[MaskedLMConfig(weight=0.3)], [{"name": "mlm", "weight": 0.3}]])
def test_objectives_as_configs_or_dicts(given):
    assert SimCSEConfig(objectives=given).objectives == [MaskedLMConfig(weight=0.3)]
    assert SimCSEConfig(objectives=["mlm"]).objectives == [MaskedLMConfig()]
    assert InforMinConfig(objectives=[]).objectives == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pooling": "max"}, r"pooling must be one of 'cls', 'mean', .*, got 'max'"),
        ({"projector": "mlp"}, r"projector must be one of 'tanh', .*, got 'mlp'"),
        ({"temperature": 0}, r"temperature must be a number greater than 0, got 0"),
        ({"contrastive_weight": -1}, r"contrastive_weight must be a number of at least 0, got -1"),
        (
            {"contrastive_weight": 0, "objectives": []},
            "contrastive_weight 0 needs an objective with .*: nothing .*, got none",
        ),
        ({"temperature": "5e-2"}, r"temperature must be a number greater than 0, got '5e-2'"),
        ({"pooling": "mask"}, r"pooling 'mask' needs a prompt_template .*, got None"),
        ({"encoder_config": {"hidden_size": 4}}, r"encoder_config must have a 'model_type', got \{'hidden_size': 4\}"),
        ({"objectives": ["nce"]}, r"objective 'nce' is not registered: .*; registered are \['reconstruction', 'mlm'"),
        (
            {"objectives": [{"weight": 1.0}]},
            r"objective None is not registered: .*; registered are \['reconstruction', 'mlm'",
        ),
        ({"objectives": [{"name": "mlm", "rate": 1}]}, r"objective 'mlm' has no field 'rate'; it has \['probability'"),
        ({"objectives": ["mlm", "mlm"]}, r"objectives must differ in name, got \['mlm', 'mlm'\]"),
        ({"reconstruction_weight": "1e-1"}, r"reconstruction_weight must be a number, got '1e-1'"),
        ({"reconstruction": "l1"}, r"reconstruction must be one of 'squared_norm', 'mse', got 'l1'"),
        ({"mlm_weight": 0.1, "mlm_probability": 2.0}, r"mlm_probability must lie between 0 and 1, got 2.0"),
        ({"mlm_weight": 0.1, "views": 3}, r"mlm_views must be 1 or 2, got 3"),
        ({"aux_mlm_weight": 0.1, "aux_mlm_probability": 1}, r"aux_mlm_probability must lie between 0 and 1, got 1"),
        ({"mlm_weight": 0.1, "tied": "no"}, r"mlm_tied must be True or False, got 'no'"),
        ({"aux_mlm_weight": 0.1, "lower_dropout": 0.3}, r"aux_mlm_lower_dropout must be True or False, got 0.3"),
        ({"aux_mlm_weight": 0.1, "layer": -1}, r"aux_mlm_layer must be 0 \(automatic\) or .*, got -1"),
        ({"aux_mlm_weight": 0.1, "head_layers": 0}, r"aux_mlm_head_layers must be at least 1, got 0"),
        (
            {"aux_mlm_weight": 0.1, "gradient": "full"},
            r"aux_mlm_gradient must be one of 'scaled', 'plain', got 'full'",
        ),
        ({"aux_mlm_weight": 0.1, "head_init": "file"}, r"aux_mlm_head_init must be one of 'pretrained', .* 'file'"),
        ({"aux_mlm_weight": 0.1, "mlm_weight": 0.1, "views": 1}, r"'views' must be a field of exactly one objective"),
        ({"mlm_probability": 0.3}, r"'mlm_probability' must be a field of exactly one .*\['reconstruction'\]"),
        (
            {"dcm_weight": 1.0, "reduction": "mean"},
            r"dcm_reduction must be one of 'released', 'sum', 'balanced', got 'mean'",
        ),
        ({"dcm_weight": 1.0, "representation": "x"}, r"dcm_representation must be one of 'h', 'z', got 'x'"),
        ({"icm_weight": 1.0, "representation": "x"}, r"icm_representation must be one of 'h', 'z', got 'x'"),
        ({"icm_weight": 1.0, "target": "both"}, r"icm_target must be one of 'original', 'positive', got 'both'"),
        ({"icm_weight": 1.0, "decoder": "gpt"}, r"icm_decoder must be one of 'causal', 'denoising', got 'gpt'"),
        ({"icm_weight": 1.0, "decoder_layers": 0}, r"icm_decoder_layers must be a whole number of at least 1, got 0"),
        ({"icm_weight": 1.0, "decoder_heads": 1.5}, r"icm_decoder_heads must be a whole number, got 1.5"),
        ({"icm_weight": 1.0, "word_dropout": 1.1}, r"icm_word_dropout must be at least 0 and at most 1, got 1.1"),
        ({"icm_weight": 1.0, "element_dropout": 1}, r"icm_element_dropout must be at least 0 and below 1, got 1"),
        ({"icm_weight": 1.0, "decoder_dropout": "a"}, r"icm_decoder_dropout must be a number, got 'a'"),
        (
            {"dcm_weight": 1.0, "icm_weight": 1.0, "representation": "z"},
            r"'representation' must be a field of exactly",
        ),
    ],
)
def test_messages_name_field_value_and_what_is_allowed(fields, message):
    with pytest.raises(ValueError, match=message):
        InforMinConfig(**fields)


def test_a_flat_value_is_checked_when_it_is_set():
    config = InforMinConfig()
    with pytest.raises(ValueError, match="got 'l1'"):
        config.reconstruction = "l1"
    assert config.reconstruction == "squared_norm"


def test_unknown_names():
    SimCSEConfig.check_names(["pooling", "mlm_weight", "mlm_probability", "encoder_config"])
    with pytest.raises(ValueError, match=r"SimCSEConfig has no field 'poling'; did you mean one of \['pooling'"):
        SimCSEConfig.check_names(["poling"])
    with pytest.raises(ValueError, match=r"no field 'zzzz'; did you mean one of \[.*'temperature'"):
        SimCSEConfig.check_names(["zzzz"])


def test_values_that_bound_each_other_are_set_together(tmp_path):
    """One by one, the first would be compared with the default of the second."""
    config = CSEConfig(objectives=["triplet"], triplet_mask_rate=0.5, triplet_longer_mask_rate=0.6)
    assert config.objectives[0].longer_mask_rate == 0.6
    config.save_pretrained(tmp_path)
    both = {"triplet_mask_rate": 0.7, "triplet_longer_mask_rate": 0.8}
    loaded, unused = CSEConfig.from_pretrained(tmp_path, **both, temperature=0.1, return_unused_kwargs=True)
    assert loaded.objectives[0].mask_rate == 0.7
    assert loaded.temperature == 0.1
    assert not unused
    with pytest.raises(ValueError, match=r"triplet_longer_mask_rate must exceed triplet_mask_rate, got 0\.6 and 0\.7"):
        CSEConfig.from_pretrained(tmp_path, triplet_mask_rate=0.7)


def test_flat_names_are_what_can_be_set():
    names = InforMinConfig.flat_names()
    assert names["mlm_weight"] is float and names["reconstruction"] is str
    assert "mlm_probability" not in names
    assert InforMinConfig.flat_names(["mlm"])["mlm_views"] is int
    every = CSEConfig(objectives=list(OBJECTIVES))
    for objective in OBJECTIVES:
        alone = CSEConfig(objectives=[objective])
        for name in CSEConfig.flat_names([objective]):
            assert hasattr(every if name.endswith("_weight") else alone, name), name
    assert "rtd_discriminator_config" not in InforMinConfig.flat_names(["rtd"])  # no plain value


@pytest.mark.parametrize("kind", [*CONFIGS, MSSEConfig])
def test_round_trips(kind, tmp_path):
    encoder = RobertaConfig(
        vocab_size=30522, pad_token_id=0, hidden_dropout_prob=0.3
    )  # BERT's, not RoBERTa's defaults
    config = kind(
        encoder_config=encoder,
        pooling="mask",
        prompt_template='"{sentence}" means {mask}.',
        prompt_mask_offset=-3,
        projector="batchnorm",
        projector_at_inference=True,
        temperature=0.1,
        symmetric=True,
        hard_negative_weight=0.5,
        mask_identical=True,
        mlm_weight=0.2,
        mlm_views=1,
    )
    config.save_pretrained(tmp_path)
    config.save_pretrained(tmp_path / "again")
    again = [
        kind.from_pretrained(tmp_path),
        AutoConfig.from_pretrained(tmp_path),
        kind.from_dict(config.to_dict()),
        kind(**json.loads(json.dumps(config.to_dict()))),
    ]
    for other in again:
        assert type(other) is kind and other.objectives == config.objectives
        assert isinstance(other.encoder_config, RobertaConfig)
        for name in kind.__dataclass_fields__:
            if name not in ("transformers_version", "encoder_config"):
                assert getattr(other, name) == getattr(config, name), name
        assert other.encoder_config.to_dict() == {**config.encoder_config.to_dict()}
    text = (tmp_path / "config.json").read_text()
    again[0].save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "config.json").read_text() == text
    assert "_name_or_path" not in text


def test_an_emptied_list_of_objectives_stays_empty(tmp_path):
    InforMinConfig(objectives=[]).save_pretrained(tmp_path)
    assert InforMinConfig.from_pretrained(tmp_path).objectives == []


def test_overriding_a_flat_field_while_loading(tmp_path):
    InforMinConfig().save_pretrained(tmp_path)
    config = InforMinConfig.from_pretrained(tmp_path, reconstruction_weight=4.0, temperature=0.1)
    assert (config.reconstruction_weight, config.temperature) == (4.0, 0.1)
    with pytest.raises(ValueError, match=r"pooling must be one of .*, got 'max'"):
        InforMinConfig.from_pretrained(tmp_path, pooling="max")


def test_registered_with_auto_classes(encoder_config):
    assert (METHODS["simcse"], METHODS["informin"], METHODS["joint"]) == (SimCSEModel, InforMinModel, CSEModel)
    for kind, model in ((CSEConfig, CSEModel), (SimCSEConfig, SimCSEModel), (InforMinConfig, InforMinModel)):
        assert type(AutoConfig.for_model(kind.model_type)) is kind
        assert type(AutoModel.from_config(kind(encoder_config=encoder_config("bert")))) is model


def test_names_of_objectives_agree():
    for name, objective in OBJECTIVES.items():
        assert objective.config_class.name == name


def test_dropout_fields_leave_task_heads_out(encoder_config):
    assert set(dropout_fields(encoder_config("bert"))) == {"hidden_dropout_prob", "attention_probs_dropout_prob"}
    assert set(dropout_fields(encoder_config("distilbert"))) == {"dropout", "attention_dropout"}
    expected = {"embedding_dropout", "mlp_dropout", "attention_dropout"}
    assert set(dropout_fields(encoder_config("modernbert"))) == expected


@pytest.mark.parametrize(
    ("name", "fields", "unread"),
    [
        ("rank", {"loss": "mse", "temperature": 0.1}, {"rank_temperature": "rank_loss mse"}),
        ("rank", {"loss": "listnet", "low": 0.6}, {"rank_low": "rank_loss listnet"}),
        ("rank", {"mixture": 0.5}, {"rank_mixture": "rank_teachers 1"}),
        ("rank", {"shuffle_temperature": 2.0}, {"rank_shuffle_temperature": "rank_shuffle 0.0"}),
        ("rank", {"mixture": 0.5, "teachers": 2, "shuffle_temperature": 2.0, "shuffle": 0.1, "temperature": 1.0}, {}),
        ("guided", {"margin": 0.1}, {"guided_margin": "guided_rule threshold"}),
        ("guided", {"threshold": 0.1, "rule": "margin"}, {"guided_threshold": "guided_rule margin"}),
        ("guided", {"margin": 0.1, "rule": "relative_margin"}, {}),
    ],
)
def test_fields_that_another_one_leaves_unread(name: str, fields: dict, unread: dict) -> None:
    assert OBJECTIVES[name].config_class(**fields).unread() == unread


def test_fields_that_may_be_unread_are_fields() -> None:
    for kind in OBJECTIVES.values():
        config = kind.config_class()
        for name, (other, _) in config.unread_with.items():
            assert {name, other} <= config.field_names()
        assert config.unread() == {}
