"""The decisions on sessions in HBase: which ones have ended, and when they are read again."""

import json

import pytest

from metadata.hbase_sessions import (
    OldestSession,
    SessionState,
    SilentSessions,
    end_of,
    first_entry,
    next_beat,
    poll_pause_s,
)
from metadata.store_interface import DamagedEntryError
from metadata.stored_entry import Entry


def state(session_id: str, *, beat_count: int = 0, timeout_s: float = 2.0) -> SessionState:
    """The session after some heartbeats."""
    entry = first_entry(timeout_s=timeout_s)
    for _ in range(beat_count):
        entry = next_beat(entry)
    found = SessionState.from_cell(session_id, entry.to_bytes())
    assert found is not None
    return found


def ended(
    silent: SilentSessions, *sessions: SessionState, asked_s: float, answered_s: float | None = None
) -> list[str]:
    """The ids of the sessions that this observation ends."""
    found = silent.observe(
        {session.id: session for session in sessions},
        asked_s=asked_s,
        answered_s=asked_s if answered_s is None else answered_s,
    )
    return [session.id for session in found]


def test_a_session_with_the_same_version_for_its_timeout_is_silent() -> None:
    silent = SilentSessions()
    session = state("a", timeout_s=2.0)

    assert ended(silent, session, asked_s=10.0) == []
    assert ended(silent, session, asked_s=11.9) == []
    assert ended(silent, session, asked_s=12.0) == ["a"]


def test_a_session_is_silent_again_if_it_could_not_be_ended() -> None:
    silent = SilentSessions()
    session = state("a", timeout_s=2.0)
    ended(silent, session, asked_s=10.0)

    assert ended(silent, session, asked_s=12.0) == ["a"]
    assert ended(silent, session, asked_s=12.5) == ["a"]


def test_a_heartbeat_begins_the_timeout_again() -> None:
    silent = SilentSessions()
    ended(silent, state("a"), asked_s=10.0)

    assert ended(silent, state("a", beat_count=1), asked_s=12.0) == []
    assert ended(silent, state("a", beat_count=1), asked_s=13.9) == []
    assert ended(silent, state("a", beat_count=1), asked_s=14.0) == ["a"]


def test_an_observer_that_was_paused_ends_no_session_with_a_new_version() -> None:
    silent = SilentSessions()
    ended(silent, state("a"), asked_s=10.0)

    assert ended(silent, state("a", beat_count=900), asked_s=1_000.0) == []


def test_an_observer_that_read_nothing_for_a_timeout_counts_anew() -> None:
    """Perhaps nobody reached the table, and the holder has not had the time for a heartbeat."""
    silent = SilentSessions()
    session = state("a", timeout_s=2.0)
    ended(silent, session, asked_s=10.0)

    assert ended(silent, session, asked_s=12.1) == []
    assert ended(silent, session, asked_s=14.0) == []
    assert ended(silent, session, asked_s=14.1) == ["a"]


def test_the_time_of_a_slow_answer_does_not_count() -> None:
    """The version that an answer has may be that of its last moment, or that of its first one."""
    silent = SilentSessions()
    session = state("a", timeout_s=2.0)

    assert ended(silent, session, asked_s=10.0, answered_s=15.0) == []
    assert ended(silent, session, asked_s=16.9, answered_s=30.0) == []
    assert ended(silent, session, asked_s=17.0, answered_s=17.1) == ["a"]


def test_each_session_has_its_own_timeout() -> None:
    silent = SilentSessions()
    short, long = state("short", timeout_s=1.0), state("long", timeout_s=5.0)
    ended(silent, short, long, asked_s=10.0)

    assert ended(silent, short, long, asked_s=11.0) == ["short"]
    assert ended(silent, long, asked_s=15.0) == ["long"]


def test_a_tombstone_is_no_session() -> None:
    session = state("a")

    assert SessionState.from_cell("a", end_of(session).to_bytes()) is None


def test_a_heartbeat_and_an_end_replace_the_same_version() -> None:
    session = state("a", beat_count=6)

    assert next_beat(session.entry).version == 8
    assert end_of(session).version == 8


@pytest.mark.parametrize("value", [b"", b"2.0", b"{}", b'{"timeout_s": "soon"}', b"[1]"])
def test_a_row_without_a_timeout_is_damaged(value: bytes) -> None:
    entry = Entry(value=value, version=1, nonce=bytes(16), session=None, is_deleted=False)

    with pytest.raises(DamagedEntryError, match="in place of its timeout"):
        SessionState.from_cell("a", entry.to_bytes())


def test_a_session_is_stored_with_its_timeout_in_seconds() -> None:
    assert json.loads(first_entry(timeout_s=2.5).value) == {"timeout_s": 2.5}


@pytest.mark.parametrize(
    ("timeouts_s", "pause_s"),
    [([], 0.5), ([3_600.0], 0.5), ([10.0, 1.0], 0.25), ([0.2], 0.05), ([0.01], 0.05)],
)
def test_sessions_are_read_four_times_in_the_shortest_timeout(
    timeouts_s: list[float], pause_s: float
) -> None:
    sessions = {str(each): state(str(each), timeout_s=each) for each in timeouts_s}

    assert poll_pause_s(sessions) == pause_s


def test_a_poll_begins_at_the_oldest_live_session() -> None:
    oldest = OldestSession()
    assert oldest.next_start() == b"s/"
    oldest.found({"7": state("7"), "5": state("5"), "9": state("9")})

    assert oldest.next_start() == b"s/5"
    oldest.found({"9": state("9")})
    assert oldest.next_start() == b"s/9"


def test_without_a_live_session_a_poll_begins_where_the_last_one_did() -> None:
    oldest = OldestSession()
    oldest.next_start()
    oldest.found({"5": state("5")})
    oldest.next_start()
    oldest.found({})

    assert oldest.next_start() == b"s/5"


def test_each_twentieth_poll_reads_all_sessions() -> None:
    oldest = OldestSession()
    starts = []
    for _ in range(41):
        starts.append(oldest.next_start())
        oldest.found({"5": state("5")})

    assert [number for number, start in enumerate(starts) if start == b"s/"] == [0, 20, 40]
