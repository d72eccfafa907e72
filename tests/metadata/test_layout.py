"""The layout record: who may join a cluster."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest

from metadata.layout import (
    MANAGERS,
    Layout,
    LayoutMismatchError,
    join_layout,
    read_layout,
)
from metadata.store_interface import DamagedEntryError, Expected, MetadataStore

OURS = Layout(
    cluster_id="0123456789abcdef0123456789abcdef",
    managers={"owners": 1, "servers": 1},
    messages="hbase tuff_",
)
OTHER_ID = "f" * 32
THREAD_COUNT = 6


def test_the_first_server_writes_the_layout(store: MetadataStore) -> None:
    assert read_layout(store) is None

    assert join_layout(store, OURS) == OURS

    assert read_layout(store) == OURS
    found = store.get(("layout",))
    assert found is not None
    assert found.value == (
        b'{"cluster_id":"0123456789abcdef0123456789abcdef","format":1,'
        b'"managers":{"owners":1,"servers":1},"messages":"hbase tuff_"}'
    )


def test_the_next_server_finds_it_and_writes_nothing(store: MetadataStore) -> None:
    join_layout(store, OURS)
    before = store.get(("layout",))

    assert join_layout(store, OURS) == OURS

    assert store.get(("layout",)) == before


@pytest.mark.parametrize(
    ("wanted", "difference"),
    [
        (
            replace(OURS, messages="hbase other_"),
            "its messages are in 'hbase tuff_', and those of this server in 'hbase other_' (use "
            "the same tables in all servers of a cluster)",
        ),
        (
            replace(OURS, managers={"owners": 2, "servers": 1}),
            "its owners have format 1, and those of this server format 2 (run the same version of "
            "the software in all servers of a cluster)",
        ),
        (
            replace(OURS, managers={"owners": 1}),
            "its servers have format 1, and those of this server no format (run the same version "
            "of the software in all servers of a cluster)",
        ),
        (
            replace(OURS, managers={"owners": 1, "servers": 1, "leases": 1}),
            "its leases have no format, and those of this server format 1 (run the same version "
            "of the software in all servers of a cluster)",
        ),
    ],
)
def test_a_server_with_another_layout_is_refused(
    store: MetadataStore, wanted: Layout, difference: str
) -> None:
    join_layout(store, OURS)

    with pytest.raises(LayoutMismatchError) as caught:
        join_layout(store, wanted)

    assert str(caught.value) == f"the metadata store does not suit this server: {difference}"
    assert read_layout(store) == OURS


def test_all_differences_are_named(store: MetadataStore) -> None:
    join_layout(store, OURS)

    with pytest.raises(LayoutMismatchError, match=r"its messages .*; its owners .*; its ser"):
        join_layout(store, Layout(cluster_id=OTHER_ID, managers={}, messages=""))


def test_a_server_without_an_id_takes_that_of_the_cluster(store: MetadataStore) -> None:
    assert join_layout(store, OURS) == OURS

    assert join_layout(store, replace(OURS, cluster_id=OTHER_ID)) == OURS


def test_servers_that_start_together_take_one_id(store: MetadataStore) -> None:
    barrier = Barrier(THREAD_COUNT)

    def start(number: int) -> Layout:
        barrier.wait(30)
        return join_layout(store, replace(OURS, cluster_id=f"{number:032x}"))

    with ThreadPoolExecutor(THREAD_COUNT) as pool:
        layouts = list(pool.map(start, range(THREAD_COUNT)))

    assert len({each.cluster_id for each in layouts}) == 1
    assert read_layout(store) == layouts[0]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"),
        (b'{"format":2}', "its format is 2, and this version reads 1"),
        (b'{"format":1,"cluster_id":"X","managers":{},"messages":""}', "the cluster id 'X' is not"),
        (
            b'{"format":1,"cluster_id":"0123456789abcdef0123456789abcdef","managers":{"a":"1"},'
            b'"messages":""}',
            "a is not an integer",
        ),
    ],
)
def test_an_unreadable_layout_is_refused_with_what_to_do(
    store: MetadataStore, data: bytes, reason: str
) -> None:
    store.put(("layout",), data, Expected.NEW)

    with pytest.raises(
        DamagedEntryError,
        match=f"the layout record under the key layout can't be read: {reason}.*; start the "
        "version of the software that wrote it, or restore the metadata store from a backup",
    ):
        join_layout(store, OURS)


def test_the_managers_of_this_version_have_these_formats() -> None:
    assert MANAGERS == {
        "owners": 1,
        "released": 1,
        "persistence": 1,
        "servers": 1,
    }


@pytest.mark.parametrize("cluster_id", ["", "0" * 31, "0" * 33, "A" * 32, "g" * 32])
def test_an_id_that_is_not_32_hex_digits_is_refused(cluster_id: str) -> None:
    with pytest.raises(ValueError, match="is not 32 lower-case hex digits"):
        replace(OURS, cluster_id=cluster_id)
