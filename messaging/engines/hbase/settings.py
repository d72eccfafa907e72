"""The settings `hbase.*` (protocol §8), for `messaging.store = "hbase"` only."""

from dataclasses import dataclass

from messaging.engines.hbase.layout import SALTS_MAX

# Bytes. HBase's default limit for a cell is 10 MB, and a message is one cell.
REQUEST_BYTES_MAX = 8 << 20
FOREVER_S = (1 << 31) - 1  # seconds; HBase's time to live for rows that never expire
WALS = ("sync", "fsync")  # HBase's default WAL sync; forced to disk


@dataclass(frozen=True, slots=True, kw_only=True)
class HBaseSettings:
    """The `hbase` section; durations are seconds.

    Raises:
        ValueError: a value out of range; one sentence that names the key.
    """

    gateways: tuple[str, ...] = (
        "127.0.0.1:9090",
    )  # Thrift gateways, used in turn for new connections
    admin_gateway: str = "127.0.0.1:9091"  # a Thrift2 gateway: for `tuff hbase`, and wal = fsync
    prefix: str = "tuff_"  # of the tables' names; "ns:" for a namespace
    wal: str = "sync"  # durability of an acknowledged write: sync or fsync
    timeout_s: float = 35.0  # of one call; longer than the 25 s of the gateways
    idle_s: float = 45.0  # older idle connections are replaced; gateways close them after 60 s
    # The jar of the region observer, and the directory that it shares with the server, as region
    # servers reach them: file:///… or hdfs://…; both empty: the server removes expired rows.
    observer_jar: str = ""
    observer_directory: str = ""
    salts: int = 16  # initial regions per table; fixed once the tables exist

    def __post_init__(self) -> None:
        _require("gateways", "one HOST:PORT or more", self.gateways, is_met=bool(self.gateways))
        for name in (*self.gateways, self.admin_gateway):
            _address(name)
        _require("wal", " or ".join(WALS), self.wal, is_met=self.wal in WALS)
        for key in ("timeout", "idle"):
            value = getattr(self, f"{key}_s")
            _require(key, "more than 0 seconds", value, is_met=0 < value < float("inf"))
        both = (self.observer_jar, self.observer_directory)
        _require(
            "observer_directory",
            "named with hbase.observer_jar or not at all, and neither holds a | or a comma",
            self.observer_directory,
            is_met=all(both) == any(both) and not set("|,") & set("".join(both)),
        )
        _require("salts", f"1 to {SALTS_MAX}", self.salts, is_met=1 <= self.salts <= SALTS_MAX)

    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each gateway."""
        return [_address(name) for name in self.gateways]

    def admin_address(self) -> tuple[str, int]:
        """Host and port of the Thrift2 gateway."""
        return _address(self.admin_gateway)


def _address(name: str) -> tuple[str, int]:
    host, colon, port = name.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65_535
    _require("gateways", "HOST:PORT each", name, is_met=bool(colon and host and is_port))
    return host.strip("[]"), int(port)


def _require(key: str, rule: str, value: object, *, is_met: bool) -> None:
    if not is_met:
        raise ValueError(f"hbase.{key} is {rule}, not {value!r}")
