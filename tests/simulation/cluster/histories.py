"""Histories of a simulated cluster, and how a seed generates one (see `operations.py`)."""

import random

from tests.simulation.operations import History, Operation

STEPS_MIN, STEPS_MAX = 25, 60

ORDINARY = {
    "publish": 26, "read": 10, "read_on": 4, "wait": 16, "start_tx": 9, "commit_tx": 9, "ask_tx": 3,
    "burst": 6, "publish_tx": 9, "read_committed": 7,
}  # fmt: skip
# Each seed uses about half of these.
OCCASIONAL = {
    "kill": 4, "restart": 6, "stop": 3, "pause": 5, "resume": 6, "cut": 5, "heal": 6, "expire": 4,
    "expire_unheard": 3, "move": 6, "drain": 2, "wait_long": 5, "create": 3, "delete": 3,
    "sweep": 1, "snapshot": 2, "settle": 4, "hang": 3, "pause_owner": 5, "kill_owner": 3,
    "depose": 4, "pause_leader": 3, "two_commits": 4, "truncate": 3,
    "read_behind": 4, "there_and_back": 4, "take_during_write": 4,
    "delete_and_move": 3, "abort_tx": 5, "end_anew": 4, "end_while_moving": 3, "read_in_tx": 5,
    "end_during_write": 3, "late_final": 3, "unheard_leader": 3, "outage": 4,
    "depose_during_sync": 3, "read_at_former_owner": 3, "rows_without_an_owner": 3,
    "prepare": 6, "resolve": 4, "set_aside": 6, "late_aside": 5,
}  # fmt: skip
WAITS_MS = (0, 1, 5, 50, 400, 1_000, 1_500)
LONG_WAITS_MS = (3_000, 5_500, 7_000, 12_000)
STEP_COUNTS = (0, 2, 5, 10, 20, 40, 100, 200)  # steps of processes between two operations
SKEWS_MS = (0, 0, 40, -40, 5_000, -5_000)


def history_of(seed: int) -> History:
    """The history of a seed; it is the same until this module changes."""
    chance = random.Random(seed)
    weights = {kind: weight * chance.choice((0.3, 1, 1, 3)) for kind, weight in ORDINARY.items()}
    for kind, weight in OCCASIONAL.items():
        if chance.random() < 0.5:
            weights[kind] = weight * chance.choice((0.5, 1, 2))
    count = chance.randint(STEPS_MIN, STEPS_MAX)
    operations = tuple(
        Operation(kind, *(chance.randrange(1 << 16) for _ in range(3)), chance.randrange(1 << 32))
        for kind in chance.choices(list(weights), list(weights.values()), k=count)
    )
    # So many servers, with clocks so far from the true time, and this share of interleaved calls.
    servers = chance.choice((2, 3, 3))
    skews = ",".join(str(chance.choice(SKEWS_MS)) for _ in range(3))
    rate = chance.choice((0.0, 0.02, 0.05, 0.1))
    faults = chance.choice((0, 0, 1, 1))
    settings = (f"servers={servers}", f"skews={skews}", f"rate={rate}", f"faults={faults}")
    return History(settings, chance.random() < 0.2, operations, small=chance.random() < 0.5)
