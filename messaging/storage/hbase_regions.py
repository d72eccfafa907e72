"""Flushes and major compactions of tables, region by region: `tuff hbase flush|compact`."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, NamedTuple

from messaging.storage.hbase_rpc import RegionServer
from messaging.storage.seam import StoreError
from tuff.hbase_gateway import Connection, Gateways

LOOK_AGAIN_S = 0.5  # seconds between two looks at what still compacts
QUIET_LOOKS = 3  # a compaction that waited for another one begins a little after that
MOVED = "NotServingRegionException"


class Region(NamedTuple):
    """A region, and where it is served now."""

    table: str
    name: bytes
    host: str
    port: int

    @property
    def encoded_name(self) -> str:
        """The hash that region observers call it by."""
        return encoded_name(self.name)


class Regions:
    """The regions of some tables; for one thread."""

    def __init__(
        self, gateways: Gateways, tables: Collection[str], *, user: str, timeout_s: float
    ) -> None:
        self._gateways = gateways
        self._tables = tables
        self._user = user
        self._timeout_s = timeout_s
        self._servers: dict[tuple[str, int], RegionServer] = {}

    def close(self) -> None:
        for server in self._servers.values():
            server.close()

    def flush(self) -> Iterator[Region]:
        """Let each region write its memory to files; those that did. Raises: StoreError."""
        for region in self._find():
            self._ask(region, RegionServer.flush)
            yield region

    def with_files(self) -> list[Region]:
        """Those that have anything to compact. Raises: StoreError."""
        return [region for region in self._find() if self._ask(region, RegionServer.has_files)]

    def compact(
        self, sleep: Callable[[float], None], only: Collection[Region] | None = None
    ) -> Iterator[Collection[Region]]:
        """Let each region, or `only` these, write all its files anew, as one, and look again and
        again; those that are not done yet. Raises: StoreError."""
        regions = self._find() if only is None else list(only)
        for region in regions:
            self._ask(region, RegionServer.compact)
        quiet = dict.fromkeys(regions, 0)
        while waiting := [region for region in regions if quiet[region] < QUIET_LOOKS]:
            yield waiting
            sleep(LOOK_AGAIN_S)
            for region in waiting:
                is_busy = self._ask(region, RegionServer.is_compacting)
                quiet[region] = 0 if is_busy else quiet[region] + 1

    def _find(self) -> list[Region]:
        return [
            Region(table, info.name, info.serverName.decode(), info.port)
            for table in self._tables
            for info in self._gateways.call(partial(_table_regions, table=table.encode()))
        ]

    def _ask(self, region: Region, what: Callable[[RegionServer, bytes], object]) -> object:
        """Ask the region's server; once more where it has moved since."""
        try:
            return what(self._server(region), region.name)
        except StoreError as error:
            if MOVED not in str(error):
                raise
        now = {each.name: each for each in self._find()}
        if region.name not in now:
            return None  # it was split, and its halves are written anew for that
        return what(self._server(now[region.name]), region.name)

    def _server(self, region: Region) -> RegionServer:
        address = region.host, region.port
        if address not in self._servers:
            self._servers[address] = RegionServer(
                *address, user=self._user, timeout_s=self._timeout_s
            )
        return self._servers[address]


@contextmanager
def regions_of(
    gateways: Gateways, tables: Collection[str], *, user: str, timeout_s: float
) -> Iterator[Regions]:
    """The regions of these tables; their servers are asked through connections that end with it."""
    with closing(Regions(gateways, tables, user=user, timeout_s=timeout_s)) as found:
        yield found


def encoded_name(region: bytes) -> str:
    """The hash at the end of a region's name, which is TABLE,START,TIME.ENCODED. with a point."""
    return region.rstrip(b".").rpartition(b".")[2].decode()


def _table_regions(connection: Connection, *, table: bytes) -> Sequence[Any]:
    found: Sequence[Any] = connection.client.getTableRegions(table)
    return found
