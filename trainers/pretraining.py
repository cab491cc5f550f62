"""A tokenizer and a masked language model from nothing but sentences, small enough for a CPU.

For a language or a domain without a checkpoint. BERT's masked-LM recipe (Devlin et al. 2019, §3.1 and A.1) with what
a short run needs: word vectors and attention do not start at random (`csekit.modeling.initialization`), text is packed
so that no position is padding, and only masked rows are multiplied with the vocabulary matrix.

Shape suffixes: N blocks, B blocks of a batch, L tokens of a block, M masked positions, H hidden size, V vocabulary.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tqdm.auto import tqdm
from transformers import (
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    get_linear_schedule_with_warmup,
)

from csekit.modeling.initialization import load_word_embeddings_, near_identity_attention_, ppmi_embeddings

logger = logging.getLogger(__name__)

SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def train_tokenizer(
    sentences: Sequence[str],
    vocab_size: int,
    min_frequency: int = 1,
    limit_alphabet: int = 1000,
    model_max_length: int = 512,
) -> PreTrainedTokenizerFast:
    """Train a lower-casing WordPiece tokenizer as BERT uses it: ``[CLS] … [SEP]``, pieces inside a word marked ``##``.

    The same sentences give the same vocabulary on every run.

    Arguments:
        sentences: the corpus.
        vocab_size: upper limit of the vocabulary, special tokens (ids 0 to 4) included; a small corpus stays below it.
        min_frequency: a pair of pieces is merged only if it occurs this often.
        limit_alphabet: only this many characters, the most frequent ones, get pieces; a word with another is [UNK].
        model_max_length: tokens that ``truncation=True`` leaves.

    Raises:
        ValueError: vocab_size has no room for special tokens and characters, or there is no sentence.
    """
    if not sentences:
        raise ValueError("sentences must not be empty")
    special = list(SPECIAL_TOKENS.values())
    tokenizer = _wordpiece({token: index for index, token in enumerate(special)})
    # The trainer numbers single characters in the order of a randomly seeded hash table, and breaks ties between
    # merges by these numbers. Given as special tokens they have their numbers before that.
    counts = Counter(char for text in sentences for word in _words(tokenizer, text) for char in word)
    kept = set(sorted(counts, key=lambda char: (-counts[char], char))[:limit_alphabet])
    spaced = [_keep(tokenizer, text, kept) for text in sentences]
    words = {word for text in spaced for word in _words(tokenizer, text)}
    heads, tails = {word[0] for word in words}, {char for word in words for char in word[1:]}
    characters = [*sorted(heads), *sorted("##" + char for char in tails)]
    if len(special) + len(characters) > vocab_size:
        raise ValueError(
            f"vocab_size must hold {len(special)} special tokens and {len(characters)} characters, got {vocab_size}"
        )
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=special + characters, show_progress=False
    )
    tokenizer.train_from_iterator(spaced, trainer)
    tokenizer = _wordpiece(tokenizer.get_vocab())  # the same pieces; of the special tokens only the five remain
    cls, sep = SPECIAL_TOKENS["cls_token"], SPECIAL_TOKENS["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, tokenizer.token_to_id(cls)), (sep, tokenizer.token_to_id(sep))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=model_max_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **SPECIAL_TOKENS,
    )


def _wordpiece(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL_TOKENS["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _words(tokenizer: Tokenizer, text: str) -> list[str]:
    normal = tokenizer.normalizer.normalize_str(text)
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)]


def _keep(tokenizer: Tokenizer, text: str, characters: set[str]) -> str:
    normal = tokenizer.normalizer.normalize_str(text)
    return "".join(char if char in characters or char.isspace() else " " for char in normal)


def pack(sentences: Sequence[str], tokenizer: PreTrainedTokenizerBase, block_length: int) -> torch.Tensor:
    """Join all sentences, in order, and cut them into blocks without padding: ``[CLS] a [SEP] b [SEP] …``.

    The first token of a block is [CLS], each sentence ends in [SEP]; a sentence may run on in the next block. What is
    left at the end and fills no block is dropped.

    Returns:
        (N, L) int64 token ids.

    Raises:
        ValueError: the sentences do not fill one block.
    """
    ids = tokenizer(list(sentences), add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    stream = [token for row in ids for token in (*row, tokenizer.sep_token_id)]
    room = block_length - 1
    count = len(stream) // room
    if room < 1 or count < 1:
        raise ValueError(f"sentences must fill a block of block_length={block_length}, got {len(stream)} tokens")
    blocks_NL = torch.tensor(stream[: count * room], dtype=torch.int64).view(count, room)
    cls_N1 = torch.full((count, 1), tokenizer.cls_token_id, dtype=torch.int64)
    return torch.cat([cls_N1, blocks_NL], dim=1)


def mask_block(
    ids_BL: torch.Tensor,
    tokenizer: PreTrainedTokenizerBase,
    probability: float = 0.15,
    generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """BERT's masking: each token that is not special is chosen with ``probability``; of the chosen, 80 % become
    [MASK], 10 % a random token that is not special, 10 % stay. ``ids_BL`` itself is not touched.

    Returns:
        masked ids (B, L); positions (M,) of the chosen tokens in the flattened ids, ascending; labels (M,), their ids.
    """
    special, vocabulary = torch.tensor(tokenizer.all_special_ids), torch.arange(len(tokenizer))
    ordinary = vocabulary[~torch.isin(vocabulary, special)]
    chosen_BL = torch.rand(ids_BL.shape, generator=generator) < probability
    chosen_BL &= ~torch.isin(ids_BL, special)
    draw_BL = torch.rand(ids_BL.shape, generator=generator)
    random_BL = ordinary[torch.randint(len(ordinary), ids_BL.shape, generator=generator)]
    masked_BL = ids_BL.masked_fill(chosen_BL & (draw_BL < 0.8), tokenizer.mask_token_id)
    masked_BL = torch.where(chosen_BL & (draw_BL >= 0.9), random_BL, masked_BL)
    positions_M = chosen_BL.flatten().nonzero().squeeze(1)
    return masked_BL, positions_M, ids_BL.flatten()[positions_M]


def masked_lm_logits(model: BertForMaskedLM, masked_BL: torch.Tensor, positions_M: torch.Tensor) -> torch.Tensor:
    """(M, V) predictions at the masked positions only: rows are gathered before the product with the vocabulary."""
    states_BLH = model.bert(input_ids=masked_BL).last_hidden_state
    return model.cls(states_BLH.flatten(0, 1).index_select(0, positions_M))


@dataclass(frozen=True)
class MaskedLMScore:
    """Arguments:
    loss: mean cross-entropy per masked token, in nats.
    accuracy: share of masked tokens whose best prediction is right, in [0, 1].
    """

    loss: float
    accuracy: float


@torch.no_grad()
def masked_lm_score(
    model: BertForMaskedLM,
    sentences: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    block_length: int = 64,
    batch_size: int = 32,
    probability: float = 0.15,
    seed: int = 0,
) -> MaskedLMScore:
    """Loss and accuracy on sentences that were held out; the same masks on every call with the same seed."""
    generator = torch.Generator().manual_seed(seed)
    device, training = model.device, model.training
    model.eval()
    loss, right, count = 0.0, 0, 0
    for ids_BL in pack(sentences, tokenizer, block_length).split(batch_size):
        batch = mask_block(ids_BL, tokenizer, probability, generator)
        masked_BL, positions_M, labels_M = (tensor.to(device) for tensor in batch)
        logits_MV = masked_lm_logits(model, masked_BL, positions_M)
        loss += F.cross_entropy(logits_MV, labels_M, reduction="sum").item()
        right += int((logits_MV.argmax(dim=1) == labels_M).sum())
        count += len(labels_M)
    model.train(training)
    if count == 0:
        raise ValueError("sentences must give at least one masked token, got none: more sentences are needed")
    return MaskedLMScore(loss / count, right / count)


def initial_masked_lm(
    sentences: Sequence[str], tokenizer: PreTrainedTokenizerBase, config: BertConfig
) -> BertForMaskedLM:
    """A BERT with its untrained starting weights: PPMI word vectors and near-identity attention.

    Draws from the global generator, as every model initialisation does.
    """
    model = BertForMaskedLM(config)
    ids = tokenizer(list(sentences), add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    load_word_embeddings_(model, ppmi_embeddings(ids, config.vocab_size, config.hidden_size))
    near_identity_attention_(model)
    return model


def pretrain_mlm(
    sentences: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    config: BertConfig,
    steps: int,
    *,
    heldout: Sequence[str] | None = None,
    learning_rate: float = 1e-3,
    batch_size: int = 32,
    block_length: int = 64,
    probability: float = 0.15,
    warmup_share: float = 0.05,
    weight_decay: float = 0.01,
    max_grad_norm: float = 1.0,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: bool = True,
) -> BertForMaskedLM:
    """Train a masked language model from nothing.

    AdamW with a short linear warm-up and linear decay to 0. The masks are drawn anew for every block and epoch.

    Arguments:
        sentences: the corpus; `pack` cuts it into blocks once.
        config: size of the model. ``config.vocab_size`` must be ``len(tokenizer)``; a dropout above 0 is not needed
            here, but SimCSE's two views of a sentence come from it.
        steps: optimiser steps.
        heldout: sentences to score at the end; loss and accuracy are logged and shown by the progress bar.
        learning_rate: peak, after ``warmup_share`` of the steps. Small models take much more than BERT's 1e-4.
        batch_size, block_length: B blocks of L tokens in each step, of which ``probability`` are to be predicted.
        seed: of weights, order, masks and dropout: the same seed, the same model on the same CPU. The caller's global
            generator is as before afterwards.

    Returns:
        The model in eval mode, on ``device``.

    Raises:
        ValueError: vocabulary sizes differ, a length exceeds the positions of the model, or there is too little text.
    """
    _check(config, tokenizer, steps, block_length)
    blocks_NL = pack(sentences, tokenizer, block_length)
    if heldout:
        pack(heldout, tokenizer, block_length)  # too few are an error now, not after the training
    generator = torch.Generator().manual_seed(seed)
    with (
        torch.random.fork_rng(devices=[device] if torch.device(device).type == "cuda" else []),
        tqdm(total=steps, desc="masked LM", unit="step", disable=not progress) as bar,
    ):
        torch.manual_seed(seed)
        model = initial_masked_lm(sentences, tokenizer, config)
        torch.nn.Module.to(model, torch.device(device))
        blocks = islice(_batches(blocks_NL, batch_size, generator), steps)
        masked = (mask_block(ids_BL, tokenizer, probability, generator) for ids_BL in blocks)
        optimizer = torch.optim.AdamW(_decay_groups(model, weight_decay), lr=learning_rate)
        schedule = get_linear_schedule_with_warmup(optimizer, max(1, round(warmup_share * steps)), steps)
        _train(model, masked, optimizer, schedule, max_grad_norm, bar)
        if heldout:
            _report(masked_lm_score(model, heldout, tokenizer, block_length, batch_size, probability), bar)
    return model.eval()


def _report(score: MaskedLMScore, bar: tqdm) -> None:
    bar.set_postfix(heldout_loss=f"{score.loss:.2f}", heldout_accuracy=f"{score.accuracy:.3f}")
    logger.info("held-out masked LM: loss %.3f, accuracy %.1f %%", score.loss, 100 * score.accuracy)


def _train(
    model: BertForMaskedLM,
    batches: Iterable[tuple[torch.Tensor, ...]],
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    max_grad_norm: float,
    bar: tqdm,
) -> None:
    model.train()
    for batch in batches:
        loss = _masked_lm_loss(model, *(tensor.to(model.device) for tensor in batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if bar.n % 50 == 0:
            bar.set_postfix(loss=f"{loss.item():.2f}")
        bar.update()


def _check(config: BertConfig, tokenizer: PreTrainedTokenizerBase, steps: int, block_length: int) -> None:
    if config.vocab_size != len(tokenizer):
        raise ValueError(f"config.vocab_size must be len(tokenizer) = {len(tokenizer)}, got {config.vocab_size}")
    longest = config.max_position_embeddings
    if block_length > longest:
        raise ValueError(f"block_length must be at most max_position_embeddings = {longest}, got {block_length}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")


def _masked_lm_loss(
    model: BertForMaskedLM, masked_BL: torch.Tensor, positions_M: torch.Tensor, labels_M: torch.Tensor
) -> torch.Tensor:
    """Mean over the masked tokens; zero, not NaN, where a small batch has none."""
    total = F.cross_entropy(masked_lm_logits(model, masked_BL, positions_M), labels_M, reduction="sum")
    return total / max(len(labels_M), 1)


def _decay_groups(model: torch.nn.Module, weight_decay: float) -> list[dict]:
    """Matrices decay; biases and LayerNorm, which are vectors, do not (BERT's own optimiser)."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def _batches(blocks_NL: torch.Tensor, batch_size: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Batches without end, the order drawn anew for every epoch; the last batch of an epoch may be smaller."""
    while True:
        for rows in torch.randperm(len(blocks_NL), generator=generator).split(batch_size):
            yield blocks_NL[rows]
