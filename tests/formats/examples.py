"""The worked examples of docs/formats.md, and how the server's own code makes their bytes."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from messaging.log.rows_by_transaction import IndexedRange
from messaging.log.topics import TopicRecord
from messaging.model.attributes import encode_attributes
from messaging.model.packed_rows import pack_rows
from messaging.model.partitions import ONE_PARTITION, Partitions
from messaging.model.producer_rows import (
    GapRow,
    ProducerRow,
    Written,
    gap_key,
    pack_entry,
    producer_key,
    unpack_entry,
)
from messaging.model.row_format import (
    HOLDS,
    LAST_BATCH_KEY,
    METADATA_KEY,
    POSITIONS,
    Hold,
    LastBatch,
    MessageRow,
    PayloadRange,
    Position,
    StoreMetadata,
    delayed_key,
    message_key,
    named_row_key,
    payload_key,
    prefix_of,
    topic_key,
    undecided_key,
    undecided_row,
)
from metadata.stored_entry import Entry
from process.backup_format import next_rows_part, transaction_parts
from tuff.protocol.attributes import Attributes
from tuff.protocol.ids import DelayedId, MessageId, Offset, TopicId
from tuff.protocol.requests import RollbackDetail
from tuff.protocol.transaction import TransactionType
from tuff_storage.disk.backup_archive import pack_end, pack_head
from tx import log_records
from tx.file_headers import FileHeader, FileKind, pack_header
from tx.log_records import Conflict, Edit, InvalidReason, PointerRange
from tx.wal import pack_edits, pack_proof

PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats.md"

Value = dict[str, Any]
Stored = MessageRow | TopicRecord | IndexedRange | LastBatch | StoreMetadata


@dataclass(frozen=True, slots=True)
class Example:
    """One example: what it is of, its bytes by label, and what they mean."""

    name: str
    parts: Mapping[str, bytes]
    means: Value

    def __str__(self) -> str:
        return self.name


def read_examples(page: str) -> list[Example]:
    """Every example of the page, in its order."""
    found = []
    for block in re.findall(r"^```text\nexample (.*?)^```$", page, re.MULTILINE | re.DOTALL):
        name, *lines = block.splitlines()
        texts: dict[str, str] = {}
        label = ""
        for line in lines:
            label = line[:6].strip() or label
            texts[label] = texts.get(label, "") + line[6:] + " "
        means = json.loads(texts.pop("means"))
        parts = {label: bytes.fromhex(digits) for label, digits in texts.items()}
        found.append(Example(name, parts, means))
    return found


def plain(value: Any) -> Any:
    """A decoded value as `means` writes it: bytes as text, tuples as lists."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


# What the server's code makes of `means`


_MAKERS: Mapping[str, Callable[[Any], object]] = {
    "block": lambda ends: PointerRange(*ends),
    "lost": lambda ranges: tuple(PointerRange(*ends) for ends in ranges),
    "type": TransactionType,
    "reason": InvalidReason,
    "changes": lambda keys: frozenset(key.encode() for key in keys),
    "conflict": lambda means: Conflict(**{**means, "key": means["key"].encode()}),
    "published": lambda details: tuple(map(detail, details)),
    "topics": tuple,
    "pointers": tuple,
}


def detail(means: Value) -> RollbackDetail:
    return RollbackDetail(means["pointer"], Offset(*means["first"]), Offset(*means["last"]))


def edit(means: Value) -> Edit:
    """The edit that an example describes."""
    kind = getattr(log_records, means["edit"].title().replace("_", ""))
    values = {each.name: means[each.name] for each in fields(kind) if each.name in means}
    made: Edit = kind(**{name: _made(name, value) for name, value in values.items()})
    return made


def _made(name: str, value: Any) -> object:
    return _MAKERS[name](value) if name in _MAKERS else value


def file_header(means: Value) -> bytes:
    """What a described file begins with."""
    return pack_header(FileKind(means["kind"]), FileHeader(**means["header"]))


def metadata_entry(means: Value) -> bytes:
    """A described entry of a cluster's metadata."""
    value, nonce = means["value"].encode(), bytes.fromhex(means["nonce"])
    return Entry(**{**means, "value": value, "nonce": nonce}).to_bytes()


def log(means: Value, *, torn: bytes) -> bytes:
    """The example's log, as the service writes it: made with its first edit, then one batch."""
    store_id = means["header"]["store_id"]
    first, *batch = [(each["lsn"], edit(each)) for each in means["edits"]]
    data = file_header(means) + pack_edits([first])
    data += pack_proof(store_id, offset=len(data), length=len(data))
    data += pack_proof(store_id, offset=len(data), length=len(data)) + pack_edits(batch)
    return data + torn


def archive(means: Value) -> bytes:
    """A described backup, as the server sends it."""
    rows = [(bytes.fromhex(key), bytes.fromhex(value)) for key, value in means["rows"]]
    of_rows = next_rows_part(rows)
    assert of_rows is not None
    parts = [*transaction_parts(means["snapshot"].encode()), of_rows]
    return pack_head() + b"".join(parts) + pack_end(len(parts))


