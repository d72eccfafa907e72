"""A metadata store compared with a map of versioned values, with sessions that end meanwhile."""

from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from metadata.store_interface import (
    BadVersionError,
    Condition,
    EntryExistsError,
    Expected,
    Key,
    MetadataError,
    MetadataStore,
    NoEntryError,
    Session,
    SessionLostError,
    Versioned,
)

# In the order of a scan.
KEYS = [("a",), ("a-b",), ("a", "x"), ("a", "x", "y"), ("ab", "x"), ("b",)]
PREFIXES = [("a",), ("a", "x"), ("ab",), ("b",), ("c",)]
SESSION_COUNT = 2

_example = count()  # a prefix for each, since all of them use the same store

keys = st.sampled_from(KEYS)
values = st.sampled_from([b"", b"1", b"2"])
sessions = st.integers(0, SESSION_COUNT - 1)
# Relative to the newest version of the key, if not None.
conditions = st.sampled_from([Expected.NEW, Expected.ANY, 0, 0, -1, 1])


@dataclass(frozen=True)
class Row:
    """An entry of the model; `session` is None for a persistent one."""

    value: bytes
    version: int
    session: str | None


class StoreMachine(RuleBasedStateMachine):
    """Every write must have the result that the map gives it, and every reader see the map."""

    def __init__(self, store: MetadataStore, *, timeout_s: float) -> None:
        super().__init__()
        self.store = store
        self.timeout_s = timeout_s
        self.root = f"example-{next(_example)}"
        self.rows: dict[Key, Row] = {}
        self.newest: dict[Key, int] = {}  # the highest version that each key ever had
        self.sessions = [self._open_session() for _ in range(SESSION_COUNT)]

    def teardown(self) -> None:
        for session in self.sessions:
            session.close()

    @rule(key=keys, value=values, condition=conditions, session=st.none() | sessions)
    def put(self, key: Key, value: bytes, condition: Expected | int, session: int | None) -> None:
        expected = self._expected(key, condition)
        holder = None if session is None else self.sessions[session]
        refusals = self._refusals(key, expected, is_put=True)
        if holder is not None and not holder.is_live:
            refusals = (*refusals, SessionLostError)
        if refusals:
            with pytest.raises(refusals):
                self.store.put(self._under_root(key), value, expected, session=holder)
            return
        version = self.store.put(self._under_root(key), value, expected, session=holder)
        assert version > self.newest.get(key, 0)
        self.newest[key] = version
        self.rows[key] = Row(value, version, None if holder is None else holder.id)

    @rule(key=keys, condition=conditions)
    def delete(self, key: Key, condition: Expected | int) -> None:
        expected = self._expected(key, condition)
        refusals = self._refusals(key, expected, is_put=False)
        if refusals:
            with pytest.raises(refusals):
                self.store.delete(self._under_root(key), expected)
            return
        self.store.delete(self._under_root(key), expected)
        del self.rows[key]

    @rule(key=keys, distance=st.sampled_from([0, 0, -1, 1]))
    def require(self, key: Key, distance: int) -> None:
        version = self.newest.get(key, 0) + distance
        refusals = self._refusals(key, version, is_put=False)
        if refusals:
            with pytest.raises(refusals):
                self.store.require(self._under_root(key), version)
        else:
            self.store.require(self._under_root(key), version)

    @rule(session=sessions)
    def close_session(self, session: int) -> None:
        closed = self.sessions[session]
        closed.close()
        self.rows = {key: row for key, row in self.rows.items() if row.session != closed.id}

    @rule(session=sessions)
    def open_session(self, session: int) -> None:
        if not self.sessions[session].is_live:
            self.sessions[session] = self._open_session()

    @rule(prefix=st.sampled_from(PREFIXES))
    def scan(self, prefix: Key) -> None:
        below = [key for key in KEYS if key[: len(prefix)] == prefix and key != prefix]

        found = list(self.store.scan((self.root, *prefix)))

        assert found == [self._item(key) for key in below if key in self.rows]

    @invariant()
    def every_entry_is_that_of_the_map(self) -> None:
        found = list(self.store.scan((self.root,)))
        assert found == [self._item(key) for key in KEYS if key in self.rows]
        for key in KEYS:
            row = self.rows.get(key)
            versioned = None if row is None else Versioned(row.value, row.version)
            assert self.store.get(self._under_root(key)) == versioned

    def _open_session(self) -> Session:
        return self.store.open_session(timeout_s=self.timeout_s, lost=lambda: None)

    def _under_root(self, key: Key) -> Key:
        return (self.root, *key)

    def _item(self, key: Key) -> tuple[Key, Versioned[bytes]]:
        row = self.rows[key]
        return self._under_root(key), Versioned(row.value, row.version)

    def _expected(self, key: Key, condition: Expected | int) -> Condition:
        if isinstance(condition, Expected):
            return condition
        return self.newest.get(key, 0) + condition

    def _refusals(
        self, key: Key, expected: Condition, *, is_put: bool
    ) -> tuple[type[MetadataError], ...]:
        row = self.rows.get(key)
        if row is None:
            return () if is_put and expected is Expected.NEW else (NoEntryError,)
        if expected is Expected.NEW:
            return (EntryExistsError,) if is_put else (BadVersionError,)
        return () if expected in (Expected.ANY, row.version) else (BadVersionError,)
