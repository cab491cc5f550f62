"""The arguments of a training script: a preset file, training arguments and the fields of the method's config, flat.

``--config preset.yaml`` holds the same names as the command line; the command line wins.
"""

import argparse
import difflib
import math
import re
import reprlib
import shutil
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

from csekit.encoding.imports import import_hint, import_modules
from csekit.encoding.yaml_files import read_yaml
from csekit.evaluation.sts_data import TEXT_FORMS
from csekit.evaluation.transfer_data import resolve_transfer
from csekit.modeling import METHODS, OBJECTIVES, CSEConfig
from csekit.modeling.settings import check_number
from csekit.trainers.arguments import CSETrainingArguments, RunTrainingArguments
from csekit.trainers.data.augmentation import RATES
from csekit.trainers.scripts.help_text import Details, Group, Section, argument_texts, first_line, render, sections
from csekit.trainers.scripts.launch import program, tell_error

_HELP = {"-h", "--help", "--help_all"}

_CONTRAST = "The contrast of every method: two views of a sentence against the other sentences of the batch."

#: Arguments that some augmentations alone read.
_OF_AUGMENTATIONS = {"augmentation_rate": tuple(RATES), "augmentation_span": ("mask",)}

#: csekit's presets, in a clone and in the installed package.
PRESETS = Path(__file__).resolve().parents[2] / "examples" / "configs"