def row(means: Value) -> tuple[bytes, bytes]:
    """Key and value of a described row."""
    makers: Mapping[str, Callable[[Value], tuple[bytes, Stored]]] = {
        "message": _message,
        "payload": _payload,
        "delayed": _delayed,
        "undecided": _undecided,
        "topic": _topic,
        "index": _index,
        "metadata": _metadata,
        "hold": _hold,
        "position": _position,
        "producer": _producer,
        "gap": _gap,
    }
    key, made = makers[means["table"]](means)
    return key, made.to_bytes(key)


def packed(means: Value) -> tuple[bytes, bytes]:
    """Key and value of described packed rows."""
    keys, values = zip(*map(row, means["rows"]), strict=True)
    ((key, value),) = pack_rows(keys, values)
    return key, value


def _topic_id(means: Value) -> TopicId:
    return TopicId(*means["topic"].split(":", 1))


def _prefix(means: Value) -> bytes:
    return prefix_of(_topic_id(means), means["generation"])


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _attributes(means: Value | str | None) -> bytes | None:
    if not isinstance(means, dict):
        return _bytes(means)
    headers = tuple((name, value.encode()) for name, value in means["headers"])
    return encode_attributes(Attributes(_bytes(means["key"]), tuple(means["tags"]), headers))


def _message(means: Value) -> tuple[bytes, MessageRow]:
    reference = means["reference"]
    made = MessageRow(
        tx_pointer=means["pointer"],
        ttl_s=means["ttl_s"],
        attributes=_attributes(means["attributes"]),
        payload=_bytes(means["payload"]) or b"",
        reference=reference
        and PayloadRange(
            Offset(*reference["first"]), Offset(*reference["last"]), reference["count"]
        ),
    )
    return message_key(_prefix(means), Offset(*means["offset"])), made


def _payload(means: Value) -> tuple[bytes, MessageRow]:
    key = payload_key(_prefix(means), means["pointer"], Offset(*means["offset"]))
    attributes = _attributes(means["attributes"])
    return key, MessageRow(
        payload=means["payload"].encode(), ttl_s=means["ttl_s"], attributes=attributes
    )


def _delayed(means: Value) -> tuple[bytes, MessageRow]:
    delayed_id = DelayedId(means["due_ms"], Offset(*means["offset"]))
    made = MessageRow(
        ttl_s=means["ttl_s"],
        attributes=_bytes(means["attributes"]),
        payload=means["payload"].encode(),
    )
    return delayed_key(_prefix(means), delayed_id), made


def _undecided(means: Value) -> tuple[bytes, MessageRow]:
    key, made = _delayed(means)
    delayed_id = DelayedId.from_bytes(key)
    row = undecided_row(means["pointer"], delayed_id, made.to_bytes(key))
    return undecided_key(_prefix(means), delayed_id.offset), row


def _topic(means: Value) -> tuple[bytes, TopicRecord]:
    log_start = MessageId(*means["log_start"])
    given = means["partitions"]
    partitions = ONE_PARTITION
    if given is not None:
        partitions = Partitions(tuple(given[0]), tuple(given[1]), given[2])
    made = TopicRecord(
        generation=means["generation"],
        properties=means["properties"],
        log_start=log_start,
        partitions=partitions,
        is_retired=means["retired"],
    )
    return topic_key(_topic_id(means)), made


def _index(means: Value) -> tuple[bytes, IndexedRange]:
    made = IndexedRange(
        pointer=means["pointer"],
        kind=means["kind"].encode(),
        topic=_topic_id(means),
        generation=means["generation"],
        first=Offset(*means["first"]),
        last=Offset(*means["last"]),
        final=means["final"],
        written_ms=means["written_ms"],
    )
    return made.key, made


def _hold(means: Value) -> tuple[bytes, Hold]:
    first = MessageId(*means["first"])
    made = Hold(first=first, set_at_ms=means["set_at_ms"], expires_at_ms=means["expires_at_ms"])
    return named_row_key(HOLDS, _prefix(means), means["name"]), made


def _position(means: Value) -> tuple[bytes, Position]:
    position = MessageId(*means["position"])
    made = Position(position=position, updated_at_ms=means["updated_at_ms"])
    return named_row_key(POSITIONS, _prefix(means), means["name"]), made


def _producer(means: Value) -> tuple[bytes, ProducerRow]:
    entries = {}
    for each in means["entries"]:
        due_ms = each["due_ms"] and tuple(each["due_ms"])
        first, last = Offset(*each["first"]), Offset(*each["last"])
        written = Written(first, last, due_ms, tuple(each["partitions"]))
        entries[each["number"]] = pack_entry(each["number"], each["crc"], written)
        assert unpack_entry(entries[each["number"]]) == (each["crc"], written)
    key = producer_key(_prefix(means), bytes.fromhex(means["producer"]))
    return key, ProducerRow(means["answered"], entries)


def _gap(means: Value) -> tuple[bytes, GapRow]:
    return gap_key(_prefix(means)), GapRow(means["until_ms"])


def _metadata(means: Value) -> tuple[bytes, LastBatch | StoreMetadata]:
    own = {name: value for name, value in means.items() if name not in {"table", "name"}}
    if means["name"] == "mark":
        return LAST_BATCH_KEY, LastBatch(**{**own, "last": Offset(*own["last"])})
    return METADATA_KEY, StoreMetadata(**own)
