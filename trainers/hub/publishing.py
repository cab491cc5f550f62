"""Publish a run on the Hub: check its files, then send them in one commit.

The root of the repository is the export; ``training/`` is the model for further training. Optimiser and trainer state,
logs, checkpoints and a frozen generator are not published. ``upload_folder`` would make several commits.
"""

import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError, safe_open
from transformers import AutoTokenizer

from csekit import modeling
from csekit.modeling import METHODS, OBJECTIVES
from csekit.modeling.custom_code import export_with_code
from csekit.modeling.drafts import DiskFullError
from csekit.trainers.base_trainer import TRAINING_FOLDER
from csekit.trainers.hub.card import END_USE, USE, quoted, resealed, with_code_section

logger = logging.getLogger(__name__)

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
#: Names of the files of a model and its tokenizer; nothing else in a run's folder is published.
_MODEL = r"config\.json|model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json"
_VOCABULARY = r"tokenizer\.json|vocab\.(txt|json)|(spiece|spm|sentencepiece\.bpe|tokenizer)\.model"
_TOKENIZER = (
    r"tokenizer_config\.json|special_tokens_map\.json|added_tokens\.json|merges\.txt|chat_template\.jinja"
    rf"|{_VOCABULARY}"
)
_MODULES = (
    r"modules\.json|sentence_bert_config\.json|config_sentence_transformers\.json|template_pooling\.py"
    r"|1_Pooling/config\.json|\d_Dense/(config\.json|model\.safetensors)"
)
_TRAINING = rf"{TRAINING_FOLDER}/({_MODEL}|{_TOKENIZER})"
_CODE = "|".join(re.escape(path.name) for path in Path(modeling.__file__).parent.glob("*.py"))
_ROOT = re.compile(rf"README\.md|{_MODEL}|{_TOKENIZER}|{_MODULES}")
_OURS = re.compile(rf"{_ROOT.pattern}|{_TRAINING}|{_CODE}")
#: The call that loads a model, and its path, in the snippets of a card; the last call of the generated ones.
_LOADED = re.compile(r'\b(SentenceTransformer|from_pretrained|load_encoder)\(("(?:[^"\\\n]|\\.)*")')
_TRAINED = re.compile(
    r'^model = \w+\.from_pretrained\(("(?:[^"\\\n]|\\.)*"), subfolder="training", training=True\)$', re.M
)
#: Base class of the errors of huggingface_hub's HTTP client (httpx or httpx2).
_HTTPError: Any = HfHubHTTPError.__bases__[0]


class PublishError(OSError):
    """The Hub refused the commit or could not be reached. No commit is partial; the message says what to do."""


# The files


def published_files(run: str | Path, training: bool = True) -> dict[str, Path]:
    """Return the files of a run by their path in the repository, after checking that they are complete.

    Arguments:
        run: the folder of a run, from ``save_run`` or a training script.
        training: True to include the model for further training.

    Raises:
        FileNotFoundError: a file is missing; the message names it.
        ValueError: a file is truncated or of another kind, or the pooling has no export.
    """
    folder = Path(run)
    if not folder.is_dir():
        raise FileNotFoundError(f"run must be the folder of a run, got {folder}: no such folder")
    _check_export(folder)
    if training:
        read_method(folder / TRAINING_FOLDER)
        check_weights(folder / TRAINING_FOLDER)
        _tell_of_folders(folder / TRAINING_FOLDER / "config.json")
    wanted = re.compile(rf"{_ROOT.pattern}|{_TRAINING}" if training else _ROOT.pattern)
    return _matching(folder, wanted)


def _tell_of_folders(config: Path) -> None:
    """Warn of networks that a training checkpoint names by a local folder: an absolute path, or a model's folder."""
    for objective in read_json(config, "of the training checkpoint").get("objectives") or []:
        for field, value in objective.items():
            if isinstance(value, str) and (os.path.isabs(value) or Path(value, "config.json").is_file()):
                logger.warning(
                    "%s names the folder %r as %s, which others do not have: train with a model from the Hub if they "
                    "shall continue the training",
                    config,
                    value,
                    field,
                )


