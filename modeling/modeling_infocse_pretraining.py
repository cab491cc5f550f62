"""Stage 1 of InfoCSE: a masked LM whose auxiliary head needs the [CLS] state (Wu et al., 2022, §3.1).

Shape suffixes: B blocks of a batch, L tokens, M masked positions, H hidden size, V vocabulary, E embedding size.
"""

import os
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from .auxiliary_head import FOLDER, AuxiliaryHead, check_head_layers
from .backbone import layer_list
from .configuration_infocse_pretraining import InfoCSEPretrainingConfig
from .distributed import token_mean
from .drafts import whole_files
from .export import MODEL_FILES, length_limit, save_tokenizer
from .fast_packing import run_encoder
from .masked_lm_head import MaskedLMHead
from .pretraining import EncoderForPreTraining, PretrainingOutput
from .quiet import quiet_weights


class InfoCSEForPreTraining(EncoderForPreTraining):
    """A masked LM with two predictions of the same masked tokens (Condenser, Gao and Callan 2021; InfoCSE Eqs. 4–6)

    L = L_late + L_head = CE(W·g(h^N), x) + CE(W·g(Head([h^N_CLS; h^k_1..L])), x), means over the masked positions

    The head reads the [CLS] of the last layer N and the states of layer k. Information that layer k lacks must come
    through [CLS]. Both terms share the masked LM's transform g and its output matrix W, which is the word embedding
    matrix. Nothing is detached. ``objective="mlm"`` has the first term only.

    ``forward`` takes ``input_ids``, ``attention_mask`` (B, L), ``masked_positions`` (M,) in the flattened ids and
    ``labels`` (M,), the original ids there, all int64. The terms ``mlm`` (the last layer's) and ``aux_mlm`` (the
    head's) are the mean cross-entropies per masked token in nats, ``mlm_accuracy`` and ``aux_mlm_accuracy`` the shares
    of masked tokens that are predicted correctly.
    """

    config_class = InfoCSEPretrainingConfig
    config: InfoCSEPretrainingConfig

    def __init__(self, config: InfoCSEPretrainingConfig, backbone: PreTrainedModel | None = None) -> None:
        super().__init__(config, backbone)
        self.mlm_head = MaskedLMHead(config.encoder_config)
        self.auxiliary_head: AuxiliaryHead | None = None
        if config.objective == "condenser":
            check_head_layers("head_layers", config.encoder_config, config.head_layers)
            try:
                layer_list(self.backbone)  # checks the encoder first: the head reads its states of layer k
                self.auxiliary_head = AuxiliaryHead(config.encoder_config, config.head_layers)
            except ValueError as error:
                raise ValueError(f"{error}; objective 'mlm' trains every family") from None
        self.post_init()

    def init_from_checkpoint(self, name_or_path: str) -> None:
        """Fill the heads. ``from_backbone`` calls this once.

        The masked-LM head is the checkpoint's, or a new one (with a warning) if it has none. The auxiliary head is
        that of a stage-1 folder, else a copy of the encoder's top layers or a new one (``head_init``).
        """
        self.mlm_head.init_from(name_or_path)
        if self.auxiliary_head is not None:
            if (Path(name_or_path) / FOLDER).is_dir():
                self.auxiliary_head.load(name_or_path)
            elif self.config.head_init == "top_layers":
                self.auxiliary_head.copy_top_layers(self.backbone)

    # Forward

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        masked_positions: Tensor | None = None,
        labels: Tensor | None = None,
        return_loss: bool | None = None,
    ) -> PretrainingOutput:
        if masked_positions is None or labels is None:
            raise ValueError("InfoCSEForPreTraining needs masked_positions and labels; AutoModel loads its export")
        attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        words_VE = cast(Tensor, self.backbone.get_input_embeddings().weight)
        terms, metrics = {}, {}
        counts: dict[str, int] = {}
        for name, masked_MH in self.states(input_ids, attention_mask, masked_positions).items():
            losses_M, correct_M = self.mlm_head(masked_MH, labels, words_VE)
            terms[name] = token_mean(losses_M.sum(), len(labels))
            metrics[f"{name}_accuracy"] = token_mean(correct_M.float().sum(), len(labels))
            counts |= dict.fromkeys((name, f"{name}_accuracy"), len(labels))
        return self.summed(terms, metrics, counts)

    def states(self, input_ids_BL: Tensor, attention_mask_BL: Tensor, masked_M: Tensor) -> dict[str, Tensor]:
        """Return the states (M, H) from which each term predicts: ``mlm`` the last layer's, ``aux_mlm`` the head's."""
        rows = (self.backbone, attention_mask_BL, input_ids_BL)
        if self.auxiliary_head is None:
            return {"mlm": run_encoder(*rows, places_M=masked_M).last_hidden_state}
        B, L = input_ids_BL.shape
        first_B = torch.arange(0, B * L, L, device=masked_M.device)
        wanted = torch.cat([first_B, masked_M])
        whole = self.config.split_layer == self.config.num_layers  # then the head reads all states of the last layer
        output = run_encoder(*rows, places_M=None if whole else wanted, output_hidden_states=True)
        lower_BLH = output.hidden_states[self.config.split_layer]
        last = lower_BLH.flatten(0, 1).index_select(0, wanted) if whole else output.last_hidden_state
        cls_BH, masked_MH = last.split([B, len(masked_M)])
        mixed_BLH = torch.cat([cls_BH.unsqueeze(1), lower_BLH[:, 1:]], dim=1)
        return {"mlm": masked_MH, "aux_mlm": self.auxiliary_head(mixed_BLH, attention_mask_BL, masked_M)}

    # Export

    def export_checkpoint(self, path: str | os.PathLike[str], tokenizer: PreTrainedTokenizerBase) -> Path:
        """Write the stage-1 checkpoint to a folder and return its path.

        It is a plain ``…ForMaskedLM`` with tokenizer, which ``AutoModel`` and ``AutoModelForMaskedLM`` load. The
        auxiliary head is in a subfolder. The weights equal those of training bit for bit. It is whole or not at all,
        as :func:`export_encoder`'s.

        Raises:
            DiskFullError: there is no room for it.
        """
        path = Path(path)
        with torch.random.fork_rng(devices=[]):
            plain = AutoModelForMaskedLM.from_config(self.config.encoder_config, dtype=torch.float32)
        plain.config.tie_word_embeddings = True
        plain.base_model.load_state_dict(self.backbone.state_dict())
        plain.tie_weights()
        self.mlm_head.copy_to(plain)
        with whole_files(path, MODEL_FILES) as draft, quiet_weights():
            plain.save_pretrained(draft)
            save_tokenizer(tokenizer, draft, length_limit(self.backbone, tokenizer))
            if self.auxiliary_head is not None:
                self.auxiliary_head.save(draft, self.config.split_layer)
        return path
