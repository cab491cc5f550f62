"""Decoder language models as encoders: last token, padding on either side, packed batches, attention to both sides,
adapters, and the export in sentence-transformers and peft."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding import load_encoder
from csekit.encoding.pretrained import load_tokenizer
from csekit.modeling import CSEConfig, CSEModel
from csekit.modeling.lora import merged_weights
from csekit.modeling.tokenization import sentence_frame

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 4,
         "num_key_value_heads": 2, "vocab_size": 90, "max_position_embeddings": 64, "bos_token_id": 1,
         "eos_token_id": 1, "pad_token_id": None}  # fmt: skip
FAMILIES = {
    "qwen2": {**SIZES, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    "qwen3": SIZES,
    "llama": SIZES,
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 90, "bos_token_id": 1,
             "eos_token_id": 1, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}  # fmt: skip
BERT = {"num_hidden_layers": 1, "hidden_size": 12, "vocab_size": 9, "intermediate_size": 12}
TEXTS = ["w1 w2 w3 w4 w5 w6", "w7", "w8 w9 w10"]
TEMPLATE = 'This sentence : " {sentence} " means in one word : "'


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """A checkpoint of each family with a tokenizer that has neither padding nor mask token."""

    def make(family: str):
        folder = tmp_path_factory.mktemp(family)
        torch.manual_seed(0)
        model = AutoModel.from_config(AutoConfig.for_model(family, **FAMILIES[family]))
        for parameter in model.parameters():
            parameter.data.add_(0.1 * torch.randn(parameter.shape))
        model.save_pretrained(folder)
        words = ["<unk>", "</s>", "This", "sentence", ":", '"', "means", "in", "one", "word"]
        words += [f"w{i}" for i in range(90 - len(words))]
        backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend, unk_token="<unk>", eos_token="</s>", model_max_length=64
        )
        tokenizer.save_pretrained(folder)
        return folder

    found: dict[str, object] = {}
    return lambda family: found[family] if family in found else found.setdefault(family, make(family))


def padded(rows: list[list[int]], side: str) -> dict[str, torch.Tensor]:
    length = max(map(len, rows))
    ids, mask = torch.full((len(rows), length), 1), torch.zeros(len(rows), length, dtype=torch.int64)
    for row, tokens in enumerate(rows):
        where = slice(0, len(tokens)) if side == "right" else slice(length - len(tokens), None)
        ids[row, where], mask[row, where] = torch.tensor(tokens), 1
    return {"input_ids": ids, "attention_mask": mask}


ROWS = [[11, 12, 13, 14, 15, 16], [17], [18, 19, 20]]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_commands_train_one_and_write_its_graph(folder_of, kind, tmp_path, monkeypatch):
    """GPT-2 has its dropout under other names. onnxruntime and torch give the same vectors."""
    pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    pytest.importorskip("onnxscript", reason="needs the extra 'onnx'")
    text = tmp_path / "texts.txt"
    text.write_text("".join(f"w{i} w{i + 1} w{2 * i}\n" for i in range(40)))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    own = ["--bidirectional", "--prompt_template", TEMPLATE] if kind == "llama" else []
    commands = [
        ["train", "--use_cpu", "--model_name_or_path", folder_of(kind), "--pooling", "last", "--dropout", "0.1", *own,
         "--train_file", text, "--output_dir", tmp_path / "run", "--max_steps", "2", "--report_to", "none",
         "--per_device_train_batch_size", "8", "--label_free_samples", "0"],
        ["export", tmp_path / "run", "-o", tmp_path / "graph", "--pooled", "--int8"],
    ]  # fmt: skip
    for words in commands:
        done = CliRunner().invoke(main, [str(word) for word in words])
        assert done.exit_code == 0, done.output
    if kind == "gpt2":
        config = json.loads((tmp_path / "run/training/config.json").read_text())["encoder_config"]
        assert {config[name] for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop")} == {0.1}
    graph, ours = load_encoder(tmp_path / "graph"), load_encoder(tmp_path / "run")
    torch.testing.assert_close(torch.tensor(graph.encode(TEXTS)), torch.tensor(ours.encode(TEXTS)))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", list(FAMILIES))
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_row_has_the_vector_that_it_has_alone(folder_of, kind, pooling, bidirectional, monkeypatch):
    """Padding on either side, packed and padded batches; the reference is Transformers on each row without padding."""
    folder = folder_of(kind)
    fields = {"pooling": pooling, "projector": "none", "bidirectional": bidirectional}
    plain = AutoModel.from_pretrained(folder).eval()
    if bidirectional:
        plain.config.is_causal = False
    wanted = []
    with torch.no_grad():
        for row in ROWS:
            states = plain(torch.tensor([row])).last_hidden_state[0]
            wanted.append(states[-1] if pooling == "last" else states.mean(0))
        for fast in ("1", "0"):
            monkeypatch.setenv("CSEKIT_FAST", fast)
            model = CSEModel.from_backbone(folder, **fields)
            for side in ("right", "left"):
                found = model(**padded(ROWS, side)).sentence_embedding
                torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-4, atol=1e-5, msg=f"{fast} {side}")


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_batches_are_packed(folder_of, kind, bidirectional):
    """Both ways, a packed window was one token shorter than Transformers': the trained encoder was not the exported
    one. Windows of at most four tokens stayed padded instead."""
    model = CSEModel.from_backbone(folder_of(kind), pooling="last", bidirectional=bidirectional)
    assert model.backbone.config._attn_implementation == "csekit_packed"


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet"])
def test_left_padding_of_other_encoders_in_packed_batches(checkpoint, kind):
    pad = 0 if kind == "bert" else 1
    batches = [padded(ROWS, side) for side in ("right", "left")]
    for batch in batches:
        batch["input_ids"][batch["attention_mask"] == 0] = pad
    model = CSEModel.from_backbone(checkpoint(kind, 0.0), pooling="cls")
    right, left = (model(**batch).sentence_embedding for batch in batches)
    torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("template", [None, TEMPLATE], ids=["plain", "PromptEOL"])
@pytest.mark.parametrize("fields", [{}, {"bidirectional": True, "lora": 4}], ids=["causal", "both ways, lora"])
def test_the_export_in_sentence_transformers(folder_of, tmp_path, fields, template):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = folder_of("qwen3")
    tokenizer = load_tokenizer(folder, None, "last")
    model = CSEModel.from_backbone(folder, tokenizer=tokenizer, pooling="last", prompt_template=template, **fields)
    for name, parameter in model.backbone.named_parameters():
        if ".lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.export(tmp_path, tokenizer)
    own = load_encoder(tmp_path, device="cpu").encode(TEXTS)
    peer = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    for side in ("right", "left"):
        peer.tokenizer.padding_side = side
        torch.testing.assert_close(torch.tensor(peer.encode(TEXTS)), torch.tensor(own), rtol=1e-4, atol=1e-5)
    frame = sentence_frame(tokenizer, template)
    rows = [[*frame.before, *tokenizer(text, add_special_tokens=False)["input_ids"], *frame.after] for text in TEXTS]
    trained = model(**padded(rows, "right")).sentence_embedding
    torch.testing.assert_close(torch.tensor(own), trained.detach(), rtol=1e-4, atol=1e-5)
    assert not [name for name in AutoModel.from_pretrained(tmp_path).state_dict() if "lora" in name]
    if not fields:  # the checkpoint itself, without training
        plain = load_encoder(folder, pooling="last", prompt_template=template, device="cpu").encode(TEXTS)
        torch.testing.assert_close(torch.tensor(plain), torch.tensor(own), rtol=1e-4, atol=1e-5)


def test_adapters_alone_train_and_reload_and_peft_reads_them(folder_of, tmp_path):
    peft = pytest.importorskip("peft")
    folder = folder_of("llama")
    model = CSEModel.from_backbone(folder, pooling="last", lora={"r": 2, "target_modules": ["q_proj", "v_proj"]})
    model.train()
    batch = padded(ROWS, "right")
    views = {name: value[:, None].repeat(1, 2, 1) for name, value in batch.items()}
    views["input_ids"][:, 1] += 30
    before = {name: value.clone() for name, value in model.backbone.state_dict().items()}
    optimizer = torch.optim.SGD([p for group in model.parameter_groups() for p in group["params"]], lr=0.5)
    for _ in range(2):  # the first step moves B alone: A's gradient is 0 while B is
        optimizer.zero_grad()
        model(**views).loss.backward()
        optimizer.step()
    moved = {name for name, value in model.backbone.state_dict().items() if not value.equal(before[name])}
    assert moved == {name for name in before if ".lora_" in name}
    assert len(moved) == 2 * 2 * 2
    model.eval().save_pretrained(tmp_path)
    wanted = model(**batch).sentence_embedding
    again = CSEModel.from_pretrained(tmp_path)
    assert torch.equal(again(**batch).sentence_embedding, wanted)
    assert {n for n, p in again.backbone.named_parameters() if p.requires_grad} == moved
    adapted = peft.PeftModel.from_pretrained(AutoModel.from_pretrained(folder), tmp_path / "adapter").eval()
    states = adapted(**batch).last_hidden_state[torch.arange(3), batch["attention_mask"].sum(1) - 1]
    torch.testing.assert_close(states, wanted, rtol=1e-4, atol=1e-5)
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["r"] == 2


def test_the_original_model_under_adapters_of_a_bidirectional_run_needs_is_causal_false(folder_of, tmp_path):
    """As docs/decoders.md says: the original's configuration is causal."""
    peft = pytest.importorskip("peft")
    folder, batch = folder_of("llama"), padded(ROWS, "right")
    model = CSEModel.from_backbone(folder, pooling="last", bidirectional=True, lora=2)
    for name, parameter in model.named_parameters():
        if ".lora_B" in name:
            parameter.data.normal_()
    model.save_pretrained(tmp_path)
    wanted = model(**batch).sentence_embedding
    for told in (False, True):
        original = AutoModel.from_pretrained(folder)
        if told:
            original.config.is_causal = False
        adapted = peft.PeftModel.from_pretrained(original, tmp_path / "adapter").eval()
        states = adapted(**batch).last_hidden_state[torch.arange(3), batch["attention_mask"].sum(1) - 1]
        assert torch.allclose(states, wanted, rtol=1e-4, atol=1e-5) == told


