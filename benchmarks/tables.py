"""Results as Markdown, and as lines for a terminal."""

import sys
from collections.abc import Iterator, Sequence

from benchmarks.results import Results
from benchmarks.targets import FULL, SCALE, SPARK, Target, judged

HEAD = """# The last full run

Written by `make bench`; [performance.md](../../docs/performance.md) says how to read it. Rates are
calls per second in a closed loop; "cN" is N connections. best and median are over {rounds} rounds
in turn. The ratios are of the best rounds: the processor time as a multiple of the floor's, the
rate to that of the limit, and the rate of our own row of the same kind to this one.
"""

# By the prefix of a row: the limit that it can at best reach, and the figure to compare.
LIMITS = (
    ("tuff publish-100", "plyvel batch 100", "messages_per_s"),
    ("cdap publish-100", "plyvel batch 100", "messages_per_s"),
    ("redis xadd-100", "plyvel batch 100", "messages_per_s"),
    ("tuff poll", "plyvel scan", "messages_per_s"),
    ("cdap poll", "plyvel scan", "messages_per_s"),
    ("tuff publish", "bare", "per_s"),
    ("tuff commit", "bare", "per_s"),
    ("tuff transaction", "bare", "per_s"),
    ("tuff run", "bare", "per_s"),
    ("bare", "sink c64", "per_s"),
    ("plyvel batch 1", "disk fdatasync", "per_s"),
    ("cdap", "bare", "per_s"),
    ("postgres", "bare", "per_s"),
    ("redis xadd", "bare", "per_s"),
    ("nats", "bare", "per_s"),
    ("tephra", "bare", "per_s"),
    ("kafka", "bare", "per_s"),
)
# By the prefix of a peer's row: our comparable row. Of a row over sessions: that over HTTP.
OURS = (
    ("cdap publish-100", "tuff publish-100"),
    ("redis xadd-100", "tuff publish-100"),
    ("cdap publish", "tuff publish"),
    ("redis xadd", "tuff publish"),
    ("nats", "tuff publish"),
    ("postgres insert", "tuff publish"),
    ("kafka shipped produce", "tuff publish"),
    ("kafka forced produce", "tuff publish"),
    ("postgres outbox", "tuff transaction"),
    ("cdap+tephra transaction", "tuff transaction"),
    ("kafka shipped transaction", "tuff transaction"),
    ("kafka forced transaction", "tuff transaction"),
    ("tephra", "tuff commit-10"),
    ("cdap poll cold", "tuff poll cold"),
    ("cdap poll tail", "tuff poll tail"),
    ("redis tail", "tuff tail"),
    ("tuff session-publish", "tuff publish"),
    ("tuff session-start-tx", "tuff start-tx"),
    ("tuff session-commit-10", "tuff commit-10"),
    ("tuff session-transaction", "tuff transaction"),
    ("tuff session-run", "tuff run"),
)

SPARK_HEAD = """# The last run of Spark's source and sink

Written by `make bench-spark`; [performance.md](../../docs/performance.md) says what was read and
written. `local[2]`, messages of 256 bytes, every column taken; best and median of {rounds} rounds
in turn. Processor time is that of Spark, of its Python workers and of the server, for each row.
"""

SCALE_HEAD = """# The last run of the scale programs

Written by `make bench-scale`; [performance.md](../../docs/performance.md) says why each curve has
its shape. One round each.
"""


def scale_page(results: Results) -> str:
    """A table for each program: a line for each point, a column for each figure."""
    lines = [
        SCALE_HEAD,
        *_machine(results),
        "",
        "## Targets",
        "",
        *targets_table(SCALE, results),
    ]
    for program in dict.fromkeys(row.split()[0] for row in results.rows()):
        rows = [row for row in results.rows() if row.split()[0] == program]
        figures = [
            name for name in results.rounds[0][rows[0]] if results.best(rows[0], name) is not None
        ]
        lines += ["", f"## {program}", "", f"| {program} | {' | '.join(figures)} |"]
        lines += ["|---|" + "---|" * len(figures)]
        for row in rows:
            points = (_short(results.best(row, name)) for name in figures)
            lines.append(f"| {int(row.split()[1]):,} | {' | '.join(points)} |")
    return "\n".join(lines) + "\n"


