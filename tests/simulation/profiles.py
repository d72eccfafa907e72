"""What some histories are about: a few operations that have to meet, and nothing else.

Most seeds know half of everything and find what nobody thought of. A danger that needs the same
three things within one sync is met by few of these, and by many that do only those three.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Profile:
    """Operations with their weights, and the settings that are not left to chance."""

    about: str
    weights: Mapping[str, float]
    settings: Mapping[str, object] = field(default_factory=dict)


PROFILES = (
    Profile(
        "writers of numbered batches, with zombies among their runs, and crashes between",
        {
            "epoch": 20, "commit_publish": 6, "commit": 6, "checkpoint": 2, "renew": 3, "abort": 2,
            "invalidate": 1, "kill": 3, "power": 3, "restart": 2, "snapshot": 2, "hold_log": 2,
            "heal": 3, "wait": 3, "wait_long": 1, "clear_invalid": 2, "ask": 2, "recoveries": 2,
            "stop_service": 1, "start_service": 1, "renewed": 1,
        },
    ),
    Profile(
        "several endings and can-commits of one transaction at once, with conflicts",
        {
            "start": 10, "can_commit": 8, "commit": 8, "burst": 10, "abort": 3, "invalidate": 2,
            "ask": 2, "tick": 2, "kill": 1, "restart": 1, "inside": 2,
        },
    ),
    Profile(
        "writes that are under way, on a disk that stands still, when their transaction ends",
        {
            "start": 5, "hold": 6, "publish_tx": 10, "store": 2, "reference": 2, "commit": 6,
            "abort": 5, "invalidate": 2, "poll": 8, "long_poll": 2, "heal": 4, "rollback": 2,
            "overtaken": 2,
        },
    ),
    Profile(
        "changes that a can-commit named, commits that leave it to them, and crashes between",
        {
            "start": 8, "can_commit": 8, "commit_noted": 8, "commit": 7, "kill": 4, "power": 6,
            "restart": 1, "abort": 1, "forgotten": 2,
        },
    ),
    Profile(
        "logs that fail, and everybody who lets them recover",
        {
            "fail_sync": 5, "fail_write": 3, "start": 8, "commit": 8, "publish_tx": 6,
            "commit_publish": 4, "long_poll": 4, "poll": 3, "recoveries": 12, "tick": 4, "wait": 3,
            "ask": 3, "heal": 2, "power_soon": 3, "power": 2,
            "unproven": 3, "asleep": 3, "inside": 3,
        },
    ),
    Profile(
        "commits with messages that are cut off between their rows and their record",
        {
            "start": 8, "hold_log": 5, "commit_publish": 12, "kill": 5, "power": 3,
            "power_soon": 4, "heal": 4, "old": 4, "commit": 4, "poll": 3, "outlived": 2,
        },
    ),
    Profile(
        "starts of a server whose message store can't be opened",
        {
            "start": 6, "start_long": 1, "publish_tx": 8, "store": 1, "reference": 1, "hold": 4,
            "invalidate": 5, "abort": 3, "fail_sync": 7, "fail_write": 2, "kill": 6, "power": 2,
            "start_service": 9, "heal": 2, "tick": 2, "poll": 2,
        },
        {"tx.prune_invalid": "true"},
    ),
    Profile(
        "pointers that are taken off the invalid list while rows that carry them wait for the disk",
        {
            "start": 8, "publish_tx": 10, "hold": 5, "invalidate": 8, "abort": 2, "poll": 10,
            "clear_invalid": 8, "tick": 3, "store": 1, "reference": 1, "heal": 2, "wait": 2,
            "marked": 5,
        },
    ),
    Profile(
        "messages that a hold keeps longer than their topic does, with crashes between",
        {
            "keep": 8, "keep_no_more": 2, "kept": 2, "publish": 8, "store": 5, "reference": 7,
            "start": 5,
            "publish_tx": 3, "commit": 4, "lifetime": 3, "sweep": 7, "truncate": 4, "poll": 6,
            "read_all": 4, "wait": 6, "wait_long": 4, "clock": 1, "kill": 2, "power": 3,
            "power_soon": 2, "fail_sync": 1, "heal": 2, "delete": 1, "create": 1, "hold": 2,
            "restart": 1,
        },
        {"messaging.default_ttl": 30, "tx.long_timeout": 60, "tx.max_timeout": 60},
    ),
    Profile(
        "changes of topics that wait for the disk while others read, sweep and publish",
        {
            "hold": 6, "heal": 6, "lifetime": 6, "truncate": 4, "keep": 5, "keep_no_more": 3,
            "sweep": 7, "publish": 8, "long_poll": 6, "poll": 6, "wait": 10, "read_all": 3,
            "delete": 2, "create": 3, "fail_write": 2, "start": 2, "publish_tx": 3, "store": 3,
            "reference": 4, "commit": 3, "wait_long": 2, "tick": 2, "surveyed": 2, "kill": 1,
            "power": 1, "lengthened": 1,
        },
        {"messaging.default_ttl": 2},
    ),
    Profile(
        "named positions of topics that are deleted and made again, and crashes between",
        {
            "note": 14, "note_no_more": 2, "delete": 3, "create": 5, "publish": 2, "poll": 2,
            "hold": 3, "fail_sync": 2, "fail_write": 1, "heal": 3, "tick": 2, "read_all": 2,
            "kill": 4, "power": 3, "power_soon": 3, "restart": 2,
        },
    ),
    Profile(
        "rollbacks of what is about to commit, and crashes that undo the commit",
        {
            "start": 6, "publish_tx": 10, "hold_log": 4, "commit": 8, "rollback": 10, "abort": 3,
            "invalidate": 2, "kill": 4, "power": 2, "heal": 3, "poll": 2,
        },
    ),
    Profile(
        "transactions that hold readers back for as long as they may, and longer",
        {
            "start": 5, "start_long": 5, "publish_tx": 10, "store": 1, "reference": 1, "poll": 4,
            "long_poll": 4, "wait": 10, "wait_long": 1, "tick": 4, "read_all": 4, "commit": 2,
            "checkpoint": 2, "kill": 1, "restart": 1, "stop_service": 1, "start_service": 1,
            "clock": 1, "freeze": 1, "heal": 1,
        },
        {"messaging.max_block": 1},
    ),
    Profile(
        "readers who go on from where they were, on topics that are empty and clocks that go back",
        {
            "publish": 8, "poll": 12, "long_poll": 3, "clock": 8, "freeze": 2, "wait": 3,
            "wait_long": 3, "lifetime": 1, "sweep": 6, "truncate": 2, "delete": 1, "create": 1,
            "restart": 3, "kill": 4, "start": 2, "publish_tx": 3, "commit": 2, "abort": 1,
            "read_all": 3, "keep": 1, "note": 4, "note_no_more": 1,
        },
        {"messaging.default_ttl": 2},
    ),
    Profile(
        "readers who sleep behind rows that expire, or that a hold keeps until it is let go",
        {
            "start": 4, "publish_tx": 6, "publish": 6, "long_poll": 10, "wait": 12, "keep": 5,
            "keep_no_more": 3, "read_all": 6, "lifetime": 2, "truncate": 1, "commit": 1, "tick": 1,
            "sweep": 1, "hold": 2, "fail_write": 1, "heal": 2, "restart": 1,
            "expiring": 3, "lengthened": 2,
        },
        {"messaging.default_ttl": 2},
    ),
    Profile(
        "snapshots of transactions on a disk that fails or is full, and crashes after them",
        {
            "start": 6, "snapshot": 12, "commit": 8, "can_commit": 3, "abort": 2, "checkpoint": 1,
            "fail_names": 8, "fail_sync": 2, "fail_write": 3, "fill": 3, "heal": 4, "hold_log": 3,
            "kill": 6, "power": 3, "power_soon": 3, "restart": 1, "tick": 2, "wait": 3, "ask": 3,
            "unnamed": 2, "beside": 2,
        },
        {"tx.snapshot_interval": 1, "tx.snapshot_retain": 1},
    ),
    Profile(
        "endings of transactions whose messages may lie on a disk that failed, or not",
        {
            "start": 6, "publish_tx": 10, "store": 1, "reference": 1, "fail_sync": 6,
            "fail_write": 4, "abort": 6, "invalidate": 2, "commit": 4, "commit_publish": 4,
            "clear_invalid": 2, "tick": 4, "heal": 3, "poll": 5, "wait": 2, "kill": 1, "ask": 2,
        },
    ),
)  # fmt: skip