def reads_ahead(model) -> bool:
    """Return True if the state of a text's first token changes with its last one."""
    states = [model.backbone(torch.tensor([[11, 12, last]])).last_hidden_state[0, 0] for last in (13, 14)]
    return not torch.equal(*states)


def test_bidirectional_holds_however_a_model_is_made(folder_of, tmp_path):
    """Only from_backbone read the setting: other models had it in their configuration, and were causal."""
    folder, fields = folder_of("llama"), {"pooling": "last", "bidirectional": True}
    model = CSEModel(CSEConfig(encoder_config=AutoConfig.from_pretrained(folder), objectives=["queue"], **fields))
    assert reads_ahead(model.eval())
    assert reads_ahead(SimpleNamespace(backbone=model.objectives["queue"].encoder))
    CSEModel.from_backbone(folder, pooling="last").save_pretrained(tmp_path / "causal")
    assert not reads_ahead(CSEModel.from_pretrained(tmp_path / "causal"))
    assert reads_ahead(CSEModel.from_pretrained(tmp_path / "causal", bidirectional=True))
    state = AutoModel.from_pretrained(folder).state_dict()
    torch.save({f"model.{name}": weight for name, weight in state.items()}, tmp_path / "model.pt")
    words = ["convert", tmp_path / "model.pt", "--backbone", folder, "-o", tmp_path / "run", "--pooling", "last"]
    done = CliRunner().invoke(main, [str(word) for word in (*words, "--set", "bidirectional=true")])
    assert done.exit_code == 0, done.output
    assert AutoConfig.from_pretrained(tmp_path / "run").is_causal is False
    assert reads_ahead(CSEModel.from_pretrained(tmp_path / "run" / "training"))
    with pytest.raises(ValueError, match="bidirectional must be False for BertModel, whose attention is not causal"):
        CSEModel(CSEConfig(bidirectional=True, encoder_config=AutoConfig.for_model("bert", **BERT)))


