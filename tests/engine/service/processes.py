"""The service as a process of its own, and requests to it, for tests of load and of sudden death."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nvlenv.engine.model.snapshot import ClusterSnapshot
from tests.engine.service.clusters import POLICY

ANSWER_SECONDS = 60.0


class Client:
    """One connection that is kept open."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of the answer; `OSError` or `HTTPException` if the service dies meanwhile."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            self._connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        return self.ask("POST", path, body)


class Service:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def client(self) -> Client:
        return Client(self.port)

    def kill(self) -> None:
        """kill -9"""
        self.process.kill()
        self.process.wait()

    def processor_seconds(self) -> float:
        """Time that it has spent on processors."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Bytes that it holds in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])  # type: ignore[index]


@contextmanager
def served(
    journal: Path, cluster: ClusterSnapshot | None = None, policy: str | Path = POLICY, core: int | None = None
) -> Iterator[Service]:
    """A service on a free port; with `core`, on this processor alone."""
    command = [sys.executable, "-m", "nvlenv.engine", "serve", "--journal", str(journal), "--port", "0"]
    command += ["--policy", str(policy)]
    if cluster is not None:
        file = journal.with_suffix(".json")
        file.write_text(json.dumps(cluster.as_json()))
        command += ["--cluster", str(file)]
    if core is not None:
        command = ["taskset", "-c", str(core), *command]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.match(r"serving on http://127\.0\.0\.1:(\d+),", said)
        assert found, said
        yield Service(process, int(found[1]))
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(ANSWER_SECONDS)
