"""Transaction state and messages from the stored files, by docs/formats.md §7 and §9 alone."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.formats.transaction_files import (
    DamagedError,
    Value,
    read_beginning,
    read_log,
    read_snapshot,
)

SHORT, LONG = "short", "long"


# §7 From the files to the state


@dataclass
class State:
    """The transaction state. `open` are transactions by id, `ended` state and reason by id."""

    store_id: str
    read_pointer: int
    in_progress: set[int]
    invalid: set[int]
    blocks: list[list[int]]
    highest_reserved: int
    open: dict[int, Value]
    ended: dict[int, tuple[str, str | None]]
    is_clean: bool
    pointers: dict[int, list[int]] = field(default_factory=dict)
    sinks: dict[str, Value] = field(default_factory=dict)

    @property
    def in_doubt(self) -> list[int]:
        """Pointers that may have been handed out although the start did not reach the log."""
        return [pointer for start, stop in self.blocks for pointer in range(start, stop)]

    def change(self, change: Value) -> None:
        self.in_progress -= set(change["ended"])
        self.invalid = self.invalid - set(change["cleared"]) | set(change["invalidated"])
        self.read_pointer = max(self.read_pointer, change["read_pointer"])

    def apply(self, edit: Value) -> None:
        self.is_clean = edit["edit"] == "block_returned"
        appliers: Mapping[str, Callable[[Value], None]] = {
            "block_reserved": self._reserve,
            "block_kept": self._keep,
            "block_returned": lambda _: self.blocks.clear(),
            "started": self._start,
            "epoch_begun": self._begin_epoch,
            "sink_forgotten": lambda edit: self.sinks.pop(edit["sink"]),
            "store_joined": lambda _: None,
            "checkpointed": self._checkpoint,
            "committing": self._name_changes,
            "refused": lambda edit: self.open[edit["transaction_id"]].update(
                conflict=edit["conflict"]
            ),
            "prepared": self._prepare,
            "committed": lambda edit: self._end(edit, "committed"),
            "in_doubt": lambda edit: self.open[edit["transaction_id"]].update(doubt=edit),
            "confirmed": self._confirm,
            "aborted": self._abort,
            "invalidated": self._invalidate,
            "truncated": lambda edit: self.invalid.difference_update(edit["pointers"]),
            "restarted": self._restart,
        }
        appliers[edit["edit"]](edit)

    def _reserve(self, edit: Value) -> None:
        self.blocks.append(edit["block"])
        self.highest_reserved = max(self.highest_reserved, edit["block"][1] - 1)

    def _keep(self, edit: Value) -> None:
        first, end = edit["block"]
        kept = [[max(start, first), min(stop, end)] for start, stop in self.blocks]
        self.blocks = [each for each in kept if each[0] < each[1]]

    def _hand_out(self, pointer: int) -> None:
        self.in_progress.add(pointer)
        rests = [[max(start, pointer + 1), stop] for start, stop in self.blocks]
        self.blocks = [rest for rest in rests if rest[0] < rest[1]]

    def _start(self, edit: Value) -> None:
        opened = {"changes": None, "conflict": None, "survived_crash": False}
        self.open[edit["pointer"]] = {**edit, **opened, "started_at_ms": edit["at_ms"]}
        self.pointers[edit["pointer"]] = [edit["pointer"]]
        self._hand_out(edit["pointer"])

    def _begin_epoch(self, edit: Value) -> None:
        self._start({**edit, "type": LONG})
        before = self.sinks.get(edit["sink"], {"run_id": edit["run_id"], "fenced": []})
        is_new = before["run_id"] != edit["run_id"]
        fenced = [*before["fenced"], before["run_id"]][-16:] if is_new else before["fenced"]
        self.sinks[edit["sink"]] = {
            "name": edit["sink"], "epoch": edit["epoch"], "run_id": edit["run_id"],
            "transaction_id": edit["pointer"], "state": None, "reason": None,
            "updated_ms": edit["at_ms"], "lsn": edit["lsn"], "fenced": fenced,
        }  # fmt: skip

    def _end_epoch(self, edit: Value, state: str, reason: str | None) -> None:
        for sink in self.sinks.values():
            if sink["transaction_id"] == edit["transaction_id"]:
                sink.update(state=state, reason=reason, updated_ms=edit["at_ms"], lsn=edit["lsn"])

    def _checkpoint(self, edit: Value) -> None:
        self.pointers[edit["transaction_id"]].append(edit["pointer"])
        self._hand_out(edit["pointer"])

    def _name_changes(self, edit: Value) -> None:
        opened = self.open[edit["transaction_id"]]
        opened["changes"] = sorted({*(opened["changes"] or ()), *edit["changes"]})

    def _prepare(self, edit: Value) -> None:
        self._name_changes(edit)
        self.open[edit["transaction_id"]]["prepared"] = {
            name: edit[name] for name in ("lsn", "at_ms", "database", "published")
        }

    def _end(self, edit: Value, state: str, reason: str | None = None) -> None:
        transaction_id = edit["transaction_id"]
        opened, pointers = self.open.pop(transaction_id), self.pointers[transaction_id]
        self.ended[transaction_id] = (state, reason)
        self._end_epoch(edit, state, reason)
        self.in_progress -= set(pointers)
        if state != "invalid" or opened["type"] == SHORT:
            self.read_pointer = max(self.read_pointer, pointers[-1])

    def _confirm(self, edit: Value) -> None:
        doubt = self.open[edit["transaction_id"]]["doubt"]
        self._end({**doubt, "lsn": edit["lsn"]}, "committed")

    def _abort(self, edit: Value) -> None:
        transaction_id = edit["transaction_id"]
        if transaction_id in self.open:
            self._end(edit, "aborted")
        else:
            self.ended[transaction_id] = ("aborted", None)
            self.invalid -= set(self.pointers[transaction_id])

    def _invalidate(self, edit: Value) -> None:
        self._end(edit, "invalid", edit["reason"])
        self.invalid |= set(self.pointers[edit["transaction_id"]])

    def _restart(self, edit: Value) -> None:
        self.blocks.clear()
        for start, stop in edit["lost"]:
            self.invalid.update(range(start, stop))
        for opened in self.open.values():
            if "prepared" in opened:
                continue
            latest = edit["at_ms"] + opened["timeout_ms"]
            opened["expires_at_ms"] = min(opened["expires_at_ms"], latest)
            opened["survived_crash"] = opened["survived_crash"] or edit["is_after_crash"]


def read_state(directory: Path) -> State:
    """The state from the files of a `snapshots/` directory."""
    datas = [path.read_bytes() for path in _named(directory)]
    files = _without_leftovers([(read_beginning(data)[0], data) for data in datas])
    state, lsn = _newest([data for beginning, data in files if beginning["kind"] == "snapshot"])
    logs = [f for f in files if f[0]["kind"] == "txlog" and f[0]["header"]["lsn"] > lsn]
    headers: list[Value | None] = [beginning["header"] for beginning, _ in logs]
    for (beginning, data), successor in zip(logs, [*headers[1:], None], strict=True):
        length = None
        if successor is not None:
            length = successor["previous_length"]
            if successor["previous_sequence"] != beginning["header"]["sequence"]:
                raise DamagedError("a log is missing")
        if beginning["header"]["lsn"] != lsn + 1:
            raise DamagedError(f"the log with edit {lsn + 1} is missing")
        for edit in read_log(data, previous_length=length)["edits"]:
            state.apply(edit)
            lsn = edit["lsn"]
    return state


def _named(directory: Path) -> Iterator[Path]:
    for path in directory.iterdir():
        match path.name.split("."):
            case ["snapshot" | "txlog", ms] | ["snapshot" | "txlog", ms, _]:
                if ms.isdigit() and len(ms) <= 15:
                    yield path


def _without_leftovers(files: list[tuple[Value, bytes]]) -> list[tuple[Value, bytes]]:
    """The files that count, by sequence number."""
    kept: list[tuple[Value, bytes]] = []
    first_of_epoch = named = 0
    for beginning, data in sorted(files, key=lambda file: -int(file[0]["header"]["sequence"])):
        number, is_log = beginning["header"]["sequence"], beginning["kind"] == "txlog"
        if named < number < first_of_epoch and (is_log or named == 0 or number != named + 1):
            continue
        kept.insert(0, (beginning, data))
        if is_log or (number > 0 and number % 2**32 == 0):
            first_of_epoch = number - number % 2**32
            named = beginning["header"]["previous_sequence"]
    return kept


def _newest(snapshots: list[bytes]) -> tuple[State, int]:
    for data in reversed(snapshots):
        with suppress(DamagedError):
            return _state_of(read_snapshot(data))
    raise DamagedError("no snapshot can be read")


def _state_of(snapshot: Value) -> tuple[State, int]:
    view, numbers = snapshot["view"], snapshot["numbers"]
    known = [*snapshot["open"], *snapshot["outcomes"]]
    state = State(
        store_id=snapshot["header"]["store_id"],
        read_pointer=view["read_pointer"],
        in_progress=set(view["in_progress"]),
        invalid=set(view["invalid"]),
        blocks=numbers["blocks"],
        highest_reserved=numbers["highest_reserved"],
        open={opened["transaction_id"]: opened for opened in snapshot["open"]},
        ended={o["transaction_id"]: (o["state"], o["reason"]) for o in snapshot["outcomes"]},
        is_clean=numbers["is_clean"],
        sinks={sink["name"]: sink for sink in snapshot.get("sinks", [])},
        pointers={k["transaction_id"]: [k["transaction_id"], *k["checkpoints"]] for k in known},
    )
    for change in snapshot["pending"]:
        state.change(change)
    return state, numbers["lsn"]


# §9 From the rows to the messages


class Messages:
    """The messages of topics, from the rows of a store."""

    def __init__(self, rows: list[Value]) -> None:
        self.rows = rows
        self.topics = {row["topic"]: row for row in rows if row["table"] == "topic"}
        self.facts = {row["name"]: row for row in rows if row["table"] == "metadata"}
        self.index = [row for row in rows if row["table"] == "index"]
        self.holds = [row for row in rows if row["table"] == "hold"]

    def live_topics(self) -> dict[str, Value]:
        return {name: row for name, row in self.topics.items() if row["generation"] > 0}

    def read(self, topic: str, *, now_ms: int, state: State | None = None) -> list[tuple[str, Any]]:
        """Id and payload of every message, for a reader without a snapshot, or with a fresh one,
        which stops at the first undecided row."""
        found: list[tuple[str, Any]] = []
        for row in self._rows_of("message", topic):
            pointer = row["pointer"]
            if state is not None and pointer is not None:
                if pointer < 0 or pointer in state.invalid:
                    continue
                if pointer > state.read_pointer or pointer in state.in_progress:
                    break
            found += self._messages_of(row, now_ms)
        return found

    def _rows_of(self, table: str, topic: str) -> Iterator[Value]:
        wanted = (table, topic, self.topics[topic]["generation"])
        for row in self.rows:
            if (row["table"], row.get("topic"), row.get("generation")) == wanted:
                yield row

    def _is_held(self, row: Value, now_ms: int) -> bool:
        return any(
            row["offset"] >= hold["first"][:2] and now_ms < hold["expires_at_ms"]
            for hold in self.holds
            if (hold["topic"], hold["generation"]) == (row["topic"], row["generation"])
        )

    def _messages_of(self, row: Value, now_ms: int) -> Iterator[tuple[str, Any]]:
        if row["reference"] is None:
            candidates = [([*row["offset"], 0, 0], row)]
        else:
            first, last = row["reference"]["first"], row["reference"]["last"]
            candidates = [
                ([*row["offset"], *stored["offset"]], stored)
                for stored in self._rows_of("payload", row["topic"])
                if stored["pointer"] == abs(row["pointer"]) and first <= stored["offset"] <= last
            ]
        topic = self.topics[row["topic"]]
        is_kept = row["offset"][0] + 1000 * int(topic["properties"]["ttl"]) > now_ms
        is_kept = is_kept or self._is_held(row, now_ms)
        is_live = is_kept and row["offset"] >= topic["log_start"][:2]
        if (
            row["reference"] is not None
            and is_live
            and len(candidates) != row["reference"]["count"]
        ):
            raise DamagedError(f"a reference has {len(candidates)} rows: {row}")
        for message_id, stored in candidates:
            ttl_s = stored["ttl_s"] or (1 << 32)
            is_over = row["offset"][0] + 1000 * ttl_s <= now_ms
            if message_id >= topic["log_start"] and is_kept and not is_over:
                ms, seq, stored_ms, stored_seq = message_id
                yield f"{ms:016x}{seq:04x}{stored_ms:016x}{stored_seq:04x}", stored["payload"]
