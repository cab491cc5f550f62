"""A small Hub on loopback: the part of its HTTP API that huggingface_hub uses to publish and to load models.

Repositories are lists of commits in memory, each a mapping of paths to contents. Large files go the LFS way: a batch
request, an upload without credentials, a check of the digest. Whoever writes must show a token, and may do so in their
own namespaces only.
"""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

TOKEN, OTHER = "hf_mine0123456789abcdef", "hf_hers0123456789abcdef"
LFS_SUFFIXES = (".safetensors", ".bin", ".npz")


def commit_id(number: int) -> str:
    return hashlib.sha1(f"commit {number}".encode()).hexdigest()


@dataclass
class Repository:
    """Branches and pull requests by name, each a list of (commit id, title, files)."""

    private: bool
    branches: dict[str, list[tuple[str, str, dict[str, bytes]]]] = field(default_factory=dict)

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.commit(revision)[2]

    def titles(self, revision: str = "main") -> list[str]:
        return [title for _, title, _ in self.branches[revision]]

    def commit(self, revision: str) -> tuple[str, str, dict[str, bytes]]:
        if revision in self.branches:
            return self.branches[revision][-1]
        return next(commit for branch in self.branches.values() for commit in branch if commit[0] == revision)


@dataclass
class Fault:
    """What happens once to a request whose "METHOD path" matches.

    Arguments:
        request: regular expression.
        kind: ``cut`` the connection in the middle of the body, ``mute`` (do it, and cut before the answer), or the
            status of an answer.
        times: so often.
    """

    request: str
    kind: str | int
    times: int = 1


class HubServer(ThreadingHTTPServer):
    """``with HubServer() as hub``: listens on a free port of loopback in a thread of its own.

    ``users`` maps tokens to names, ``organisations`` names to members. ``faults`` go wrong once each, ``requests`` are
    what was asked: (method, path, token).
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.users: dict[str, str] = {}
        self.organisations: dict[str, list[str]] = {}
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, str | None]] = []
        self.commits = 0
        self.lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news."""

    def add_commit(self, repository: Repository, revision: str, title: str, files: dict[str, bytes]) -> str:
        self.commits += 1
        repository.branches.setdefault(revision, []).append((commit_id(self.commits), title, files))
        return commit_id(self.commits)

    def create(self, repo_id: str, private: bool = False) -> Repository:
        repository = self.repositories[repo_id] = Repository(private)
        self.add_commit(repository, "main", "initial commit", {".gitattributes": b"*.safetensors filter=lfs\n"})
        return repository

    def may_write(self, user: str | None, repo_id: str) -> bool:
        namespace = repo_id.split("/")[0]
        return user is not None and (user == namespace or user in self.organisations.get(namespace, []))


class Answer(Exception):
    """Ends a request: status, body, headers."""

    def __init__(self, status: int, body: Any = b"", **headers: str) -> None:
        super().__init__(status)
        self.status = status
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def refuse(status: int, message: str, code: str = "") -> Answer:
    return Answer(status, {"error": message}, X_Error_Message=message, **({"X_Error_Code": code} if code else {}))


