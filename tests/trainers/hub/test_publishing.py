"""Publishing through the real client, to a Hub on loopback, and loading back from there."""

import hashlib
import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from huggingface_hub.errors import OfflineModeIsEnabled
from safetensors.torch import load_file
from transformers import AutoTokenizer
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding import encode, load_encoder
from csekit.modeling import METHODS
from csekit.modeling.custom_code import export_with_code
from csekit.trainers.hub.publishing import PublishError, hub_errors, published_files, without_tokens

ROOT = Path(__file__).parents[3]
TEXTS = ["A man is playing a guitar.", "Someone plays an instrument."]
hub_server = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "hub_server.py")))
Fault, Worker = hub_server.Fault, hub_server.Worker
TOKEN, OTHER = hub_server.TOKEN, hub_server.OTHER


@pytest.fixture(scope="module")
def hub() -> Iterator[Any]:
    with hub_server.HubServer() as server:
        server.users |= {TOKEN: "me", OTHER: "her"}
        server.organisations["lab"] = ["me"]
        yield server


@pytest.fixture(scope="module")
def worker(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    worker = Worker(hub.endpoint, tmp_path_factory.mktemp("home"))
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def words(small: Any, small_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The arguments of a small run of InfoCSE, but for its folder."""
    data = tmp_path_factory.mktemp("data")
    arguments = {
        "method": "infocse",
        "aux_mlm_head_init": "random",
        "model_name_or_path": small_backbone,
        "train_file": small.write_texts(data / "texts.txt", 24),
        "dev_file": small.write_pairs(data / "dev.tsv"),
        "per_device_train_batch_size": 8,
        "eval_steps": 2,
        "use_cpu": True,
    }
    return [str(word) for name, value in arguments.items() for word in (f"--{name}", value)]


@pytest.fixture(scope="module")
def published(hub: Any, worker: Any, words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that examples/run_unsup.py trained and published as lab/first."""
    run = tmp_path_factory.mktemp("runs") / "first"
    more = ["--output_dir", str(run), "--push_to_hub", "True", "--hub_model_id", "lab/first", "--hub_token", TOKEN]
    done = worker.job(token=None, script=str(ROOT / "examples" / "run_unsup.py"), argv=[*words, *more])
    assert done.code == 0, done.errors
    assert f"Published: {hub.endpoint}/lab/first/commit/" in done.output
    return run


@pytest.fixture
def run(published: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    return Path(shutil.copytree(published, tmp_path / "run"))


def test_a_training_script_publishes_the_run_in_one_commit(hub: Any, published: Path) -> None:
    repository = hub.repositories["lab/first"]
    assert repository.titles() == ["initial commit", "first, by csekit"]
    files = repository.files()
    model = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    metadata = {"modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"}
    root = {".gitattributes", "README.md", "1_Pooling/config.json", *metadata, *model}
    assert set(files) == root | {f"training/{name}" for name in model}
    assert (published / "training" / "training_args.bin").is_file()  # and checkpoints, state, log: they stay
    for name in set(files) - {".gitattributes", "README.md"}:
        assert files[name] == (published / name).read_bytes()
    for content in files.values():
        assert TOKEN.encode() not in content
        assert str(published.parent).encode() not in content
    for path in published.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path
    assert {token for method, path, token in hub.requests if path.startswith("/lfs/")} == {None}
    assert (
        json.loads((published / "results.json").read_text())["arguments"]
        .keys()
        .isdisjoint({"hub_token", "hub_model_id", "push_to_hub", "hub_strategy"})
    )
    card = ModelCard(files["README.md"].decode())
    assert "infocse" in card.data.tags
    assert 'SentenceTransformer("lab/first")' in card.text


LOAD = """
import hashlib, json, re, torch
from pathlib import Path
from huggingface_hub import hf_hub_download
card = Path(hf_hub_download("lab/first", "README.md")).read_text()
embeddings, weights = [], {}
for snippet in re.findall("```python\\n(.*?)```", card, re.DOTALL):
    space = {}
    exec(snippet, space)
    embeddings.append(torch.as_tensor(space["embeddings"]).tolist())
    model = space["model"]
    weights[type(model).__name__] = {
        name: hashlib.sha256(value.numpy().tobytes()).hexdigest() for name, value in model.state_dict().items()
    }
ids = torch.randint(5, 20, (4, 1, 6), generator=torch.Generator().manual_seed(0))
batch = {"aux_mlm_input_ids": ids.flatten(0, 1).repeat(2, 1), "aux_mlm_positions": torch.tensor([2, 9]),
         "aux_mlm_labels": torch.tensor([7, 8])}
model.train()(ids, return_loss=True, **batch).loss.backward()
gradients = [float(value.grad.norm()) for value in model.parameters() if value.requires_grad]
print(json.dumps({"embeddings": embeddings, "weights": weights, "gradients": gradients}))
"""


def test_the_snippets_of_the_card_load_what_was_trained(worker: Any, published: Path) -> None:
    done = worker.job(token=None, code=LOAD)
    assert done.code == 0, done.errors
    found = json.loads(done.output)
    expected = torch.as_tensor(load_encoder(published).encode(TEXTS))
    assert len(found["embeddings"]) == 3  # sentence-transformers, Transformers, csekit
    for embeddings in found["embeddings"]:
        torch.testing.assert_close(torch.tensor(embeddings), expected, rtol=0, atol=1e-6)
    weights = found["weights"]
    plain, whole = (digests(published / folder / "model.safetensors") for folder in ("", "training"))
    assert plain.items() <= weights["BertModel"].items()  # to which AutoModel adds a pooler
    assert set(plain.values()) <= set(weights["SentenceTransformer"].values())
    assert whole == weights["InfoCSEModel"]
    assert len(found["gradients"]) > 20
    assert all(norm >= 0 for norm in found["gradients"])  # training can go on


def digests(path: Path) -> dict[str, str]:
    return {name: hashlib.sha256(value.numpy().tobytes()).hexdigest() for name, value in load_file(path).items()}


def test_a_second_push_replaces_what_the_first_one_wrote_and_nothing_else(hub: Any, worker: Any, run: Path) -> None:
    first = worker.push(run, "again", "--private", "--commit_message", "one")
    assert first.code == 0 and f"published: {hub.endpoint}/me/again/commit/" in first.output, first.errors
    repository = hub.repositories["me/again"]
    assert repository.private
    assert "training/model.safetensors" in repository.files()
    foreign = {"handler.py": b"# theirs", "onnx/model.onnx": b"x"}
    hub.add_commit(repository, "main", "by hand", repository.files() | foreign)
    same = worker.push(run, "me/again")
    assert same.code == 0
    assert repository.titles() == ["initial commit", "one", "by hand"]
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"label": "new"}))
    done = worker.push(run, "me/again", "--no_training", "--commit_message", "two")
    assert done.code == 0 and repository.titles()[-1] == "two", done.errors
    files = repository.files()
    assert not [name for name in files if name.startswith("training/")]
    assert foreign.items() <= files.items()
    assert json.loads(files["config.json"])["label"] == "new"


