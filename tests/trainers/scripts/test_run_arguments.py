"""Presets and command lines: which names there are, which values they take, what an error says."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import BertConfig

from csekit.modeling import METHODS, OBJECTIVES
from csekit.modeling.lora import lora_settings
from csekit.trainers import parse_run_arguments

CONFIGS = Path(__file__).parents[3] / "examples" / "configs"
PRESETS = sorted(CONFIGS.glob("*.yaml"))


@pytest.fixture
def preset(tmp_path: Path) -> Any:
    """``preset(text)``: the words that name a file with this text."""

    def write(text: str) -> list[str]:
        path = tmp_path / "preset.yaml"
        path.write_text(text, encoding="utf-8")
        return ["--config", str(path)]

    return write


def error_of(capsys: pytest.CaptureFixture, *argv: str) -> str:
    with pytest.raises(SystemExit) as end:
        parse_run_arguments(argv)
    assert end.value.code == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1, text  # one line, without the hundred options
    return text


def test_the_command_line_wins_over_the_preset_and_the_preset_over_defaults(preset: Any) -> None:
    words = preset("method: informin\nreconstruction_weight: 4\nlearning_rate: 1e-5\neval_steps: 50\n")
    run, args, fields = parse_run_arguments(
        [*words, "--reconstruction_weight", "2"], defaults={"eval_steps": 7, "logging_steps": 3}
    )
    assert (run.method, fields, args.learning_rate) == ("informin", {"reconstruction_weight": 2.0}, 1e-5)
    assert (args.eval_steps, args.save_steps, args.logging_steps) == (50, 50, 3)
    assert parse_run_arguments([*words, "--method", "simcse", "--learning_rate=2e-5"])[1].learning_rate == 2e-5


@pytest.mark.parametrize(
    ("name", "kind", "rate", "span"),
    [
        ("mirror-bert-base", "none", None, None),
        ("mirror-bert-base", "delete", None, None),
        ("mirror-bert-base", "mask", None, 5),
        ("esimcse-bert-base", "none", None, None),
        ("esimcse-bert-base", "delete", 0.16, None),
        ("esimcse-bert-base", "mask", None, None),
    ],
)
def test_another_augmentation_than_the_preset_s_goes_without_its_settings(
    name: str, kind: str, rate: float | None, span: int | None, capsys: pytest.CaptureFixture
) -> None:
    """Regression: mirror-bert-base names ``--augmentation none`` as a part of it, which its span refused."""
    _, args, _ = parse_run_arguments(["--config", name, f"--augmentation={kind}"])
    assert (args.augmentation, args.augmentation_rate, args.augmentation_span) == (kind, rate, span)
    told = error_of(capsys, "--config", name, "--augmentation", "none", "--augmentation_span", "4")
    assert "augmentation_span must be left out with augmentation 'none', got 4" in told


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("learning_rate: 1e-5", "learning_rate", 1e-5),  # text to YAML
        ("learning_rate: 1", "learning_rate", 1.0),
        ("bf16: true", "bf16", True),
        ("bf16: 'false'", "bf16", False),
        ("save_total_limit: null", "save_total_limit", None),
        ("max_seq_length: '48'", "max_seq_length", 48),
        ("max_steps: 1000.0", "max_steps", 1000),
        ("columns: sentence", "columns", ["sentence"]),
        ("columns: [a, b]", "columns", ["a", "b"]),
        ("dev_columns: [5, 6, 4]", "dev_columns", ["5", "6", "4"]),
        ("train_file: 5", "train_file", "5"),
        ("resume_from_checkpoint: true", "resume_from_checkpoint", True),
        ("temperature: 1", "temperature", 1.0),
        ("temperature: null", "temperature", None),
        ("symmetric: yes", "symmetric", True),
    ],
)
def test_values_of_a_preset_have_their_arguments_type(
    preset: Any, text: str, name: str, value: Any, bf16_computed: None
) -> None:
    run, args, fields = parse_run_arguments(preset(text))
    found = {**vars(args), **vars(run), **fields}.get(name)
    assert found == value
    assert type(found) is type(value)


def test_a_preset_can_change_what_an_anchor_brings(preset: Any) -> None:
    """A merged mapping (``<<``) has keys of its own: they are not given twice."""
    text = "accelerator_config: {split_batches: false, <<: &both {split_batches: true, dispatch_batches: false}}"
    _, args, _ = parse_run_arguments(preset(text))
    assert (args.accelerator_config.dispatch_batches, args.accelerator_config.split_batches) == (False, False)


def test_a_preset_can_hold_a_mapping_where_the_argument_takes_one(preset: Any) -> None:
    _, args, _ = parse_run_arguments(preset("accelerator_config: {dispatch_batches: false, split_batches: true}"))
    assert (args.accelerator_config.dispatch_batches, args.accelerator_config.split_batches) == (False, True)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--resume_from_checkpoint", "True"], "resume_from_checkpoint", True),
        (["--resume_from_checkpoint", "False"], "resume_from_checkpoint", False),
        (["--resume_from_checkpoint", "a/checkpoint-5"], "resume_from_checkpoint", "a/checkpoint-5"),
        (["--bf16"], "bf16", True),
        (["--do_predict", "False"], "do_predict", False),
        (["--symmetric"], "symmetric", True),
        (["--symmetric", "false"], "symmetric", False),
        (["--columns", "a", "b"], "columns", ["a", "b"]),
    ],
)
def test_values_of_a_command_line(words: list[str], name: str, value: Any, bf16_computed: None) -> None:
    run, args, fields = parse_run_arguments(words)
    found = {**vars(args), **vars(run), **fields}[name]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("leaning_rate: 1", "unknown argument 'leaning_rate' for method 'simcse'; did you mean learning_rate"),
        ("config: x", "unknown argument 'config'"),
        ("1: 2", "unknown argument '1'"),
        ("reconstruction_weigth: 1", "did you mean reconstruction_weight"),
        ("mlm_probability: 0.1", "'mlm' is not among its objectives, --mlm_weight adds it"),
        ("learning_rate: fast", "learning_rate must be float, got 'fast'"),
        ("learning_rate: true", "learning_rate must be float, got True"),
        ("learning_rate: null", "learning_rate must be float, got None"),
        ("max_seq_length: 32.5", "max_seq_length must be int, got 32.5"),
        ("max_seq_length: [32]", "max_seq_length must be int, got [32]"),
        ("save_total_limit: 2.5", "save_total_limit must be int, got 2.5"),
        ("bf16: maybe", "bf16 must be bool, got 'maybe'"),
        ("bf16: 1", "bf16 must be bool, got 1"),
        ("temperature: hot", "temperature must be float, got 'hot'"),
        ("columns: {a: b}", "columns must be str, got {'a': 'b'}"),
        ("method: simsce", f"method must be one of {', '.join(map(repr, METHODS))}, got 'simsce'"),
        ("method: [simcse]", "method must be one of"),
        (
            "method: joint\nobjectives: [mlmm]",
            f"objectives must be among {', '.join(map(repr, OBJECTIVES))}, got 'mlmm'",
        ),
        ("eval_strategy: never", "never is not a valid IntervalStrategy"),
        ("- a", "a preset must be a mapping of names to values, got list"),
        ("", "a preset must be a mapping of names to values, got NoneType"),
        ("a: [", "not a YAML file"),
        (
            "learning_rate: 1e-5\nseed: 1\nlearning_rate: 3e-5",
            "preset.yaml, line 3: 'learning_rate' must be given once, line 1 has it as well",
        ),
        ("import: math\nimports: json", "preset.yaml: must hold 'import' or 'imports', got both"),
        ("accelerator_config: {even_batches: true, even_batches: false}", "line 1: 'even_batches' must be given once"),
    ],
)
def test_a_wrong_preset_is_told_in_one_line(
    preset: Any, capsys: pytest.CaptureFixture, text: str, message: str
) -> None:
    assert message in error_of(capsys, *preset(text))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learning_rte", "1"], "unknown argument 'learning_rte' for method 'simcse'; did you mean learning_rate"),
        (["--temperatur=1"], "did you mean temperature?"),
        (["--reconstruction", "mse"], "unknown argument 'reconstruction' for method 'simcse'"),
        (["stray"], "unknown argument 'stray'"),
        (["--learning_rate", "fast"], "learning-rate: invalid float value: 'fast'"),
        (["--temperature", "hot"], "--temperature: invalid float value: 'hot'"),
        (["--method", "simsce"], "method must be one of"),
        (["--config", "nowhere.yaml"], "--config nowhere.yaml: no such file"),
        (["--label_free_samples", "1"], "label_free_samples must be 0 or at least 2, got 1"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(
    capsys: pytest.CaptureFixture, words: list[str], message: str
) -> None:
    assert message in error_of(capsys, *words)


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_of_ours_parses_and_builds_its_config(path: Path) -> None:
    """Two of them asked for a masked LM's probability that the parser did not know."""
    run, args, fields = parse_run_arguments(["--config", str(path), "--output_dir", "x"])
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = {**vars(args), **vars(run), **fields}
    assert {name: found[name] for name in content} == content
    tiny = BertConfig(hidden_size=768, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    config = METHODS[run.method].config_class(encoder_config=tiny, **fields)
    assert not any(objective.unread() for objective in config.objectives)
    names = fields.pop("objectives", None)
    assert names is None or [objective.name for objective in config.objectives] == names
    kept = {name: lora_settings(value) if name == "lora" else value for name, value in fields.items()}
    assert {name: getattr(config, name) for name in fields} == kept


def test_a_preset_gives_adapters_as_a_rank_or_a_mapping(preset: Any) -> None:
    for text, value in (("8", 8), ("{r: 4, lora_dropout: 0.1}", {"r": 4, "lora_dropout": 0.1})):
        assert parse_run_arguments(preset(f"method: simcse\nlora: {text}\n"))[2] == {"lora": value}


def test_a_weight_brings_its_objectives_fields(preset: Any) -> None:
    words = ["--mlm_weight", "0.1", "--mlm_probability", "0.2", "--mlm_views=1"]
    expected = {"mlm_weight": 0.1, "mlm_probability": 0.2, "mlm_views": 1}
    assert parse_run_arguments(words)[2] == expected
    assert parse_run_arguments(["--method", "informin", "--reconstruction", "mse", *words])[2] == {
        "reconstruction": "mse",
        **expected,
    }
    _, _, fields = parse_run_arguments(preset("method: joint\nobjectives: [mlm]\nmlm_probability: 0.3\n"))
    assert fields == {"objectives": ["mlm"], "mlm_probability": 0.3}


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--aux_mlm_head_init", "top_layers"], "aux_mlm_head_init", "top_layers"),
        (["--aux_mlm_weight", "0"], "aux_mlm_weight", 0.0),
        (["--contrastive_weight", "0"], "contrastive_weight", 0.0),
        (["--aux_mlm_detach", "false"], "aux_mlm_detach", False),
        (["--aux_mlm_probability", "0.1"], "aux_mlm_probability", 0.1),
        (["--aux_mlm_weight", "5e-2"], "aux_mlm_weight", 0.05),
        (["--projector_at_inference"], "projector_at_inference", True),
    ],
    ids=["4", "5, MLM", "5, contrast", "6", "7", "8", "9"],
)
def test_a_table_of_infocse_is_one_flag_away(words: list[str], field: str, value: Any) -> None:
    config = next(path for path in PRESETS if path.stem == "infocse-bert-base")
    fields = [parse_run_arguments(["--config", str(config), "--output_dir", "x", *w])[2] for w in ([], words)]
    configs = [METHODS["infocse"].config_class(**each) for each in fields]
    assert getattr(configs[1], field) == value != getattr(configs[0], field)
    setattr(configs[0], field, value)
    assert configs[0].to_dict() == configs[1].to_dict()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--dcm_weight", "0"], {"dcm_weight": 0.0}),
        (["--icm_weight", "0"], {"icm_weight": 0.0}),
        (["--dcm_weight", "0", "--icm_weight", "0"], {"dcm_weight": 0.0, "icm_weight": 0.0}),
        (["--contrastive_weight", "0"], {"contrastive_weight": 0.0}),
        (["--temperature", "0.01"], {"temperature": 0.01}),
        (["--pooling", "cls"], {"pooling": "cls", "prompt_template": None}),
        (["--pooling", "first_last_mean"], {"pooling": "first_last_mean", "prompt_template": None}),
        (["--prompt_template", "{sentence} is {mask}"], {"prompt_template": "{sentence} is {mask}"}),
        (["--dcm_reduction", "sum"], {"dcm_reduction": "sum"}),
        (["--dcm_representation", "z"], {"dcm_representation": "z"}),
        (["--icm_word_dropout", "0.5"], {"icm_word_dropout": 0.5}),
        (["--icm_target", "positive"], {"icm_target": "positive"}),
        (["--icm_decoder", "denoising", "--icm_decoder_layers", "16"], {"icm_decoder": "denoising"}),
    ],
)
def test_a_table_of_msse_is_one_flag_away(words: list[str], wanted: dict[str, Any]) -> None:
    preset = next(path for path in PRESETS if path.stem == "msse-bert-base")
    plain, changed = (
        METHODS["msse"].config_class(**parse_run_arguments(["--config", str(preset), "--output_dir", "x", *each])[2])
        for each in ([], words)
    )
    for name, value in wanted.items():
        assert getattr(changed, name) == value != getattr(plain, name)
    assert plain.prompt_template == '"{sentence}" means {mask}.'


