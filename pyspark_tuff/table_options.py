"""What a user may set on a read of tables, checked once, as frozen values (docs/spark.md)."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_tuff.options import Given, OptionError

DEFAULT_PREFIX = "tuff_"  # that of the server's `hbase.prefix`
TABLES = ("message", "payload", "metadata")
TABLE_OPTIONS = ("path", "gateways", "prefix", "tables")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Where rows are, and of which tables. `path` is a LevelDB directory; without it the tables are
    in HBase, behind `gateways`."""

    path: str | None
    gateways: tuple[str, ...]
    prefix: str
    tables: tuple[str, ...]


def table_options(given: Mapping[str, str]) -> TableOptions:
    """Raises: OptionError: one of them can't be, or is not known here."""
    options = Given(given, TABLE_OPTIONS)
    path, gateways = options.text("path"), _names(options, "gateways")
    if (path is None) != bool(gateways):
        raise OptionError(
            "give path (a copy of a server's data/messages) or gateways (HOST:PORT, with commas, "
            "of HBase), one of them"
        )
    if path is not None and options.text("prefix") is not None:
        raise OptionError("prefix is of tables in HBase; a path has none")
    tables = _names(options, "tables") or TABLES
    for name in tables:
        if name not in TABLES:
            raise OptionError(f"tables has {', '.join(TABLES)}, with commas, not {name!r}")
    return TableOptions(
        path=path,
        gateways=gateways,
        prefix=options.text("prefix") or DEFAULT_PREFIX,
        tables=tables,
    )


def _names(options: Given, name: str) -> tuple[str, ...]:
    value = options.text(name) or ""
    return tuple(dict.fromkeys(each.strip() for each in value.split(",") if each.strip()))
