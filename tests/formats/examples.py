"""The worked examples of docs/formats.md, and how the server's own code makes their bytes."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from messaging.storage.packed_rows import join
from messaging.storage.pointer_index import IndexedRange
from messaging.storage.rows import (
    HOLDS,
    LAST_BATCH_KEY,
    METADATA_KEY,
    POSITIONS,
    Hold,
    LastBatch,
    MessageRow,
    PayloadRange,
    PayloadRow,
    Position,
    StoreMetadata,
    message_key,
    named_row_key,
    payload_key,
    prefix_of,
    topic_key,
)
from messaging.topics import TopicRecord
from process.backup_format import next_rows_part, transaction_parts
from tuff.disk.archive import pack_end, pack_head
from tuff.protocol.ids import MessageId, Offset, TopicId
from tuff.protocol.requests import RollbackDetail
from tuff.protocol.transaction import TransactionType
from tx import edits
from tx.edits import Conflict, Edit, InvalidReason, PointerRange
from tx.files import FileHeader, FileKind, pack_header
from tx.wal import pack_edits, pack_proof

PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats.md"

Value = dict[str, Any]
Stored = MessageRow | PayloadRow | TopicRecord | IndexedRange | LastBatch | StoreMetadata


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
    "conflict": lambda told: Conflict(**{**told, "key": told["key"].encode()}),
    "published": lambda details: tuple(map(detail, details)),
    "topics": tuple,
    "pointers": tuple,
}


def detail(told: Value) -> RollbackDetail:
    return RollbackDetail(told["pointer"], Offset(*told["first"]), Offset(*told["last"]))


def edit(told: Value) -> Edit:
    """The edit that an example describes."""
    kind = getattr(edits, told["edit"].title().replace("_", ""))
    values = {each.name: told[each.name] for each in fields(kind)}
    made: Edit = kind(**{name: _made(name, value) for name, value in values.items()})
    return made


def _made(name: str, value: Any) -> object:
    return _MAKERS[name](value) if name in _MAKERS else value


def file_header(told: Value) -> bytes:
    """What a described file begins with."""
    return pack_header(FileKind(told["kind"]), FileHeader(**told["header"]))


def log(told: Value, *, torn: bytes) -> bytes:
    """The example's log, as the service writes it: made with its first edit, then one batch."""
    store_id = told["header"]["store_id"]
    first, *batch = [(each["lsn"], edit(each)) for each in told["edits"]]
    data = file_header(told) + pack_edits([first])
    data += pack_proof(store_id, offset=len(data), length=len(data))
    data += pack_proof(store_id, offset=len(data), length=len(data)) + pack_edits(batch)
    return data + torn


def archive(told: Value) -> bytes:
    """A described backup, as the server sends it."""
    rows = [(bytes.fromhex(key), bytes.fromhex(value)) for key, value in told["rows"]]
    of_rows = next_rows_part(rows)
    assert of_rows is not None
    parts = [*transaction_parts(told["snapshot"].encode()), of_rows]
    return pack_head() + b"".join(parts) + pack_end(len(parts))


def row(told: Value) -> tuple[bytes, bytes]:
    """Key and value of a described row."""
    makers: Mapping[str, Callable[[Value], tuple[bytes, Stored]]] = {
        "message": _message,
        "payload": _payload,
        "topic": _topic,
        "index": _index,
        "fact": _fact,
        "hold": _hold,
        "position": _position,
    }
    key, made = makers[told["table"]](told)
    return key, made.to_bytes(key)


def run(told: Value) -> tuple[bytes, bytes]:
    """Key and value of a described run."""
    keys, values = zip(*map(row, told["rows"]), strict=True)
    ((key, value),) = join(keys, values)
    return key, value


def _topic_id(told: Value) -> TopicId:
    return TopicId(*told["topic"].split(":"))


def _prefix(told: Value) -> bytes:
    return prefix_of(_topic_id(told), told["generation"])


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _message(told: Value) -> tuple[bytes, MessageRow]:
    brings = told["brings"]
    made = MessageRow(
        tx_pointer=told["pointer"],
        ttl_s=told["ttl_s"],
        attributes=_bytes(told["attributes"]),
        payload=_bytes(told["payload"]) or b"",
        reference=brings
        and PayloadRange(Offset(*brings["first"]), Offset(*brings["last"]), brings["count"]),
    )
    return message_key(_prefix(told), Offset(*told["place"])), made


def _payload(told: Value) -> tuple[bytes, PayloadRow]:
    key = payload_key(_prefix(told), told["pointer"], Offset(*told["place"]))
    attributes = _bytes(told["attributes"])
    return key, PayloadRow(
        payload=told["payload"].encode(), ttl_s=told["ttl_s"], attributes=attributes
    )


def _topic(told: Value) -> tuple[bytes, TopicRecord]:
    floor = MessageId(*told["floor"])
    made = TopicRecord(
        generation=told["generation"], properties=told["properties"], log_start=floor
    )
    return topic_key(_topic_id(told)), made


def _index(told: Value) -> tuple[bytes, IndexedRange]:
    made = IndexedRange(
        pointer=told["pointer"],
        kind=told["kind"].encode(),
        topic=_topic_id(told),
        generation=told["generation"],
        first=Offset(*told["first"]),
        last=Offset(*told["last"]),
        final=told["final"],
        written_ms=told["written_ms"],
    )
    return made.key, made


def _hold(told: Value) -> tuple[bytes, Hold]:
    first = MessageId(*told["first"])
    made = Hold(first=first, set_at_ms=told["set_at_ms"], expires_at_ms=told["expires_at_ms"])
    return named_row_key(HOLDS, _prefix(told), told["name"]), made


def _position(told: Value) -> tuple[bytes, Position]:
    position = MessageId(*told["position"])
    made = Position(position=position, updated_at_ms=told["updated_at_ms"])
    return named_row_key(POSITIONS, _prefix(told), told["name"]), made


def _fact(told: Value) -> tuple[bytes, LastBatch | StoreMetadata]:
    own = {name: value for name, value in told.items() if name not in {"table", "name"}}
    if told["name"] == "mark":
        return LAST_BATCH_KEY, LastBatch(**{**own, "last": Offset(*own["last"])})
    return METADATA_KEY, StoreMetadata(**own)