def test_the_card_of_a_renamed_run_loads_the_repository(
    hub: Any, worker: Any, published: Path, tmp_path: Path
) -> None:
    """Its snippets named the folder that was renamed."""
    renamed = Path(shutil.copytree(published, tmp_path / "renamed"))
    for words in ((), ("--custom_code",)):
        done = worker.push(renamed, "me/renamed", *words)
        assert done.code == 0, done.errors
        card = hub.repositories["me/renamed"].files()["README.md"].decode()
        assert 'from_pretrained("me/renamed"' in card
        assert '("first"' not in card and '("renamed"' not in card


def test_calls_that_a_person_wrote_into_the_card_stay(hub: Any, worker: Any, published: Path, tmp_path: Path) -> None:
    """Regression: a teacher's tokenizer in the snippets, and every text of the card like the run's name, were changed
    to the repository."""
    run = Path(shutil.copytree(published, tmp_path / "renamed"))
    card = (run / "README.md").read_text()
    inside = 'teacher = SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2")\nplot("first")\n'
    outside = '\n## Before\n\n```python\nload_encoder("me/before")\nplt.title("first")\nplt.savefig("renamed")\n```\n'
    card = card.replace("```\n<!-- end use -->", f"{inside}```\n<!-- end use -->") + outside
    (run / "README.md").write_text(card)
    done = worker.push(run, "me/by-hand")
    assert done.code == 0, done.errors
    sent = hub.repositories["me/by-hand"].files()["README.md"].decode()
    assert inside in sent and sent.endswith(outside)
    calls = ("SentenceTransformer", "AutoTokenizer.from_pretrained", "load_encoder", "InfoCSEModel.from_pretrained")
    for call in calls:
        card = card.replace(f'{call}("first"', f'{call}("me/by-hand"')
    assert sent == card.replace('AutoModel.from_pretrained("first"', 'AutoModel.from_pretrained("me/by-hand"')


