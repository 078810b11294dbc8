"""What is malformed, too large or not allowed is refused with a reason, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from nvlenv.engine.__main__ import main
from nvlenv.engine.service.app import BODY_LIMIT
from nvlenv.engine.service.command import is_loopback

TOKEN = "0123456789abcdef-secret"

JSON = {"Content-Type": "application/json"}
BAD = {
    "broken JSON": ("/v1/place", b'{"gpus": ', 422, ""),
    "nothing": ("/v1/place", b"", 422, ""),
    "not UTF-8": ("/v1/place", b'{"name": "\xff"}', 422, "byte 10"),
    "a list": ("/v1/place", b"[1, 2]", 422, ""),
    "no GPUs": ("/v1/place", b'{"gpus": 0}', 422, "gpus"),
    "GPUs in words": ("/v1/place", b'{"gpus": "four"}', 422, "gpus"),
    "a priority beyond bounds": ("/v1/place", b'{"gpus": 4, "priority": 605705635679}', 422, "priority"),
    "a misspelt key": ("/v1/place", b'{"gpus": 4, "mod": "required"}', 422, "mod"),
    "an unknown level": ("/v1/place", b'{"gpus": 4, "mode": "required", "level": "row"}', 422, "level"),
    "two jobs": ("/v1/place", b'{"gpus": 4} {"gpus": 4}', 422, ""),
    "a GPU count without end": ("/v1/place", b'{"gpus": ' + b"9" * 5000 + b"}", 422, ""),
    "a nest without end": ("/v1/place", b'{"a":' * 100_000, 422, ""),
    "a flag in words": ("/v1/place?dry_run=perhaps", b'{"gpus": 4}', 422, "query.dry_run"),
    "finish without a job": ("/v1/finish", b"{}", 422, "body.job"),
    "finish of a number": ("/v1/finish", b'{"job": 3}', 422, "body.job"),
    "finish with more": ("/v1/finish", b'{"job": "a", "force": true}', 422, "body.force"),
    "an unknown job": ("/v1/finish", b'{"job": "default/nobody"}', 404, "id"),
    "an unknown node": ("/v1/cordon", b'{"node": "nowhere"}', 404, "name"),
    "another unknown node": ("/v1/fail", b'{"node": "nowhere"}', 404, "name"),
    "an extender body of words": ("/scheduler/filter", b"pod", 422, "body"),
    "no nodes": ("/scheduler/filter", b'{"Pod": {}}', 422, "NodeNames"),
    "nodes of a wrong type": ("/scheduler/prioritize", b'{"Pod": {}, "NodeNames": "a"}', 422, "NodeNames"),
    "victims of a wrong type": (
        "/scheduler/preempt",
        b'{"Pod": {}, "NodeNameToVictims": [1]}',
        422,
        "NodeNameToVictims",
    ),
    "an unknown verb": ("/scheduler/bind", b"{}", 404, "path"),
    "an unknown path": ("/v2/place", b"{}", 404, "path"),
    "a size of nothing": ("/v1/slots?sizes=0", None, 422, "sizes"),
    "a size in words": ("/v1/slots?sizes=all", None, 422, "query.sizes.0"),
    "too many sizes": ("/v1/slots?" + "&".join(["sizes=1"] * 101), None, 422, "query.sizes"),
    "a wrong method": ("/v1/place", None, 405, "path"),
}


@pytest.mark.parametrize(("path", "body", "status", "field"), BAD.values(), ids=BAD)
def test_it_says_what_was_found_where(
    client: TestClient, path: str, body: bytes | None, status: int, field: str
) -> None:
    before = client.get("/v1/cluster").json()

    answer = client.get(path) if body is None else client.post(path, content=body, headers=JSON)

    assert answer.status_code == status
    told = answer.json()
    assert set(told) == {"where", "field", "found", "expected"}
    assert field in told["field"]
    assert told["expected"] and len(told["found"]) < 1000
    assert client.get("/v1/cluster").json() == before


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_over_the_limit_is_refused_unread(client: TestClient, announced: bool) -> None:
    large = b'{"gpus": 4}' + b" " * BODY_LIMIT

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(large), 65536):
            yield large[start : start + 65536]

    answer = client.post("/v1/place", content=large if announced else pieces())

    assert answer.status_code == 413
    assert str(BODY_LIMIT) in answer.json()["expected"]


def test_a_body_at_the_limit_is_read(client: TestClient) -> None:
    body = b'{"gpus": 4}'

    assert client.post("/v1/place", content=body + b" " * (BODY_LIMIT - len(body))).status_code == 200


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"bearer {TOKEN}x", TOKEN])
def test_without_the_token_nothing_is_answered(make_client: Callable[..., TestClient], header: str) -> None:
    client = make_client(token=TOKEN)
    headers = {"Authorization": header} if header else {}

    for path in ("/v1/cluster", "/metrics", "/docs", "/openapi.json", "/nowhere"):
        assert client.get(path, headers=headers).status_code == 401
    answer = client.post("/v1/place", json={"gpus": 4}, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert client.get("/healthz").status_code == 200


def test_with_the_token_it_is(make_client: Callable[..., TestClient]) -> None:
    client = make_client(token=TOKEN)

    answer = client.post("/v1/place", json={"gpus": 4}, headers={"Authorization": f"Bearer {TOKEN}"})

    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"), [("http://evil.example", 403), ("null", 403), ("http://testserver", 200)]
)
def test_pages_of_other_sites_are_kept_out(client: TestClient, origin: str, status: int) -> None:
    assert client.post("/v1/place", json={"gpus": 4}, headers={"Origin": origin}).status_code == status


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.5", False), ("gpu-01", False), ("127.0.0.1.example", False), ("", False)],
)  # fmt: skip
def test_what_counts_as_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--host", "0.0.0.0"], "--token-file"),
        (["--token-file", "nowhere"], "nowhere"),
        (["--cluster", "nowhere.json"], "nowhere.json"),
        ([], "a new journal and no cluster"),
    ],
)
def test_a_bad_command_line_is_refused(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert main(["serve", *arguments, "--journal", str(tmp_path / "journal.sqlite"), "--port", "0"]) == 2
    assert told in capsys.readouterr().err


def test_a_short_token_is_refused(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text("secret\n")

    assert main(["serve", "--host", "0.0.0.0", "--token-file", str(tmp_path / "token")]) == 2
    told = capsys.readouterr().err
    assert "16" in told and "secret" not in told


def test_problems_are_ascii_whatever_was_sent(client: TestClient) -> None:
    answer = client.post("/v1/place", content=b'{"name": "\\ud800", "gpus": 4}')

    assert answer.status_code == 422
    json.loads(answer.content)