@dataclass
class CorpusArguments:
    """Arguments that all training scripts share: the encoder, the corpus, the folder."""

    model_name_or_path: str | None = field(default=None, metadata={"help": "Encoder to start from: Hub id or folder."})
    train_file: str | None = field(
        default=None, metadata={"help": "Corpus: .txt (a sentence a line), .csv, .tsv, .json, .jsonl or .parquet."}
    )
    dataset_name: str | None = field(default=None, metadata={"help": "Corpus on the Hub, instead of a file."})
    columns: list[str] | None = field(
        default=None,
        metadata={"help": "Column of the sentence, or of sentence and positive, or of these and hard negative."},
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Use only the first rows of the corpus."})
    dropout: float | None = field(default=None, metadata={"help": "All dropout rates of the encoder."})
    overwrite: bool = field(
        default=False, metadata={"help": "Replace the run that output_dir holds: its checkpoints are deleted."}
    )

    def check(self) -> None:
        """Raise ValueError for what is missing or contradicts itself."""
        if (self.train_file is None) == (self.dataset_name is None):
            raise ValueError("give either --train_file or --dataset_name, got both or neither")
        if self.dropout is not None:
            check_number("dropout", self.dropout, 0, 1, open_ends="high")
        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns must be different, got {self.columns}")


@dataclass
class RunArguments(CorpusArguments):
    """Arguments of contrastive training: method, data, evaluation sets."""

    method: str = field(
        default="simcse",
        metadata={"help": f"One of {', '.join(METHODS)}. --method NAME --help shows the options of a method."},
    )
    imports: list[str] | None = field(
        default=None,
        metadata={
            "aliases": ["--import"],
            "action": "extend",
            "help": "Modules that register objectives of your own, from the working directory or installed. In a "
            "preset 'import'; those of preset and command line add up.",
        },
    )
    layers: list[int] | None = field(
        default=None, metadata={"help": "Keep only these layers of the encoder, numbered from 0: a smaller one."}
    )
    streaming: bool = field(default=False, metadata={"help": "Read the corpus as a stream; needs --max_steps."})
    train_fraction: float | None = field(
        default=None,
        metadata={
            "help": "Few-shot: train on this share of the corpus, drawn by --seed, with as many optimiser steps as on "
            "all of it (or --max_steps)."
        },
    )
    filter_overlap: bool = field(
        default=False, metadata={"help": "Leave out training rows that hold a sentence of the dev or test sets."}
    )
    dev_file: str | None = field(
        default=None, metadata={"help": "Scored pairs for selection (.tsv or .csv), instead of STS-B dev."}
    )
    test_file: str | None = field(
        default=None,
        metadata={
            "help": "Scored pairs, scored before and after training, instead of the STS test sets. With --do_predict "
            "False only --filter_overlap reads them."
        },
    )
    dev_columns: list[str] | None = field(
        default=None, metadata={"help": "Names or numbers of the columns of both: sentence1 sentence2 score."}
    )
    data_dir: str | None = field(
        default=None,
        metadata={"help": "Folder with SentEval's layout: STS-B dev for selection, the seven STS test sets."},
    )
    text_form: str = field(default="tokenized", metadata={"help": "STS texts: tokenized (as the papers) or raw."})
    select_on: str = field(
        default="sts",
        metadata={
            "help": "Selects the checkpoint: sts (the dev set), transfer (dev accuracy of SentEval's seven tasks) or "
            "some of these tasks, CR,TREC; every evaluation encodes them."
        },
    )

    @property
    def is_empty(self) -> bool:
        """True if neither encoder nor corpus is named."""
        return not (self.model_name_or_path or self.train_file or self.dataset_name)

    def check(self) -> None:
        """Raise ValueError for what is missing or contradicts itself."""
        if self.model_name_or_path is None:
            raise ValueError("--model_name_or_path is missing: name an encoder, e.g. bert-base-uncased or a folder")
        super().check()
        if self.text_form not in TEXT_FORMS:
            raise ValueError(f"text_form must be {' or '.join(map(repr, TEXT_FORMS))}, got {self.text_form!r}")
        if self.dev_columns is not None and len(set(self.dev_columns)) != 3:
            raise ValueError(
                f"dev_columns must name 3 different columns (sentence1 sentence2 score), got {self.dev_columns}"
            )
        if self.dev_columns is not None and self.dev_file is None and self.test_file is None:
            raise ValueError(
                "--dev_columns must be left out without --dev_file and --test_file, whose columns they are, "
                f"got {self.dev_columns}"
            )
        if self.train_fraction is not None and not 0 < self.train_fraction <= 1:
            raise ValueError(f"train_fraction must lie in (0, 1], got {self.train_fraction}")
        if self.streaming and (self.filter_overlap or self.train_fraction is not None):
            name = "--filter_overlap" if self.filter_overlap else "--train_fraction"
            raise ValueError(f"{name} must be left out with --streaming: it needs the whole corpus at the start")
        if self.select_on != "sts":
            resolve_transfer(self.select_on)
            if self.data_dir is None:
                raise ValueError(f"--select_on {self.select_on} needs --data_dir, the folder with SentEval's tasks")
        if self.filter_overlap and not (self.data_dir or self.dev_file or self.test_file):
            raise ValueError("--filter_overlap needs the sets to compare with: --data_dir, --dev_file or --test_file")


def _options(annotation: Any) -> list[Any]:
    """Return the types of an annotation, without None."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return [annotation]
    return [option for option in typing.get_args(annotation) if option is not type(None)]


def _item_type(annotation: Any) -> type | None:
    """Return int for ``list[int] | None`` and the like; None for anything but a list of numbers."""
    options = _options(annotation)
    items = typing.get_args(options[0]) if len(options) == 1 and typing.get_origin(options[0]) is list else ()
    return items[0] if len(items) == 1 and items[0] in (int, float) else None


def _plain_type(annotation: Any) -> type:
    """Return float for ``float | None`` and ``list[float]`` and the like; str for anything but one plain type."""
    options = _options(annotation)
    if len(options) == 1 and options[0] in (int, float, bool, str):
        return options[0]  # type: ignore[no-any-return]
    return _item_type(annotation) or str


def method_fields(method: str, objectives: list[str] | None = None) -> dict[str, type]:
    """Return the config fields of a method that a command line can set, with their types.

    Raises:
        ValueError: an unknown method or objective.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}")
    unknown = sorted(set(objectives or []) - set(OBJECTIVES))
    if unknown:
        raise ValueError(
            f"objectives must be among {', '.join(map(repr, OBJECTIVES))}, got {unknown[0]!r}; --import my_module "
            "adds those that a module registers"
        )
    config = METHODS[method].config_class
    skipped = {"model_type", "sub_configs", "encoder_config", "objectives", "prompt_mask_offset", "prompt_frames"}
    own = {name: _plain_type(kind) for name, kind in CSEConfig.__annotations__.items() if name not in skipped}
    return own | config.flat_names(objectives)


