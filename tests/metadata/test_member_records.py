"""The servers of a cluster: registration, incarnations, loads and fences."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

import pytest

from cluster.membership import DuplicateServerError, Membership
from kernel.owner_floor import Floor
from metadata.member_records import Fenced, ServerInfo
from metadata.server_ids import check_server_id
from metadata.store_interface import (
    Condition,
    DamagedEntryError,
    Expected,
    Key,
    MetadataStore,
    Session,
    SessionLostError,
)
from tuff.protocol.ids import Offset

STARTED_MS = 1_700_000_000_000
LOW = Floor(Offset(5, 9), cell_ms=30, longest_transaction_ms=8)
HIGH = Floor(Offset(6, 2), cell_ms=20, longest_transaction_ms=8)
THREAD_COUNT = 8


def session_of(store: MetadataStore) -> Session:
    return store.open_session(timeout_s=30.0, lost=lambda: None)


def server(store: MetadataStore, server_id: str = "s1", host: str | None = None) -> Membership:
    """A server whose tables nobody asks for."""
    return Membership(
        store,
        None,
        server_id=server_id,
        address=f"http://{host or server_id}:7411",
        messages="none",
        now_ms=lambda: STARTED_MS,
    )


def test_a_registered_server_is_a_member_until_its_session_ends(store: MetadataStore) -> None:
    members, session = server(store), session_of(store)

    assert members.register(session) == 1

    assert members.members() == {
        "s1": ServerInfo(
            server_id="s1",
            address="http://s1:7411",
            incarnation=1,
            started_ms=STARTED_MS,
            topics=0,
            is_draining=False,
            reaches_hbase=False,
            reaches_directory=False,
        )
    }
    assert members.is_alive("s1", 1)
    session.close()
    assert members.members() == {}
    assert not members.is_alive("s1", 1)


def test_each_start_of_a_server_has_a_higher_incarnation(store: MetadataStore) -> None:
    for incarnation in (1, 2, 3):
        session = session_of(store)
        assert server(store).register(session) == incarnation
        session.close()
    other = server(store, "s2")

    assert other.register(session_of(store)) == 1

    assert other.incarnations() == {"s1": 3, "s2": 1}
    assert other.members().keys() == {"s2"}


def test_an_earlier_incarnation_is_not_alive(store: MetadataStore) -> None:
    first = session_of(store)
    server(store).register(first)
    first.close()
    members = server(store)

    members.register(session_of(store))

    assert members.is_alive("s1", 2)
    assert not members.is_alive("s1", 1)
    assert not members.is_alive("s1", 3)
    assert not members.is_alive("s2", 1)


def test_the_id_of_a_live_server_is_refused(store: MetadataStore) -> None:
    server(store).register(session_of(store))
    duplicate = server(store)

    with pytest.raises(DuplicateServerError) as caught:
        duplicate.register(session_of(store))

    assert str(caught.value) == (
        "the server id s1 is already in use by http://s1:7411 (incarnation 1, started "
        "2023-11-14T22:13:20+00:00); give this one another cluster.server_id, or wait until its "
        "session ends"
    )
    assert duplicate.incarnations() == {"s1": 1}


def test_the_address_of_a_live_server_is_refused_to_another_id(store: MetadataStore) -> None:
    first = session_of(store)
    server(store).register(first)
    copy = server(store, "s2", host="s1")

    with pytest.raises(DuplicateServerError) as caught:
        copy.register(session_of(store))

    assert str(caught.value) == (
        "the address http://s1:7411 is already in use by the server s1; give this one another "
        "cluster.address"
    )
    first.close()
    assert copy.register(session_of(store)) == 1


def test_of_servers_with_one_id_that_start_together_one_is_registered(
    store: MetadataStore,
) -> None:
    barrier = Barrier(THREAD_COUNT)

    def start() -> int | None:
        members, session = server(store), session_of(store)
        barrier.wait(30)
        try:
            return members.register(session)
        except DuplicateServerError:
            return None

    with ThreadPoolExecutor(THREAD_COUNT) as pool:
        incarnations = [each.result() for each in [pool.submit(start) for _ in range(THREAD_COUNT)]]

    registered = [each for each in incarnations if each is not None]
    assert len(registered) == 1
    assert server(store).members()["s1"].incarnation == registered[0]


def test_servers_that_start_together_get_different_incarnations(store: MetadataStore) -> None:
    barrier = Barrier(THREAD_COUNT)

    def start_and_end(_: int) -> list[int]:
        barrier.wait(30)
        found = []
        while len(found) < 3:
            session = session_of(store)
            with suppress(DuplicateServerError):  # another thread uses the id for a moment
                found.append(server(store).register(session))
            session.close()
        return found

    with ThreadPoolExecutor(THREAD_COUNT) as pool:
        found = [each for some in pool.map(start_and_end, range(THREAD_COUNT)) for each in some]

    assert len(found) == len(set(found)) == 3 * THREAD_COUNT


def test_of_two_sessions_that_took_an_incarnation_in_turn_one_has_it(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first session ends after the server has put its entry, and before it counts."""
    late, session = server(store), session_of(store)
    put, registered = store.put, []

    def put_late(key: Key, value: bytes, expected: Condition, **options: Session) -> int:
        if key[0] == "incarnations":
            monkeypatch.undo()
            session.close()
            registered.append(server(store).register(session_of(store)))
        return put(key, value, expected, **options)

    monkeypatch.setattr(store, "put", put_late)
    with pytest.raises(DuplicateServerError):
        late.register(session)

    assert registered == [1]


