"""A WandB server on loopback: enough of its API to take runs, and a count of what it took."""

import gzip
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Upload:
    """What arrived of one run."""

    name: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    history: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Rows by their offset in the history: one sent twice counts once."""
    exit_code: int | None = None


class WandbServer:
    """``with closing(WandbServer()) as server:`` and point ``WANDB_BASE_URL`` at ``server.url``."""

    def __init__(self) -> None:
        self.runs: dict[str, Upload] = {}
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _run(self, run_id: str) -> Upload:
        return self.runs.setdefault(run_id, Upload())

    def graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The ``data`` of the answer to an operation."""
        match = re.search(r"(?:query|mutation)\s+(\w+)", query)
        operation = match.group(1) if match else "?"
        if operation == "UpsertBucket":
            return self._upsert(variables)
        if operation == "CreateRunFiles":
            files = [{"name": f, "uploadUrl": f"{self.url}/file"} for f in variables["files"]]
            return {"createRunFiles": {"runID": "bucket", "uploadHeaders": [], "files": files}}
        if operation in ("Run", "RunHistoryKeys"):
            return {"project": {"run": self._describe(str(variables["name"]))}}
        # Optional questions (features, organisations, introspection): "nothing special here".
        return {
            "viewer": {"id": "u", "entity": "tester", "username": "tester", "flags": "{}",
                       "email": "tester@example.org", "teams": {"edges": []}},
            "serverInfo": {"latestLocalVersionInfo": None, "features": [],
                           "cliVersionInfo": {"max_cli_version": "99.0.0", "min_cli_version": "0"}},
        }  # fmt: skip

    def _upsert(self, variables: dict[str, Any]) -> dict[str, Any]:
        # Who changes a run that is there names it by what ``_describe`` calls its id.
        run_id = str(variables.get("name") or variables["id"])
        with self._lock:
            inserted = run_id not in self.runs
            run = self._run(run_id)
            run.name = variables.get("displayName") or variables.get("display_name") or run.name
            run.group = variables.get("groupName") or run.group
            run.tags = variables.get("tags") or run.tags
            run.config |= json.loads(variables.get("config") or "{}")
        project = {"id": "p", "name": "scalewise", "entity": _ENTITY}
        bucket = {
            "id": "bucket", "name": run_id, "displayName": run.name, "description": "",
            "config": "{}", "sweepName": None, "historyLineCount": 0, "project": project,
        }  # fmt: skip
        return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}

    def _describe(self, run_id: str) -> dict[str, Any] | None:
        with self._lock:
            if run_id not in self.runs:
                return None
            run = self.runs[run_id]
            return {
                "id": run_id, "projectId": 1, "name": run_id, "displayName": run.name,
                "tags": run.tags, "group": run.group, "description": "", "notes": "",
                "jobType": None, "state": "running" if run.exit_code is None else "finished",
                "config": "{}", "systemMetrics": "{}", "summaryMetrics": "{}",
                "historyLineCount": len(run.history),
                "historyKeys": {"lastStep": len(run.history) - 1, "keys": {}, "sets": []},
                "user": {"name": "tester", "username": "tester"},
            }  # fmt: skip

    def file_stream(self, run_id: str, body: dict[str, Any]) -> None:
        """Take a piece of a run's history."""
        with self._lock:
            run = self._run(run_id)
            chunk = (body.get("files") or {}).get("wandb-history.jsonl", {})
            for number, line in enumerate(chunk.get("content", []), start=chunk.get("offset", 0)):
                run.history[number] = json.loads(line)
            if body.get("complete"):
                run.exit_code = body.get("exitcode")


_ENTITY = {"id": "e", "name": "tester"}


def _handler(server: WandbServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Tests have no use for an access log."""

        def do_GET(self) -> None:
            self._reply({})

        def do_PUT(self) -> None:
            self._body()
            self._reply({})

        def do_POST(self) -> None:
            body = self._body()
            if self.path.startswith("/graphql"):
                question = json.loads(body)
                data = server.graphql(question["query"], question.get("variables") or {})
                self._reply({"data": data})
            elif self.path.endswith("/file_stream"):
                server.file_stream(self.path.split("/")[-2], json.loads(body))
                self._reply({"exitcode": None, "limits": {}})
            else:
                self._reply({})

        def _body(self) -> bytes:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            return gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body

        def _reply(self, answer: dict[str, Any]) -> None:
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
