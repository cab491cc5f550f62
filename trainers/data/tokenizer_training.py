"""Train a tokenizer on sentences, with the same result on every run."""

from collections import Counter
from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

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
    limit_alphabet: int | None = None,
    model_max_length: int = 512,
) -> PreTrainedTokenizerFast:
    """Train a lower-casing WordPiece tokenizer as BERT uses it: ``[CLS] … [SEP]``, pieces inside a word marked ``##``.

    The same sentences give the same vocabulary on every run.

    Arguments:
        sentences: the corpus.
        vocab_size: upper limit of the vocabulary, special tokens (ids 0 to 4) included; a small corpus gives fewer.
        min_frequency: a pair of pieces is merged only if it occurs this often.
        limit_alphabet: number of characters, the most frequent ones, that get pieces; a word with another is [UNK].
            None: 1,000, or half of the vocabulary if that is more, as Chinese and Japanese need.
        model_max_length: length limit of ``truncation=True``, in tokens.

    Raises:
        ValueError: vocab_size has no room for special tokens and characters, or there is no sentence.
    """
    if not sentences:
        raise ValueError("sentences must hold at least one sentence, got none")
    special = list(SPECIAL_TOKENS.values())
    if limit_alphabet is None:
        limit_alphabet = max(1000, (vocab_size - len(special)) // 2)  # a character has up to two pieces
    tokenizer = _wordpiece({token: index for index, token in enumerate(special)})
    # The trainer numbers single characters in the order of a randomly seeded hash table, and breaks ties between
    # merges by these numbers. As special tokens they get fixed numbers.
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
    tokenizer = _wordpiece(tokenizer.get_vocab())  # the same pieces with only the five special tokens
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
