"""The servers of a cluster: which are alive, which incarnations were given, and which are fenced
(decision 0042).

    ("servers", id)      := JSON {format: 1, server_id, address, incarnation, started_ms, topics,
                                  is_draining, reaches_hbase, reaches_directory}     ephemeral
    ("incarnations", id) := JSON {format: 1, incarnation}
    ("fenced", id)       := JSON {format: 1, incarnation, offset_ms, offset_seq, cell_ms,
                                  longest_transaction_ms}
"""

from dataclasses import asdict, dataclass

from kernel.owner_floor import Floor
from metadata.json_values import Fields, RecordKind
from metadata.topic_owner_records import floor_members, floor_of

TIME_LIMIT_MS = 253_402_300_800_000  # ms; the year 10,000, from which on datetime shows no time
SERVERS, INCARNATIONS, FENCED = "servers", "incarnations", "fenced"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """A live server as it describes itself. `topics` is the number of topics that it owns; a
    draining server takes no more. What it reaches of HBase and of the shared directory is what its
    newest checks found; a server that has just started reaches neither."""

    server_id: str
    address: str
    incarnation: int
    started_ms: int
    topics: int
    is_draining: bool
    reaches_hbase: bool
    reaches_directory: bool


@dataclass(frozen=True, slots=True)
class Fenced:
    """A server is fenced up to and including this incarnation, and wrote nothing above the floor
    with them."""

    incarnation: int
    floor: Floor


def _time_ms(fields: Fields, name: str) -> int:
    found = fields.integer(name)
    if not 0 <= found < TIME_LIMIT_MS:
        raise ValueError(f"{name} is {found}, which is not a time")
    return found


SERVER = RecordKind(
    "entry of a server",
    members=asdict,
    made=lambda fields: ServerInfo(
        server_id=fields.text("server_id"),
        address=fields.text("address"),
        incarnation=fields.integer("incarnation"),
        started_ms=_time_ms(fields, "started_ms"),
        topics=fields.integer("topics"),
        is_draining=fields.flag("is_draining"),
        reaches_hbase=fields.flag("reaches_hbase"),
        reaches_directory=fields.flag("reaches_directory"),
    ),
)
INCARNATION: RecordKind[int] = RecordKind(
    "incarnation counter",
    members=lambda incarnation: {"incarnation": incarnation},
    made=lambda fields: fields.integer("incarnation"),
)
FENCE = RecordKind(
    "fence record",
    members=lambda fenced: {"incarnation": fenced.incarnation, **floor_members(fenced.floor)},
    made=lambda fields: Fenced(fields.integer("incarnation"), floor_of(fields)),
)