def test_a_branch_and_a_proposal(hub: Any, worker: Any, run: Path) -> None:
    hub.create("her/model")
    refused = worker.push(run, "her/model")
    assert refused.code == 2
    assert "403" in refused.errors
    assert "--create_pr" in refused.errors
    assert list(hub.repositories["her/model"].files()) == [".gitattributes"]
    proposed = worker.push(run, "her/model", "--create_pr")
    assert proposed.code == 0
    assert f"published: {hub.endpoint}/her/model/discussions/1" in proposed.output
    assert "README.md" in hub.repositories["her/model"].files("refs/pr/1")
    assert list(hub.repositories["her/model"].files()) == [".gitattributes"]
    assert worker.push(run, "me/branches", "--revision", "v2").code == 0
    branches = hub.repositories["me/branches"]
    assert "README.md" in branches.files("v2")
    assert list(branches.files("main")) == [".gitattributes"]
    both = worker.push(run, "me/branches", "--revision", "v2", "--create_pr")
    assert both.code == 2
    assert "revision must be left out with create_pr" in both.errors


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Fault("PUT /lfs/", "cut", 100), "no connection, or it was lost"),
        (Fault("POST .*/preupload/", "cut", 100), "no connection, or it was lost"),
        (Fault("POST .*/commit/", "cut"), "no connection, or it was lost"),
        (Fault("POST /api/repos/create", "cut"), "no connection, or it was lost"),
        (Fault("PUT /lfs/", 507), "507, the Hub has no storage"),
        (Fault("POST .*/commit/", 403), "403, the token may not write there"),
        (Fault("POST .*/commit/", 412), "412, the repository was changed"),
        (Fault("POST .*/preupload/", 500, 100), "500, the Hub failed"),
        (Fault("POST /api/validate-yaml", 429), "429, too many requests"),
    ],
    ids=lambda value: f"{value.request} {value.kind}" if isinstance(value, Fault) else "",
)
def test_nothing_is_half_published(hub: Any, worker: Any, published: Path, fault: Any, told: str) -> None:
    hub.repositories.pop("me/faults", None)
    hub.objects.clear()
    hub.faults.append(fault)
    failed = worker.push(published, "me/faults")
    hub.faults.clear()
    last = failed.errors.splitlines()[-1]  # behind the client's own words about trying again
    assert failed.code == 2
    assert told in last
    assert last.startswith("error: me/faults: ")
    assert "same command" in last
    assert "Traceback" not in failed.errors
    repository = hub.repositories.get("me/faults")
    assert repository is None or repository.titles() == ["initial commit"]
    done = worker.push(published, "me/faults")
    assert done.code == 0, done.errors
    assert hub.repositories["me/faults"].files() | {"README.md": b""} == (
        hub.repositories["lab/first"].files() | {"README.md": b""}
    )


