"""The templates of the views, and the vectors of templates alone (PromptBERT: Jiang et al., 2022, "PromptBERT:
Improving BERT Sentence Embeddings with Prompts").

Shape suffixes: N rows (view-major), L tokens, T tokens of a template with the special tokens, R numbers of blank
places, H hidden size.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from .configuration_cse import CSEConfig
from .fast_counts import note_counts
from .text_keys import text_keys
from .tokenization import Frame, sentence_frame


@dataclass(frozen=True)
class Templates:
    """The templates of the first view and of all others.

    Arguments:
        frames: one for all views, or two; none if the encoder has no template, or needs to know no more of it than
            its ``prompt_mask_offset``.
    """

    frames: tuple[Frame, ...] = ()

    @classmethod
    def of(cls, config: CSEConfig) -> "Templates":
        """Return the templates of a configuration.

        Raises:
            ValueError: it names templates whose tokens :func:`locate_templates` has not found.
        """
        frames = tuple(Frame(**each) for each in config.prompt_frames or ())
        second = config.second_prompt_template is not None
        if len(frames) < 1 + second and (second or config.subtract_template):
            raise ValueError(
                "second_prompt_template and subtract_template need prompt_frames, "
                f"got {config.prompt_frames}: build the model with from_backbone"
            )
        return cls(frames)

    def of_rows(self, rows: int, views: int) -> Iterator[tuple[Frame, slice]]:
        """Yield each template that has rows among those of all views, with these rows."""
        first = rows if len(self.frames) == 1 else rows // views
        for frame, own in zip(self.frames, (slice(0, first), slice(first, rows)), strict=False):
            if own.start < own.stop:
                yield frame, own

    def offsets(self, rows: int, views: int, device: torch.device) -> Tensor | None:
        """Return the offset of each row's mask token (see ``place_of``), (N,) int64; None if all have the same."""
        if len({frame.mask_offset for frame in self.frames}) < 2:
            return None
        offsets_N = torch.empty(rows, dtype=torch.int64, device=device)
        for frame, own in self.of_rows(rows, views):
            offsets_N[own] = frame.mask_offset or 0
        return offsets_N

    def sentences(self, mask_NL: Tensor, views: int) -> Tensor:
        """Return 1 at the sentences' own tokens, which are neither special nor the template's, (N, L)."""
        count_NL = mask_NL.cumsum(1)
        own = torch.zeros_like(mask_NL)
        for frame, rows in self.of_rows(len(mask_NL), views):
            last = count_NL[rows, -1:] - len(frame.after)
            own[rows] = mask_NL[rows] * (count_NL[rows] > len(frame.before)) * (count_NL[rows] <= last)
        return own

    @torch.no_grad()
    def text_keys(self, ids_NL: Tensor, mask_NL: Tensor, views: int) -> Tensor:
        """Hash the texts, (N,) int64; the sentences alone if the views' templates differ."""
        return text_keys(ids_NL, self.sentences(mask_NL, views) if len(self.frames) > 1 else mask_NL)

    def vectors(self, encode: Callable[[Tensor, Tensor, int], Tensor], mask_NL: Tensor, views: int) -> Tensor:
        """Return the vector of each row's template alone, (N, H), around as many blanks as its sentence has tokens.

        Each template is encoded once for every number of blanks that fits into L.

        Arguments:
            encode: pools texts, (R, L) ids and mask → (R, H), with the offset of their mask token.
        """
        found = []
        for frame, rows in self.of_rows(len(mask_NL), views):
            ids_RL, alone_RL = blanked(frame, mask_NL.shape[1], mask_NL.device)
            vectors_RH = encode(ids_RL, alone_RL, frame.mask_offset or 0)
            blanks = mask_NL[rows].sum(1) - len(frame.before) - len(frame.after)
            found.append(F.embedding(blanks, vectors_RH))
        return torch.cat(found)


def locate_templates(config: CSEConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Set the fields of a configuration that say where the mask tokens of its templates are.

    Raises:
        ValueError: :func:`sentence_frame` refuses a template, or mask pooling finds no mask token in it.
    """
    frames = [sentence_frame(tokenizer, config.prompt_template)]
    if config.pooling == "mask" and frames[0].mask_offset is None:
        raise ValueError(
            "pooling must not be 'mask' with a tokenizer without a mask token: 'last' reads the template's last token"
        )
    config.prompt_mask_offset = frames[0].mask_offset
    if config.second_prompt_template is not None:
        frames.append(sentence_frame(tokenizer, config.second_prompt_template, "second_prompt_template"))
    if len(frames) > 1 or config.subtract_template:
        config.prompt_frames = [
            {"before": [*frame.before], "after": [*frame.after], "mask_offset": frame.mask_offset} for frame in frames
        ]


def blanked(frame: Frame, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the ids and the mask of a template around 0, 1, …, L − T blank places, (R, L) int64 each.

    The blanks are outside of the mask: nothing attends to them, and the tokens behind them keep the positions that
    they have behind a sentence of this length.
    """
    before, T = len(frame.before), len(frame.before) + len(frame.after)
    blanks_R1 = torch.arange(length - T + 1, device=device)[:, None]
    places_L = torch.arange(length, device=device)
    place_RL = torch.where(places_L < before, places_L, (places_L - blanks_R1).clamp(before, T - 1))
    mask_RL = (places_L < before) | ((places_L >= before + blanks_R1) & (places_L < T + blanks_R1))
    ids_T = torch.tensor([*frame.before, *frame.after], device=device)
    return ids_T[place_RL], note_counts(mask_RL.long(), [T] * len(mask_RL))
