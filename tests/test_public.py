"""The public names of csekit: each exists, is documented, and is the one of its package."""

from importlib import import_module

import pytest

import csekit

PROMISED = """
AttentionInformation AttentionInformationConfig AuxiliaryMaskedLM AuxiliaryMaskedLMConfig CSECollator CSEConfig
CSEModel CSETrainer CSETrainingArguments ConditionalMaskedLM ConditionalMaskedLMConfig ConsistencyConfig
ContrastModifier Corpus CorrectiveLM CorrectiveLMConfig Denoising DenoisingConfig DiffCSEConfig DiffCSEModel
DimensionContrast DimensionContrastConfig Distillation DistillationConfig EditedContrast EditedContrastConfig
GroupContrast GroupContrastConfig GuidedNegatives GuidedNegativesConfig InfoCSEConfig InfoCSEForPreTraining
InfoCSEModel InfoCSEPretrainingConfig InforMinConfig InforMinModel InformationCompensation
InformationCompensationConfig InstanceSmoothing InstanceSmoothingConfig MSSEConfig MSSEModel MarginDistillation
MarginDistillationConfig MaskedLM MaskedLMConfig MaskedTriplet MaskedTripletConfig MomentumQueue MomentumQueueConfig
Negatives NoiseNegatives NoiseNegativesConfig Objective ObjectiveConfig PeerCooperation PeerCooperationConfig
PretrainingArguments PretrainingTrainer RTDForPreTraining RTDPretrainingConfig RankingConsistency RankingDistillation
RankingDistillationConfig Reconstruction ReconstructionConfig ReplacedTokenDetection ReplacedTokenDetectionConfig
SimCSEConfig SimCSEModel TokenInformation TokenInformationConfig TwoTowers TwoTowersConfig __version__ compare_runs
encode encode_file evaluate_pairs evaluate_sts evaluate_transfer load_corpus load_encoder load_sts load_transfer pack
push_run read_pairs register_objective train_tokenizer
""".split()  # noqa: SIM905


def test_the_list_is_the_promised_one() -> None:
    """Add a line here and one to the changelog when a name is added or removed."""
    assert sorted(csekit.__all__) == sorted(PROMISED) == sorted(dir(csekit))


@pytest.mark.parametrize("name", [name for name in PROMISED if name != "__version__"])
def test_a_public_name_is_documented_and_is_the_one_of_its_package(name: str) -> None:
    found = getattr(csekit, name)
    assert (found.__doc__ or "").strip(), f"{name} has no docstring of its own"
    package = import_module(csekit._PUBLIC[name])
    assert getattr(package, name) is found
    assert name in package.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'csekit' has no attribute 'SimCSEModle'"):
        csekit.SimCSEModle  # noqa: B018
