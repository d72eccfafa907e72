"""Builds the part of the process that makes it a member of a cluster, from the settings."""

import asyncio
import random
import secrets
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cluster.peers import Peers
from cluster.reach import Reach
from messaging.engines.engine_interface import Engine
from messaging.engines.hbase.engine import HBaseOpener
from messaging.engines.hbase.settings import HBaseSettings
from messaging.service import MessagingService
from metadata.hbase_store import HBaseMetadataStore, create_table
from metadata.hbase_table import HBaseMetadataSettings
from metadata.store_interface import MetadataError, MetadataStore
from metadata.zookeeper_store import ZooKeeperStore
from process.cluster_member import METADATA_THREADS, ClusterMember
from process.runtime import Runtime
from process.settings import Settings, SettingsError
from process.watchdog import watch
from tx.file_headers import stored_id


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
        settings.cluster,
        tables=tables,
        messages=f"hbase {settings.hbase.prefix}",
        messaging=messaging,
        peers=Peers(spawn=runtime.spawn, secret=secret, tls=_tls(settings.cluster.tls_ca_file)),
        open_metadata=partial(_open_metadata, settings, runtime),
        new_cluster_id=partial(secrets.token_hex, 16),
        now_ms=runtime.clock.now_ms,
        elapsed_s=runtime.elapsed_s,
        in_thread=runtime.threads("metadata", METADATA_THREADS),
        spawn=runtime.spawn,
        reach=make_reach(runtime, messaging, transaction_files),
        lost_leadership=lost_leadership,
        die=runtime.die,
        chance=random.randrange,
    )


def _tls(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:  # also one of TLS
        raise SettingsError(f"cluster.tls_ca_file: {ca_file} can't be used: {error}") from None


def make_reach(runtime: Runtime, messaging: MessagingService, transaction_files: Path) -> Reach:
    """What this server reaches, by the checks of the ownership of its store (0038) and by reads of
    the shared directory."""
    ownership = messaging.holder_check
    assert ownership is not None, "the settings require HBase"
    return Reach(
        reaches_hbase=lambda: ownership.lapse is None,
        read_store_id=partial(stored_id, transaction_files),
        # The process waits for no read when it ends.
        in_thread=runtime.threads("directory-check", 1, is_joined=False),
        spawn=runtime.spawn,
        elapsed_s=runtime.elapsed_s,
    )


def _open_metadata(settings: Settings, runtime: Runtime) -> MetadataStore:
    """Blocks. Raises: MetadataError."""
    zookeeper = settings.cluster.zookeeper()
    if zookeeper is not None:
        hosts, root = zookeeper
        try:
            return ZooKeeperStore(hosts, root=root, elapsed_s=runtime.elapsed_s)
        except ValueError as error:  # of the addresses, or the path
            raise MetadataError(f"cluster.metadata can't be used: {error}") from None
    place = _hbase_place(settings.hbase)
    create_table(place, elapsed_s=runtime.elapsed_s)
    return HBaseMetadataStore(
        place,
        elapsed_s=runtime.elapsed_s,
        in_background=lambda work: runtime.background("metadata-session")(work),
    )


def _hbase_place(settings: HBaseSettings) -> HBaseMetadataSettings:
    return HBaseMetadataSettings(addresses=settings.addresses(), prefix=settings.prefix)
