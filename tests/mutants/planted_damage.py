"""Bugs to plant in what is told of damage, and in what a sweep, a poll and a gate do beside others."""

from collections.abc import Sequence

from tests.mutants.planted import Mutant

_BLOCKS = "tests/messaging/test_damaged_blocks.py"
_FLIPS = f"{_BLOCKS}::test_a_flipped_bit_is_told_and_hides_nothing_else"

DAMAGE_MUTANTS: Sequence[Mutant] = (
    Mutant(
        "a damaged block is trusted although nothing in it shows what is damaged",
        "messaging/storage/leveldb_holes.py",
        "    return walk.ended() if is_accounted_for else [whole]\n",
        "    return walk.ended()\n",
        (
            "tests/messaging/test_damaged_entries.py::test_a_block_accounts_for_its_damage_or_is_a_hole[nothing shows what is damaged]",
        ),
    ),
    Mutant(
        "a row that LevelDB leaves out is whole",
        "messaging/storage/leveldb_holes.py",
        "        is_hidden = entry.sequence > last_sequence or not (entry.is_value or is_deletion)\n",
        "        is_hidden = False\n",
        (
            "tests/messaging/test_damaged_entries.py::test_a_block_accounts_for_its_damage_or_is_a_hole[a number that no row has]",
        ),
    ),
    Mutant(
        "a table that was looked at once is trusted for ever",
        "messaging/storage/leveldb_holes.py",
        "        if known is None or known.checksum != checksum:\n",
        "        if known is None:\n",
        (f"{_BLOCKS}::test_damage_that_comes_while_the_store_is_open_is_told_too",),
    ),
    Mutant(
        "a table that was compacted away is damage",
        "messaging/storage/leveldb_holes.py",
        "            if number not in self._manifest().tables:\n",
        "            if False:\n",
        (f"{_BLOCKS}::test_a_table_that_was_compacted_meanwhile_is_no_hole",),
    ),
    Mutant(
        "a damaged end of a LevelDB store is the end of its rows",
        "tuff/disk/leveldb_scan.py",
        "    return _rows(rows, start, stop)\n",
        "    return source.iterator(start=start, stop=stop, verify_checksums=is_verified)\n",
        (
            f"{_BLOCKS}::test_a_damaged_end_of_the_store_is_not_the_end_of_the_rows",
            "tests/table/test_damage.py::test_a_damaged_end_of_the_table_is_not_the_end_of_its_rows",
        ),
    ),
    Mutant(
        "a page that ends before damage leads back into itself",
        "messaging/reader.py",
        "            self._pass(self._taken.columns.last_id)\n",
        "            pass\n",
        (_FLIPS,),
    ),
    Mutant(
        "a range of which all rows are hidden has no splits",
        "messaging/splits.py",
        "            deque(records, maxlen=0)",
        "            deque([], maxlen=0)",
        (f"{_BLOCKS}::test_a_range_in_a_hole_is_a_split_whose_reader_is_told",),
    ),
    Mutant(
        "a patrol that begins inside a publish drops its later rows alone",
        "messaging/sweep.py",
        "        case Fate.DROP if may_be_cut and row.ttl_s is not None:\n",
        "        case Fate.DROP if False:\n",
        (
            "tests/messaging/test_sweep.py::test_a_patrol_that_begins_in_the_middle_of_a_publish_tears_it_not",
        ),
    ),
    Mutant(
        "a sleeper stays behind what is there again",
        "messaging/polls.py",
        "    return replace(query, start=asked) if query.live_from < live_from else query\n",
        "    return query\n",
        (
            "tests/messaging/test_sleeping_readers.py::test_what_had_expired_and_is_kept_longer_wakes_who_sleeps_at_the_beginning",
        ),
    ),
    Mutant(
        "whoever passes a gate takes a turn at it",
        "tx/gates.py",
        "            await gate.reopened.wait()\n",
        "            async with self.ending(transaction_id):\n                pass\n",
        ("tests/tx/test_passing_gates.py::test_who_waits_for_a_commit_that_is_refused_goes_on[2]",),
    ),
)