def preset_file(path: str | Path) -> Path:
    """Return a preset's file from its path, or from the name of one of csekit's presets.

    Raises:
        ValueError: no such file, and no preset of this name.
    """
    own = PRESETS / f"{path}.yaml"
    found = next((file for file in (Path(path), own) if file.is_file()), None)
    if found is None:
        files = (file for pattern in ("*.yaml", "pretraining/*.yaml") for file in PRESETS.glob(pattern))
        names = [file.relative_to(PRESETS).with_suffix("").as_posix() for file in files]
        near = difflib.get_close_matches(Path(path).stem, names, n=3)
        hint = f"; did you mean the preset {' or '.join(near)}?" if near else ""
        raise ValueError(f"--config {path}: no such file, and no preset of csekit has this name{hint}")
    return found


def read_preset(path: str | Path) -> dict[str, Any]:
    """Read a YAML file of flat names, or one of csekit's presets by its name.

    Raises:
        ValueError: no such file, or it is not a mapping of names to values.
    """
    file = preset_file(path)
    content = read_yaml(file)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: a preset must be a mapping of names to values, got {type(content).__name__}")
    return content


def _imports(argv: Sequence[str], preset: dict[str, Any]) -> list[str]:
    """Return the modules that preset and words name, each once."""
    given = preset.get("imports") or []
    named = [given] if isinstance(given, str) else given
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise ValueError(f"import must be the name of a module, or a list of them, got {reprlib.repr(given)}")
    parser = _OneLine(add_help=False, allow_abbrev=False)
    parser.add_argument("--import", "--imports", dest="imports", nargs="*", action="extend", default=named)
    return list(dict.fromkeys(parser.parse_known_args(list(argv))[0].imports))


def check_imports(imports: Sequence[str], objectives: Sequence[str]) -> None:
    """Check that the run uses an objective of the user's own.

    Arguments:
        imports: names of the imported modules.
        objectives: names of the run's objectives.

    Raises:
        ValueError: all objectives of the run are csekit's.
    """
    own = [name for name, kind in OBJECTIVES.items() if kind.__module__.split(".")[0] != "csekit"]
    if set(own) & set(objectives):
        return
    told = f"--import {' '.join(imports)}"
    if not own:
        raise ValueError(f"{told}: no objective was registered, which register_objective(MyObjective) does")
    raise ValueError(
        f"{told}: the run names none of the registered objectives, {', '.join(map(repr, own))}: add --{own[0]}_weight"
    )


def _early(argv: Sequence[str], preset: dict[str, Any]) -> tuple[str, list[str] | None]:
    """Return method and objectives, which decide the further arguments. ``<term>_weight`` adds an objective."""
    parser = _OneLine(add_help=False, allow_abbrev=False)
    parser.add_argument("--method", default=preset.get("method", "simcse"))
    parser.add_argument("--objectives", nargs="*", default=preset.get("objectives"))
    known, _ = parser.parse_known_args([argument for argument in argv if argument not in _HELP])
    named = {*preset, *(word.removeprefix("--").split("=")[0] for word in argv if word.startswith("--"))}
    added = [name for name in OBJECTIVES if f"{name}_weight" in named]
    objectives = known.objectives
    if isinstance(objectives, str):
        objectives = [objectives]
    if not isinstance(objectives, list | None):
        raise ValueError(f"objectives must be a list of names, got {reprlib.repr(objectives)}")
    if objectives is None and added and isinstance(known.method, str) and known.method in METHODS:
        objectives = [objective.name for objective in METHODS[known.method].config_class.default_objectives()]
    return known.method, None if objectives is None else list(dict.fromkeys([*map(str, objectives), *added]))


class _OneLine(argparse.ArgumentParser):
    """A parser that reports an error in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        tell_error(message)
        raise SystemExit(2)


class _Parser(_OneLine, HfArgumentParser):
    """The parser of a training command, with help of its own."""

    about = ""
    details: Callable[[], Details] = Details

    def sections(self, full: bool = False) -> list[Section]:
        """Return the options in groups; with ``full`` those of Transformers as well."""
        return sections(self, self.details(), full)

    def format_help(self, full: bool = False) -> str:
        about = f"\n{self.about}\n" if self.about else ""
        text = render(self.sections(full), shutil.get_terminal_size().columns)
        return f"usage: {self.prog} [options]\n{about}\n{text}"


class _HelpAll(argparse.Action):
    """``--help_all``: the help with all of Transformers' arguments."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(parser.format_help(full=True), end="")  # type: ignore[call-arg]
        parser.exit()