@pytest.mark.parametrize("name", ["towers", "peer", "queue"])
def test_second_encoders_attend_both_ways_as_the_first(folder_of, name, tmp_path):
    fields = {"objectives": [name], "pooling": "last", "bidirectional": True}
    model = CSEModel.from_backbone(folder_of("llama"), **fields)
    second, batch = model.objectives[name].encoder, padded(ROWS, "right")
    second.load_state_dict(model.backbone.state_dict())
    states = [encoder(**batch).last_hidden_state[0] for encoder in (model.backbone, second)]
    torch.testing.assert_close(*states, rtol=1e-4, atol=1e-5)
    model.save_pretrained(tmp_path)
    again = CSEModel.from_pretrained(tmp_path).objectives[name].encoder(**batch).last_hidden_state[0]
    torch.testing.assert_close(again, states[1], rtol=1e-4, atol=1e-5)


def test_the_queue_s_copy_follows_the_encoder_with_its_adapters(checkpoint, batch_of):
    pytest.importorskip("peft")
    fields = {"lora": {"r": 2, "target_modules": ["query", "value"]}, "projector": "none"}
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), queue_weight=1.0, queue_size=4, **fields).train()
    with torch.no_grad():
        for name, parameter in model.backbone.named_parameters():
            if ".lora_" in name:
                parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(1))
    batch = batch_of(model)
    model(**batch).loss.backward()  # the first step: the copy is the encoder
    copied = model.objectives["queue"].encoder
    ids, mask = batch["input_ids"][:, 0], batch["attention_mask"][:, 0]
    states = [encoder.eval()(input_ids=ids, attention_mask=mask) for encoder in (model.backbone, copied)]
    torch.testing.assert_close(
        states[1].last_hidden_state[:, 0], states[0].last_hidden_state[:, 0], rtol=1e-4, atol=1e-4
    )


