"""Configuration of all methods: an encoder, a pooling, a projector, one contrastive loss, a list of objectives."""

import difflib
import math
from dataclasses import replace
from typing import Any

from transformers import PreTrainedConfig

from .base import EncoderWrapperConfig
from .composition import COMPOSITIONS
from .lora import lora_settings
from .matryoshka import cuts_z, sizes_and_weights
from .objectives import POSITIVES, ContrastModifier
from .perturbation import parse_changes
from .pooling import POOLINGS
from .projectors import PROJECTORS
from .registry import OBJECTIVES, registered
from .settings import ObjectiveConfig, check_number, check_type


class CSEConfig(EncoderWrapperConfig):
    """Configuration of a sentence encoder in training: everything that changes an embedding or a loss.

    Arguments:
        encoder_config: configuration of the backbone, any encoder that ``AutoModel`` knows (default: BERT).
        pooling: ``cls`` (last layer, first token), ``last`` (last layer, last token), ``mean`` (last layer),
            ``first_last_mean`` (mean over tokens of the first and the last layer), ``top2_mean`` (of the last two) or
            ``mask`` (the mask token of the template).
        prompt_template: text around each sentence, with ``{sentence}`` and ``{mask}``, e.g.
            ``'"{sentence}" means {mask}.'``. A template that ends in ``{mask}`` is not followed by a special token:
            the mask token is then the last one, and sentence-transformers needs no code for the export.
        prompt_mask_offset: position of the template's mask token, counted from the first (≥ 0) or the last token
            (< 0). ``from_backbone`` sets it, since it knows the tokenizer.
        second_prompt_template: template of all views but the first, in training only (PromptBERT); default: the same.
        subtract_template: subtract the vector of the template alone from each view's pooled state, before the
            projector and in training only (PromptBERT).
        prompt_frames: the tokens of the templates, for these two fields; ``from_backbone`` sets it.
        projector: ``tanh`` (SimCSE), ``batchnorm`` (DiffCSE, InfoCSE), ``linear`` (MSSE) or ``none``; training only.
        projector_at_inference: keep the projector for embeddings (supervised SimCSE); False returns the pooled state.
            A term of the loss must train it.
        projector_size: size of z behind a ``linear`` projector; default: the encoder's. Distillation maps to the
            teacher's size with it.
        contrastive_weight: factor of the contrastive term; 0 leaves the term out (InfoCSE Table 5).
        temperature: τ of InfoNCE.
        angular_margin: m ≥ 0 in radians, below π/2: the positive's logit is cos(θ + m)/τ (ArcCSE).
        symmetric: average InfoNCE over both directions.
        hard_negative_weight: added to the logit of a row's own hard negative (triplets).
        mask_identical: leave texts identical to a row's own out of its denominator.
        further_positives: kinds of further positives of each sentence, joined by '+': ``dropout`` (itself again),
            ``shuffle``, ``reverse``, ``delete``, ``repeat``, ``mask`` (changed), ``column`` (the corpus's last column,
            e.g. a back-translation), ``halves``, ``parts`` (two texts whose states make one positive: the sentence's
            halves, or the last two columns). ``shuffle+shuffle+dropout`` makes three.
        further_positives_weight: factor of each further positive's InfoNCE, which is added to the contrast; 0 leaves
            them to the objectives that read them (``group``, ``peer``).
        composition: the state of a positive of two texts: their ``mean``, or ``first_last``, the first half of the
            dimensions from the first text and the second half from the second.
        second_view_weight: factor of the InfoNCE of the second view; 0 leaves the contrast to the further positives.
        contrast_dims: the contrast reads the first dimensions of the projected vectors, this many; default: all.
        same_view_negatives: take negatives from a row's own view as well; with ``symmetric``: NT-Xent.
        perturb_first: changes of the first view's token embeddings in training, joined by '+': ``token_cutoff``,
            ``feature_cutoff``, ``dropout``, each with ``:RATE`` if it is not 0.2, and ``shuffle`` (ConSERT).
        perturb_second: the same for the second view.
        whitening_groups: number of groups of dimensions that are whitened between pooled state and projector, in
            training only (WhitenedCSE); it divides the hidden size, and 0 whitens nothing. Each view, and each further
            positive, has its own statistics, over the rows of all processes.
        whitening_shuffle: draw the dimensions of the groups anew for each view in each step.
        matryoshka_dims: sizes d: every term that reads a sentence's vector is also computed on its first d dimensions,
            so that an embedding may be cut to them (Kusupati et al., 2022). The full size always counts.
        matryoshka_weights: factor of each size's terms; default: 1 each, as for a full size that is not named.
        truncate_dim: the exported encoder's embeddings have this many dimensions; default: all.
        bidirectional: let every token of a decoder language model attend to all tokens (LLM2Vec); the exported encoder
            does so too.
        lora: low-rank adapters, the only weights of the encoder that train: the rank, or fields of
            ``peft.LoraConfig``. The export holds the merged weights, a checkpoint the adapters too, in ``adapter/``.
        objectives: auxiliary objectives, as config objects, names or dicts with ``name``.

    Fields of the objectives can be given and read flat: as ``<term>_<field>``, and as ``<field>`` if only one
    objective has it. ``<term>_weight=w`` adds an objective that is not in the list.

    Raises:
        ValueError: a value that is not allowed, or an objective that is not registered.
    """

    model_type = "cse"

    pooling: str = "cls"
    prompt_template: str | None = None
    prompt_mask_offset: int | None = None
    second_prompt_template: str | None = None
    subtract_template: bool = False
    prompt_frames: list[dict[str, Any]] | None = None
    projector: str = "tanh"
    projector_at_inference: bool = False
    projector_size: int | None = None
    contrastive_weight: float = 1.0
    temperature: float = 0.05
    angular_margin: float = 0.0
    symmetric: bool = False
    hard_negative_weight: float = 0.0
    mask_identical: bool = False
    further_positives: str | None = None
    further_positives_weight: float = 1.0
    composition: str = "mean"
    second_view_weight: float = 1.0
    contrast_dims: int | None = None
    same_view_negatives: bool = False
    perturb_first: str | None = None
    perturb_second: str | None = None
    whitening_groups: int = 0
    whitening_shuffle: bool = True
    matryoshka_dims: list[int] | None = None
    matryoshka_weights: list[float] | None = None
    truncate_dim: int | None = None
    bidirectional: bool = False
    lora: Any = None
    objectives: Any = None

    @classmethod
    def default_objectives(cls) -> list[ObjectiveConfig]:
        """Return the method's own objectives, with the paper's settings."""
        return []

    def __post_init__(self, **kwargs: Any) -> None:
        given = self.default_objectives() if self.objectives is None else self.objectives
        if not isinstance(given, list | tuple):
            raise ValueError(f"objectives must be a list, got {given!r:.80}")
        self.objectives = [_objective_config(objective) for objective in given]
        self._set_flat(kwargs)
        super().__post_init__(**kwargs)
        self._check()

    def _set_flat(self, kwargs: dict[str, Any]) -> None:
        """Move the objectives' flat fields out of ``kwargs``; weights first, since they add objectives.

        The fields of an objective are set together, since one may bound another.
        """
        found: dict[str, dict[str, Any]] = {}
        for name in sorted(kwargs, key=lambda name: not name.endswith("_weight")):
            flat = self._flat_field(name, add=True)
            if flat is not None:
                found.setdefault(flat[0].name, {})[flat[1]] = kwargs.pop(name)
            elif name in self.flat_names(list(OBJECTIVES)):
                own = [objective.name for objective in self.objectives]
                raise ValueError(
                    f"{name!r} must be a field of exactly one objective, got objectives {own}; "
                    f"<objective>_weight adds one of {list(OBJECTIVES)}"
                )
        self.objectives = [replace(objective, **found.get(objective.name, {})) for objective in self.objectives]

    def _check(self) -> None:
        _one_of("pooling", self.pooling, POOLINGS)
        _one_of("projector", self.projector, PROJECTORS)
        for name in ("prompt_template", "prompt_mask_offset", "projector_at_inference", "symmetric", "mask_identical"):
            check_type(name, getattr(self, name), CSEConfig.__annotations__[name])
        check_type("same_view_negatives", self.same_view_negatives, bool)
        check_number("temperature", self.temperature, 0, open_ends="low")
        check_number("angular_margin", self.angular_margin, 0, math.pi / 2, open_ends="high")
        check_number("contrastive_weight", self.contrastive_weight, 0)
        check_type("hard_negative_weight", self.hard_negative_weight, float)
        if self.contrastive_weight == 0 and not any(objective.weight for objective in self.objectives):
            found = ", ".join(f"{each.name}_weight {each.weight}" for each in self.objectives) or "none"
            raise ValueError(
                f"contrastive_weight 0 needs an objective with a weight above 0: nothing else would train, got {found}"
            )
        modifiers = [o.name for o in self.objectives if issubclass(registered(o.name), ContrastModifier)]
        if self.contrastive_weight == 0 and modifiers:
            raise ValueError(
                f"contrastive_weight must be greater than 0 with the objective {modifiers[0]!r}, which changes the "
                "contrast, got 0"
            )
        if self.pooling == "mask" and self.prompt_template is None:
            raise ValueError("pooling 'mask' needs a prompt_template with '{sentence}' and '{mask}', got None")
        check_type("bidirectional", self.bidirectional, bool)
        self.lora = lora_settings(self.lora)
        self._check_projector()
        self._check_templates()
        self._check_positives()
        for name in ("perturb_first", "perturb_second"):
            parse_changes(name, getattr(self, name))
        self._check_whitening()
        self._check_sizes()
        names = [objective.name for objective in self.objectives]
        if len(set(names)) < len(names):
            raise ValueError(f"objectives must differ in name, got {names}")

    def _check_projector(self) -> None:
        check_type("projector_size", self.projector_size, CSEConfig.__annotations__["projector_size"])
        if self.projector_size is None:
            return
        check_number("projector_size", self.projector_size, 1)
        if self.projector != "linear":
            raise ValueError(f"projector must be 'linear' with projector_size, got {self.projector!r}")
        others = [o.name for o in self.objectives if not registered(o.name).any_size]
        if others or self.matryoshka_dims is not None or self.further_positives is not None:
            what = f"the objective {others[0]!r}" if others else "matryoshka_dims or further_positives"
            raise ValueError(f"projector_size must be left out with {what}, got {self.projector_size}")

    @property
    def similarity_fn_name(self) -> str:
        """The similarity that training compares embeddings with, by sentence-transformers' names."""
        return next((str(o.similarity) for o in self.objectives if o.name == "margin" and o.weight), "cosine")

    @property
    def projected_size(self) -> int:
        """The size of z."""
        return self.projector_size or self.hidden_size

    def _check_templates(self) -> None:
        for name in ("second_prompt_template", "subtract_template"):
            check_type(name, getattr(self, name), CSEConfig.__annotations__[name])
            if getattr(self, name) and self.prompt_template is None:
                raise ValueError(f"{name} needs a prompt_template with '{{sentence}}' and '{{mask}}', got None")
        if self.subtract_template and self.projector_at_inference:
            raise ValueError(
                "projector_at_inference must be False with subtract_template: the projector is trained on states less "
                "their template's, and at inference nothing is subtracted, got True"
            )

    def _check_positives(self) -> None:
        check_type("further_positives", self.further_positives, CSEConfig.__annotations__["further_positives"])
        check_number("further_positives_weight", self.further_positives_weight, 0)
        for kind in self.positive_kinds:
            if kind not in POSITIVES:
                raise ValueError(
                    f"further_positives must be {', '.join(map(repr, POSITIVES))}, joined by '+', "
                    f"got {self.further_positives!r}"
                )
        if {"column", "parts"} <= set(self.positive_kinds):
            raise ValueError(
                "further_positives must not have both 'column' and 'parts', which read the same column, "
                f"got {self.further_positives!r}"
            )
        following = [o.name for o in self.objectives if getattr(o, "condition_sentence", "same") != "same"]
        columns = [kind for kind in ("column", "parts") if kind in self.positive_kinds]
        if following and columns:
            raise ValueError(
                f"further_positives must not have {columns[0]!r} with {following[0]}_condition_sentence "
                f"{getattr(self, following[0] + '_condition_sentence')!r}: both read the corpus's last column, "
                f"got {self.further_positives!r}"
            )
        _one_of("composition", self.composition, COMPOSITIONS)
        check_number("second_view_weight", self.second_view_weight, 0)
        if self.second_view_weight == 0 and not (self.positive_kinds and self.further_positives_weight):
            raise ValueError(
                "second_view_weight must be greater than 0 without further_positives that the contrast reads, got 0"
            )
        check_type("contrast_dims", self.contrast_dims, CSEConfig.__annotations__["contrast_dims"])
        if self.contrast_dims is not None and not 1 <= self.contrast_dims <= self.projected_size:
            what = "hidden size" if self.projected_size == self.hidden_size else "projector_size"
            raise ValueError(
                f"contrast_dims must be from 1 to the {what}, {self.projected_size}, got {self.contrast_dims}"
            )

    def _check_whitening(self) -> None:
        for name in ("whitening_groups", "whitening_shuffle"):
            check_type(name, getattr(self, name), CSEConfig.__annotations__[name])
        check_number("whitening_groups", self.whitening_groups, 0)
        if self.whitening_groups and self.hidden_size % self.whitening_groups:
            raise ValueError(
                f"whitening_groups must divide the hidden size, {self.hidden_size}, got {self.whitening_groups}"
            )
        if self.whitening_groups and self.projector_at_inference:
            raise ValueError(
                "projector_at_inference must be False with whitening_groups: the projector is trained on whitened "
                "states, and at inference nothing is whitened, got True"
            )

    @property
    def positive_kinds(self) -> tuple[str, ...]:
        """The kinds of further positives, in their order."""
        return tuple(self.further_positives.split("+")) if self.further_positives is not None else ()

    @property
    def view_changes(self) -> tuple[tuple[tuple[str, float], ...], ...]:
        """The changes of the token embeddings of the first and of the second view, with their rates."""
        return tuple(parse_changes(name, getattr(self, name)) for name in ("perturb_first", "perturb_second"))

    def _check_sizes(self) -> None:
        sizes_and_weights(self.matryoshka_dims, self.matryoshka_weights, self.hidden_size)
        check_type("truncate_dim", self.truncate_dim, CSEConfig.__annotations__["truncate_dim"])
        size = self.projected_size if self.projector_at_inference else self.hidden_size
        if self.truncate_dim is not None and not 1 <= self.truncate_dim <= size:
            raise ValueError(
                f"truncate_dim must be from 1 to the encoder's {'hidden size' if size == self.hidden_size else 'size'}"
                f", {size}, "
                f"got {self.truncate_dim}"
            )
        if self.matryoshka_dims is not None:
            for name in ("whitening_groups", "further_positives", "contrast_dims"):
                if value := getattr(self, name):
                    raise ValueError(f"matryoshka_dims cannot be combined with {name}, got {value!r}")
        holding = [o.name for o in self.objectives if registered(o.name).keeps_vectors]
        cut = self.matryoshka_dims is not None and holding
        if cut and not cuts_z(self.projector, self.projector_at_inference):
            raise ValueError(
                "projector must be 'none', or projector_at_inference True, with matryoshka_dims and the objective "
                f"{holding[0]!r}, which holds projected vectors of the full size, got {self.projector!r}"
            )

    # Flat access to the objectives' fields

    def _flat_field(self, key: str, add: bool = False) -> tuple[ObjectiveConfig, str] | None:
        objectives = self.__dict__.get("objectives")
        if objectives is None:
            return None
        for objective in objectives:
            field = key.removeprefix(f"{objective.name}_")
            if field != key and field in objective.field_names():
                return objective, field
        owners = [o for o in objectives if key != "weight" and key in o.field_names()]
        if len(owners) == 1:
            return owners[0], key
        if add and key.endswith("_weight"):
            name = key.removesuffix("_weight")
            if name in OBJECTIVES:
                objectives.append(OBJECTIVES[name].config_class())
                return objectives[-1], "weight"
        return None

    def __getattr__(self, key: str) -> Any:
        flat = None if key.startswith("_") else self._flat_field(key)
        if flat is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {key!r}")
        return getattr(*flat)

    def __setattr__(self, key: str, value: Any) -> None:
        flat = None if key.startswith("_") or key in type(self).__dataclass_fields__ else self._flat_field(key)
        if flat is not None:
            replace(flat[0], **{flat[1]: value})  # checks the value
            setattr(*flat, value)
        else:
            super().__setattr__(key, value)

    @classmethod
    def flat_names(cls, objectives: list[str] | None = None) -> dict[str, type]:
        """Return the flat names of the objectives' fields with their types, for command lines.

        Arguments:
            objectives: names of the objectives whose fields are listed; default: the method's own. The weight of every
                registered objective is always listed.
        """
        own = [objective.name for objective in cls.default_objectives()] if objectives is None else objectives
        names: dict[str, type] = {f"{name}_weight": float for name in OBJECTIVES}
        for name in own:
            plain = OBJECTIVES[name].config_class.field_types().items()
            for field, kind in ((field, kind) for field, kind in plain if kind is not dict):
                names[f"{name}_{field}"] = kind
                if field != "weight":
                    names.setdefault(field, kind)
        return names

    @classmethod
    def check_names(cls, names: list[str]) -> None:
        """Check that each name is a field or a flat field of an objective.

        Raises:
            ValueError: an unknown name; the message lists the most similar known names.
        """
        known = set(cls.__dataclass_fields__) | set(cls.flat_names(list(OBJECTIVES)))
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known) or sorted(
                    known - set(PreTrainedConfig.__dataclass_fields__)
                )
                raise ValueError(f"{cls.__name__} has no field {name!r}; did you mean one of {near}?")

    def get_text_config(self, *args: Any, **kwargs: Any) -> "CSEConfig":
        """Return the config itself. Transformers would mistake an objective's field ``generator`` for a config."""
        return self

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        kind = config_dict.get("model_type", cls.model_type)
        if kind != cls.model_type and "encoder_config" not in config_dict:
            raise ValueError(
                f"{cls.__name__} is not the config of a {kind!r} model: start from an encoder with from_backbone"
            )
        names = set(cls.flat_names(list(OBJECTIVES))) - set(cls.__dataclass_fields__)
        loaded = super().from_dict(
            _upgraded(config_dict), **{name: kwargs[name] for name in kwargs if name not in names}
        )
        config, unused = loaded if isinstance(loaded, tuple) else (loaded, {})
        flat = {name: value for name, value in kwargs.items() if name in names}
        unused |= {name: flat.pop(name) for name in list(flat) if config._flat_field(name) is None}
        config._set_flat(flat)
        config._check()  # kwargs may have changed fields
        return (config, unused) if isinstance(loaded, tuple) else config

    def to_dict(self) -> dict[str, Any]:
        output = super().to_dict()
        output["objectives"] = [objective.to_dict() for objective in self.objectives]
        return output