def test_a_server_without_a_live_session_is_not_registered(store: MetadataStore) -> None:
    session = session_of(store)
    session.close()
    members = server(store)

    with pytest.raises(SessionLostError):
        members.register(session)

    assert members.members() == {}


def test_the_load_of_a_server_is_published(store: MetadataStore) -> None:
    members = server(store)
    members.register(session_of(store))

    members.publish_load(7, is_draining=False)
    members.publish_load(6, is_draining=True)

    info = server(store, "s2").members()["s1"]
    assert (info.topics, info.is_draining) == (6, True)
    assert (info.incarnation, info.started_ms, info.address) == (1, STARTED_MS, "http://s1:7411")


def test_what_a_server_reaches_and_its_load_are_published_independently(
    store: MetadataStore,
) -> None:
    members = server(store)
    members.register(session_of(store))

    members.publish_load(7, is_draining=True)
    members.publish_reach(hbase=True, directory=False)
    members.publish_load(6, is_draining=True)

    info = server(store, "s2").members()["s1"]
    assert (info.topics, info.is_draining) == (6, True)
    assert (info.reaches_hbase, info.reaches_directory) == (True, False)


def test_threads_of_a_server_publish_its_load_at_the_same_time(store: MetadataStore) -> None:
    members = server(store)
    members.register(session_of(store))

    with ThreadPoolExecutor(THREAD_COUNT) as pool:
        list(pool.map(lambda load: members.publish_load(load, is_draining=False), range(40)))

    assert members.members()["s1"].topics in range(40)


def test_a_server_whose_session_has_ended_publishes_nothing(store: MetadataStore) -> None:
    members, session = server(store), session_of(store)
    members.register(session)
    session.close()

    with pytest.raises(SessionLostError, match=r"the server s1 \(incarnation 1\) has ended"):
        members.publish_load(7, is_draining=False)

    assert members.members() == {}


def test_a_server_does_not_overwrite_its_next_incarnation(store: MetadataStore) -> None:
    members, session = server(store), session_of(store)
    members.register(session)
    session.close()
    successor = server(store)
    successor.register(session_of(store))

    with pytest.raises(SessionLostError, match=r"the server s1 \(incarnation 1\) has ended"):
        members.publish_load(7, is_draining=False)

    info = successor.members()["s1"]
    assert (info.incarnation, info.topics) == (2, 0)


