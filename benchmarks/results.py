"""What was measured, as one value: machine, rows of each round, what could not be had. Pure.

Interference by other programs only makes a figure worse, so the best round is the better estimate
of what a program can do, and the median shows the noise.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

Report = Mapping[str, object]
Round = Mapping[str, Report]

# More of these is better; of everything else, less.
RATES = frozenset({"per_s", "messages_per_s"})
# Only these rows keep their whole distribution; the others keep quantiles.
DISTRIBUTIONS = ("open", "tail", "publish c64", "insert c64", "xadd c64", "transaction c64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Rows by name, a mapping for each round."""

    machine: Mapping[str, object]
    missing: Mapping[str, str]  # subject and round to the reason why it was left out
    rounds: Sequence[Round]

    def values(self, row: str, figure: str) -> list[float]:
        """The figure of every round that has it."""
        found = [one[row].get(figure) for one in self.rounds if row in one]
        return [float(value) for value in found if isinstance(value, int | float)]

    def best(self, row: str, figure: str) -> float | None:
        """None where no round has the row."""
        values = self.values(row, figure)
        if not values:
            return None
        return max(values) if figure in RATES else min(values)

    def median(self, row: str, figure: str) -> float | None:
        values = self.values(row, figure)
        return statistics.median(values) if values else None

    def rows(self) -> list[str]:
        """Every row that some round has, in the order of measurement."""
        return list(dict.fromkeys(name for one in self.rounds for name in one))

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def read_results(path: Path) -> Results:
    """Raises: OSError, ValueError: it is no file that `as_json` made."""
    text = json.loads(path.read_text("utf-8"))
    return Results(machine=text["machine"], missing=text["missing"], rounds=text["rounds"])


def lean(rounds: Sequence[Round]) -> list[dict[str, dict[str, object]]]:
    """The same without the distributions that nobody plots, in six digits at most."""
    return [
        {
            row: {
                figure: _rounded(value)
                for figure, value in report.items()
                if figure != "histogram_us" or any(part in row for part in DISTRIBUTIONS)
            }
            for row, report in one.items()
        }
        for one in rounds
    ]


def _rounded(value: object) -> object:
    return float(f"{value:.6g}") if isinstance(value, float) else value