def test_a_lost_answer_makes_no_second_commit(hub: Any, worker: Any, published: Path) -> None:
    hub.faults.append(Fault("POST .*/commit/", "mute"))
    lost = worker.push(published, "me/mute")
    assert lost.code == 2
    assert "The commit is not partial" in lost.errors
    assert len(hub.repositories["me/mute"].titles()) == 2  # it had arrived
    assert worker.push(published, "me/mute").code == 0
    assert len(hub.repositories["me/mute"].titles()) == 2


@pytest.mark.parametrize(
    ("repo", "more", "told"),
    [
        ("me/x", {"token": "hf_wrong0123456789"}, "401, the Hub does not accept the token"),
        ("me/x", {"token": None}, "log in with 'hf auth login'"),
        ("her/new", {}, "a repository of yours"),
        ("a/b/c", {}, "a/b/c"),
        ("me/bad name", {}, "me/bad name"),
        ("me/x", {"env": {"HF_TOKEN": "hf_\u00e9vil0123456789"}}, "a character that tokens do not have"),
    ],
    ids=["wrong token", "no token", "hers", "three parts", "blank", "token that no header holds"],
)
def test_who_may_not_publish(
    hub: Any, worker: Any, published: Path, repo: str, more: dict[str, Any], told: str
) -> None:
    held = set(hub.repositories)
    done = worker.push(published, repo, **more)
    assert done.code == 2
    assert told in done.errors
    assert "0123456789" not in done.errors
    assert set(hub.repositories) == held
    assert "Traceback" not in done.errors


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OfflineModeIsEnabled("offline"), "me/x: asking: HF_HUB_OFFLINE is set: unset it"),
        (
            PermissionError(13, "Permission denied", "run/tokenizer.json"),
            "run/tokenizer.json: Permission denied. Noth",
        ),
        (PermissionError("xet refused"), "the token may not write there: .* .xet refused."),
        (RuntimeError("some thread died"), "no connection, or it was lost .some thread died"),
    ],
)
def test_errors_that_are_no_answer_of_the_hub(error: Exception, told: str) -> None:
    with pytest.raises(PublishError, match=told), hub_errors("me/x", "asking"):
        raise error