def test_a_tied_decoder_has_the_weights_with_their_adapters_and_trains_them(checkpoint, batch_of):
    pytest.importorskip("peft")
    fields = {"objectives": ["tsdae"], "contrastive_weight": 0.0, "projector": "none"}
    given = {"lora": {"r": 2, "target_modules": ["query", "value"]}}
    model, plain = (CSEModel.from_backbone(checkpoint("bert", 0.0), **fields, **more) for more in (given, {}))
    plain.objectives.load_state_dict(model.objectives.state_dict())
    with torch.no_grad():
        for name, parameter in model.backbone.named_parameters():
            if ".lora_" in name:
                parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    merged = merged_weights(model.backbone)
    plain.backbone.load_state_dict(merged)
    batch = batch_of(model)
    loss = model.train()(**batch).loss
    torch.testing.assert_close(loss, plain.train()(**batch).loss, rtol=1e-4, atol=1e-5)
    loss.backward()
    trained = {name for name, p in model.backbone.named_parameters() if p.grad is not None}
    assert trained and all(".lora_" in name for name in trained)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lora": 0}, "lora must be a rank of at least 1, or fields of peft.LoraConfig with r, got"),
        ({"lora": "many"}, "lora must be a rank of at least 1"),
        ({"lora": 100_000}, "lora must have a rank of at most 16, the largest that a weight can have, got 100000"),
        ({"lora": {"r": 2, "rank_pattern": {"q_proj": 17}}}, "lora must have a rank of at most 16, .* got 17"),
        ({"lora": {"rank": 3}}, "lora: .*rank"),
        ({"lora": {"r": 3, "target_modules": ["nowhere"]}}, "lora: .*nowhere"),
        ({"lora": {"r": 3, "use_dora": True}}, "lora must make adapters that are added to weights.* without use_dora"),
        (
            {"lora": {"r": 3, "target_modules": ["q_proj"], "lora_bias": True}},
            "lora must make adapters that are added",
        ),
        ({"lora": {"r": 3, "bias": "lora_only"}}, "lora: bias must be 'none'.* got 'lora_only'"),
        ({"lora": {"r": 3, "lora_alpha": 0}}, "lora: lora_alpha must not be 0"),
        ({"lora": {"r": 3, "modules_to_save": ["norm"]}}, "lora must make adapters that are added to weights"),
        ({"lora": {"r": 3, "trainable_token_indices": [4]}}, "lora must make adapters that are added to weights"),
        ({"bidirectional": "yes"}, "bidirectional must be True or False, got 'yes'"),
        ({"prompt_template": "no sentence"}, "prompt_template must hold '{sentence}' once"),
    ],
)
def test_values_that_are_not_allowed(folder_of, fields, words):
    """DoRA and adapters with a bias trained, and the export then had other vectors than the trained encoder."""
    with pytest.raises(ValueError, match=words):
        CSEModel.from_backbone(folder_of("llama"), pooling="last", **fields)


def test_adapters_without_peft(folder_of, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r"lora needs peft: pip install 'csekit\[lora\]'"):
        CSEModel.from_backbone(folder_of("llama"), pooling="last", lora=2)


def test_an_encoder_that_attends_both_ways_already(checkpoint):
    with pytest.raises(ValueError, match="bidirectional must be False for BertModel, whose attention is not causal"):
        CSEModel.from_backbone(checkpoint("bert"), bidirectional=True)
