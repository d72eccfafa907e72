"""Profiles: weights of operations that provoke one danger each.

Seeds without a profile use about half of all operations. They rarely reach a state that needs the
same three operations within one sync; a profile of those three reaches it often.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Profile:
    """Operations with their weights, and settings that are not random."""

    about: str
    weights: Mapping[str, float]
    settings: Mapping[str, object] = field(default_factory=dict)


PROFILES = (
    Profile(
        "sink writers with zombie runs, and crashes",
        {
            "begin_epoch": 20, "commit_publish": 6, "commit": 6, "checkpoint": 2, "renew": 3,
            "abort": 2, "invalidate": 1, "kill": 3, "power_cut": 3, "restart": 2, "snapshot": 2,
            "hang_log": 2, "heal": 3, "wait": 3, "wait_long": 1, "clear_invalid": 2, "ask": 2,
            "concurrent_recoveries": 2, "stop_service": 1, "start_service": 1, "lease_renewals": 1,
        },
    ),
    Profile(
        "concurrent ends and can-commits of one transaction, with conflicts",
        {
            "start": 10, "can_commit": 8, "commit": 8, "burst": 10, "abort": 3, "invalidate": 2,
            "ask": 2, "tick": 2, "kill": 1, "restart": 1, "reader_in_ending_transaction": 2,
        },
    ),
    Profile(
        "writes in flight on a hanging disk while their transaction ends",
        {
            "start": 5, "hang_threads": 6, "publish_tx": 10, "store": 2, "reference": 2,
            "commit": 6, "abort": 5, "invalidate": 2, "poll": 8, "long_poll": 2, "heal": 4,
            "rollback": 2, "end_during_write": 2,
        },
    ),
    Profile(
        "can-commits, commits that name no changes, and crashes between them",
        {
            "start": 8, "can_commit": 8, "commit_without_changes": 8, "commit": 7, "kill": 4,
            "power_cut": 6, "restart": 1, "abort": 1, "can_commit_lost_in_crash": 2,
        },
    ),
    Profile(
        "a failing log, and all requests that make it recover",
        {
            "fail_sync": 5, "fail_write": 3, "start": 8, "commit": 8, "publish_tx": 6,
            "commit_publish": 4, "long_poll": 4, "poll": 3, "concurrent_recoveries": 12, "tick": 4,
            "wait": 3, "ask": 3, "heal": 2, "power_cut_soon": 3, "power_cut": 2,
            "power_cut_during_recovery": 3, "reader_behind_failed_sync": 3,
            "reader_in_ending_transaction": 3,
        },
    ),
    Profile(
        "crashes between the rows and the record of a commit with messages",
        {
            "start": 8, "hang_log": 5, "commit_publish": 12, "kill": 5, "power_cut": 3,
            "power_cut_soon": 4, "heal": 4, "late_request": 4, "commit": 4, "poll": 3,
            "commit_past_deadline": 2,
        },
    ),
    Profile(
        "commits of several transactions at once, with equal changes, crashes and failing disks",
        {
            "start": 14, "commit_together": 12, "publish_tx": 3, "can_commit": 3, "commit": 3,
            "abort": 2, "invalidate": 2, "prepare": 2, "resolve": 2, "create": 2, "delete": 2,
            "hang_log": 3, "hang_threads": 3, "heal": 5, "fail_sync": 2, "fail_write": 2, "kill": 2,
            "power_cut": 2, "power_cut_soon": 2, "tick": 2, "wait": 3, "poll": 5, "read_all": 1,
        },
    ),
    Profile(
        "prepared transactions, with equal changes, after crashes and after every limit",
        {
            "start": 8, "start_brief": 3, "start_long": 1, "prepare": 14, "resolve": 5,
            "commit": 8, "abort": 2, "invalidate": 2, "late_request": 2, "burst": 2, "hang_log": 3,
            "heal": 3, "kill": 4, "power_cut": 3, "power_cut_soon": 2, "restart": 2, "tick": 3,
            "wait": 3, "wait_long": 3, "ask": 3, "snapshot": 2, "poll": 3, "fail_sync": 1,
        },
        {"messaging.max_block": 1},
    ),
    Profile(
        "rollbacks before a prepare whose messages are set aside",
        {
            "start": 8, "publish_tx": 10, "rollback": 6, "prepare": 10, "resolve": 8, "wait": 6,
            "wait_long": 3, "tick": 4, "poll": 6, "read_all": 2, "kill": 1, "restart": 1,
        },
        {"messaging.max_block": 1},
    ),
    Profile(
        "starts of a server whose message store can't be opened",
        {
            "start": 6, "start_long": 1, "publish_tx": 8, "store": 1, "reference": 1,
            "hang_threads": 4, "invalidate": 5, "abort": 3, "fail_sync": 7, "fail_write": 2,
            "kill": 6, "power_cut": 2, "start_service": 9, "heal": 2, "tick": 2, "poll": 2,
        },
        {"tx.prune_invalid": "true"},
    ),
    Profile(
        "pointers removed from the invalid list while rows with them wait for the disk",
        {
            "start": 8, "publish_tx": 10, "hang_threads": 5, "invalidate": 8, "abort": 2,
            "poll": 10, "clear_invalid": 8, "tick": 3, "store": 1, "reference": 1, "heal": 2,
            "wait": 2, "reads_while_marking": 5,
        },
    ),
    Profile(
        "messages that a hold keeps beyond their time to live, and crashes",
        {
            "set_hold": 8, "release_hold": 2, "held_reference": 2, "publish": 8, "store": 5,
            "reference": 7, "start": 5, "publish_tx": 3, "commit": 4, "set_ttl": 3, "sweep": 7,
            "truncate": 4, "poll": 6, "read_all": 4, "wait": 6, "wait_long": 4, "set_clock": 1,
            "kill": 2, "power_cut": 3, "power_cut_soon": 2, "fail_sync": 1, "heal": 2, "delete": 1,
            "create": 1, "hang_threads": 2, "restart": 1,
        },
        {"messaging.default_ttl": 30, "tx.long_timeout": 60, "tx.max_timeout": 60},
    ),
    Profile(
        "changes of topics that wait for the disk while others read, sweep and publish",
        {
            "hang_threads": 6, "heal": 6, "set_ttl": 6, "truncate": 4, "set_hold": 5,
            "release_hold": 3, "sweep": 7, "publish": 8, "long_poll": 6, "poll": 6, "wait": 10,
            "read_all": 3, "delete": 2, "create": 3, "fail_write": 2, "start": 2, "publish_tx": 3,
            "store": 3, "reference": 4, "commit": 3, "wait_long": 2, "tick": 2,
            "offsets_and_splits": 2, "kill": 1, "power_cut": 1, "ttl_raised_while_rows_expire": 1,
        },
        {"messaging.default_ttl": 2},
    ),
    Profile(
        "named positions of topics that are deleted and created again, and crashes",
        {
            "set_position": 14, "delete_position": 2, "delete": 3, "create": 5, "publish": 2,
            "poll": 2, "hang_threads": 3, "fail_sync": 2, "fail_write": 1, "heal": 3, "tick": 2,
            "read_all": 2, "kill": 4, "power_cut": 3, "power_cut_soon": 3, "restart": 2,
        },
    ),
    Profile(
        "rollbacks during a commit, and crashes that undo the commit",
        {
            "start": 6, "publish_tx": 10, "hang_log": 4, "commit": 8, "rollback": 10, "abort": 3,
            "invalidate": 2, "kill": 4, "power_cut": 2, "heal": 3, "poll": 2,
        },
    ),
    Profile(
        "transactions that block readers for max_block and longer",
        {
            "start": 5, "start_long": 5, "publish_tx": 10, "store": 1, "reference": 1, "poll": 4,
            "long_poll": 4, "wait": 10, "wait_long": 1, "tick": 4, "read_all": 4, "commit": 2,
            "checkpoint": 2, "kill": 1, "restart": 1, "stop_service": 1, "start_service": 1,
            "set_clock": 1, "freeze_clock": 1, "heal": 1,
        },
        {"messaging.max_block": 1},
    ),
    Profile(
        "readers that continue at an offset on empty topics, and clocks that are set back",
        {
            "publish": 8, "poll": 12, "long_poll": 3, "set_clock": 8, "freeze_clock": 2, "wait": 3,
            "wait_long": 3, "set_ttl": 1, "sweep": 6, "truncate": 2, "delete": 1, "create": 1,
            "restart": 3, "kill": 4, "start": 2, "publish_tx": 3, "commit": 2, "abort": 1,
            "read_all": 3, "set_hold": 1, "set_position": 4, "delete_position": 1,
        },
        {"messaging.default_ttl": 2},
    ),
    Profile(
        "long polls behind rows that expire, or that a hold keeps until its release",
        {
            "start": 4, "publish_tx": 6, "publish": 6, "long_poll": 10, "wait": 12, "set_hold": 5,
            "release_hold": 3, "read_all": 6, "set_ttl": 2, "truncate": 1, "commit": 1, "tick": 1,
            "sweep": 1, "hang_threads": 2, "fail_write": 1, "heal": 2, "restart": 1,
            "reader_behind_expiring_row": 3, "ttl_raised_while_rows_expire": 2,
        },
        {"messaging.default_ttl": 2},
    ),
    Profile(
        "snapshot files on a failing or full disk, and crashes",
        {
            "start": 6, "snapshot": 12, "commit": 8, "can_commit": 3, "abort": 2, "checkpoint": 1,
            "fail_names": 8, "fail_sync": 2, "fail_write": 3, "fill_disk": 3, "heal": 4,
            "hang_log": 3, "kill": 6, "power_cut": 3, "power_cut_soon": 3, "restart": 1, "tick": 2,
            "wait": 3, "ask": 3, "unsynced_log_name": 2, "snapshot_beside_commits": 2,
        },
        {"tx.snapshot_interval": 1, "tx.snapshot_retain": 1},
    ),
    Profile(
        "ends of transactions whose messages may or may not be on a failed disk",
        {
            "start": 6, "publish_tx": 10, "store": 1, "reference": 1, "fail_sync": 6,
            "fail_write": 4, "abort": 6, "invalidate": 2, "commit": 4, "commit_publish": 4,
            "clear_invalid": 2, "tick": 4, "heal": 3, "poll": 5, "wait": 2, "kill": 1, "ask": 2,
        },
    ),
    Profile(
        "delayed messages of several transactions, with crashes and failing disks",
        {
            "start": 12, "delay": 6, "delay_tx": 14, "commit_delayed": 8, "commit": 10, "abort": 3,
            "cancel_delayed": 4, "prepare": 2, "resolve": 2, "wait": 10, "wait_long": 1, "tick": 4,
            "fail_sync": 3, "fail_write": 3, "hang_threads": 2, "heal": 5, "kill": 4, "restart": 2,
            "power_cut": 3, "power_cut_soon": 2, "set_clock": 1, "sweep": 1, "read_all": 4,
        },
    ),
)  # fmt: skip
