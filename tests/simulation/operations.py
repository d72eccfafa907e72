"""Histories: lists of operations as plain values, and how a seed generates one.

An operation picks its objects by numbers (modulo the number of transactions, and so on), so a
history from which operations were removed is still a history. Each has its own random seed
(`salt`), so removing others does not change it.

Each seed uses only some of the operations and faults, and prefers some of these (swarm testing),
so that it does a few things often. Half of the seeds have a profile for one danger (`profiles.py`).
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.simulation.profiles import PROFILES

STEPS_MIN, STEPS_MAX = 20, 60
PROFILED_SHARE = 0.5  # of all seeds

# Operations of every seed without a profile, with their weights.
ORDINARY = {
    "start": 14, "publish": 8, "publish_tx": 12, "store": 6, "reference": 6, "can_commit": 4,
    "commit": 10, "commit_publish": 6, "abort": 4, "invalidate": 3, "checkpoint": 3, "poll": 12,
    "ask": 4, "tick": 4, "wait": 6,
}  # fmt: skip
# Each such seed uses about half of these. Another order would give every seed another history.
OCCASIONAL = {
    "messages_without_transactions": 2, "reader_behind_failed_sync": 1, "burst": 5,
    "clear_invalid": 4, "set_clock": 4, "commit_bare": 2, "commit_without_changes": 3, "create": 4,
    "delete": 3, "reader_behind_expiring_row": 1, "fail_names": 2, "fail_sync": 4, "fail_write": 2,
    "fill_disk": 2, "can_commit_lost_in_crash": 1, "freeze_clock": 2, "heal": 4, "hang_threads": 5,
    "hang_log": 2, "reader_in_ending_transaction": 1, "set_hold": 4, "release_hold": 1, "kill": 5,
    "ttl_raised_while_rows_expire": 1, "set_ttl": 3, "long_poll": 4, "reads_while_marking": 1,
    "set_position": 4, "delete_position": 1, "late_request": 5, "commit_past_deadline": 1,
    "timeout_while_messages_hang": 2, "end_during_write": 1, "power_cut": 6, "power_cut_soon": 6,
    "read_all": 4, "concurrent_recoveries": 2, "restart": 3, "rollback": 4, "run": 4,
    "snapshot": 3, "start_brief": 4, "start_long": 4, "start_service": 3, "stop_service": 2,
    "offsets_and_splits": 2, "sweep": 6, "truncate": 3, "unsynced_log_name": 1, "wait_long": 3,
    "prepare": 4, "resolve": 3, "commit_together": 4, "delay": 4, "delay_tx": 5,
    "commit_delayed": 3, "cancel_delayed": 2,
}  # fmt: skip

CLOCK_STEPS_MS = (
    -1, 1, -20, 20, -1_000, 1_000, -60_000, 60_000, -86_400_000, 86_400_000, 283_824_000_000,
    -283_824_000_000,
)  # fmt: skip
WAITS_MS = (0, 1, 1, 2, 5, 50, 400, 1_500, 6_000)
LONG_WAITS_MS = (11_000, 31_000, 65_000, 301_000, 700_000)
STEP_COUNTS = (0, 2, 5, 10, 20, 40, 100)  # callbacks and jobs between two operations


class Operation(NamedTuple):
    """One operation. `a`, `b` and `c` pick its objects; `salt` seeds the order of threads."""

    kind: str
    a: int
    b: int
    c: int
    salt: int


@dataclass(frozen=True, slots=True)
class History:
    """Everything that a simulation depends on."""

    settings: tuple[str, ...]
    calm: bool  # the server becomes idle after each operation
    operations: tuple[Operation, ...]
    small: bool = False  # the limits of the components are small (`limits.py`)

    def to_json(self) -> str:
        lines = ",\n".join(f"    {json.dumps(each)}" for each in self.operations)
        return (
            f'{{\n  "settings": {json.dumps(self.settings)},\n  "calm": {json.dumps(self.calm)},\n'
            f'  "small": {json.dumps(self.small)},\n  "operations": [\n{lines}\n  ]\n}}\n'
        )

    @classmethod
    def from_json(cls, text: str) -> "History":
        found = json.loads(text)
        operations = tuple(Operation(*each) for each in found["operations"])
        small = found.get("small", False)
        return cls(tuple(found["settings"]), found["calm"], operations, small)


def history_of(seed: int) -> History:
    """The history of a seed; it is the same until this module or `profiles.py` changes."""
    chance = random.Random(seed)
    profile = chance.choice(PROFILES) if chance.random() < PROFILED_SHARE else None
    weights = _swarm(chance) if profile is None else profile.weights
    kinds, shares = list(weights), list(weights.values())
    count = chance.randint(STEPS_MIN, STEPS_MAX)
    operations = tuple(
        Operation(kind, *(chance.randrange(1 << 16) for _ in range(3)), chance.randrange(1 << 32))
        for kind in chance.choices(kinds, shares, k=count)
    )
    settings = _settings(chance, {} if profile is None else profile.settings)
    return History(settings, chance.random() < 0.2, operations, small=chance.random() < 0.5)


def _swarm(chance: random.Random) -> dict[str, float]:
    weights: dict[str, float] = dict(ORDINARY)
    for kind in sorted(weights):
        weights[kind] *= chance.choice((0.3, 1, 1, 1, 3))
    for kind, weight in OCCASIONAL.items():
        if chance.random() < 0.45:
            weights[kind] = weight * chance.choice((0.5, 1, 2))
    return weights


def _settings(chance: random.Random, fixed: Mapping[str, object]) -> tuple[str, ...]:
    choices: dict[str, tuple[object, ...]] = {
        "messaging.default_ttl": (604_800, 604_800, 604_800, 30, 2),
        "messaging.max_block": (30, 30, 5, 1),
        "messaging.poll_limit_max": (10_000, 10_000, 3),
        "messaging.tail_bytes_max": (16_777_216, 16_777_216, 0, 4_000),
        "tx.default_timeout": (30, 30, 30, 5),
        "tx.long_timeout": (86_400, 60),
        "tx.snapshot_interval": (300, 300, 1),
        "tx.snapshot_retain": (10, 2, 1),
        "tx.outcome_retention": (315_360_000, 315_360_000, 5),
        "tx.prune_invalid": ("false", "true"),
        "server.accept_clock": ("false", "false", "true"),
    }
    picked = {name: chance.choice(values) for name, values in choices.items()}
    return tuple(f"{name}={value}" for name, value in {**picked, **fixed}.items())


def without(history: History, start: int, stop: int) -> History:
    """The history without some of its operations."""
    kept = history.operations[:start] + history.operations[stop:]
    return replace(history, operations=kept)


def shortest(history: History, fails: Callable[[History], bool]) -> History:
    """The history with as few operations as still make it fail (delta debugging)."""
    size = len(history.operations) // 2
    while size:
        start = 0
        while start < len(history.operations):
            shorter = without(history, start, start + size)
            if fails(shorter):
                history = shorter
            else:
                start += size
        size //= 2
    return history