def _one_of(field: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{field} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def _upgraded(saved: dict[str, Any]) -> dict[str, Any]:
    """Return a saved config with values that this version takes, and the same effect. Earlier versions took more
    ``contrast_dims`` than z has for all of them; for the objectives see ``ObjectiveConfig.upgraded``."""
    saved, objectives, size = dict(saved), saved.get("objectives"), saved.get("projector_size")
    if isinstance(size, int) and (saved.get("contrast_dims") or 0) > size:
        saved["contrast_dims"] = None
    if not isinstance(objectives, list):
        return saved
    known = [isinstance(each, dict) and each.get("name") in OBJECTIVES for each in objectives]
    new = [
        OBJECTIVES[each["name"]].config_class.upgraded(each) if own else each
        for each, own in zip(objectives, known, strict=True)
    ]
    return {**saved, "objectives": new}


def _objective_config(value: Any) -> ObjectiveConfig:
    """Return an objective's config from a config object, a name or a dict with ``name``."""
    if isinstance(value, ObjectiveConfig):
        return value
    if not isinstance(value, str | dict):
        raise ValueError(f"objectives must be names or mappings with 'name', got {value!r:.80}")
    fields: dict[str, Any] = {"name": value} if isinstance(value, str) else dict(value)
    name = fields.pop("name", None)
    config_class = registered(name).config_class
    unknown = sorted(set(fields) - config_class.field_names())
    if unknown:
        raise ValueError(
            f"objective {name!r} has no field {unknown[0]!r}; it has {sorted(config_class.field_names())}"
        )
    return config_class(**fields)