def _whole(text: Any) -> int:
    """Return a whole number of decimal digits; Python would also read 1_0 and digits of other scripts."""
    if isinstance(text, str) and not re.fullmatch("[+-]?[0-9]+", text.strip()):
        raise ValueError(text)
    return int(text)


def _decimal(text: Any) -> float:
    """Return a number as :func:`_whole` does."""
    if isinstance(text, str) and not (text.isascii() and "_" not in text):
        raise ValueError(text)
    return float(text)


@dataclass(frozen=True)
class ExtraFields:
    """Arguments of a command line that are fields of no dataclass.

    Arguments:
        types: the type of each argument by name.
        lists: names of those that take several words.
        hint: returns a hint for an unknown name, or an empty text.
        details: returns their groups and texts in ``--help``.
    """

    types: dict[str, type]
    lists: tuple[str, ...] = ()
    hint: Callable[[str], str] = lambda name: ""
    details: Callable[[], Details] = Details


def build_parser(kinds: Sequence[type], extra: ExtraFields | None = None, about: str = "") -> "_Parser":
    """Return the parser of dataclasses and further arguments. Further arguments that are not set have no value.

    Arguments:
        about: what the command does, for ``--help``.
    """
    parser = _Parser(list(kinds), prog=program(), allow_abbrev=False)  # type: ignore[arg-type]
    parser.register("type", int, _whole)
    parser.register("type", float, _decimal)
    parser.add_argument(
        "--config",
        help="Preset: one of csekit's by name (simcse-bert-base), or a YAML file with these names; "
        "the command line wins.",
    )
    parser.add_argument("--help_all", action=_HelpAll, nargs=0, help="Show Transformers' other arguments as well.")
    for action in parser._actions:
        if action.dest == "report_to":
            action.nargs = "+"  # Transformers takes a list as well, but its type names str first
    parser.about = about
    if extra is not None:
        parser.details = extra.details
        for name, kind in extra.types.items():
            options: dict[str, Any] = {"type": kind, "metavar": kind.__name__}
            if kind is bool:
                options = {"type": string_to_bool, "metavar": "bool", "nargs": "?", "const": True}
            elif name in extra.lists:
                options = {"nargs": "*", **({"type": kind, "metavar": kind.__name__} if kind is not list else {})}
            parser.add_argument(f"--{name}", default=argparse.SUPPRESS, **options)
    return parser


