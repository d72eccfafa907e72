"""Floors: the least that a ratio to the bare handler may be before somebody has to look. Pure."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Round = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """`figure` of `name` as a share of the bare handler's; more is better."""

    name: str
    figure: str
    floor: float

    def ratio(self, rounds: Sequence[Round]) -> float | None:
        """Our best figure beside the bare handler's best; None where the run was left out.

        What else runs on the machine makes both worse, and neither better. Of times, the bare
        handler's is divided by ours, so that more is better there too.
        """
        ours = [_value(found[self.name], self.figure) for found in rounds if self.name in found]
        bare = [_value(found["bare"], self.figure) for found in rounds]
        if not ours:
            return None
        return min(bare) / min(ours) if "_us" in self.figure else max(ours) / max(bare)


def read_floors(path: Path) -> list[Floor]:
    """Raises: OSError, tomllib.TOMLDecodeError."""
    tables = tomllib.loads(path.read_text("utf-8"))
    return [
        Floor(name=name, figure=figure, floor=float(floor))
        for name, figures in tables.items()
        for figure, floor in figures.items()
    ]


def broken(floors: Sequence[Floor], rounds: Sequence[Round]) -> Iterator[str]:
    """A sentence for each floor that not even the best rounds reach."""
    for floor in floors:
        ratio = floor.ratio(rounds)
        if ratio is not None and ratio < floor.floor:
            yield (
                f"{floor.name}: {floor.figure} is {ratio:.3f} of the bare handler's "
                f"(the best of {len(rounds)} rounds each), and the floor is {floor.floor}"
            )


def _value(report: Mapping[str, object], figure: str) -> float:
    value = report[figure]
    assert isinstance(value, int | float), value
    return float(value)
