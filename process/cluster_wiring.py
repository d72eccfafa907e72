"""Builds the part of the process that makes it a member of a cluster, from the settings."""

import asyncio
import random
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cluster.peers import Peers
from messaging.engines.engine_interface import Engine
from messaging.engines.hbase.engine import HBaseOpener
from messaging.service import MessagingService
from metadata.hbase_store import HBaseMetadataStore, create_table
from metadata.hbase_table import HBaseMetadataSettings
from metadata.store_interface import MetadataError, MetadataStore
from metadata.zookeeper_store import ZooKeeperStore
from process.cluster_member import ClusterMember
from process.runtime import Runtime
from process.settings import Settings, SettingsError
from process.watchdog import watch


def make_member(
    settings: Settings,
    runtime: Runtime,
    messaging: MessagingService,
    tables: Callable[[], Engine],
    *,
    transaction_files: Path,
    lost_leadership: Callable[[], str | None],
    secret: str | None,
) -> ClusterMember:
    """The member that these settings describe. `tables` opens the tables in HBase, and
    `transaction_files` is the shared directory. `secret` proves this server to the others; None:
    there is no access control.

    Raises: SettingsError: the file of authorities is not valid.
    """
    assert isinstance(tables, HBaseOpener), "the settings require HBase"
    in_thread = runtime.threads("watchdog", 1, is_joined=False)
    in_thread(partial(watch, asyncio.get_running_loop(), runtime.die))
    return ClusterMember(
        settings,
        runtime,
        messaging,
        tables=tables,
        peers=Peers(spawn=runtime.spawn, secret=secret, tls=_tls(settings.cluster.tls_ca_file)),
        open_metadata=partial(_open_metadata, settings, runtime),
        transaction_files=transaction_files,
        lost_leadership=lost_leadership,
        chance=random.randrange,
    )


def _tls(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:  # also one of TLS
        raise SettingsError(f"cluster.tls_ca_file: {ca_file} can't be used: {error}") from None


def _open_metadata(settings: Settings, runtime: Runtime) -> MetadataStore:
    """Blocks. Raises: MetadataError."""
    zookeeper = settings.cluster.zookeeper()
    if zookeeper is not None:
        hosts, root = zookeeper
        try:
            return ZooKeeperStore(hosts, root=root, elapsed_s=runtime.elapsed_s)
        except ValueError as error:  # of the addresses, or the path
            raise MetadataError(f"cluster.metadata can't be used: {error}") from None
    hbase = settings.hbase
    place = HBaseMetadataSettings(addresses=hbase.addresses(), prefix=hbase.prefix)
    create_table(place, elapsed_s=runtime.elapsed_s)
    return HBaseMetadataStore(
        place,
        elapsed_s=runtime.elapsed_s,
        in_background=lambda work: runtime.background("metadata-session")(work),
    )