def parse_arguments(
    kinds: Sequence[type],
    argv: Sequence[str] | None = None,
    defaults: dict[str, Any] | None = None,
    extra: Callable[[Sequence[str], dict[str, Any]], ExtraFields] | None = None,
    about: str = "",
    choices: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
) -> tuple[Any, ...]:
    """Parse the command line of a training script. It overrides the preset (``--config``), which overrides defaults.

    Arguments:
        kinds: the dataclasses to fill.
        argv: the words; default: those of the process.
        defaults: values that preset and command line override.
        extra: returns from words and preset the arguments that are fields of no dataclass.
        about: what the command does, for ``--help``.
        choices: argument to those that some of its values alone read, each with these values. Where the command line
            chooses another value, the preset's go with the preset's choice.

    Returns:
        an instance of each dataclass, and the values of the extra arguments that were set. An error ends the process
        with status 2 and one line that names the argument, its value and the allowed values.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    early = _OneLine(add_help=False, allow_abbrev=False)
    early.add_argument("--config")
    config_path = early.parse_known_args(argv)[0].config
    try:
        if config_path == "":
            raise ValueError("--config must be a preset's name or file, got ''")
        preset = dict(defaults or {}) | (read_preset(config_path) if config_path else {})
        if {"import", "imports"} <= preset.keys():
            raise ValueError(f"{config_path}: must hold 'import' or 'imports', got both")
        if "import" in preset:  # a keyword of Python, so no field can have this name
            preset["imports"] = preset.pop("import")
        preset = _still_read(argv, preset, choices or {})
        more = extra(argv, preset) if extra is not None else None
        parser = build_parser(kinds, more, about)
        known = {action.dest for action in parser._actions} - {"help", "help_all", "config"}
        for name in preset:
            if name not in known:
                raise ValueError(f"{config_path or 'defaults'}: {_unknown(str(name), known, more)}")
        parser.set_defaults(**_typed(parser, preset, str(config_path), kinds))
        for action in parser._actions:
            action.required = action.required and action.dest not in preset
        *filled, rest, unknown = _filled(parser, len(kinds), argv)
        for word in unknown:
            raise ValueError(_unknown(word.removeprefix("--").split("=")[0], known, more))
    except ValueError as error:
        tell_error(error)
        raise SystemExit(2) from None
    own = more.types if more is not None else {}
    return *filled, {name: value for name, value in rest.items() if name in own}


def _still_read(
    argv: Sequence[str], preset: dict[str, Any], choices: Mapping[str, Mapping[str, Sequence[str]]]
) -> dict[str, Any]:
    """Return a preset without the arguments that the choices of the command line do not read."""
    parser = _OneLine(add_help=False, allow_abbrev=False)
    for choice in choices:
        parser.add_argument(f"--{choice}")
    chosen = vars(parser.parse_known_args([word for word in argv if word not in _HELP])[0])
    unread = {
        name
        for choice, value in chosen.items()
        for name, values in choices[choice].items()
        if value is not None and value not in values
    }
    return {name: value for name, value in preset.items() if name not in unread}


def _filled(parser: HfArgumentParser, count: int, argv: list[str]) -> tuple[Any, ...]:
    """Return the dataclasses, the values of the other arguments, and the unknown words."""
    found: Any = parser.parse_args_into_dataclasses(argv, True, look_for_args_file=False)
    return *found[:count], vars(found[count]), [word for words in found[count + 1 :] for word in words]


def parse_run_arguments(
    argv: Sequence[str] | None = None, defaults: dict[str, Any] | None = None, about: str = ""
) -> tuple[RunArguments, CSETrainingArguments, dict[str, Any]]:
    """Parse a command line of contrastive training.

    Arguments:
        argv: the words; default: those of the process.
        defaults: values that preset and command line override.
        about: what the command does, for ``--help``.

    Returns:
        (run arguments, training arguments, fields for ``from_backbone``). An error ends the process with status 2 and
        one line that names the argument, its value and the allowed values.
    """
    kinds = (RunArguments, CSETrainingArguments)
    run, args, own = parse_arguments(kinds, argv, defaults, _method_extra, about, {"augmentation": _OF_AUGMENTATIONS})
    return run, args, own


def run_sections(*words: str) -> list[Section]:
    """Return the options of contrastive training in groups, as ``--help`` shows them beside these words."""
    return build_parser((RunArguments, CSETrainingArguments), _method_extra([*words, "--help"], {})).sections()


def _output_dir(argv: Sequence[str], preset: dict[str, Any]) -> str:
    parser = _OneLine(add_help=False, allow_abbrev=False)
    parser.add_argument("--output_dir", default=preset.get("output_dir", RunTrainingArguments.output_dir))
    return str(parser.parse_known_args(list(argv))[0].output_dir)


def _method_extra(argv: Sequence[str], preset: dict[str, Any]) -> ExtraFields:
    """Import the named modules, which may register objectives; return the config fields of the named method."""
    imports = _imports(argv, preset)
    import_modules(imports)
    method, objectives = _early(argv, preset)
    needed = import_hint(_output_dir(argv, preset))
    taken = {f.name for kind in (RunArguments, CSETrainingArguments) for f in fields(kind)}
    try:
        own = {name: kind for name, kind in method_fields(method, objectives).items() if name not in taken}
    except ValueError as error:
        raise ValueError(f"{error}{needed}") from None
    config = METHODS[method].config_class
    if imports and not _HELP & set(argv):
        check_imports(imports, [o.name for o in config.default_objectives()] if objectives is None else objectives)
    if config is CSEConfig:
        own["objectives"] = list

    def hint(name: str) -> str:
        """Return a hint for an unknown name."""
        for objective, kind in OBJECTIVES.items():
            if name.removeprefix(f"{objective}_") in kind.config_class.field_names() and name.startswith(objective):
                return (
                    f" for method {method!r}; {objective!r} is not among its objectives, --{objective}_weight adds it"
                )
        return f" for method {method!r}{needed}"

    lists = ("objectives", *(name for name, kind in CSEConfig.__annotations__.items() if _item_type(kind) is not None))
    return ExtraFields(own, lists, hint, lambda: _method_details(method, objectives, own))


def _method_details(method: str, objectives: list[str] | None, names: Iterable[str]) -> Details:
    """Return groups, texts and defaults of a method's options; the contrast first, then each objective.

    Arguments:
        objectives: names of the objectives; None means the method's own.
        names: the options.
    """
    kind = METHODS[method].config_class
    config = kind() if objectives is None else kind(objectives=objectives)
    contrast = [name for name in CSEConfig.__annotations__ if name in names and name != "objectives"]
    groups = [Group(f"Method {method}", _CONTRAST, contrast)]
    texts = argument_texts(CSEConfig) | {"objectives": f"Of method joint: one or more of {', '.join(OBJECTIVES)}."}
    defaults = {name: getattr(config, name) for name in contrast}
    aliases: dict[str, str] = {}
    hidden: list[str] = []
    for objective in config.objectives:
        told, own = argument_texts(type(objective)), []
        for short in (short for short, of in objective.field_types().items() if of is not dict):
            name = f"{objective.name}_{short}"
            if short in names and short not in kind.__dataclass_fields__:
                if f"{short}_".startswith(f"{objective.name}_"):  # rtd_positions, not rtd_rtd_positions
                    hidden.append(name)
                    name = short
                else:
                    aliases[name] = short
            own.append(name)
            texts[name], defaults[name] = told.get(short, ""), getattr(objective, short, None)
        groups.append(Group(f"Objective {objective.name}", first_line(OBJECTIVES[objective.name]), own))
    others = [f"{name}_weight" for name in OBJECTIVES if name not in [o.name for o in config.objectives]]
    texts |= {name: first_line(OBJECTIVES[name.removesuffix("_weight")]) for name in others}
    groups.append(
        Group("Further objectives", "A weight above 0 adds one to the method, with its own options.", others)
    )
    return Details(groups, texts, defaults, aliases, hidden)


def _unknown(name: str, known: set[str], extra: ExtraFields | None) -> str:
    hint = extra.hint(name) if extra is not None else ""
    near = difflib.get_close_matches(name, known, n=3)
    if near and ";" not in hint:
        hint += f"; did you mean {' or '.join(near)}?"
    return f"unknown argument {name!r}{hint}"


def _typed(
    parser: argparse.ArgumentParser, preset: dict[str, Any], path: str, kinds: Sequence[type]
) -> dict[str, Any]:
    """Convert the preset's values to the types of their arguments: YAML reads ``1e-5`` as text."""
    actions = {action.dest: action for action in parser._actions}
    hints = {name: hint for kind in kinds for name, hint in typing.get_type_hints(kind).items()}
    typed: dict[str, Any] = {}
    for name, value in preset.items():
        action = actions[name]
        hint = hints.get(name, CSEConfig.__annotations__.get(name))
        parts = typing.get_args(hint) or (hint,)
        if value is None and action.default is argparse.SUPPRESS:
            continue  # the method's default
        if (value is None and type(None) in parts) or (isinstance(value, dict) and dict in parts) or Any in parts:
            typed[name] = value
            continue
        several = action.nargs in ("+", "*")
        try:
            items = value if several and isinstance(value, list) else [value]
            converted = [plain_value(action.type or str, item) for item in items]
        except (ValueError, TypeError, OverflowError):
            kind = "bool" if action.type is string_to_bool else getattr(action.type or str, "__name__", action.type)
            raise ValueError(f"{path}: {name} must be {kind}, got {reprlib.repr(value)}") from None
        typed[name] = converted if several else converted[0]
    return typed


def plain_value(kind: Any, value: Any) -> Any:
    """Convert a word, or a scalar of YAML, to the type of an argument. Raises ValueError if this would change the
    value."""
    if isinstance(value, list | dict | None) or (isinstance(value, bool) and kind in (int, float)):
        raise ValueError
    if kind is int and isinstance(value, float) and not (math.isfinite(value) and value == int(value)):
        raise ValueError
    if kind in (bool, string_to_bool):
        if not isinstance(value, bool | str):
            raise ValueError
        try:
            return string_to_bool(value)
        except argparse.ArgumentTypeError as error:
            raise ValueError(str(error)) from None
    strict = {int: _whole, float: _decimal}.get(kind, kind)
    return strict(value if kind in (int, float) else str(value))
