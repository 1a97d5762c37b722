"""A stand-in for the Hugging Face hub on this machine: the few requests that pushing and fetching a folder take.

It is not the hub: it keeps files in memory, knows one branch, and checks no rights. ``python hub_server.py`` prints its
address and serves until its input ends.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REPOSITORIES: dict[str, dict[str, bytes]] = {}
COMMIT = "0" * 39 + "1"


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, content: object, code: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def do_POST(self) -> None:
        body = self.body()
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            REPOSITORIES.setdefault(name, {})
            self.answer({"url": f"http://{self.headers['Host']}/{name}", "id": name, "name": name})
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif self.path.endswith("/preupload/main"):
            paths = [file["path"] for file in json.loads(body)["files"]]
            files = [{"path": path, "uploadMode": "regular", "shouldIgnore": False, "oid": None} for path in paths]
            self.answer({"files": files})
        elif match := re.fullmatch(r"/api/models/(.+)/commit/main", self.path.partition("?")[0]):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    REPOSITORIES[match[1]][line["value"]["path"]] = content
            url = f"http://{self.headers['Host']}/{match[1]}/commit/{COMMIT}"
            self.answer({"commitUrl": url, "commitOid": COMMIT, "hookOutput": ""})
        else:
            self.answer({"error": f"no such request: {self.path}"}, 404)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/\w+)?", path):
            if match[1] not in REPOSITORIES:
                self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
                return
            siblings = [{"rfilename": name} for name in REPOSITORIES[match[1]]]
            self.answer({"id": match[1], "modelId": match[1], "sha": COMMIT, "siblings": siblings, "tags": []})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/\w+/?", path):
            files = REPOSITORIES.get(match[1], {})
            self.answer([{"type": "file", "path": name, "size": len(c), "oid": _oid(c)} for name, c in files.items()])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/\w+/(.+)", path):
            content = REPOSITORIES.get(match[1], {}).get(match[2])
            if content is None:
                self.answer({"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound")
            else:
                self.answer(content, ETag=f'"{_oid(content)}"')
        else:
            self.answer({"error": f"no such request: {self.path}"}, 404)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        if "-v" in sys.argv:
            print(self.command, self.path, file=sys.stderr)


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    sys.stdin.read()