def _matching(folder: Path, wanted: re.Pattern[str]) -> dict[str, Path]:
    paths = [*folder.glob("*"), *folder.glob("[0-9]_*/*"), *folder.glob(f"{TRAINING_FOLDER}/*")]
    files = {path.relative_to(folder).as_posix(): path for path in sorted(paths) if path.is_file()}
    return {name: path for name, path in files.items() if wanted.fullmatch(name)}


def _check_export(folder: Path) -> None:
    """Check the root of a run; raises as ``published_files``."""
    config = read_json(folder / "config.json", "the export's; write it with save_run() or by a training script")
    if config.get("model_type") in METHODS or "encoder_config" in config:
        raise ValueError(
            f"run must be a run's folder, got {folder}: a training checkpoint, the run's {TRAINING_FOLDER}/"
        )
    check_weights(folder)
    for name in ("tokenizer_config.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        read_json(folder / name, "of the export")
    if not any(re.fullmatch(_VOCABULARY, path.name) for path in folder.iterdir()):
        raise FileNotFoundError(f"{folder / 'tokenizer.json'} is missing: the tokenizer's vocabulary")
    listed: Any = read_json(folder / "modules.json", "it tells sentence-transformers the pooling")
    for module in listed:
        if module["path"]:
            read_json(folder / module["path"] / "config.json", f"of the module {module['type']}")
        if module["type"].endswith(".Dense"):
            check_weights(folder / module["path"])
        if module["type"].startswith("template_pooling."):
            _present(folder / "template_pooling.py", "the module of the prompt template")
    _present(folder / "README.md", "the model card; write it with: csekit card")


def _present(path: Path, what: str) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {what}")
    return path


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON file. Raises FileNotFoundError or ValueError, which name the file and its purpose."""
    try:
        content: dict[str, Any] = json.loads(_present(path, what).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}): {what}") from None
    return content


def read_method(training: Path) -> str:
    """Return the method of a training checkpoint.

    Raises:
        FileNotFoundError, ValueError: the folder holds no training checkpoint.
    """
    hint = f"{training} holds no model for further training; leave it out with --no_training"
    kind = str(read_json(training / "config.json", hint).get("model_type"))
    methods = {model.config_class.model_type: name for name, model in METHODS.items()}
    if kind not in methods:
        raise ValueError(f"{training}/config.json: model_type must be one of {', '.join(methods)}, got {kind!r}")
    return methods[kind]


def check_weights(folder: Path) -> None:
    """Raise FileNotFoundError if weights are missing, ValueError if they are truncated, as by a full disk."""
    if (folder / INDEX).is_file():
        names = sorted(set(read_json(folder / INDEX, "index of the weights")["weight_map"].values()))
    else:
        names = [WEIGHTS]
    for name in names:
        try:
            with safe_open(_present(folder / name, "weights"), framework="pt"):  # reads the header, compares the size
                pass
        except SafetensorError as error:
            raise ValueError(f"{folder / name} is truncated ({error}): write it again") from None


# The commit


def push_run(
    run: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    commit_message: str | None = None,
    training: bool = True,
    custom_code: bool = False,
    create_pr: bool = False,
    token: str | None = None,
) -> CommitInfo:
    """Publish a run in one commit, in a new or an existing repository.

    A second push deletes files of the first that the run no longer has; files of others stay. The generated snippets
    of the card load the repository.

    Arguments:
        run: the folder of a run.
        repo_id: ``name`` or ``namespace/name``.
        private: True for a new private repository; None: the account's default.
        revision: a branch, which is created if it does not exist; None: main.
        commit_message: first line of the commit's message.
        training: True to include the model for further training, in ``training/``.
        custom_code: publish the whole model with its code instead of the export: see ``export_with_code``.
        create_pr: open a pull request, in another user's repository.
        token: access token; None: that of ``HF_TOKEN`` or of ``hf auth login``.

    Raises:
        FileNotFoundError, ValueError: the run or an argument is not valid; nothing was sent.
        PublishError: the Hub refused the commit or could not be reached.
    """
    validate_repo_id(repo_id)
    if create_pr and revision not in (None, "main"):
        raise ValueError(
            f"revision must be left out with create_pr, which proposes a change of main, got {revision!r}"
        )
    with tempfile.TemporaryDirectory(prefix="csekit-push-") as scratch:
        if custom_code:
            files = custom_code_files(Path(run), Path(scratch))
        else:
            files = published_files(run, training)
        message = commit_message or f"{Path(run).resolve().name}, by csekit"
        return _push(files, repo_id, Path(run).resolve().name, message, private, revision, create_pr, token)


def custom_code_files(run: Path, scratch: Path) -> dict[str, Path]:
    """Write into ``scratch`` the files from which ``AutoModel`` loads the method's own class; return them by path.

    Raises:
        FileNotFoundError, ValueError: the run is not valid, or has an objective that is not part of csekit.
    """
    training = run / TRAINING_FOLDER
    method = read_method(training)
    check_weights(training)
    for objective in read_json(training / "config.json", "of the training checkpoint").get("objectives") or []:
        kind = OBJECTIVES.get(objective["name"])
        if kind is None or kind.__module__.split(".")[0] != "csekit":
            raise ValueError(
                f"{training}: custom code holds objectives of csekit only, got {objective['name']!r}; publish the "
                "plain export, without --custom_code"
            )
    card = _present(run / "README.md", "the model card; write it with: csekit card").read_text(encoding="utf-8")
    model, tokenizer = METHODS[method].from_pretrained(training), AutoTokenizer.from_pretrained(training)
    try:
        export_with_code(model, scratch, tokenizer)
    except DiskFullError as error:
        raise OSError(f"{error}; set TMPDIR to a folder with more space") from None
    own = resealed(card, with_code_section(card, run.resolve().name))
    (scratch / "README.md").write_text(own, encoding="utf-8")
    return _matching(scratch, _OURS)


def _push(
    files: Mapping[str, Path],
    repo_id: str,
    name: str,
    message: str,
    private: bool | None,
    revision: str | None,
    create_pr: bool,
    token: str | None,
) -> CommitInfo:
    api = HfApi(token=token, library_name="csekit")
    with hub_errors(repo_id, "creating the repository", token):
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    with hub_errors(repo_id, "listing its files", token):
        if revision is not None and not create_pr:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        info = api.model_info(repo_id, revision=revision)
    operations: list[Any] = [
        CommitOperationAdd(path, str(file)) for path, file in files.items() if path != "README.md"
    ]
    card = files["README.md"].read_text(encoding="utf-8")
    card = resealed(card, _of_repository(card, name, repo_id))
    operations.append(CommitOperationAdd("README.md", card.encode()))
    held = [file.rfilename for file in info.siblings or []]
    operations += [CommitOperationDelete(path) for path in held if _OURS.fullmatch(path) and path not in files]
    with hub_errors(repo_id, "sending the files", token):
        commit: CommitInfo = api.create_commit(
            repo_id,
            operations,
            commit_message=message,
            revision=revision,
            create_pr=create_pr,
            parent_commit=None if create_pr else info.sha,  # the deletions rest on this state
        )
    return commit


def _of_repository(card: str, name: str, repo_id: str) -> str:
    """Return the card with generated snippets that load the repository instead of the folder, also of a run that was
    renamed. Everything else stays: text outside the marks around the snippets, and calls that load another model."""
    start, end = card.find(USE), card.find(END_USE)
    if start < 0 or end < start:
        return card
    section = card[start:end]
    trained = _TRAINED.search(section)
    own = {quoted(name), *(trained.groups() if trained else ())}
    section = _LOADED.sub(lambda call: f"{call[1]}({quoted(repo_id)}" if call[2] in own else call[0], section)
    return card[:start] + section + card[end:]


def check_access(repo_id: str, token: str | None = None) -> str:
    """Return the full id of a repository that the token's owner may write to; nothing is created.

    Raises:
        ValueError: the id is not valid, or in another user's namespace.
        PublishError: no valid token, or no connection.
    """
    validate_repo_id(repo_id)
    with hub_errors(repo_id, "checking your login", token):
        account = HfApi(token=token, library_name="csekit").whoami()
    namespaces = [account["name"], *(organisation["name"] for organisation in account.get("orgs", []))]
    if "/" not in repo_id:
        return f"{namespaces[0]}/{repo_id}"
    if repo_id.split("/")[0] not in namespaces:
        raise ValueError(f"hub_model_id must be in a namespace of yours ({', '.join(namespaces)}), got {repo_id!r}")
    return repo_id


# Errors


@contextmanager
def hub_errors(repo_id: str, doing: str, token: str | None = None) -> Iterator[None]:
    """Turn the client's errors into a PublishError that says what to do and holds no token."""
    try:
        yield
    except (_HTTPError, OSError, RuntimeError, ValueError) as error:
        reason = without_tokens(_reason(error, repo_id), token)
        raise PublishError(f"{repo_id}: {doing}: {reason}") from None  # the chain would show requests and headers


def without_tokens(text: str, token: str | None = None) -> str:
    """Return the text without the access token in use and without words that look like one."""
    for secret in {token, huggingface_hub.get_token()} - {None, ""}:
        text = text.replace(str(secret), "<token>")
    return re.sub(r"\bhf_\w{8,}", "<token>", text)


_AGAIN = "Nothing was published; repair this and run the same command again."
_STATUS = {
    401: "the Hub does not accept the token, or there is none: log in with 'hf auth login', or set HF_TOKEN to one "
    "with write access",
    402: "the account needs a paid plan, or its storage is full",
    403: "the token may not write there: use a token with write access and a repository of yours or of your "
    "organisation; --create_pr proposes a change of another user's repository",
    404: "no such repository or branch, or the token may not read it",
    409: "the repository is being changed by another commit",
    412: "the repository was changed in the meantime",
    413: "a file is too large for the Hub",
    429: "too many requests: wait a while",
    507: "the Hub has no storage left for it",
}


def _reason(error: BaseException, repo_id: str) -> str:
    """Say in one sentence what happened, and what to do."""
    answer, told = _answer(error)
    if isinstance(error, OfflineModeIsEnabled):
        return f"HF_HUB_OFFLINE is set: unset it to publish. {_AGAIN}"
    if answer is not None:
        status = int(answer.response.status_code)
        known = _STATUS.get(status, "the Hub failed, try again later" if status >= 500 else "the Hub refused")
        said = (answer.server_message or "").strip().splitlines()
        return f"{status}, {known}{f' ({said[0]})' if said else ''}. {_AGAIN}"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}. {_AGAIN}"
    if isinstance(error, PermissionError):  # from Xet, the Hub's storage of large files
        return f"{_STATUS[403]} ({told}). {_AGAIN}"
    if isinstance(error, UnicodeError):
        return f"the token holds a character that tokens do not have: set HF_TOKEN again, or log in again. {_AGAIN}"
    if isinstance(error, ValueError):
        return f"{told}. {_AGAIN}"
    return f"no connection, or it was lost ({told}). The commit is not partial; run the same command again."


def _answer(error: BaseException) -> tuple[HfHubHTTPError | None, str]:
    """Return the Hub's answer that caused an error, or None, and the innermost message."""
    told, seen = str(error) or type(error).__name__, error
    while seen is not None:
        if isinstance(seen, HfHubHTTPError):
            return seen, str(seen)
        told = str(seen) or type(seen).__name__
        seen = seen.__cause__  # type: ignore[assignment]
    return None, told
