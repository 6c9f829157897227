"""A Hub on this machine: the few requests that the real client makes to push files and to fetch one."""

import hashlib
import json
import threading
from base64 import b64decode
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import yaml


class Hub:
    """Repositories by name, each a list of commits, (id, files by name); the last is `main`."""

    def __init__(self):
        self.repos, self.gated, self.asked = {}, set(), []
        self.forbidden = False

    def answer(self, method, path, body):
        """The status, the headers and the content of an answer."""
        self.asked.append(f"{method} {path}")
        if self.forbidden:
            return 403, {}, b'{"error": "no write access"}'
        parts = unquote(path).strip("/").split("/")
        if path == "/api/repos/create":
            about = json.loads(body)
            name = f"{about.get('organization') or 'me'}/{about['name']}"
            self.repos.setdefault(name, [])
            return self._json({"url": f"{self.endpoint}/{name}"})
        if path == "/api/validate-yaml":
            front = json.loads(body)["content"].split("---")[1]
            return self._json({"errors": [], "warnings": []} if isinstance(yaml.safe_load(front), dict) else {})
        if "preupload" in parts:
            files = json.loads(body)["files"]
            return self._json(
                {"files": [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]}
            )
        if "commit" in parts:
            return self._commit("/".join(parts[2:4]), [json.loads(line) for line in body.splitlines()])
        if len(parts) > 4 and parts[2] == "resolve":
            return self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        return 404, {}, b"{}"

    def _json(self, value):
        return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()

    def _commit(self, repo, lines):
        commits = self.repos[repo]
        files = dict(commits[-1][1]) if commits else {}
        files |= {line["value"]["path"]: b64decode(line["value"]["content"]) for line in lines if line["key"] == "file"}
        oid = hashlib.sha1(f"{repo} {len(commits)}".encode()).hexdigest()
        commits.append((oid, files))
        return self._json({"commitOid": oid, "commitUrl": f"{self.endpoint}/{repo}/commit/{oid}", "success": True})

    def _resolve(self, repo, revision, name):
        if repo not in self.repos:
            return 401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b""
        if repo in self.gated:
            return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}, b""
        commits = [("0" * 40, {}), *self.repos[repo]]
        oid, files = commits[-1] if revision == "main" else (revision, dict(commits).get(revision))
        if files is None:
            return 404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"}, b""
        if name not in files:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}, b""
        etag = hashlib.sha1(files[name]).hexdigest()
        return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": oid}, files[name]


@contextmanager
def running():
    """A Hub that answers at its `endpoint`."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, content = hub.answer(self.command, self.path, body)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_HEAD = do_GET = do_POST = do  # noqa: N815

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def for_the_client(patch, folder):
    """The same, as the one Hub that huggingface_hub knows, with a cache and a token of its own."""
    with running() as hub:
        patch.setenv("HF_TOKEN", "hf_of_the_tests")
        patch.setattr("huggingface_hub.constants.ENDPOINT", hub.endpoint)
        template = f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        patch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
        patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
        yield hub
