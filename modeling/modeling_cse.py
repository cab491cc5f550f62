"""One encoder, one contrastive loss, a list of auxiliary objectives.

Shape suffixes: B sentences, V views, C columns of the batch, N = V·B rows (view-major), K keys of all processes,
L tokens, H hidden size.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from .backbone import (
    attend_both_ways,
    build_backbone,
    check_decoder,
    check_family,
    check_row_length,
    keep_layers,
    load_backbone,
    set_dropout,
    with_layers,
)
from .base import EncoderWrapper
from .composition import composed
from .conditional_encoder import embedding_width
from .configuration_cse import CSEConfig
from .contrast_modifiers import Modified, further_negatives
from .distributed import gather_rows, own_columns
from .export import export_encoder
from .fast_cache import WHOLE_BATCH, Chunks, check_cacheable
from .fast_counts import note_batch, note_counts
from .fast_dropout import dropout_off, speed_up_dropout
from .fast_packing import pack_batches, run_encoder, run_with_attention
from .fast_weights import weights_converted
from .hub import from_hub, hub_or_cache
from .lora import ADAPTER_FOLDER, add_lora, freeze_but_lora, save_adapter
from .losses import contrast_diagnostics, cosine_logits, with_angular_margin
from .matryoshka import Cut, running_statistics_kept, sizes_and_weights
from .objectives import (
    FURTHER_POSITIVES,
    ContrastModifier,
    Encode,
    MaskingSpec,
    Objective,
    PerturbationSpec,
    PositivesSpec,
    Views,
)
from .outputs import ContrastiveOutput, SentenceEmbeddingOutput
from .perturbation import PERTURBATIONS, Kept, perturbed
from .pooling import NEEDS_HIDDEN_STATES, check_layers, flat_place_of, pool, single_offset
from .projectors import build_projector
from .random_streams import own_stream, state_seed
from .registry import registered
from .templates import Templates, locate_templates
from .text_keys import TEXT_KEYS
from .whitening import group_whitened, order_of_dimensions


class CSEModel(EncoderWrapper):
    """A sentence encoder in training, with any list of objectives (the joint model of all methods)

    L = contrastive_weight · L_NCE + Σ_o weight_o · L_o

    ``forward`` takes ``input_ids`` and ``attention_mask``, int64, of one of these shapes:

    - (N, L): inference, one embedding per row;
    - (B, 1, L): training, each sentence is encoded twice under dropout (not with ``second_prompt_template``);
    - (B, 2, L): training on pairs, the second column is the positive;
    - (B, 3, L): training on triplets, the third column is the hard negative.

    Training also needs the copies that ``batch_specs`` asks for; ``MaskingSpec`` lists their keys. ``token_counts``
    (B, C), an array or lists on the host, and those of the copies save a GPU synchronisation (``fast_counts.py``).
    """

    config_class = CSEConfig
    config: CSEConfig
    #: The number of rows that the networks process at once in training; ``cache_gradients`` sets it.
    chunks: Chunks = WHOLE_BATCH
    #: True to return the last hidden states at inference. If False, the last layer computes the pooled states only.
    returns_states: bool = True

    def __init__(self, config: CSEConfig, backbone: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        self.backbone = build_backbone(config.encoder_config) if backbone is None else backbone
        if config.bidirectional and getattr(config.encoder_config, "is_causal", None) is not False:
            attend_both_ways(self.backbone)
            config.encoder_config.is_causal = False  # the objectives' encoders copy it
        check_layers(config.pooling, self.backbone)
        if config.lora is not None and backbone is None:
            add_lora(self.backbone, config.lora)
        self.projector = build_projector(config.projector, config.hidden_size, config.projector_size)
        self.templates = Templates.of(config)
        host = torch.device("cpu")
        with own_stream("objectives", state_seed(host), host):  # a term leaves the projector its first weights
            self.objectives = nn.ModuleDict(
                {o.name: registered(o.name)(o, config.encoder_config) for o in config.objectives or []}
            )
        self.post_init()
        self.freeze()

    # Loading

    @classmethod
    def from_backbone(
        cls,
        name_or_path: str | os.PathLike[str],
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        dropout: float | None = None,
        attn_implementation: str | None = None,
        layers: Sequence[int] | None = None,
        **config: Any,
    ) -> "CSEModel":
        """Start training from any encoder checkpoint. Like ``from_pretrained``, it returns a model in eval mode.

        Arguments:
            name_or_path: Hub id or folder of an encoder that ``AutoModel`` loads.
            tokenizer: locates the mask token of a ``prompt_template``; default: the checkpoint's own.
            dropout: sets all dropout probabilities of the encoder; default: the checkpoint's.
            attn_implementation: as in Transformers. Default: scaled dot-product attention over packed batches, which
                computes real tokens only, if the family supports it (``fast_packing.py``).
            layers: keep only these layers of the encoder, numbered from 0; for a smaller student of distillation.
            config: fields of the method's config; fields of its objectives flat (``reconstruction_weight=0.4``).

        Raises:
            ValueError: an unknown field, a value that is not allowed, a checkpoint without weights of the encoder, or
                a model whose decoder needs inputs of its own.
            FileNotFoundError: it is a name on the Hub, which cannot be reached, and is not in the cache.
        """
        name_or_path = str(name_or_path)
        cls.config_class.check_names(list(config))
        encoder_config = from_hub(AutoConfig, name_or_path)
        if isinstance(encoder_config, CSEConfig):
            raise ValueError(
                f"{name_or_path} is a training checkpoint: reload it with from_pretrained, or start from its encoder, "
                "in the folder that holds training/"
            )
        check_family(name_or_path, encoder_config.model_type)
        check_row_length(name_or_path, encoder_config)
        encoder_config.dtype = torch.float32
        set_dropout(encoder_config, dropout)
        whole_config = encoder_config
        if layers is not None:
            encoder_config = with_layers(whole_config, layers)
        model_config = cls.config_class(encoder_config=encoder_config, **config)
        if layers is not None:
            for settings in model_config.objectives:
                if registered(settings.name).from_all_layers:
                    raise ValueError(
                        f"layers must be left out with {settings.name!r}, whose own network starts from all layers of "
                        f"the checkpoint, got {[*layers]}"
                    )
        for settings in model_config.objectives:
            settings.complete(name_or_path)
        if model_config.prompt_template is not None:
            tokenizer = tokenizer or from_hub(AutoTokenizer, name_or_path)
            locate_templates(model_config, tokenizer)
        with torch.device("meta"):
            skeleton = build_backbone(encoder_config)
        model = cls(model_config, backbone=skeleton)
        if model_config.bidirectional:
            whole_config.is_causal = False
        model.check_projector()
        model.check_sizes()
        model.backbone = load_backbone(name_or_path, whole_config, type(skeleton), attn_implementation)
        check_decoder(name_or_path, model.backbone)
        if layers is not None:
            keep_layers(model.backbone, encoder_config, layers)
        if model_config.lora is not None:
            add_lora(model.backbone, model_config.lora)
        for objective in model.auxiliaries():
            objective.init_from_checkpoint(name_or_path)
            objective.load_frozen()
        speed_up(model.eval())
        for objective in model.auxiliaries():
            objective.try_on(model.backbone)
        return model

    @classmethod
    def from_pretrained(cls, *args: Any, training: bool = False, **kwargs: Any) -> Any:
        """Reload a training checkpoint exactly. ``training=True`` also loads the objectives' frozen networks.

        Raises:
            ValueError: an objective of the checkpoint is not registered.
            FileNotFoundError: it is a name on the Hub, which cannot be reached, and is not in the cache.
        """
        source = args[0] if args else kwargs.get("pretrained_model_name_or_path")
        with hub_or_cache(source) if source is not None else nullcontext():
            loaded = super().from_pretrained(*args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        for network in model.objectives.modules():
            if isinstance(network, PreTrainedModel):
                network.tie_weights()  # Transformers ties those of the backbone alone
        model.freeze()
        speed_up(model)
        if training:
            model.load_frozen()
        return loaded

    def freeze(self) -> None:
        """Set ``requires_grad`` to False for weights that do not train: those that objectives freeze, those of
        objectives whose weight is 0, and a projector that neither the contrast nor an objective reads."""
        for objective in self.auxiliaries():
            objective.freeze()
            if not objective.counts:
                objective.requires_grad_(False)
        if self.config.lora is not None:
            freeze_but_lora(self.backbone)
        if not self.trains_projector:
            self.projector.requires_grad_(False)

    @property
    def trains_projector(self) -> bool:
        """True if the contrast or an objective reads what the projector returns."""
        return bool(self.config.contrastive_weight) or any(o.reads_z for o in self.auxiliaries())

    def check_projector(self) -> None:
        """Raise ValueError for a new projector that is kept at inference, and that no term of the loss trains."""
        config = self.config
        trained = config.contrastive_weight or any(o.reads_z and o.config.weight for o in self.auxiliaries())
        if config.projector_at_inference and config.projector != "none" and not trained:
            names = ", ".join(repr(objective.config.name) for objective in self.auxiliaries())
            raise ValueError(
                f"projector_at_inference must be False, or projector 'none', with contrastive_weight 0 and {names}, "
                "which train no projector: embeddings would go through random weights, got True and "
                f"{config.projector!r}"
            )

    def check_sizes(self) -> None:
        """Raise ValueError for Matryoshka sizes of a new model that no term of the loss trains."""
        config, reading = self.config, self.reads_cut_vectors()
        trained = config.contrastive_weight or any(o.weight and o.name in reading for o in config.objectives)
        if config.matryoshka_dims is not None and not trained:
            names = ", ".join(repr(objective.name) for objective in config.objectives)
            raise ValueError(
                f"matryoshka_dims must be left out with contrastive_weight 0 and {names}, whose terms read no cut "
                f"vector, got {config.matryoshka_dims}"
            )

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        """Save a training checkpoint as Transformers does, with the adapters of ``lora`` in ``adapter/`` as well."""
        saved = super().save_pretrained(save_directory, *args, **kwargs)
        if self.config.lora is not None and kwargs.get("is_main_process", True):
            save_adapter(self.backbone, Path(save_directory) / ADAPTER_FOLDER, self.config.lora)
        return saved

    def load_frozen(self) -> None:
        """Let every objective load the frozen networks that are not in the checkpoint."""
        for objective in self.auxiliaries():
            objective.load_frozen()

    # For trainer and collator

    @property
    def single_view(self) -> bool:
        """True if a single sentence is encoded once: there is no contrast, no objective reads a second view, and no
        view is perturbed."""
        read = self.config.contrastive_weight or any(self.config.view_changes)
        return not read and all(objective.one_view for objective in self.auxiliaries())

    def auxiliaries(self) -> list[Objective]:
        """Return the auxiliary objectives in the order of the config."""
        return [cast(Objective, objective) for objective in self.objectives.values()]

    @property
    def batch_specs(self) -> dict[str, MaskingSpec]:
        """The copies that the objectives ask of the collator, by objective name, the further positives, and the views'
        perturbations."""
        specs = {objective.config.name: objective.batch_spec for objective in self.auxiliaries()}
        if self.config.positive_kinds:
            specs[FURTHER_POSITIVES] = PositivesSpec(kinds=self.config.positive_kinds)
        first, second = self.config.view_changes
        if first or second:
            cuts = any(kind != "shuffle" for kind, _ in (*first, *second))
            width = embedding_width(self.backbone) if cuts else 0
            specs[PERTURBATIONS] = PerturbationSpec(first=first, second=second, width=width)
        return {name: spec for name, spec in specs.items() if spec is not None}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the trainable parameters in groups: first the encoder's, then those that objectives train apart."""
        special = [group for objective in self.auxiliaries() for group in objective.parameter_groups()]
        taken = {id(parameter) for group in special for parameter in group["params"]}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in taken]
        return [{"params": rest, "lr_scale": 1.0, "clip_group": "encoder"}, *special]

    def cache_gradients(self, chunk_size: int) -> None:
        """Let the networks process ``chunk_size`` rows at once to save memory (``fast_cache.py``); 0 turns this off.

        A row is one text. A sentence that is encoded twice makes two rows.

        Raises:
            ValueError: an objective or a layer would give another loss in chunks.
        """
        if chunk_size:
            networks = {"backbone": self.backbone, "objectives": self.objectives}
            check_cacheable(self.auxiliaries(), networks, chunk_size)
        self.chunks = Chunks(chunk_size)

    def measure_gaps(self, measured: bool) -> None:
        """Let the objectives compute the diagnostics ``<name>_gap`` from now on, or leave them out. Each costs a
        forward pass over a few rows. Losses and gradients are the same."""
        for objective in self.auxiliaries():
            objective.measures_gap = measured

    # Forward

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        return_loss: bool | None = None,
        token_counts: Any = None,
        **copies: Any,
    ) -> SentenceEmbeddingOutput | ContrastiveOutput:
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        if input_ids.dim() == 2:
            return self.embed(input_ids, attention_mask)
        with weights_converted(self, input_ids.device) if not self.chunks.size else nullcontext():
            views, terms, metrics = self.terms(input_ids, attention_mask, token_counts, **copies)
        loss = torch.stack(list(terms.values())).sum()
        detached = {name: term.detach() for name, term in terms.items()}
        return ContrastiveOutput(loss=loss, loss_dict=detached, metrics=metrics, sentence_embedding=views.h.detach())

    def terms(
        self, input_ids: Tensor, attention_mask: Tensor, token_counts: Any = None, **copies: Any
    ) -> tuple[Views, dict[str, Tensor], dict[str, Tensor]]:
        """Return the views, the weighted terms of the loss with gradient, and the diagnostics."""
        draws = bool(self.objectives or self.config.positive_kinds or self.config.whitening_groups)
        before = state_seed(input_ids.device) if draws else 0
        views, copies = self.encode_views(input_ids, attention_mask, token_counts, copies), note_batch(copies)
        seed = state_seed(views.h.device) if draws else 0
        if self.config.positive_kinds:
            with own_stream(FURTHER_POSITIVES, seed, views.h.device):
                views = self.with_positives(views, copies)
        words, τ = cast(Tensor, self.backbone.get_input_embeddings().weight), self.config.temperature
        views_by = cache(partial(self.views_by, views, copies))  # the sizes of Matryoshka cut the same views
        lent = (self.project, τ, self.chunks, self.embed_by, views_by, self.pooled_in_chunks)
        encode = Encode(self.backbone, words, *lent)
        dims, H = self.config.matryoshka_dims, self.config.hidden_size
        sizes = {H: 1.0} if dims is None else sizes_and_weights(dims, self.config.matryoshka_weights, H)
        terms, metrics = self.terms_of(views, copies, encode, seed, factor=sizes.pop(H))
        if sizes:
            terms = self.nested(sizes, terms, metrics, views, copies, encode, seed)
        if self.training and draws and seed == before:  # an encoder without dropout drew nothing
            torch.rand(())  # another seed for the next step
        return views, terms, metrics

    def terms_of(
        self,
        views: Views,
        copies: dict[str, Any],
        encode: Encode,
        seed: int,
        factor: float = 1.0,
        cut: bool = False,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the contrast and the terms of the objectives, and the diagnostics.

        Arguments:
            factor: of the terms that read vectors which Matryoshka training cuts.
            cut: the views are cut to some dimensions: only what reads them, and nothing that keeps a state.

        Raises:
            ValueError: two objectives have a term of the same name.
        """
        reading = self.reads_cut_vectors()
        contrasted = self.as_contrasted(views)
        terms, metrics = self.contrast(contrasted, self.modified(contrasted, copies, encode, seed))
        terms = scaled(terms, factor)
        for objective in self.auxiliaries():
            if not objective.counts:
                continue
            if cut and (isinstance(objective, ContrastModifier) or objective.config.name not in reading):
                continue
            with own_stream(objective.config.name, seed, views.h.device):
                more, diagnostics = objective(views, copies, encode)
            if repeated := sorted(terms.keys() & more.keys()):
                raise ValueError(
                    f"objective {objective.config.name!r} must name its terms as no other term, got {repeated[0]!r}"
                )
            more = scaled(more, factor) if objective.config.name in reading else more
            terms, metrics = terms | more, metrics | diagnostics
        return terms, metrics

    def reads_cut_vectors(self) -> set[str]:
        """Return the names of the objectives that read vectors which Matryoshka training cuts: z, and h if it is the
        embedding."""
        behind = self.config.projector_at_inference and self.config.projector != "none"
        return {o.config.name for o in self.auxiliaries() if o.reads_vectors and (o.reads_z or not behind)}

    def nested(
        self,
        sizes: Mapping[int, float],
        terms: dict[str, Tensor],
        metrics: dict[str, Tensor],
        views: Views,
        copies: dict[str, Any],
        encode: Encode,
        seed: int,
    ) -> dict[str, Tensor]:
        """Return Σ_d w_d · (the terms of the first d dimensions), the full size included (Matryoshka, Eq. 1).

        Terms that read no vector of a sentence count once, and so do those that read h alone if the projector is part
        of the embedding, since only z is cut then. Every size draws the same random numbers. ``metrics`` gets
        the contrast of each size, ``contrastive_<d>``, unweighted.

        Arguments:
            sizes: the sizes below the full one, with their weights.
            terms: those of the full size, times its weight.
        """
        config, total = self.config, dict(terms)
        for size, weight in sizes.items():
            cut = Cut(size, self.projector, config.projector, config.projector_at_inference)
            lent = cut.encode(encode, self.projector_input, self.projector_input_by)
            found, _ = self.terms_of(cut.views(views), copies, lent, seed, cut=True)
            total |= {name: total[name] + weight * term for name, term in found.items()}
            if "contrastive" in found:
                metrics[f"contrastive_{size}"] = found["contrastive"].detach() / config.contrastive_weight
        return total

    def pooled(
        self,
        input_ids_NL: Tensor,
        attention_mask_NL: Tensor,
        mask_offset: int | Tensor | None = None,
        backbone: nn.Module | None = None,
        kept: Kept | None = None,
    ) -> Tensor:
        """Return h (N, H). If the pooling reads one state per row, the last layer computes this state only
        (``fast_layers.py``).

        Arguments:
            mask_offset: of the template's mask token, one for all rows or (N,), instead of ``prompt_mask_offset``.
            backbone: a copy of the model's own, which is the default.
            kept: the token embeddings that stay; default: all.
        """
        offset: int | Tensor | None = single_offset(self.config.pooling, self.config.prompt_mask_offset)
        if offset is None:
            return self.pooled_and_last(input_ids_NL, attention_mask_NL, backbone, kept)[0]
        if mask_offset is not None and self.config.pooling == "mask":
            offset = mask_offset
        places_N = flat_place_of(attention_mask_NL, offset)
        rows = (backbone or self.backbone, attention_mask_NL, input_ids_NL)
        factors = None if kept is None else kept.factors()
        return run_encoder(*rows, places_M=places_N, each_row=True, factors_NLE=factors).last_hidden_state

    def pooled_and_last(
        self,
        input_ids_NL: Tensor,
        attention_mask_NL: Tensor,
        backbone: nn.Module | None = None,
        kept: Kept | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return h (N, H) and the last hidden states (N, L, H) of the backbone or of a copy."""
        deep, backbone = self.config.pooling in NEEDS_HIDDEN_STATES, backbone or self.backbone
        options: dict[str, Any] = {
            "output_hidden_states": deep,
            "factors_NLE": None if kept is None else kept.factors(),
        }
        output = run_encoder(backbone, attention_mask_NL, input_ids_NL, **options)
        states = output.hidden_states if deep else (output.last_hidden_state,)
        h = pool(self.config.pooling, states, attention_mask_NL, self.config.prompt_mask_offset)
        return h, output.last_hidden_state

    def pooled_in_chunks(
        self,
        input_ids_NL: Tensor,
        attention_mask_NL: Tensor,
        mask_offset: int | Tensor | None = None,
        dropout: bool = True,
        backbone: nn.Module | None = None,
        kept: Kept | None = None,
    ) -> Tensor:
        """Return h (N, H), computed in chunks if gradients are cached.

        Arguments:
            mask_offset, backbone, kept: as for :meth:`pooled`.
            dropout: False turns the encoder's dropout off.
        """

        offsets = (mask_offset,) if isinstance(mask_offset, Tensor) else ()

        def pooled(ids: Tensor, mask: Tensor, *more: Tensor) -> tuple[Tensor]:
            offset = more[0] if offsets else mask_offset
            part = Kept(*more[len(offsets) :]) if kept is not None else None
            with nullcontext() if dropout else dropout_off(backbone or self.backbone):
                return (self.pooled(ids, mask, offset, backbone, part),)

        rows = (input_ids_NL, attention_mask_NL, *offsets, *(kept.rows if kept is not None else ()))
        return self.chunks(pooled, rows)[0]

    def embed(self, input_ids_NL: Tensor, attention_mask_NL: Tensor) -> SentenceEmbeddingOutput:
        """Return the embeddings of inference: the pooled state, projected if ``projector_at_inference``."""
        if self.returns_states:
            h, last_hidden_state = self.pooled_and_last(input_ids_NL, attention_mask_NL)
        else:
            h, last_hidden_state = self.pooled(input_ids_NL, attention_mask_NL), None
        embedding = self.projector(h) if self.config.projector_at_inference else h
        return SentenceEmbeddingOutput(sentence_embedding=embedding, last_hidden_state=last_hidden_state)

    def project(
        self,
        input_ids_NL: Tensor,
        attention_mask_NL: Tensor,
        dropout: bool = True,
        backbone: nn.Module | None = None,
        blocks: int = 1,
    ) -> Tensor:
        """Return z (N, H) of texts other than the views, with batch statistics of their own. The running ones, which
        inference reads, stay those of the views.

        Arguments:
            input_ids_NL, attention_mask_NL: with the first view's template, if there is one.
            dropout: False turns the encoder's dropout off.
            backbone: another encoder than the model's own, which is the default.
            blocks: as for :meth:`projected`.
        """
        raw_NH = self.projector_input(input_ids_NL, attention_mask_NL, dropout, backbone)
        with running_statistics_kept(self.projector):
            return self.projected(raw_NH, blocks)

    def projector_input(
        self,
        input_ids_NL: Tensor,
        attention_mask_NL: Tensor,
        dropout: bool = True,
        backbone: nn.Module | None = None,
    ) -> Tensor:
        """Return what the projector reads for texts other than the views, (N, H); see :meth:`project`."""
        h_NH = self.pooled_in_chunks(input_ids_NL, attention_mask_NL, dropout=dropout, backbone=backbone)
        return self.without_template(h_NH, attention_mask_NL, 1, dropout, backbone)

    def projected(self, h_NH: Tensor, blocks: int) -> Tensor:
        """Return z (N, H) of pooled states. If the config says so, each of several blocks of equally many rows is
        whitened before, by its own statistics and in its own groups."""
        if groups := self.config.whitening_groups:
            size, shuffle = h_NH.shape[1], self.config.whitening_shuffle
            with own_stream("whitening", state_seed(h_NH.device), h_NH.device):
                orders = [order_of_dimensions(size, shuffle, h_NH.device) for _ in range(blocks)]
            with torch.autocast(h_NH.device.type, enabled=False):
                parts = zip(h_NH.chunk(blocks), orders, strict=True)
                h_NH = torch.cat([group_whitened(part, groups, order) for part, order in parts])
        return cast(Tensor, self.projector(h_NH))

    @torch.no_grad()
    def embed_by(self, backbone: nn.Module, input_ids_NL: Tensor, attention_mask_NL: Tensor) -> Tensor:
        """Return z (N, H) by a copy of the backbone, without gradient and dropout. The projector's batch statistics
        are the running ones, which stay as they are; whitening takes those of the rows. The texts have the first
        view's template, if there is one."""
        h_NH = self.projector_input_by(backbone, input_ids_NL, attention_mask_NL)
        training = self.projector.training
        self.projector.eval()
        z_NH = self.projected(h_NH, 1)
        self.projector.train(training)
        return z_NH

    @torch.no_grad()
    def projector_input_by(self, backbone: nn.Module, input_ids_NL: Tensor, attention_mask_NL: Tensor) -> Tensor:
        """Return what the projector reads, (N, H), by a copy of the backbone; see :meth:`embed_by`."""
        return self.projector_input(input_ids_NL, attention_mask_NL, False, backbone)

    def without_template(
        self,
        h_NH: Tensor,
        attention_mask_NL: Tensor,
        views: int,
        dropout: bool = True,
        backbone: nn.Module | None = None,
    ) -> Tensor:
        """Return h less the vector of each row's template alone if the config says so, else h, (N, H).

        The views' own dropout is the same with and without it."""
        if not self.config.subtract_template:
            return h_NH

        def encode(ids_RL: Tensor, mask_RL: Tensor, mask_offset: int) -> Tensor:
            return self.pooled_in_chunks(ids_RL, mask_RL, mask_offset, dropout, backbone)

        with own_stream("template", state_seed(h_NH.device), h_NH.device):
            return h_NH - self.templates.vectors(encode, attention_mask_NL, views)

    def encode_views(
        self,
        input_ids_BCL: Tensor,
        attention_mask_BCL: Tensor,
        token_counts_BC: Any = None,
        batch: Mapping[str, Any] | None = None,
    ) -> Views:
        """Encode all views in one pass, view-major. A single column is encoded twice under dropout, or once with
        ``single_view``.

        Arguments:
            input_ids_BCL, attention_mask_BCL: (B, C, L) int64.
            token_counts_BC: (B, C) the number of real tokens of each text, on the host; optional.
            batch: the collator's further keys, with the views' perturbations if there are any, and with the hashes of
                the original texts (``text_keys``, (B, C) int64) if the views hold changed ones.
        """
        columns = input_ids_BCL.shape[1]
        views = max(columns, 1 if self.single_view else 2)
        if columns == 1 and self.config.second_prompt_template is not None:
            raise ValueError("input_ids must hold a column for each template, (B, 2, L), got one column")
        ids, mask = (x.transpose(0, 1).flatten(0, 1) for x in (input_ids_BCL, attention_mask_BCL))
        if columns < views:
            ids, mask = ids.repeat(2, 1), mask.repeat(2, 1)
        if token_counts_BC is not None:
            note_counts(mask, [row[column % columns] for column in range(views) for row in token_counts_BC])
        h_NH, attentions = self.attended_in_chunks(ids, mask, views, batch or {})
        h, raw, z = self.encode_rows(ids, mask, views, batch or {}, h_NH=h_NH)
        given_BC = (batch or {}).get(TEXT_KEYS)
        if given_BC is None:
            texts = self.templates.text_keys(ids, mask, views).unflatten(0, (views, -1))
        else:
            texts = given_BC.T.expand(views, -1).contiguous()
        return Views(h=h, z=z, input_ids=ids, attention_mask=mask, texts=texts, raw=raw, attentions=attentions)

    def attended_in_chunks(
        self, ids_NL: Tensor, mask_NL: Tensor, views: int, batch: Mapping[str, Any]
    ) -> tuple[Tensor | None, dict[int, Tensor]]:
        """Return h (N, H) and the attention of the layers that objectives read, (V, B, A, L, L) each; None and nothing
        if none reads any. The batch may hold perturbations."""
        layers = sorted({layer for objective in self.auxiliaries() for layer in objective.attention_layers})
        if not layers:
            return None, {}
        offsets_N = self.templates.offsets(len(ids_NL), views, ids_NL.device)
        ids_NL, kept = perturbed(ids_NL, batch)
        offsets = () if self.config.pooling != "mask" or offsets_N is None else (offsets_N,)
        deep = self.config.pooling in NEEDS_HIDDEN_STATES

        def attended(ids: Tensor, mask: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
            offset = more[0] if offsets else self.config.prompt_mask_offset
            factors = None if kept is None else Kept(*more[len(offsets) :]).factors()
            output = run_with_attention(self.backbone, mask, ids, factors_NLE=factors, output_hidden_states=deep)
            states = output.hidden_states if deep else (output.last_hidden_state,)
            h = pool(self.config.pooling, states, mask, offset)
            real_N1LL = (mask[:, None, :, None] * mask[:, None, None, :]).bool()
            return h, *(output.attentions[layer].where(real_N1LL, 0.0) for layer in layers)

        rows = (ids_NL, mask_NL, *offsets, *(kept.rows if kept is not None else ()))
        h_NH, *found = self.chunks(attended, rows)
        return h_NH, {layer: each.unflatten(0, (views, -1)) for layer, each in zip(layers, found, strict=True)}

    def encode_rows(
        self,
        ids_NL: Tensor,
        mask_NL: Tensor,
        views: int,
        batch: Mapping[str, Any],
        backbone: nn.Module | None = None,
        h_NH: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Return h, what the projector reads, and z of all views' rows, (V, B, H) each, by the backbone or by another
        encoder. The batch may hold perturbations; h may be given."""
        if h_NH is None:
            offsets_N = self.templates.offsets(len(ids_NL), views, ids_NL.device)
            ids_NL, kept = perturbed(ids_NL, batch)
            h_NH = self.pooled_in_chunks(ids_NL, mask_NL, offsets_N, backbone=backbone, kept=kept)
        raw_NH = self.without_template(h_NH, mask_NL, views, backbone=backbone)
        return tuple(each.unflatten(0, (views, -1)) for each in (h_NH, raw_NH, self.projected(raw_NH, views)))

    def with_positives(self, views: Views, batch: dict[str, Any], backbone: nn.Module | None = None) -> Views:
        """Return the views with the further positives, if the config asks for any, encoded in one pass. Running
        statistics stay those of the views, which inference reads."""
        if not (kinds := self.config.positive_kinds):
            return views
        ids, mask = (batch[f"{FURTHER_POSITIVES}_{key}"] for key in ("input_ids", "attention_mask"))
        h_RH = self.projector_input(ids, mask, backbone=backbone)
        h_NH = composed(h_RH, PositivesSpec(kinds=kinds).texts, self.config.composition)
        with running_statistics_kept(self.projector):
            return replace(views, further=self.projected(h_NH, len(kinds)).unflatten(0, (len(kinds), -1)))

    def as_contrasted(self, views: Views) -> Views:
        """Return the views with the dimensions of the projected vectors that the contrast reads."""
        d = self.config.contrast_dims
        if d is None:
            return views
        return replace(views, z=views.z[..., :d], further=None if views.further is None else views.further[..., :d])

    def views_by(self, views: Views, batch: dict[str, Any], backbone: nn.Module) -> Views:
        """Return the same views and further positives, encoded by another encoder. Running statistics stay."""
        with running_statistics_kept(self.projector):
            h, raw, z = self.encode_rows(views.input_ids, views.attention_mask, len(views.h), batch, backbone)
        return self.with_positives(replace(views, h=h, raw=raw, z=z), batch, backbone)

    def modified(self, views: Views, batch: dict[str, Any], encode: Encode, seed: int) -> Modified:
        """Return what the objectives that change the contrast make of it in this step."""
        modifiers = {o.config.name: o for o in self.auxiliaries() if isinstance(o, ContrastModifier)}
        further = further_negatives(modifiers, views, batch, encode, seed)
        return Modified(modifiers, further, batch, self.config.temperature, self.config.mask_identical)

    def contrast(self, views: Views, modified: Modified) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the contrastive term L_NCE (SimCSE Eqs. 1 and 5; ArcCSE's with ``angular_margin``) in fp32, and its
        diagnostics.

        The keys are the views of all processes. There is no term if its weight is 0, and nothing for a single view.
        """
        config = self.config
        if len(views.z) == 1:
            return {}, {}
        with torch.autocast(views.z.device.type, enabled=False):
            positives_B, V = own_columns(views.z[0]), len(views.z)
            reads_first = config.symmetric or config.same_view_negatives
            keys = {view: gather_rows(views.z[view].float()) for view in range(0 if reads_first else 1, V)}
            K, itself = len(keys[1]), config.same_view_negatives
            forward, backward = (0, *range(1, V), *[0] * itself), (1, 0, *[1] * itself)
            same_BK = self.identical_texts(views, positives_B, forward[1:])
            identical = same_BK[:, : (V - 1) * K].any(1).sum().float()
            excluded = same_BK if config.mask_identical else None
            loss, more, logits_BK = self.one_way(views, forward, keys, excluded, modified)
            metrics = contrast_diagnostics(logits_BK[:, :K], positives_B, config.temperature)
            if config.symmetric:
                if config.mask_identical:
                    excluded = self.identical_texts(views, positives_B, backward[1:])
                loss = (loss + self.one_way(views, backward, keys, excluded, modified)[0]) / 2
            loss = config.second_view_weight * loss
            if views.further is not None and config.further_positives_weight:
                loss = loss + config.further_positives_weight * self.further_contrast(views, positives_B, modified)
        terms = {"contrastive": config.contrastive_weight * loss} if config.contrastive_weight else {}
        return terms, metrics | more | {"identical_texts": identical}

    def one_way(
        self,
        views: Views,
        order: Sequence[int],
        keys: Mapping[int, Tensor],
        excluded: Tensor | None,
        modified: Modified,
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Return InfoNCE of one view's rows against the keys of others, (), the modifiers' diagnostics, and the
        similarities without margin, (B, K).

        Arguments:
            order: the view of the rows, that of their positives, then those of further keys; the rows' own is the last
                one with ``same_view_negatives``.
            keys: (K, H) of each view.
            excluded: (B, K) bool, keys that are no negatives of a row.
        """
        config, (query, *others) = self.config, order
        positives_B, τ = own_columns(views.z[0]), config.temperature
        cosines_BK = cosine_logits(views.z[query].float(), torch.cat([keys[view] for view in others]), τ)
        logits_BK = with_angular_margin(cosines_BK, positives_B, config.angular_margin, τ)
        K = len(keys[others[0]])
        if 2 in others and config.hard_negative_weight:
            own = torch.nn.functional.one_hot(positives_B + K, logits_BK.shape[1])
            logits_BK = logits_BK + config.hard_negative_weight * own
        if config.same_view_negatives:  # a row is no key of its own
            itself_B = positives_B + (len(others) - 1) * K
            logits_BK = logits_BK.scatter(1, itself_B[:, None], -torch.inf)
        loss, more = modified.loss(logits_BK, positives_B, excluded, views, order)
        return loss, more, cosines_BK

    def further_contrast(self, views: Views, positives_B: Tensor, modified: Modified) -> Tensor:
        """Return Σ_p L_NCE(z1, z_p) over the further positives, (). The keys are positives of the same kind.

        A key counts as the sentence that it was made of: for identical texts, and for what modifiers make of it."""
        config, z1_BH, total = self.config, views.z[0].float(), views.z.new_zeros((), dtype=torch.float32)
        excluded = self.identical_texts(views, positives_B, (0,)) if config.mask_identical else None
        for z_BH in cast(Tensor, views.further).float():
            logits_BK = cosine_logits(z1_BH, gather_rows(z_BH), config.temperature)
            logits_BK = with_angular_margin(logits_BK, positives_B, config.angular_margin, config.temperature)
            total = total + modified.loss(logits_BK, positives_B, excluded, views, (0, 0))[0]
        return total

    @torch.no_grad()
    def identical_texts(self, views: Views, positives_B: Tensor, columns: Sequence[int]) -> Tensor:
        """Find keys with the text of a row's query or positive, other than the positive itself.

        Arguments:
            positives_B: (B,) the column of each row's positive.
            columns: the views that are keys.

        Returns:
            (B, K) bool, True at such keys.
        """
        texts = views.texts
        keys_K = torch.cat([gather_rows(texts[view]) for view in columns])
        same_BK = (keys_K == texts[0][:, None]) | (keys_K == texts[1][:, None])
        return same_BK.scatter(1, positives_B[:, None], False)

    def export(self, path: str | os.PathLike[str], tokenizer: PreTrainedTokenizerBase) -> Path:
        """Write the plain encoder with its pooling metadata to a folder. See ``export_encoder``.

        ``AutoModel`` and ``SentenceTransformer`` load the folder. Returns its path.

        Raises:
            ValueError: sentence-transformers does not support the pooling.
        """
        return export_encoder(self, Path(path), tokenizer)


def scaled(terms: dict[str, Tensor], factor: float) -> dict[str, Tensor]:
    """Return the terms times a factor."""
    return terms if factor == 1 else {name: factor * term for name, term in terms.items()}


def speed_up(model: nn.Module) -> nn.Module:
    """Turn on packed batches and cheap dropout where possible: the same functions and distributions in less time."""
    pack_batches(model)
    speed_up_dropout(model)
    return model
