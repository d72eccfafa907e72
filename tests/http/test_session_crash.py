"""After a SIGKILL everything that was acknowledged over a session is there, whole."""

from pathlib import Path

from tests.http.calls import Topic
from tests.http.client import ok
from tests.http.conftest import NewServer
from tests.http.session_client import COMMIT, PUBLISH, START, SessionClient

COUNT = 400  # calls that are sent at once; the kill comes after half of the replies


def acknowledged(session: SessionClient, calls: dict[int, str], *, enough: int) -> list[str]:
    """What the first replies acknowledge, in their order."""
    found: list[str] = []
    while len(found) < enough:
        _, call_id, status, *_ = session.read()
        assert status == 200
        found.append(calls[call_id])
    return found


def test_publishes_over_a_session_survive_a_kill(new_server: NewServer, tmp_path: Path) -> None:
    server = new_server(home=tmp_path)
    ok(Topic(server.client(), "default", "t").create())
    with SessionClient(server.port) as session:
        frames = [
            session.frame(PUBLISH, "default", "t", body={"messages": [f"{n}-a", f"{n}-b"]})
            for n in range(COUNT)
        ]
        calls = {frame[1]: str(number) for number, frame in enumerate(frames)}
        session.write(*frames)
        kept = acknowledged(session, calls, enough=COUNT // 2)
        server.kill()

    read = Topic(new_server(home=tmp_path).client(), "default", "t").read({"limit": 2 * COUNT})

    assert set(kept) <= {each.partition("-")[0] for each in read[::2]}
    assert [each[:-2] for each in read[::2]] == [each[:-2] for each in read[1::2]]
    assert [int(each[:-2]) for each in read[::2]] == list(range(len(read) // 2))


def test_commits_over_a_session_survive_a_kill(new_server: NewServer, tmp_path: Path) -> None:
    server = new_server(home=tmp_path)
    ok(Topic(server.client(), "default", "t").create())
    with SessionClient(server.port) as session:
        frames = []
        for _ in range(COUNT):
            started = session.call(START, body={"lists": False})[2]["transactionId"]
            entry = {"namespace": "default", "topic": "t", "messages": [started]}
            frames.append(session.frame(COMMIT, started, body={"changes": [], "publish": [entry]}))
        calls = {frame[1]: frame[3][0] for frame in frames}
        session.write(*frames)
        kept = acknowledged(session, calls, enough=COUNT // 2)
        server.kill()

    client = new_server(home=tmp_path).client()
    read = Topic(client, "default", "t").read({"limit": COUNT}, isolation="committed")

    assert set(kept) <= set(read)
    states = {tx: client.get(f"/v1/transactions/{tx}").json["state"] for tx in calls.values()}
    assert {tx for tx, state in states.items() if state == "committed"} == set(read)
