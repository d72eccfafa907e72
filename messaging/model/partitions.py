"""The partitions of a topic, and how a publish is divided among them (protocol §2, §3.1). Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

from messaging.model.partition_of_key import partition_index
from tuff.protocol.errors import InvalidTopicPropertiesError
from tuff.protocol.ids import PARTITION_NUMBER_MAX
from tuff.protocol.requests import PublishEntry, PublishRequest

PARTITIONS_COUNT_MAX = 1_000  # that take messages; one batch creates their rows

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Partitions:
    """The numbers of a topic's partitions, ascending. Retired ones can be read, and take no
    messages. `next_number` is that of the next partition: no number is used twice.

    Raises ValueError for numbers that no topic has.
    """

    active: tuple[int, ...] = (0,)
    retired: tuple[int, ...] = ()
    next_number: int = 1

    def __post_init__(self) -> None:
        is_possible = (
            self.active[:1] == (0,)
            and all(
                one < other
                for numbers in (self.active, self.retired, self.readable)
                for one, other in pairwise(numbers)
            )
            and self.readable[-1] < self.next_number <= PARTITION_NUMBER_MAX + 1
        )
        if not is_possible:
            raise ValueError(f"no topic has {self}")

    @property
    def readable(self) -> tuple[int, ...]:
        """All that can be read, ascending."""
        return tuple(sorted(self.active + self.retired))

    def resized(self, count: int) -> "Partitions":
        """With so many active partitions: new ones, or without those of the highest numbers, which
        are retired.

        Raises:
            InvalidTopicPropertiesError: the topic had too many partitions since its creation.
        """
        added_count = max(0, count - len(self.active))
        if self.next_number + added_count > PARTITION_NUMBER_MAX + 1:
            raise InvalidTopicPropertiesError(
                f"the numbers of partitions end at {PARTITION_NUMBER_MAX}, and none is used again: "
                f"{PARTITION_NUMBER_MAX + 1 - self.next_number} more are possible, not "
                f"{added_count}; delete the topic and create it again"
            )
        stop = self.next_number + added_count
        return Partitions(
            active=(*self.active[:count], *range(self.next_number, stop)),
            retired=tuple(sorted(self.retired + self.active[count:])),
            next_number=stop,
        )

    def without(self, number: int) -> "Partitions":
        """Without a retired partition, whose messages are gone."""
        rest = tuple(each for each in self.retired if each != number)
        return Partitions(self.active, rest, self.next_number)

    def joined_with(self, rows: Mapping[int, bool]) -> "Partitions":
        """With all partitions that have rows of their own; the rows say which are retired. They
        differ if rows were lost, or older versions of them were taken instead."""
        numbers = {*self.readable, *rows}
        retired = {*self.retired, *(number for number, is_retired in rows.items() if is_retired)}
        return Partitions(
            active=tuple(sorted(numbers - retired)),
            retired=tuple(sorted(retired)),
            next_number=max(self.next_number, max(numbers) + 1),
        )

    def to_json(self) -> dict[str, object]:
        """The members of the topic's row (formats §8.4)."""
        return {"partitions": self.active, "retired": self.retired, "next": self.next_number}

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> "Partitions":
        """Raises: ValueError, KeyError."""
        match body["partitions"], body["retired"], body["next"]:
            case [*active], [*retired], int(next_number):
                return cls(_numbers(active), _numbers(retired), next_number)
            case _:
                raise ValueError("its partitions are not arrays of numbers")


ONE_PARTITION = Partitions()


class Part(NamedTuple):
    """The messages of a publish for one partition. `places`: the index of each in the publish, or
    None for all of it."""

    number: int
    entry: PublishEntry | PublishRequest
    places: Sequence[int] | None = None


def divided(
    entry: PublishEntry | PublishRequest, numbers: Sequence[int], *, turn: int
) -> list[Part]:
    """The messages of a publish by partition, ascending. Messages with a key go by the key, the
    others all to the partition whose turn it is."""
    in_turn = numbers[turn % len(numbers)]
    if entry.attributes is None:
        return [Part(in_turn, entry)]
    chosen: dict[int, list[int]] = defaultdict(list)
    for index, attributes in enumerate(entry.attributes):
        if attributes is None or attributes.key is None:
            chosen[in_turn].append(index)
        else:
            chosen[numbers[partition_index(attributes.key, len(numbers))]].append(index)
    if len(chosen) == 1:
        return [Part(next(iter(chosen)), entry)]
    return [
        Part(number, _selected(entry, places), places) for number, places in sorted(chosen.items())
    ]


def _selected(entry: PublishEntry | PublishRequest, indexes: Sequence[int]) -> PublishRequest:
    return PublishRequest(
        pointer=entry.pointer,
        payloads=[entry.payloads[index] for index in indexes],
        ttls_s=selected(entry.ttls_s, indexes),
        attributes=selected(entry.attributes, indexes),
    )


def selected(values: Sequence[T] | None, places: Sequence[int] | None) -> Sequence[T] | None:
    """The values at these places; `places` None: all of them. None stays None."""
    if values is None or places is None:
        return values
    return [values[place] for place in places]


def _numbers(values: Sequence[object]) -> tuple[int, ...]:
    numbers = tuple(each for each in values if type(each) is int)
    if len(numbers) != len(values):
        raise ValueError("the number of a partition is not a number")
    return numbers