def test_a_server_that_was_never_fenced_has_no_fence(store: MetadataStore) -> None:
    assert server(store).fenced("s2") is None


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 1, 0, 1)])
def test_fences_have_the_highest_incarnation_and_floor_in_any_order(
    store: MetadataStore, order: tuple[int, ...]
) -> None:
    members = server(store)
    fences = [(3, LOW), (2, HIGH)]

    for index in order:
        members.record_fence("s2", *fences[index])

    merged = Fenced(3, Floor(Offset(6, 2), cell_ms=30, longest_transaction_ms=8))
    assert members.fenced("s2") == merged
    assert members.record_fence("s2", 1, LOW) == merged


def test_a_repeated_fence_writes_nothing(store: MetadataStore) -> None:
    members = server(store)
    members.record_fence("s2", 3, HIGH)
    before = store.get(("fenced", "s2"))

    members.record_fence("s2", 3, HIGH)

    assert store.get(("fenced", "s2")) == before


def test_any_number_of_servers_record_a_fence_at_the_same_time(store: MetadataStore) -> None:
    barrier = Barrier(THREAD_COUNT)

    def fence(number: int) -> None:
        barrier.wait(30)
        floor = Floor(Offset(number, 0), cell_ms=THREAD_COUNT - number, longest_transaction_ms=8)
        server(store).record_fence("s2", number % 3, floor)

    with ThreadPoolExecutor(THREAD_COUNT) as pool:
        list(pool.map(fence, range(THREAD_COUNT)))

    expected = Fenced(
        2, Floor(Offset(THREAD_COUNT - 1, 0), cell_ms=THREAD_COUNT, longest_transaction_ms=8)
    )
    assert server(store).fenced("s2") == expected


def test_the_entries_of_a_server_have_these_bytes(store: MetadataStore) -> None:
    members = server(store)
    members.register(session_of(store))
    members.record_fence("s1", 1, LOW)

    found = {key: entry.value for key in ("servers", "incarnations", "fenced")
             for _, entry in store.scan((key,))}  # fmt: skip
    assert found == {
        "servers": b'{"address":"http://s1:7411","format":1,"incarnation":1,"is_draining":false,'
        b'"reaches_directory":false,"reaches_hbase":false,"server_id":"s1","started_ms":1700000000000,"topics":0}',
        "incarnations": b'{"format":1,"incarnation":1}',
        "fenced": b'{"cell_ms":30,"format":1,"incarnation":1,"longest_transaction_ms":8,'
        b'"offset_ms":5,"offset_seq":9}',
    }


READS: dict[str, Callable[[Membership], object]] = {
    "servers": lambda members: members.members(),
    "incarnations": lambda members: members.incarnations(),
    "fenced": lambda members: members.fenced("s2"),
}


@pytest.mark.parametrize("kind", READS)
def test_an_unreadable_entry_of_a_server_is_reported_with_its_key(
    store: MetadataStore, kind: str
) -> None:
    store.put((kind, "s2"), b'{"format":1}', Expected.NEW)

    with pytest.raises(DamagedEntryError, match=rf"{kind}/s2 can't be read: \w+ is missing"):
        READS[kind](server(store))


def test_a_key_that_names_no_server_is_reported(store: MetadataStore) -> None:
    store.put(("servers", "s2", "x"), b"", Expected.NEW)

    with pytest.raises(DamagedEntryError, match="servers/s2/x names no server"):
        server(store).members()


@pytest.mark.parametrize("server_id", ["s", "0", "S1", "a.b_c-d", "x" * 64])
def test_a_legal_server_id_is_accepted(server_id: str) -> None:
    assert check_server_id(server_id) == server_id


@pytest.mark.parametrize(
    "server_id", ["", ".", "..", "-a", "_a", "a b", "a/b", "é", "a\n", "x" * 65]
)
def test_an_illegal_server_id_is_refused(store: MetadataStore, server_id: str) -> None:
    with pytest.raises(ValueError, match="is not legal: use 1 to 64 characters"):
        check_server_id(server_id)
    with pytest.raises(ValueError, match="is not legal"):
        server(store, server_id)
    with pytest.raises(ValueError, match="is not legal"):
        server(store).record_fence(server_id, 1, LOW)
