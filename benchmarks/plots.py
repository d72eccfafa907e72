"""Plots of results, as SVG."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.results import Results

# For each plot: prefixes of rows and their labels; the x axis has the number of connections.
CLOSED = {
    "publish": {
        "bare": "bare handler", "tuff publish": "Tuff", "redis xadd": "Redis, always",
        "postgres insert": "PostgreSQL insert", "nats always": "NATS, always",
        "cdap publish": "CDAP",
    },
    "transaction": {
        "tuff transaction": "Tuff", "postgres outbox": "PostgreSQL, state and outbox",
        "cdap+tephra transaction": "Tephra and CDAP",
    },
}  # fmt: skip
COUNTS = (1, 8, 64, 128)
DISTRIBUTIONS = {
    "latency": {
        "tuff open 1000": "Tuff publish, 1,000/s", "tuff open 4000": "Tuff publish, 4,000/s",
        "tuff tail": "Tuff, publish to visible, 1,000/s",
        "redis tail": "Redis always, XADD to visible, 1,000/s",
    },
}  # fmt: skip

# For each program: the label of the x axis, and the figures.
CURVES = {
    "topics": ("topics", {
        "server_cpu_us_per_call": "publish, to each in turn: µs",
        "create_cpu_us": "create: µs",
    }),
    "messages": ("messages stored", {
        "server_cpu_us_per_message": "publish in hundreds: µs of processor per message",
        "read_cpu_us_per_message": "read from the oldest: µs of processor per message",
        "first_ack_s": "start to first acknowledged publish: s",
    }),
    "waiting": ("polls that wait", {
        "server_cpu_ms_per_s": "processor time: ms per s", "kib_per_poll": "memory: KiB per poll",
    }),
    "open": ("transactions in progress", {
        "server_cpu_us_per_call": "start without lists: µs",
        "with_lists_cpu_us": "start with lists: µs",
        "start_and_commit_cpu_us": "start and commit of 10 keys: µs",
    }),
    "invalid": ("invalid transactions", {
        "server_cpu_us_per_call": "start without lists: µs",
        "with_lists_cpu_us": "start with lists: µs",
        "start_and_commit_cpu_us": "start and commit of 10 keys: µs",
        "snapshot_ms": "snapshot: ms",
    }),
    "readers": ("readers at the tail", {
        "server_cpu_us_per_message": "µs of processor per delivered message",
    }),
    "payload": ("bytes of a payload", {
        "server_cpu_us_per_call": "µs of processor per publish", "mib_per_s": "MiB per second",
    }),
}  # fmt: skip


def plot_scale(results: Results, directory: Path) -> None:
    for program, (counted, figures) in CURVES.items():
        if any(row.split()[0] == program for row in results.rows()):
            _curve(results, directory / f"scale-{program}.svg", program, counted, figures)


def plot_full(results: Results, directory: Path) -> None:
    for name, rows in CLOSED.items():
        _closed_loop(results, directory / f"{name}.svg", rows)
    for name, rows in DISTRIBUTIONS.items():
        _distribution(results, directory / f"{name}.svg", rows)


def _curve(
    results: Results, file: Path, program: str, counted: str, figures: dict[str, str]
) -> None:
    lines = {
        label: sorted(
            (int(row.split()[1]), best)
            for row in results.rows()
            if row.split()[0] == program and (best := results.best(row, name)) is not None
        )
        for name, label in figures.items()
    }
    with _plot(file, lines, marker="o") as axes:
        axes.set_xscale("symlog", linthresh=10)  # some begin at 0
        axes.set(yscale="log", xlabel=counted)


def _closed_loop(results: Results, file: Path, rows: dict[str, str]) -> None:
    lines = {
        label: [
            (count, best)
            for count in COUNTS
            if (best := results.best(f"{row} c{count}", "per_s")) is not None
        ]
        for row, label in rows.items()
    }
    with _plot(file, lines, marker="o") as axes:
        axes.set(
            xscale="log", xlabel="connections", ylabel="calls per second, best round",
            ylim=(0, None),
        )  # fmt: skip
        axes.set_xticks(COUNTS, [str(count) for count in COUNTS], minor=False)


def _distribution(results: Results, file: Path, rows: dict[str, str]) -> None:
    """The share of calls that took longer, on two logarithmic axes, which show the tail."""
    lines = {label: _survival(_histogram(results, row)) for row, label in rows.items()}
    with _plot(file, lines) as axes:
        axes.set(
            xscale="log", yscale="log", xlabel="milliseconds from the intended time",
            ylabel="share of calls that took longer",
        )  # fmt: skip


@contextmanager
def _plot(
    file: Path, lines: Mapping[str, Sequence[tuple[float, float]]], marker: str = ""
) -> Iterator[Any]:
    """Draw the lines that have points, with their labels; the block sets the axes."""
    from matplotlib.figure import Figure  # only programs that plot need it

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for label, points in lines.items():
        if points:
            axes.plot(*zip(*points, strict=True), marker=marker, label=label)
    yield axes
    if axes.lines:
        axes.legend()
    figure.savefig(file, metadata={"Date": None})


def _histogram(results: Results, row: str) -> list[tuple[float, float]]:
    """The distribution of the round with the least p99."""
    reports = [one[row] for one in results.rounds if "histogram_us" in one.get(row, {})]
    if not reports:
        return []
    best = min(reports, key=lambda report: float(str(report["p99_us"])))
    points = best["histogram_us"]
    assert isinstance(points, list), points
    return [(float(upper), float(count)) for upper, count in points]


def _survival(histogram: list[tuple[float, float]]) -> list[tuple[float, float]]:
    total = sum(count for _, count in histogram)
    points, passed = [], 0.0
    for upper_us, count in histogram:
        passed += count
        if passed < total:
            points.append((upper_us / 1e3, 1 - passed / total))
    return points
