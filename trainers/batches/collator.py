"""Rows of texts become a batch: tokenised once, with the copies that objectives ask for.

Shape suffixes: B sentences, C columns, V views, L tokens, M masked positions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from csekit.modeling.fast_counts import TOKEN_COUNTS
from csekit.modeling.objectives import (
    DeletionSpec,
    EditSpec,
    MaskingSpec,
    PerturbationSpec,
    PositivesSpec,
    SpanSpec,
    TargetSpec,
    further_columns,
)
from csekit.modeling.text_keys import TEXT_KEYS, text_keys
from csekit.modeling.tokenization import TokenizedTexts, pad, tokenize, training_length
from csekit.trainers.batches.editing import edited_copy
from csekit.trainers.batches.masking import (
    MaskingVocabulary,
    check_spec,
    deletion_copies,
    masked_copy,
    span_copies,
    target_copy,
)
from csekit.trainers.batches.perturbation import perturbations
from csekit.trainers.data.augmentation import Augmentation, fitting_words, halves_of, make_augmentation


class CSECollator:
    """Make batches of the items of a corpus.

    Arguments:
        tokenizer: a tokenizer with a padding token; padding is on the right whatever its ``padding_side``.
        max_seq_length: tokens of a sentence, special tokens included. A longer sentence loses its end. A template's
            tokens come on top.
        batch_specs: masked or edited copies to add, by objective name. If one of them needs a further column, the last
            text of a row is that column and not a contrastive text.
        seed: seed of masking and augmentation. With the items' ``epoch`` and ``index`` it fixes every draw.
        prompt_template: text around each sentence, with ``{sentence}`` and ``{mask}``; never truncated, never masked.
        pad_to_multiple_of: round the length L up to a multiple of it.
        augmentation: makes the positive of each single sentence: the second column of the batch.
        mask_contrastive_input: True to let the contrast read the masked copies of the objective ``mlm``, as the
            released code of InforMin-CL does, whose collator masks the ids in place.
        second_template: text around every contrastive text but the first of a row; default: ``prompt_template``. A
            single sentence then makes two columns, one with each template.
        teachers: vectors of the corpus's rows, (rows, D) or (rows, C, D) each, by the items' ``index``. The batch gets
            those of its rows as ``teacher_0``, ``teacher_1``, …, (B, D) float32, and those of further columns as
            ``teacher_0_1``, ``teacher_0_2``, …
        place: returns file and line of a row's texts, for messages.

    Raises:
        ValueError: the tokenizer has no padding token, or no mask token that a spec or the augmentation needs;
            ``max_seq_length`` with the template exceeds its limit, or leaves no room for a sentence; a spec or the
            template is not valid; ``mask_contrastive_input`` without the objective ``mlm``, or with one whose copies
            are compared with the first view's tokens.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int = 32,
        batch_specs: Mapping[str, MaskingSpec] | None = None,
        seed: int = 42,
        prompt_template: str | None = None,
        pad_to_multiple_of: int | None = None,
        augmentation: Augmentation | None = None,
        mask_contrastive_input: bool = False,
        teachers: Sequence[np.ndarray] = (),
        second_template: str | None = None,
        place: Callable[[Sequence[str]], str] | None = None,
    ) -> None:
        if tokenizer.pad_token_id is None:
            raise ValueError("the tokenizer has no padding token: set tokenizer.pad_token first")
        self.templates = [prompt_template] if second_template is None else [prompt_template, second_template]
        self.lengths = [training_length(tokenizer, max_seq_length, template) for template in self.templates]
        self.max_length = max(self.lengths)
        check_length(self.max_length, max_seq_length, tokenizer.model_max_length, "the tokenizer's model_max_length")
        if pad_to_multiple_of is not None and pad_to_multiple_of < 1:
            raise ValueError(f"pad_to_multiple_of must be at least 1, got {pad_to_multiple_of}")
        tokenize(tokenizer, ["a"], self.lengths[0], prompt_template)  # raises ValueError for a wrong length
        self.tokenizer = tokenizer
        self.batch_specs = dict(batch_specs or {})
        self.seed, self.pad_to_multiple_of, self.augmentation = seed, pad_to_multiple_of, augmentation
        self.vocabulary = MaskingVocabulary.from_tokenizer(tokenizer)
        if tokenizer.mask_token is None and augmentation is not None and augmentation.kind == "mask":
            raise ValueError("augmentation 'mask' needs a tokenizer with a mask token, this one has none")
        for name, spec in self.batch_specs.items():
            check_spec(f"batch_specs[{name!r}]", spec, self.vocabulary)
        self.teachers = list(teachers)
        self.mask_contrastive_input, self.place = mask_contrastive_input, place
        if mask_contrastive_input and "mlm" not in self.batch_specs:
            names = ", ".join(map(repr, self.batch_specs)) or "none"
            raise ValueError(
                f"mask_contrastive_input must be False without the objective 'mlm', got {mask_contrastive_input} "
                f"with the masked copies of {names}: add --mlm_weight"
            )
        for name, spec in self.batch_specs.items() if mask_contrastive_input else ():
            if isinstance(spec, DeletionSpec | SpanSpec):
                raise ValueError(
                    f"mask_contrastive_input must be False with the objective {name!r}, which sets the unmasked "
                    f"sentence against its copies, got {mask_contrastive_input}"
                )

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make a batch of B rows ``{"texts": [s0, …], "index": int, "epoch": int}`` with C texts each (an augmentation
        adds one).

        Returns:
            - ``input_ids``, ``attention_mask`` (B, C, L) int64. C = 1: the model encodes the sentence twice; 2: a
              pair; 3: a triplet.
            - ``token_counts`` (B, C) int64: the number of real tokens, as a numpy array, which stays on the host when
              tensors move to a device. Copies with their own mask have ``<name>_token_counts``.
            - ``index`` (B,) int64 sample indices; ``return_loss`` True.
            - ``text_keys`` (B, C) int64, with an augmentation or ``mask_contrastive_input``: the hashes of the
              original texts, an augmented one's is its sentence's.
            - per spec ``<name>_input_ids`` (V·B, L), view-major, ``<name>_positions`` (M,) in these flattened, and
              ``<name>_labels`` (M,), all int64. With C = 1 the views are masked copies of the one sentence,
              independent of each other; with C > 1 view v is column v. V = min(views, 2 or C). The docstrings of
              ``EditSpec``, ``TargetSpec``, ``SpanSpec``, ``PositivesSpec``, ``DeletionSpec`` and
              ``PerturbationSpec`` list their keys.

        Raises:
            ValueError: rows with different numbers of texts, or without the further column that a spec needs; a text
                without tokens.
        """
        B, C = len(rows), len(rows[0]["texts"])
        if any(len(row["texts"]) != C for row in rows):
            raise ValueError(
                f"all rows of a batch must hold {C} texts, got {sorted({len(row['texts']) for row in rows})}"
            )
        columns = [[row["texts"][c] for row in rows] for c in range(C)]
        further = further_columns(self.batch_specs)
        if (C := C - further) < 1:
            needed = ("a further column", "two further columns")[further - 1]
            raise ValueError(f"rows must hold {further + 1} texts, batch_specs need {needed}, got {C + further}")
        if self.augmentation is not None:
            columns.insert(1, self._positives(rows, C))
            C += 1
        if C == 1 and len(self.templates) > 1:
            columns.insert(1, columns[0])
            C += 1
        tokens = self._tokenize(columns, C)
        self._check_tokens(tokens, [text for column in columns for text in column], rows)
        padded = pad(self.tokenizer, tokens.input_ids[: C * B], self.pad_to_multiple_of)
        index_B = np.fromiter((row["index"] for row in rows), dtype=np.int64, count=B)
        batch: dict[str, Any] = {
            "input_ids": padded["input_ids"].view(C, B, -1).transpose(0, 1).contiguous(),
            "attention_mask": padded["attention_mask"].view(C, B, -1).transpose(0, 1).contiguous(),
            TOKEN_COUNTS: np.array([len(row) for row in tokens.input_ids[: C * B]]).reshape(C, B).T,
            "index": torch.from_numpy(index_B),
            "return_loss": True,
        }
        if self.augmentation is not None or self.mask_contrastive_input:
            batch[TEXT_KEYS] = self._text_keys(tokens, B, C)
        for place, vectors in enumerate(self.teachers):
            found = torch.from_numpy(vectors[index_B].astype(np.float32))
            first, *others = [found] if found.ndim == 2 else [each.contiguous() for each in found.unbind(1)]
            named_others = {f"teacher_{place}_{column}": each for column, each in enumerate(others, start=1)}
            batch |= {f"teacher_{place}": first, **named_others}
        if self.batch_specs:
            own = self._rows(tokens, range(C * B))
            epoch_B = np.fromiter((row["epoch"] for row in rows), dtype=np.int64, count=B)
            if C == 1:
                own = tuple(np.concatenate([part, part]) for part in own)
            after = self._rows(tokens, range(len(tokens.input_ids) - B, len(tokens.input_ids))) if further else None
            for name, spec in self.batch_specs.items():
                if isinstance(spec, PositivesSpec):
                    named = self._further_positives(spec, rows)
                else:
                    named = self._copy_of(name, spec, own, after, index_B, epoch_B)
                batch |= {f"{name}_{key}": torch.from_numpy(value) for key, value in named.items()}
                if "attention_mask" in named:
                    batch[f"{name}_{TOKEN_COUNTS}"] = named["attention_mask"].sum(1)
        return masked_contrast(batch) if self.mask_contrastive_input else batch

    def _copy_of(
        self, name: str, spec: MaskingSpec, own: Any, after: Any, index_B: np.ndarray, epoch_B: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Make the copies of one objective; ``own`` holds the rows of all views, view-major, ``after`` those of the
        further column."""
        if isinstance(spec, EditSpec):
            return self._edits(name, spec, own, after, index_B, epoch_B)
        if isinstance(spec, TargetSpec):
            return self._target(name, spec, own, index_B, epoch_B)
        if isinstance(spec, DeletionSpec):
            return self._deletions(name, spec, own, index_B, epoch_B)
        if isinstance(spec, PerturbationSpec):
            ids, own_places = (part[: 2 * len(index_B)] for part in own[:2])
            return perturbations(ids, own_places, spec, seed=self.seed, epoch=epoch_B, index=index_B)
        if isinstance(spec, SpanSpec):
            B, draws = len(index_B), self._draws(name, epoch_B, index_B, 1)
            return span_copies(own[0][:B], own[1][:B], spec, self.vocabulary, **draws)
        return self._copies(name, spec, own, index_B, epoch_B)

    def _positives(self, rows: Sequence[Mapping[str, Any]], C: int) -> list[str]:
        """Return the augmented sentences, the second column."""
        assert self.augmentation is not None
        if C != 1:
            raise ValueError(f"rows must hold one text for augmentation {self.augmentation.kind!r}, got {C}")
        texts = [row["texts"][0] for row in rows]
        words = fitting_words(self.tokenizer, texts, self.lengths[0], self.templates[0])
        return self.augmentation(
            texts,
            seed=self.seed,
            epoch=[row["epoch"] for row in rows],
            index=[row["index"] for row in rows],
            words=words,
            mask_token=self.tokenizer.mask_token,
        )

    def _further_positives(self, spec: PositivesSpec, rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Make the further positives of the first texts, kind by kind."""
        texts, found = [row["texts"][0] for row in rows], []
        draws = {key: [row[key] for row in rows] for key in ("epoch", "index")}
        words = fitting_words(self.tokenizer, texts, self.lengths[0], self.templates[0])
        for number, kind in enumerate(spec.kinds, start=1):
            if kind == "halves":
                halves = [halves_of(text, count) for text, count in zip(texts, words, strict=True)]
                found += [half for part in zip(*halves, strict=True) for half in part]
            elif kind == "parts":
                found += [row["texts"][place] for place in (-2, -1) for row in rows]
            elif kind in ("dropout", "column"):
                found += [row["texts"][-1] for row in rows] if kind == "column" else texts
            elif change := make_augmentation(kind):
                token = self.tokenizer.mask_token
                found += change(texts, seed=self.seed, **draws, words=words, number=number, mask_token=token)
        tokens = tokenize(self.tokenizer, found, self.lengths[0], self.templates[0])
        self._check_tokens(tokens, found, rows)
        ids, _, lengths = self._rows(tokens, range(len(found)))
        mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
        return {"input_ids": ids, "attention_mask": mask}

    def _check_tokens(self, tokens: TokenizedTexts, texts: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        """Raise ValueError for a text without tokens. The texts of all rows follow one another, column by column."""
        if [] in tokens.input_ids:
            place = tokens.input_ids.index([])
            row = rows[place % len(rows)]
            where = self.place(row["texts"]) if self.place else f"row {row['index']} of the corpus, from 0"
            raise ValueError(f"{where}: the tokenizer makes no token of {texts[place]!r:.100}: leave the row out")

    def _tokenize(self, columns: Sequence[list[str]], C: int) -> TokenizedTexts:
        """Tokenise the columns, the C contrastive ones first; the texts of a column lie together."""
        if len(self.templates) == 1:
            texts = [text for column in columns for text in column]
            return tokenize(self.tokenizer, texts, self.lengths[0], self.templates[0])
        second = [0 < column < C for column in range(len(columns))]
        parts = [
            tokenize(self.tokenizer, column, self.lengths[which], self.templates[which])
            for column, which in zip(columns, second, strict=True)
        ]
        return TokenizedTexts(*([each for part in parts for each in getattr(part, f.name)] for f in fields(parts[0])))

    def _rows(self, tokens: TokenizedTexts, chosen: range) -> tuple[np.ndarray, ...]:
        """Return padded ids (N, L), True at maskable tokens (N, L), and lengths (N,) of the chosen texts."""
        ids = pad(self.tokenizer, [tokens.input_ids[i] for i in chosen], self.pad_to_multiple_of)["input_ids"].numpy()
        places = np.arange(ids.shape[1])
        first, last = (np.array([ends[i] for i in chosen])[:, None] for ends in (tokens.first, tokens.last))
        lengths = np.array([len(tokens.input_ids[i]) for i in chosen])
        return ids, (places >= first) & (places < last), lengths

    def _text_keys(self, tokens: TokenizedTexts, B: int, C: int) -> torch.Tensor:
        """Return the hashes of the original texts, (B, C); an augmentation makes the second of two columns."""
        ids, own, _ = self._rows(tokens, range(C * B))
        keys_BC = text_keys(torch.from_numpy(ids), torch.from_numpy(own).long()).view(C, B).T
        return (keys_BC if self.augmentation is None else keys_BC[:, :1].expand(B, C)).contiguous()

    def _copies(
        self, name: str, spec: MaskingSpec, own: Any, index_B: np.ndarray, epoch_B: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Make the masked copies of one objective; ``own`` holds the rows of all views, view-major."""
        ids, maskable, _ = own
        B = len(index_B)
        V = min(spec.views, len(ids) // B)
        draws = self._draws(name, epoch_B, index_B, V)
        copies = masked_copy(ids[: V * B], maskable[: V * B], spec, self.vocabulary, **draws)
        return dict(zip(("input_ids", "positions", "labels"), copies, strict=True))

    def _edits(
        self, name: str, spec: EditSpec, own: Any, after: Any, index_B: np.ndarray, epoch_B: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Make the edited copies of one objective; ``after`` holds the rows of the further column."""
        B = len(index_B)
        V = min(spec.views, len(own[0]) // B)
        blocks = [] if spec.text == "next" else [[part[: V * B] for part in own]]
        if spec.text != "own":
            blocks.append([np.concatenate([part] * V) for part in after])
        widest = max(ids.shape[1] for ids, _, _ in blocks)
        for block in blocks:
            for part in (0, 1):
                block[part] = np.pad(block[part], ((0, 0), (0, widest - block[part].shape[1])))
        ids, maskable, lengths = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        return edited_copy(
            ids,
            maskable,
            lengths,
            spec,
            self.vocabulary,
            **self._draws(name, epoch_B, index_B, len(ids) // B),
            max_length=self.max_length,
            pad_id=int(self.tokenizer.pad_token_id),
            multiple=self.pad_to_multiple_of or 1,
        )

    def _target(
        self, name: str, spec: TargetSpec, own: Any, index_B: np.ndarray, epoch_B: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Make the text that an objective's decoder learns to write; ``own`` holds the rows of all views,
        view-major."""
        B = len(index_B)
        ids, maskable = (part[spec.view * B : (spec.view + 1) * B] for part in own[:2])
        draws = self._draws(name, epoch_B, index_B, 1) | {"view": np.full(B, spec.view)}
        pad_id, multiple = int(self.tokenizer.pad_token_id), self.pad_to_multiple_of or 1
        return target_copy(ids, maskable, spec, self.vocabulary, pad_id=pad_id, multiple=multiple, **draws)

    def _deletions(
        self, name: str, spec: DeletionSpec, own: Any, index_B: np.ndarray, epoch_B: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Make the noisy copies of one objective; ``own`` holds the rows of all views, view-major."""
        ids, maskable, lengths = (part[: len(index_B)] for part in own)
        pad_id, multiple = int(self.tokenizer.pad_token_id), self.pad_to_multiple_of or 1
        draws = self._draws(name, epoch_B, index_B, 1)
        return deletion_copies(
            ids, maskable, lengths, spec, self.vocabulary, pad_id=pad_id, multiple=multiple, **draws
        )

    def _draws(self, name: str, epoch_B: np.ndarray, index_B: np.ndarray, V: int) -> dict[str, Any]:
        """Return the arguments that the draws of V views depend on, view-major."""
        view = np.repeat(np.arange(V), len(index_B))
        return {
            "seed": self.seed,
            "epoch": np.tile(epoch_B, V),
            "index": np.tile(index_B, V),
            "view": view,
            "name": name,
        }


def masked_contrast(batch: dict[str, Any]) -> dict[str, Any]:
    """Replace the contrastive texts by the masked copies of the objective ``mlm``.

    A single column becomes two, since its views are masked independently. Columns without a copy stay.
    """
    if batch["input_ids"].shape[1] == 1:
        batch |= {name: batch[name].repeat(1, 2, 1) for name in ("input_ids", "attention_mask")}
        batch[TOKEN_COUNTS] = np.repeat(batch[TOKEN_COUNTS], 2, axis=1)
    ids_BCL = batch["input_ids"]
    copies_VBL = batch["mlm_input_ids"].unflatten(0, (-1, len(ids_BCL)))
    ids_BCL[:, : len(copies_VBL)] = copies_VBL.transpose(0, 1)
    return batch


def check_length(max_length: int, max_seq_length: int, limit: int, whose: str) -> None:
    """Check that training texts fit into a limit.

    Arguments:
        max_length: tokens with the template, ``max_seq_length`` those without it.
        limit: the most that is allowed; ``whose`` says what allows it.

    Raises:
        ValueError: the texts do not fit.
    """
    template = max_length - max_seq_length
    if max_length > limit:
        less = f" of {limit} less the {template} tokens of the template" if template else ""
        raise ValueError(f"max_seq_length must be at most {limit - template}, {whose}{less}, got {max_seq_length}")
