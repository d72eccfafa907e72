"""The settings `cluster.*` (protocol §8), for servers that share one namespace of topics."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from metadata.server_ids import check_server_id
from metadata.store_interface import SESSION_S_MAX

SESSION_S_MIN = 1.0  # seconds; a shorter pause of a healthy process must not end its session

_ZOOKEEPER = re.compile(r"zookeeper://([^/@\s]+)(/[^\s]*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """The `cluster` section; durations are seconds. Without a `server_id` the server is alone.

    Raises:
        ValueError: a value out of range; one sentence that names the key.
    """

    server_id: str = ""  # names this server in the cluster; unique, and the same after a restart
    # The URL at which the other servers reach this one; empty: http://HOST:PORT of its listener.
    address: str = ""
    # Where the metadata are: zookeeper://HOST:PORT,HOST:PORT/ROOT, or hbase for a table beside the
    # messages.
    metadata: str = "hbase"
    session_timeout_s: float = 6.0  # a server that is not heard of for so long is replaced
    # Where all servers find the log and the snapshot files of transactions.
    transactions_directory: str = ""
    # The secret by which servers prove themselves to each other; empty: there is no access file.
    secret_file: str = ""
    tls_ca_file: str = ""  # the authorities of the servers' certificates; empty: the machine's
    rebalance_interval_s: float = 60.0  # between two looks whether this server has too many topics

    def __post_init__(self) -> None:
        if self.server_id:
            check_server_id(self.server_id)
        elif others := self._given():
            raise ValueError(
                f"cluster.server_id is missing, and cluster.{others[0]} is set; name this server, "
                "or remove the section for a server by itself"
            )
        _require("address", "a URL like http://10.0.0.5:7411", self.address, _is_url(self.address))
        _require(
            "metadata",
            "hbase, or zookeeper://HOST:PORT,HOST:PORT/ROOT",
            self.metadata,
            self.metadata == "hbase" or _ZOOKEEPER.fullmatch(self.metadata) is not None,
        )
        _require(
            "session_timeout",
            f"{SESSION_S_MIN:g} to {SESSION_S_MAX:g} seconds",
            self.session_timeout_s,
            SESSION_S_MIN <= self.session_timeout_s <= SESSION_S_MAX,
        )
        _require(
            "rebalance_interval",
            "a number of seconds, more than 0",
            self.rebalance_interval_s,
            0 < self.rebalance_interval_s < float("inf"),
        )

    def _given(self) -> list[str]:
        """The settings, other than the id, that are not the default."""
        return [
            key
            for key, value in (
                ("metadata", self.metadata != "hbase"),
                ("address", self.address),
                ("transactions_directory", self.transactions_directory),
            )
            if value
        ]

    @property
    def is_member(self) -> bool:
        """Whether the server is one of a cluster."""
        return bool(self.server_id)

    def hosts(self) -> tuple[str, ...]:
        """The host that requests of the other servers name; none without an `address`."""
        host = urlsplit(self.address).hostname
        return () if host is None else (host,)

    def zookeeper(self) -> tuple[str, str] | None:
        """The hosts and the root path; None if the metadata are in HBase."""
        found = _ZOOKEEPER.fullmatch(self.metadata)
        return None if found is None else (found[1], found[2] or "/tuff")


def _is_url(address: str) -> bool:
    if not address:
        return True
    try:
        parts = urlsplit(address)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _require(key: str, rule: str, value: object, is_met: bool) -> None:  # noqa: FBT001 - a condition
    if not is_met:
        raise ValueError(f"cluster.{key} is {rule}, not {value!r}")