def spark_page(results: Results) -> str:
    lines = [SPARK_HEAD.format(rounds=len(results.rounds)), *_machine(results), ""]
    lines += ["## Targets", "", *targets_table(SPARK, results), "", "## Rows", ""]
    lines += ["| row | rows/s, best | median | µs of processor, all | of it the server's |"]
    lines += ["|---|---|---|---|---|"]
    for row in results.rows():
        figures = [_short(results.best(row, "per_s")), _short(results.median(row, "per_s"))]
        costs = ("cpu_us_per_row", "server_cpu_us_per_row")
        figures += [_short(results.best(row, figure)) for figure in costs]
        lines.append(f"| {row} | {' | '.join(figures)} |")
    return "\n".join(lines) + "\n"


def full_page(results: Results) -> str:
    lines = [HEAD.format(rounds=len(results.rounds)), *_machine(results), ""]
    lines += ["## Targets", "", *targets_table(FULL, results), ""]
    lines += ["## Rows", "", *rows_table(results)]
    return "\n".join(lines) + "\n"


def _machine(results: Results) -> Iterator[str]:
    for name, value in results.machine.items():
        if isinstance(value, dict):
            yield from (f"- {program}: {said}" for program, said in value.items())
        else:
            yield f"- {name}: {value}"
    for name, reason in results.missing.items():
        yield f"- **left out: {name}**: {reason}"


def print_targets(targets: Sequence[Target], results: Results) -> None:
    """Print all targets, and on standard error what was left out."""
    print(*targets_table(targets, results), sep="\n")
    for name, reason in results.missing.items():
        print(f"left out: {name}: {reason}", file=sys.stderr)


def targets_table(targets: Sequence[Target], results: Results) -> Iterator[str]:
    yield "| target | limit | best | median | |"
    yield "|---|---|---|---|---|"
    for one in judged(targets, results):
        yield (
            f"| {one.target.what} | {one.target.limit} | {_short(one.best)} | {_short(one.median)} "
            f"| {one.verdict} |"
        )


def rows_table(results: Results) -> Iterator[str]:
    yield (
        "| row | calls/s, best | median | messages/s | p50 ms | p99 ms "
        "| server µs/call | x floor | to its limit | to ours |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in results.rows():
        figures = [
            _short(results.best(row, "per_s")),
            _short(results.median(row, "per_s")),
            _short(results.best(row, "messages_per_s")),
            _short(_scaled(results.best(row, "p50_us"))),
            _short(_scaled(results.best(row, "p99_us"))),
            _short(results.best(row, "server_cpu_us_per_call")),
            _short(to_floor(results, row)),
            _short(to_limit(results, row)),
            _short(to_ours(results, row)),
        ]
        yield f"| {row} | {' | '.join(figures)} |"


def to_floor(results: Results, row: str) -> float | None:
    """The server's least processor time for a call, divided by the floor's for the same call; None
    for rows that the floor does not have."""
    if not row.startswith("tuff "):
        return None
    floor = f"floor {row.removeprefix('tuff ')}"
    figure = "server_cpu_us_per_call"
    return _ratio(results.best(row, figure), results.best(floor, figure))


def to_limit(results: Results, row: str) -> float | None:
    """The row's best rate as a share of its limit; None for a row without a limit."""
    for prefix, limit, figure in LIMITS:
        if row.startswith(prefix) and row != limit:
            bound = f"{limit} {row.split()[-1]}" if limit == "bare" else limit
            return _ratio(results.best(row, figure), results.best(bound, figure))
    return None


def to_ours(results: Results, row: str) -> float | None:
    """Our best rate divided by this row's; None for our rows, and if we have no comparable row."""
    for prefix, ours in OURS:
        if row.startswith(prefix):
            last = row.split()[-1]
            same = f"{ours} {last}" if last.startswith("c") and last[1:].isdigit() else ours
            return _ratio(
                results.best(same, "messages_per_s") or results.best(same, "per_s"),
                results.best(row, "messages_per_s") or results.best(row, "per_s"),
            )
    return None


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _scaled(us: float | None) -> float | None:
    return None if us is None else us / 1e3


def _short(value: float | None) -> str:
    """Three digits are more than these figures deserve."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