def test_batch_sizes_of_msse_are_a_flag_and_its_objectives_join_others() -> None:
    """Table 6; and a list of objectives that no paper tried."""
    preset = next(path for path in PRESETS if path.stem == "msse-bert-base")
    words = ["--config", str(preset), "--output_dir", "x", "--per_device_train_batch_size", "32"]
    assert parse_run_arguments(words)[1].per_device_train_batch_size == 32
    words = ["--method", "joint", "--objectives", "dcm", "icm", "aux_mlm", "--dcm_weight", "0.5", "--output_dir", "x"]
    _, _, fields = parse_run_arguments(words)
    config = METHODS["joint"].config_class(**fields)
    assert [objective.name for objective in config.objectives] == ["dcm", "icm", "aux_mlm"]
    assert config.dcm_weight == 0.5
    assert config.decoder_layers == 1


def test_help_lists_the_fields_of_the_method(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as end:
        parse_run_arguments(["--method", "informin", "--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    for name in (
        "Method informin",
        "--reconstruction_weight",
        "--temperature",
        "--train_file",
        "--overwrite",
    ):
        assert name in text
    for action in ("--columns", "--dev_file", "--max_seq_length"):
        assert action in text


def test_nothing_named_asks_for_the_embedded_default() -> None:
    assert parse_run_arguments([])[0].is_empty
    run = parse_run_arguments(["--train_file", "a.txt"])[0]
    with pytest.raises(ValueError, match="--model_name_or_path is missing"):
        run.check()
    run = parse_run_arguments(["--model_name_or_path", "m", "--train_file", "a.txt", "--dataset_name", "b"])[0]
    with pytest.raises(ValueError, match="either --train_file or --dataset_name"):
        run.check()