@pytest.mark.parametrize("relative", [False, True])
def test_a_generator_that_only_this_machine_has_is_told(
    run: Path, relative: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    generator = run.name if relative else str(run)
    config = json.loads((run / "training" / "config.json").read_text())
    config["objectives"] += [{"name": "rtd", "generator": generator}, {"name": "edited", "generator": "someone/mlm"}]
    (run / "training" / "config.json").write_text(json.dumps(config))
    assert CliRunner().invoke(main, ["push", run.name, "me/x"]).exit_code == 2  # there is no Hub
    assert f"names the folder {generator!r} as generator" in caplog.text
    assert "someone/mlm" not in caplog.text


def test_tokens_are_taken_out_of_texts() -> None:
    text = f"Illegal header value b'Bearer {TOKEN}', secret-of-another-kind"
    assert without_tokens(text, "secret-of-another-kind") == "Illegal header value b'Bearer <token>', <token>"


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "modules.json",
        "1_Pooling/config.json",
        "README.md",
        "training/model.safetensors",
    ],
)
def test_a_run_that_is_not_whole_is_refused_before_anything_is_sent(hub: Any, run: Path, name: str) -> None:
    (run / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        published_files(run)


def test_what_else_is_refused_before_anything_is_sent(hub: Any, worker: Any, run: Path) -> None:
    before = len(hub.requests)
    assert f"{run.name}x: no such folder" in worker.push(f"{run}x", "me/x").errors
    assert "run must be a run's folder" in worker.push(run / "training", "me/x").errors
    weights = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert "model.safetensors is truncated" in worker.push(run, "me/x").errors
    (run / "model.safetensors").write_bytes(weights)
    shutil.rmtree(run / "training")
    assert "leave it out with --no_training" in worker.push(run, "me/x").errors
    assert not [entry for entry in hub.requests[before:] if entry[0] != "GET"]
    assert "me/x" not in hub.repositories
    assert worker.push(run, "me/x", "--no_training").code == 0


def test_a_full_disk_publishes_nothing(hub: Any, worker: Any, published: Path) -> None:
    done = worker.push(published, "me/full", "--custom_code", file_size=20_000)
    assert done.code == 2
    assert "File too large" in done.errors
    assert "me/full" not in hub.repositories


def test_a_trainer_asks_before_it_trains(hub: Any, worker: Any, words: list[str], tmp_path: Path) -> None:
    script, held = str(ROOT / "examples" / "run_unsup.py"), set(hub.repositories)
    argv = [*words, "--output_dir", str(tmp_path / "run"), "--push_to_hub", "True"]
    for more, token, told in (
        (["--hub_model_id", "her/x"], TOKEN, "hub_model_id must be in a namespace of yours (me, lab), got 'her/x'"),
        (["--hub_model_id", "me/x"], "hf_wrong0123456789", "the Hub does not accept the token"),
        (["--hub_strategy", "every_save"], TOKEN, "hub_strategy must be 'end'"),
        (["--pooling", "first_last_mean"], TOKEN, "cannot be exported"),
    ):
        done = worker.job(token=token, script=script, argv=[*argv, *more])
        assert done.code == 2 and told in done.errors, done.errors
    assert not list(tmp_path.glob("run/training/checkpoint-*"))
    assert set(hub.repositories) == held


LIBRARY = """
from transformers import AutoTokenizer
from csekit import CSETrainer, CSETrainingArguments, SimCSEModel, load_corpus
tokenizer = AutoTokenizer.from_pretrained({backbone!r})
args = CSETrainingArguments({output!r}, max_steps=2, per_device_train_batch_size=8, use_cpu=True, hub_token={token!r})
trainer = CSETrainer(SimCSEModel.from_backbone({backbone!r}), args, load_corpus({texts!r}), tokenizer)
trainer.train()
print(trainer.push_to_hub(training=False).commit_url)
"""


def test_a_trainer_as_a_library(hub: Any, worker: Any, words: list[str], small_backbone: Path, tmp_path: Path) -> None:
    texts, output = words[words.index("--train_file") + 1], str(tmp_path / "lib")
    code = LIBRARY.format(backbone=str(small_backbone), output=output, texts=texts, token=TOKEN)
    done = worker.job(token=None, code=code)
    assert done.code == 0 and f"{hub.endpoint}/me/lib/commit/" in done.output, done.errors
    files = hub.repositories["me/lib"].files()
    assert "modules.json" in files
    assert not [name for name in files if name.startswith("training/")]
    card = ModelCard(files["README.md"].decode())
    assert "from\n**tiny-bert**, on **texts.txt** (24 rows)" in card.text
    assert "method **simcse**" in card.text
    assert not [path for path in Path(output).rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


SAVED = LIBRARY.replace("print(trainer.push_to_hub(training=False).commit_url)", "print(trainer.save_run())")


def test_the_commands_take_a_run_of_a_trainer(
    hub: Any, worker: Any, words: list[str], small_backbone: Path, tmp_path: Path
) -> None:
    """``save_run`` leaves what the scripts leave: the encoder, the results and the card."""
    texts, run = words[words.index("--train_file") + 1], tmp_path / "mine"
    code = SAVED.format(backbone=str(small_backbone), output=str(run), texts=texts, token=TOKEN)
    done = worker.job(token=None, code=code)
    assert done.code == 0, done.errors
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert (results["method"], results["backbone"], results["corpus"]["used"]) == ("simcse", "tiny-bert", 24)
    assert ModelCard.load(run / "README.md").data.library_name == "sentence-transformers"
    for argv in (
        ["card", str(run), "--license", "mit"],
        ["report", str(run), "--output", str(tmp_path / "page.html")],
        ["push", str(run), "me/mine"],
    ):
        done = worker.job(argv=argv)
        assert done.code == 0, (argv, done.errors)
    assert ModelCard(hub.repositories["me/mine"].files()["README.md"].decode()).data.license == "mit"


# The method's own class, where csekit is not


WITHOUT_CSEKIT = """
import json, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("csekit", "modeling", "trainers", "evaluation"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
try:
    import csekit
    raise SystemExit("csekit is here")
except ModuleNotFoundError:
    pass
import torch
from transformers import AutoModel, AutoTokenizer
texts, found = json.loads(sys.argv[1]), {}
for name in sys.argv[2:]:
    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=True)
    model, info = AutoModel.from_pretrained(name, trust_remote_code=True, output_loading_info=True)
    with torch.no_grad():
        rows = model(**tokenizer(texts, padding=True, return_tensors="pt")).sentence_embedding
    lacks = sorted(info["missing_keys"]) + sorted(info["unexpected_keys"])
    found[name] = [type(model).__name__, type(model).__module__, rows.tolist(), lacks]
print(json.dumps(found))
"""
FIELDS: dict[str, dict[str, Any]] = {
    "infocse": {"aux_mlm_head_init": "random", "projector_at_inference": True},
    "informin": {"pooling": "first_last_mean"},
    "diffcse": {"generator": "BACKBONE"},
    "msse": {"prompt_template": '"{sentence}" means {mask}.'},
    "joint": {"objectives": ["aux_mlm", "rtd", "icm"], "aux_mlm_head_init": "random", "generator": "BACKBONE"},
}


@pytest.mark.slow
def test_every_method_loads_with_its_code_where_csekit_is_not(
    hub: Any, worker: Any, published: Path, small_backbone: Path, tmp_path: Path
) -> None:
    done = worker.push(published, "me/code", "--custom_code")
    assert done.code == 0, done.errors
    files = hub.repositories["me/code"].files()
    assert {"modeling_infocse.py", "registry.py", "README.md", "modules.json"} <= set(files)
    assert not [name for name in files if name.startswith("training/")]
    card = files["README.md"].decode()
    assert 'AutoModel.from_pretrained("me/code", trust_remote_code=True)' in card
    assert "load_encoder" not in card
    tokenizer = AutoTokenizer.from_pretrained(small_backbone)
    expected = {"me/code": ("InfoCSEModel", load_encoder(published).encode(TEXTS))}
    for method, kind in METHODS.items():
        given = FIELDS.get(method, {})
        fields = {name: str(small_backbone) if value == "BACKBONE" else value for name, value in given.items()}
        model = kind.from_backbone(small_backbone, **fields)
        export_with_code(model, tmp_path / method, tokenizer)
        assert kind._auto_class is None
        assert not hasattr(model.config, "auto_map")
        rows = encode(model, tokenizer, TEXTS, prompt_template=model.config.prompt_template)
        expected[str(tmp_path / method)] = (kind.__name__, rows)
    env = {name: value for name, value in worker.env.items() if name != "PYTHONPATH"}
    argv = [sys.executable, "-P", "-c", WITHOUT_CSEKIT, json.dumps(TEXTS), *expected]
    loaded = subprocess.run(argv, capture_output=True, text=True, env=env, cwd=tmp_path)
    assert loaded.returncode == 0, loaded.stderr
    for name, (kind, module, rows, lacks) in json.loads(loaded.stdout).items():
        assert kind == expected[name][0]
        assert module.startswith("transformers_modules.")
        assert not lacks
        torch.testing.assert_close(torch.tensor(rows), torch.as_tensor(expected[name][1]), rtol=0, atol=1e-6)