class Handler(BaseHTTPRequestHandler):
    """Routes a request to the method of the same meaning."""

    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Silence: ``requests`` hold what was asked."""

    def do_GET(self) -> None:
        self.handle_request()

    do_HEAD = do_POST = do_PUT = do_GET

    def handle_request(self) -> None:
        path = unquote(urlsplit(self.path).path)
        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        with self.server.lock:
            self.server.requests.append((self.command, path, bearer))
            fault = next((f for f in self.server.faults if re.search(f.request, f"{self.command} {path}")), None)
            if fault is not None:
                fault.times -= 1
                self.server.faults = [f for f in self.server.faults if f.times > 0]
        length = int(self.headers.get("Content-Length") or 0)
        if fault is not None and fault.kind == "cut":
            self.rfile.read(length // 2)
            return self.hang_up()
        body = self.rfile.read(length) if length else self.chunks()
        if fault is not None and isinstance(fault.kind, int):
            return self.reply(refuse(fault.kind, f"refused: {bearer}"))
        try:
            with self.server.lock:
                self.route(path, bearer, body)
        except Answer as answer:
            if fault is not None and fault.kind == "mute":
                return self.hang_up()
            self.reply(answer)

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def chunks(self) -> bytes:
        """The body of a request in chunks."""
        body = b""
        while self.headers.get("Transfer-Encoding") == "chunked" and (size := int(self.rfile.readline(), 16)):
            body += self.rfile.read(size)
            self.rfile.readline()
        return body

    def reply(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    # Routes

    def route(self, path: str, token: str | None, body: bytes) -> None:
        server, user = self.server, self.server.users.get(token or "")
        if token is not None and user is None:
            raise refuse(401, "Invalid credentials in Authorization header")
        if path == "/api/whoami-v2":
            self.signed_in(user)
            orgs = [{"name": name} for name, members in server.organisations.items() if user in members]
            raise Answer(200, {"name": user, "type": "user", "orgs": orgs})
        if path == "/api/validate-yaml":
            front = re.match(r"---\n(.*?)\n---", json.loads(body)["content"], re.DOTALL)
            known = isinstance(yaml.safe_load(front[1]) if front else None, dict)
            raise Answer(200, {"errors": [] if known else [{"message": "no metadata"}], "warnings": []})
        routes: list[tuple[str, Callable[..., None]]] = [
            (r"POST /api/repos/create", self.create_repository),
            (r"PUT /lfs/(\w+)", self.put_object),
            (r"(?:GET|HEAD) /lfs/(\w+)", self.get_object),
            (r"POST /([\w.-]+/[\w.-]+)\.git/info/lfs/objects/batch", self.lfs_batch),
            (r"POST /([\w.-]+/[\w.-]+)/lfs-verify", self.lfs_verify),
            (r"POST /api/models/([\w.-]+/[\w.-]+)/branch/(.+)", self.create_branch),
            (r"POST /api/models/([\w.-]+/[\w.-]+)/preupload/(.+)", self.preupload),
            (r"POST /api/models/([\w.-]+/[\w.-]+)/commit/(.+)", self.make_commit),
            (r"GET /api/models/([\w.-]+/[\w.-]+)/tree/([^/]+)(?:/(.*))?", self.tree),
            (r"GET /api/models/([\w.-]+/[\w.-]+)(?:/revision/(.+))?", self.model_info),
            (r"(?:GET|HEAD) /([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", self.resolve),
        ]
        for pattern, method in routes:
            if found := re.fullmatch(pattern, f"{self.command} {path}"):
                method(*found.groups(), user=user, body=body)
        raise refuse(404, f"no such route: {self.command} {path}")

    def signed_in(self, user: str | None) -> None:
        if user is None:
            raise refuse(401, "Invalid username or password.")

    def repository(self, repo_id: str, user: str | None) -> Repository:
        repository = self.server.repositories.get(repo_id)
        if repository is None or (repository.private and not self.server.may_write(user, repo_id)):
            raise refuse(404 if user else 401, "Repository not found", "RepoNotFound")
        return repository

    def state(self, repo_id: str, revision: str, user: str | None) -> tuple[str, str, dict[str, bytes]]:
        try:
            return self.repository(repo_id, user).commit(revision)
        except StopIteration:
            raise refuse(404, "Invalid rev id", "RevisionNotFound") from None

    def writer(self, repo_id: str, user: str | None) -> Repository:
        self.signed_in(user)
        repository = self.repository(repo_id, user)
        if not self.server.may_write(user, repo_id) and "create_pr=1" not in self.path:
            raise refuse(403, "Forbidden: pass `create_pr=1` as a query parameter to create a Pull Request")
        return repository

    def reader(self, repo_id: str, user: str | None, branch: Any = None) -> None:
        """Who may read may upload what a pull request will hold; for a branch one must be allowed to write."""
        self.signed_in(user)
        self.repository(repo_id, user)
        if branch is not None:
            self.writer(repo_id, user)

    def create_repository(self, *, user: str | None, body: bytes) -> None:
        self.signed_in(user)
        asked = json.loads(body)
        repo_id = f"{asked.get('organization') or user}/{asked['name']}"
        if not self.server.may_write(user, repo_id):
            raise refuse(403, f"You don't have the rights to create a model under the namespace {repo_id}")
        url = {"url": f"{self.server.endpoint}/{repo_id}"}
        if repo_id in self.server.repositories:
            raise Answer(409, {**url, "error": "You already created this model repo"})
        self.server.create(repo_id, bool(asked.get("private")) or asked.get("visibility") == "private")
        raise Answer(200, url)

    def create_branch(self, repo_id: str, branch: str, *, user: str | None, body: bytes) -> None:
        repository = self.writer(repo_id, user)
        if branch in repository.branches:
            raise refuse(409, "Reference already exists")
        start = json.loads(body or b"{}").get("startingPoint", "main")
        repository.branches[branch] = list(repository.branches[start])
        raise Answer(200, {})

    def preupload(self, repo_id: str, revision: str, *, user: str | None, body: bytes) -> None:
        self.writer(repo_id, user)
        held = self.state(repo_id, revision, user)[2]
        answers = []
        for file in json.loads(body)["files"]:
            large, content = file["path"].endswith(LFS_SUFFIXES), held.get(file["path"])
            oid = None if content is None else self.oid(content, large)
            mode = {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
            answers.append({**mode, "oid": oid})
        raise Answer(200, {"files": answers})

    @staticmethod
    def oid(content: bytes, large: bool) -> str:
        if large:
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def lfs_batch(self, repo_id: str, *, user: str | None, body: bytes) -> None:
        self.reader(repo_id, user, json.loads(body).get("ref"))
        objects = []
        for asked in json.loads(body)["objects"]:
            answer: dict[str, Any] = {"oid": asked["oid"], "size": asked["size"]}
            if asked["oid"] not in self.server.objects:
                verify = f"{self.server.endpoint}/{repo_id}/lfs-verify"
                upload = f"{self.server.endpoint}/lfs/{asked['oid']}"
                answer["actions"] = {"upload": {"href": upload}, "verify": {"href": verify}}
            objects.append(answer)
        raise Answer(200, {"transfer": "basic", "objects": objects})

    def put_object(self, oid: str, *, user: str | None, body: bytes) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            raise refuse(400, "digest does not match")
        self.server.objects[oid] = body
        raise Answer(200)

    def get_object(self, oid: str, *, user: str | None, body: bytes) -> None:
        raise Answer(200, self.server.objects[oid], ETag=f'"{oid}"')

    def lfs_verify(self, repo_id: str, *, user: str | None, body: bytes) -> None:
        self.reader(repo_id, user)
        asked = json.loads(body)
        if len(self.server.objects.get(asked["oid"], b"")) != asked["size"]:
            raise refuse(404, "no such object")
        raise Answer(200, {})

    def make_commit(self, repo_id: str, revision: str, *, user: str | None, body: bytes) -> None:
        repository = self.writer(repo_id, user)
        lines = [json.loads(line) for line in body.splitlines()]
        parent, _, held = self.state(repo_id, revision, user)
        header, files = lines[0]["value"], dict(held)
        if header.get("parentCommit", parent) != parent:
            raise refuse(412, "A commit has happened since. Please refresh and try again.")
        for line in lines[1:]:
            path = line["value"]["path"]
            if line["key"] == "file":
                files[path] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "lfsFile":
                files[path] = self.server.objects[line["value"]["oid"]]
            elif line["key"] == "deletedFile":
                del files[path]
            else:
                raise refuse(400, f"unknown operation {line['key']}")
        proposed = "create_pr=1" in self.path
        target = f"refs/pr/{len(repository.branches)}" if proposed else revision
        oid = self.server.add_commit(repository, target, header["summary"], files)
        answer = {"commitOid": oid, "commitUrl": f"{self.server.endpoint}/{repo_id}/commit/{oid}"}
        request = f"{self.server.endpoint}/{repo_id}/discussions/{len(repository.branches) - 1}"
        raise Answer(200, answer | ({"pullRequestUrl": request} if proposed else {}))

    def model_info(self, repo_id: str, revision: str | None, *, user: str | None, body: bytes) -> None:
        sha, _, files = self.state(repo_id, revision or "main", user)
        siblings = [{"rfilename": path} for path in sorted(files)]
        private = self.repository(repo_id, user).private
        raise Answer(200, {"id": repo_id, "sha": sha, "private": private, "siblings": siblings, "tags": []})

    def tree(self, repo_id: str, revision: str, folder: str | None, *, user: str | None, body: bytes) -> None:
        _, _, files = self.state(repo_id, revision, user)
        start, found = f"{folder}/" if folder else "", {}
        for path, content in files.items():
            if not path.startswith(start):
                continue
            child = start + path[len(start) :].split("/")[0]
            if child == path or "recursive=true" in self.path.lower():
                large = path.endswith(LFS_SUFFIXES)
                found[path] = {"type": "file", "path": path, "size": len(content), "oid": self.oid(content, False)}
                if large:
                    found[path]["lfs"] = {"oid": self.oid(content, True), "size": len(content), "pointerSize": 130}
            else:
                found[child] = {"type": "directory", "path": child, "size": 0, "oid": self.oid(child.encode(), False)}
        if folder and not found:
            raise refuse(404, "no such folder", "EntryNotFound")
        raise Answer(200, list(found.values()))

    def resolve(self, repo_id: str, revision: str, path: str, *, user: str | None, body: bytes) -> None:
        sha, _, files = self.state(repo_id, revision, user)
        if path not in files:
            raise Answer(404, b"", X_Error_Code="EntryNotFound", X_Error_Message="Entry not found", X_Repo_Commit=sha)
        content, large = files[path], path.endswith(LFS_SUFFIXES)
        oid = self.oid(content, large)
        if large:  # as on the Hub, the content is on another host
            self.server.objects[oid] = content
            linked = {"X_Linked_ETag": f'"{oid}"', "X_Linked_Size": str(len(content))}
            elsewhere = self.server.endpoint.replace("127.0.0.1", "localhost")
            raise Answer(302, b"", Location=f"{elsewhere}/lfs/{oid}", X_Repo_Commit=sha, **linked)
        raise Answer(200, content, ETag=f'"{oid}"', X_Repo_Commit=sha)


class Worker:
    """Commands in processes that know the Hub on loopback, with an empty home, and nothing else of the machine's."""

    def __init__(self, endpoint: str, home: Path) -> None:
        dropped = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
        self.env = {name: value for name, value in os.environ.items() if name not in dropped}
        self.env |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
        self.env |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        self.env |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "HF_DATASETS_CACHE": str(home / "datasets")}
        script = str(Path(__file__).with_name("hub_worker.py"))
        self.process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.env
        )

    def job(self, token: str | None = TOKEN, env: dict[str, str] | None = None, **job: Any) -> Any:
        job["env"] = ({"HF_TOKEN": token} if token else {}) | (env or {})
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        done = SimpleNamespace(**json.loads(self.process.stdout.readline()))
        for secret in (TOKEN, OTHER):
            assert secret not in done.output + done.errors
        return done

    def push(self, *argv: str | Path, **more: Any) -> Any:
        return self.job(argv=["push", *map(str, argv)], **more)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)
