"""Settings: defaults, then the file, then the flags (protocol §8).

Each section is a frozen dataclass; a key is the name of a field, less the unit `_s`. A default
stands in its dataclass and nowhere else. Durations are seconds and may be fractions.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from math import ceil
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from cluster.settings import ClusterSettings
from messaging.engines.hbase.settings import FOREVER_S, REQUEST_BYTES_MAX, HBaseSettings
from messaging.log.topics import TTL_S_MAX
from messaging.settings import GroupSettings, MessagingSettings
from process.allowed_hosts import bare_host
from process.logging_setup import FORMATS, LEVELS
from tuff.protocol.errors import InvalidNameError
from tuff.protocol.ids import TopicId, topic_id
from tx.settings import TransactionSettings

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})  # a listener's, and nobody can connect to it


_LOSS = re.compile(r"[0-9a-f]{32}:[0-9]{1,19}")


class SettingsError(Exception):
    """A setting is unknown or its value is invalid; the message is one sentence that names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The `server` section."""

    host: str = "127.0.0.1"
    port: int = 7411  # 0 takes a free one
    unix_socket: str = ""  # the path of a Unix socket to listen on too; empty: none
    allow_remote: bool = False  # listen beyond loopback without an access file or without TLS
    access_file: str = ""  # the principals and their rights; empty: every client may do everything
    audit_topic: str = ""  # namespace:topic that records acts of principals; empty: none
    audit_ttl: int = 7_776_000  # seconds that its messages live, 90 days
    # The certificate of the server with its chain, and its key, in PEM; empty: no TLS.
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    # The authorities of client certificates, in PEM; empty: no client is asked for one.
    tls_client_ca_file: str = ""
    allowed_hosts: tuple[str, ...] = ()  # what requests may name as Host, besides its own
    max_request_bytes: int = 16_777_216  # bytes of one request's body
    max_connections: int = 20_000  # open connections; one more is refused
    max_pending_requests: int = 20_000  # requests under way, less waiting polls; one more is 429
    max_clock_jump_s: float = (
        2_592_000.0  # a start so far ahead of the last recorded time is not trusted
    )
    accept_clock: bool = False  # trust the clock of this start in any case
    # The loss of messages that a start accepts, as the refused start named it; empty: none.
    accept_lost_messages: str = ""
    otlp_endpoint: str = ""  # URL of an OpenTelemetry collector for spans of requests; empty: none
    log_level: str = "info"  # the least severe level that is logged
    log_format: str = "text"  # or json: one object on each line

    def __post_init__(self) -> None:
        _require(0 <= self.port <= 65_535, "server.port is 0 to 65535", self.port)
        for name in ("max_request_bytes", "max_connections", "max_pending_requests"):
            value = getattr(self, name)
            _require(value >= 1, f"server.{name} is 1 or more", value)
        for host in self.allowed_hosts:
            _require(
                bare_host(host) is not None,
                "server.allowed_hosts has names and addresses of hosts, without a scheme, a port "
                "or a wildcard",
                host,
            )
        # Settings are logged and shown, so none of them may be a secret.
        if "@" in self.otlp_endpoint:
            raise ValueError(
                "server.otlp_endpoint is a URL without a user and a password; put what the "
                "collector asks for into the environment variable OTEL_EXPORTER_OTLP_HEADERS"
            )
        _require(
            not self.otlp_endpoint or self.otlp_endpoint.startswith(("http://", "https://")),
            "server.otlp_endpoint is a URL, such as http://127.0.0.1:4318",
            self.otlp_endpoint,
        )
        _require(
            self.log_level in LEVELS, f"server.log_level is {', '.join(LEVELS)}", self.log_level
        )
        _require(
            self.log_format in FORMATS,
            f"server.log_format is {', '.join(FORMATS)}",
            self.log_format,
        )
        _require(
            0 < self.max_clock_jump_s < float("inf"),
            "server.max_clock_jump is a number of seconds, more than 0",
            self.max_clock_jump_s,
        )
        self._require_tls_files()
        self._require_audit_topic()
        self._require_name_of_loss()
        _require(
            self.allow_remote or self.host in LOOPBACK_HOSTS or self.is_protected,
            "server.host is a loopback address, unless the server has an access file "
            "(server.access_file) and TLS (server.tls_certificate_file), or a proxy in front of it "
            "has to provide them and server.allow_remote is true",
            self.host,
        )

    def _require_tls_files(self) -> None:
        _require(
            bool(self.tls_certificate_file) == bool(self.tls_key_file),
            "server.tls_key_file is set together with server.tls_certificate_file",
            self.tls_key_file,
        )
        _require(
            self.has_tls or not self.tls_client_ca_file,
            "server.tls_client_ca_file is set only with server.tls_certificate_file",
            self.tls_client_ca_file,
        )

    def _require_audit_topic(self) -> None:
        _require(
            bool(self.access_file) or not self.audit_topic,
            "server.audit_topic is set only with server.access_file, which names the principals",
            self.audit_topic,
        )
        try:
            is_topic = self.audit_topic.count(":") < 2 and self.audit_topic_id() is not None
        except InvalidNameError:
            is_topic = False
        _require(
            is_topic or not self.audit_topic,
            "server.audit_topic is a namespace and a topic, such as system:audit",
            self.audit_topic,
        )

    def _require_name_of_loss(self) -> None:
        _require(
            not self.accept_lost_messages or _LOSS.fullmatch(self.accept_lost_messages) is not None,
            "server.accept_lost_messages is the name of one loss, which the start without the "
            "messages shows, such as 3f0c5b6a9d1e4c7f8a2b3c4d5e6f7081:1234",
            self.accept_lost_messages,
        )

    def audit_topic_id(self) -> TopicId | None:
        """The audit topic; None without one."""
        if not self.audit_topic:
            return None
        namespace, _, name = self.audit_topic.partition(":")
        return topic_id(namespace, name)

    @property
    def has_tls(self) -> bool:
        """Whether the server speaks HTTPS."""
        return bool(self.tls_certificate_file)

    @property
    def is_protected(self) -> bool:
        """Whether clients have to prove who they are, and nobody on the way reads along."""
        return bool(self.access_file) and self.has_tls


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All sections."""

    server: ServerSettings = field(default_factory=ServerSettings)
    tx: TransactionSettings = field(default_factory=TransactionSettings)
    messaging: MessagingSettings = field(default_factory=MessagingSettings)
    groups: GroupSettings = field(default_factory=GroupSettings)
    hbase: HBaseSettings = field(default_factory=HBaseSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    # Where a setting comes from, by `section.key`: the file, or a flag. All others have defaults.
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.cluster.is_member:
            self._require_shared()
        _require(
            not self.server.audit_topic or 1 <= self.server.audit_ttl <= self.messaging.max_ttl,
            "server.audit_ttl is whole seconds from 1 to messaging.max_ttl, "
            f"{self.messaging.max_ttl}",
            self.server.audit_ttl,
        )
        _require(
            self.messaging.store != "hbase" or self.server.max_request_bytes <= REQUEST_BYTES_MAX,
            f"server.max_request_bytes is {REQUEST_BYTES_MAX} or less where messaging.store is "
            "hbase, whose cells hold no more",
            self.server.max_request_bytes,
        )

    def _require_shared(self) -> None:
        self._require_protected_calls()
        store, observers = self.messaging.store, self.messaging.observer_directory
        if store != "hbase":
            raise ValueError(
                f"messaging.store must be 'hbase' in a cluster, whose servers share the tables; it "
                f"is {store!r}"
            )
        if self.tx.enabled and not self.cluster.transactions_directory:
            raise ValueError(
                "cluster.transactions_directory must be a directory that all servers of the "
                "cluster share; it is ''"
            )
        if observers:
            raise ValueError(
                "messaging.observer_directory must be '' in a cluster, since region observers know "
                f"one server; it is {observers!r}"
            )
        if not self.cluster.address and self.server.host in EVERY_ADDRESS:
            raise ValueError(
                "cluster.address must be the URL at which the other servers reach this one, since "
                f"server.host {self.server.host!r} names no single address; it is ''"
            )

    def _require_protected_calls(self) -> None:
        if bool(self.server.access_file) != bool(self.cluster.secret_file):
            raise ValueError(
                "cluster.secret_file must be set together with server.access_file, so that servers "
                f"can prove themselves to each other; it is {self.cluster.secret_file!r}"
            )
        address = self.cluster.address
        if address and address.startswith("https:") != self.server.has_tls:
            raise ValueError(
                "cluster.address must begin with https:// where the server has TLS, and else with "
                f"http://; it is {address!r}"
            )

    def rows_live_s(self) -> int:
        """Seconds for which a message or payload row must be kept in HBase, by the clock of region
        servers: the time to live and holds, the longest transaction before the publish, and the
        largest clock error that a start accepts."""
        if self.messaging.max_ttl == TTL_S_MAX:
            return FOREVER_S
        longest_s = max(self.tx.long_timeout_s, self.tx.max_timeout_s)
        sum_s = self.messaging.kept_s_max + longest_s + self.server.max_clock_jump_s
        return min(ceil(sum_s), FOREVER_S)


# The class of each section, by its name.
SECTIONS: Mapping[str, Any] = {
    each.name: each.default_factory for each in fields(Settings) if each.name != "sources"
}


def key_of(entry: Field[Any]) -> str:
    """The key under which a field stands in a settings file."""
    return entry.name.removesuffix("_s")


def load(file: Path | None, assignments: Sequence[str]) -> Settings:
    """The settings of a file (if any), changed by `section.key=value` assignments.

    Raises:
        SettingsError: the file can't be read, or a section, key or value is not possible.
    """
    values: dict[str, dict[str, object]] = {name: {} for name in SECTIONS}
    sources: dict[str, str] = {}
    origins = ((str(file), _from_file(file)), ("flag", map(_assignment, assignments)))
    for source, given in origins:
        for section, key, value in given:
            _require_section(section)
            values[section][key] = value
            sources[f"{section}.{key}"] = source
    try:
        sections = {name: _section(name, found) for name, found in values.items()}
        return Settings(**sections, sources=sources)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def rows(settings: Settings) -> list[dict[str, object]]:
    """Each setting: its value, its default, and where the value comes from. None is a secret."""
    default = Settings()
    return [
        {
            "name": (name := f"{section}.{key_of(entry)}"),
            "value": getattr(getattr(settings, section), entry.name),
            "default": getattr(getattr(default, section), entry.name),
            "source": settings.sources.get(name, "default"),
        }
        for section in SECTIONS
        for entry in fields(SECTIONS[section])
    ]


def changed(settings: Settings) -> dict[str, object]:
    """Every setting that differs from its default, by `section.key`."""
    return {
        str(each["name"]): each["value"]
        for each in rows(settings)
        if each["value"] != each["default"]
    }


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Imports of libraries that the setting `what` needs, and an extra brings.

    Raises:
        SettingsError: one is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{what} needs {error.name}, which is not installed; "
            f"pip install 'tuff-messaging[{extra}]'"
        ) from None


