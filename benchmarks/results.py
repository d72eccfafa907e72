"""The results of a run: the machine, the rows of each round, and what was left out; their file.

Interference by other programs only makes a figure worse, so the best round is the better estimate
of what a program can do, and the median shows the noise.
"""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.processes import ROOT

RESULTS = ROOT / "benchmarks" / "results"

Report = Mapping[str, object]
Round = Mapping[str, Report]

# Figures of which more is better; of all others, less is better.
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


def write_results(path: Path, results: Results) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(results), indent=1) + "\n")


def read_results(path: Path) -> Results:
    """Raises: OSError, ValueError: it is not a file of `write_results`."""
    text = json.loads(path.read_text("utf-8"))
    return Results(machine=text["machine"], missing=text["missing"], rounds=text["rounds"])


def lean(rounds: Sequence[Round]) -> list[dict[str, dict[str, object]]]:
    """The results without the distributions that are not plotted, in six digits at most."""
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


def parser_of(program: str, description: str | None) -> argparse.ArgumentParser:
    """The options of all programs that write results."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}")
    parser.description = description
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the results")
    parser.add_argument("--dir", type=Path, help="on which disk; default: the temporary directory")
    return parser


def _rounded(value: object) -> object:
    return float(f"{value:.6g}") if isinstance(value, float) else value
