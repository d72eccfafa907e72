"""What becomes of audit messages when their topic can't be written."""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from access.audit import Act, ActKind
from kernel.requests_and_replies import EMPTY_REPLY, Reply, Request, Route, problem_reply
from process import audit_topic
from process.access_guard import AccessGuard
from process.audit_topic import AuditTopic
from process.health import Check, Status, routes
from tests.cluster.nodes import Spawned
from tests.made_operations import made
from tests.secret_values import CLUSTER_SECRET, hash_of_token, token_of
from tuff.protocol.errors import StorageUnavailableError, TopicExistsError, TuffError
from tuff.protocol.ids import TopicId
from tuff.protocol.operations import DELETE_TOPIC

TOPIC = "/v1/namespaces/{ns}/topics/{t}"
DOWN = StorageUnavailableError("the disk is full")


class Topic:
    """Takes the calls of the audit topic. `errors` has what refuses each call, by its end; `called`
    the methods and paths of all calls."""

    def __init__(self) -> None:
        self.errors: dict[str, TuffError | Reply] = {}
        self.called: list[str] = []
        self.messages: list[dict[str, object]] = []

    def routes(self) -> list[Route]:
        ends = ("PUT ", "PUT /properties", "POST /publish")
        return [self._route(*each.split(" ")) for each in ends]

    def _route(self, method: str, end: str) -> Route:
        async def handle(request: Request) -> Reply:
            self.called.append(f"{method} {end}")
            assert request.caller is not None
            error = self.errors.get(f"{method} {end}")
            if isinstance(error, Reply):
                return error
            if error is not None:
                raise error
            if end == "/publish":
                self.messages += map(json.loads, json.loads(request.body)["messages"])
            return EMPTY_REPLY

        return Route(made(method, TOPIC + end), handle)


def audit_of(topic: Topic, tmp_path: Path, spawned: Spawned) -> AuditTopic:
    file = tmp_path / "access.toml"
    file.write_text(f'[principals.a]\ntokens = ["{hash_of_token("a")}"]\n')
    guard = AccessGuard(file, now_s=lambda: 0.0, cluster_secret=CLUSTER_SECRET)
    audit = AuditTopic(
        TopicId("system", "audit"),
        guard,
        ttl_s=60,
        server="s1",
        now_ms=lambda: 7,
        spawn=spawned,
        principal_of=lambda _pointer: None,
    )
    audit.connect(topic.routes())
    return audit


async def ticked(audit: AuditTopic, spawned: Spawned) -> None:
    audit.tick()
    await asyncio.gather(*spawned.tasks)


def act(principal: str) -> Act:
    return Act(kind=ActKind.ADMINISTRATION, at_ms=5, principal=principal)


@pytest.mark.parametrize("error", [DOWN, problem_reply(DOWN)], ids=["here", "at the owner"])
async def test_what_can_t_be_written_waits_and_is_written_once(
    tmp_path: Path, error: TuffError | Reply
) -> None:
    topic, spawned = Topic(), Spawned()
    audit = audit_of(topic, tmp_path, spawned)
    topic.errors["POST /publish"] = error
    audit.note(act("a"))
    await ticked(audit, spawned)

    assert audit.check().status is Status.DEGRADED
    assert "1 audit message waiting" in audit.check().detail
    audit.note(act("b"))
    del topic.errors["POST /publish"]
    await ticked(audit, spawned)

    assert [(each["principal"], each["number"]) for each in topic.messages] == [("a", 1), ("b", 2)]
    assert (audit.check().status, audit.written_count) == (Status.OK, 2)


async def test_a_topic_that_exists_gets_its_time_to_live(tmp_path: Path) -> None:
    topic, spawned = Topic(), Spawned()
    audit = audit_of(topic, tmp_path, spawned)
    topic.errors["PUT "] = problem_reply(TopicExistsError("it exists"))

    for name in ("a", "b"):
        audit.note(act(name))
        await ticked(audit, spawned)

    assert topic.called == ["PUT ", "PUT /properties", "POST /publish", "POST /publish"]


async def test_what_is_not_written_at_the_end_is_logged_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic, spawned = Topic(), Spawned()
    audit = audit_of(topic, tmp_path, spawned)
    topic.errors["PUT "] = DOWN
    audit.note(act("a"))

    await audit.close()

    codes = {getattr(each, "code", ""): each.getMessage() for each in caplog.records}
    assert set(codes) == {"audit_failed", "audit_lost"}
    assert '"principal": "a"' in codes["audit_lost"]
    assert audit.lost_count == 1


async def test_more_than_can_wait_is_logged_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_topic, "WAITING_COUNT_MAX", 2)
    topic, spawned = Topic(), Spawned()
    audit = audit_of(topic, tmp_path, spawned)
    for name in "abc":
        audit.note(act(name))

    with caplog.at_level(logging.WARNING):
        await ticked(audit, spawned)

    assert [each["principal"] for each in topic.messages] == ["a", "b"]
    assert audit.lost_count == 1


class Watched:
    """A call that tells its watchers its reply."""

    is_answered = False

    def __init__(self) -> None:
        self.watchers: list[Callable[[Reply | Exception], None]] = []

    def watch(self, watcher: Callable[[Reply | Exception], None], /) -> None:
        self.watchers.append(watcher)

    def reply(self, reply: Reply | Exception, /) -> None:
        for watcher in self.watchers:
            watcher(reply)


@pytest.mark.parametrize(("name", "count"), [("a", 0), ("", 0), (None, 1)])
async def test_a_forwarded_call_is_recorded_by_the_server_that_got_it(
    tmp_path: Path, name: str | None, count: int
) -> None:
    topic, spawned, call = Topic(), Spawned(), Watched()
    audit = audit_of(topic, tmp_path, spawned)
    proof = f"Bearer {token_of('a')}" if name is None else f"Tuff-Server {CLUSTER_SECRET} {name}"
    request = Request({"ns": "n", "t": "t"}, (), None, None, b"", authorization=proof)

    audit.watch(call, DELETE_TOPIC, request)
    call.reply(EMPTY_REPLY)
    await ticked(audit, spawned)

    assert len(topic.messages) == count


async def test_a_server_that_is_down_still_answers_health_checks(tmp_path: Path) -> None:
    """Its reply is a problem of its own, and is not recorded."""
    topic, spawned, call = Topic(), Spawned(), Watched()
    audit = audit_of(topic, tmp_path, spawned)
    checks = {"storage": Check(Status.DOWN, "the disk is full")}
    (ready,) = (
        each
        for each in routes(lambda: True, lambda: checks)
        if each.operation.path == "/health/ready"
    )
    request = Request({}, (), None, None, b"")

    audit.watch(call, ready.operation, request)
    reply = await ready.handler(request)
    call.reply(reply)

    assert (reply.status, json.loads(reply.body)["status"]) == (503, "down")
    assert topic.messages == []