def _from_file(file: Path | None) -> Iterable[tuple[str, str, object]]:
    if file is None:
        return
    try:
        parsed = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise SettingsError(f"the settings file {file} can't be read: {reason}") from None
    for section, entries in parsed.items():
        if not isinstance(entries, dict):
            raise SettingsError(f"{section} stands outside of a section in {file}")
        _require_section(section)  # it may be empty, and misspelt all the same
        for key, value in entries.items():
            yield section, key, value


def _require_section(name: str) -> None:
    if name not in SECTIONS:
        raise SettingsError(
            f"there is no section {name!r} in the settings; there are {', '.join(SECTIONS)}"
        )


def _assignment(text: str) -> tuple[str, str, object]:
    name, equals, value = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals or not dot:
        raise SettingsError(f"--set takes section.key=value, not {text!r}")
    if not value.strip():
        raise SettingsError(
            f"{name.strip()} has no value; is a variable not set? An empty one is "
            f"--set '{name.strip()}=\"\"'"
        )
    return section, key, _value(value.strip())


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text  # a plain word goes without quotes


def _section(name: str, given: Mapping[str, object]) -> Any:
    """Raises: SettingsError, ValueError."""
    kind = SECTIONS[name]
    hints = get_type_hints(kind)
    by_key = {key_of(entry): entry for entry in fields(kind)}
    arguments: dict[str, Any] = {}
    for key, value in given.items():
        if key not in by_key:
            near = get_close_matches(key, by_key, n=1)
            raise SettingsError(
                f"there is no setting {name}.{key}; did you mean {name}.{near[0]}?"
                if near
                else f"there is no setting {name}.{key}; {name} has {', '.join(sorted(by_key))}"
            )
        entry = by_key[key]
        if value == "" != entry.default:
            raise SettingsError(f"{name}.{key} is empty, and has to have a value")
        arguments[entry.name] = _typed(value, hints[entry.name], f"{name}.{key}")
    return kind(**arguments)


def _typed(value: object, kind: Any, name: str) -> object:
    """The value of a setting whose field has this type."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if get_origin(kind) is tuple:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise SettingsError(f"{name} is a list of words, not {value!r}")
    if type(value) is kind:
        return value
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
    raise SettingsError(f"{name} is {kinds[kind]}, not {value!r}")


def _require(is_met: bool, rule: str, value: object) -> None:  # noqa: FBT001 - a condition, no flag
    if not is_met:
        raise ValueError(f"{rule}, not {value!r}")
