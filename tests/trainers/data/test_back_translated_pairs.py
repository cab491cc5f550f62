"""Training on real back-translated pairs: ParaNMT's, English to Czech and back."""

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel

from csekit.modeling import MSSEModel
from csekit.trainers import CSETrainer, CSETrainingArguments, load_corpus
from csekit.trainers.data.tokenizer_training import train_tokenizer


def read(path: Path) -> list[list[str]]:
    if not path.is_file():
        pytest.skip(f"needs paranmt/{path.name} in CSEKIT_DATA")
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def run(data_dir: Path, tmp_path: Path) -> CSETrainer:
    """MSSE over the 1,000 pairs: a new encoder of two layers, its vocabulary from the text."""
    pairs = read(data_dir / "paranmt" / "eval.txt")
    file = tmp_path / "pairs.tsv"
    file.write_text("\n".join(["sent0\tsent1", *("\t".join(pair) for pair in pairs)]) + "\n", encoding="utf-8")
    tokenizer = train_tokenizer([text for pair in pairs for text in pair], 2000, model_max_length=64)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    torch.manual_seed(0)
    backbone = BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes))
    backbone.save_pretrained(tmp_path / "backbone")
    tokenizer.save_pretrained(tmp_path / "backbone")
    args = CSETrainingArguments(
        output_dir=str(tmp_path / "run"),
        per_device_train_batch_size=50,
        max_steps=80,
        learning_rate=1e-3,
        eval_steps=80,
        label_free_samples=50,
        disable_tqdm=True,
        use_cpu=True,
        report_to="none",
    )
    model = MSSEModel.from_backbone(tmp_path / "backbone", pooling="mean", prompt_template=None)
    return CSETrainer(model, args, load_corpus(file, cache_dir=tmp_path / "cache"), tokenizer, None)


@pytest.mark.slow
@pytest.mark.data
def test_msse_comes_to_find_translations_that_it_has_not_seen(run: CSETrainer, data_dir: Path) -> None:
    unseen = read(data_dir / "paranmt" / "test.txt")
    assert run.train_dataset[0]["texts"] == read(data_dir / "paranmt" / "eval.txt")[0]

    def surprise() -> float:
        """Of a sentence's own translation among all 100, temperature 0.05: ln 100 = 4.6 where nothing is known."""
        left, right = (torch.from_numpy(run.embed([pair[column] for pair in unseen])) for column in (0, 1))
        cosine = torch.nn.functional.cosine_similarity(left[:, None], right[None], dim=-1)
        return float(torch.nn.functional.cross_entropy(cosine / 0.05, torch.arange(len(unseen))))

    before = surprise()
    run.train()
    after = surprise()
    assert before > 4 and after < 2, (before, after)
