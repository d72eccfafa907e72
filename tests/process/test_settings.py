"""Settings: defaults, then the file, then the flags; the impossible is named (protocol §8)."""

from pathlib import Path

import pytest

from process.logging_setup import LEVELS
from process.settings import Settings, SettingsError, changed, load

STANDALONE = Path(__file__).parents[2] / "conf" / "standalone.toml"


def test_without_a_file_and_flags_the_defaults_stand() -> None:
    assert load(None, []) == Settings()


def test_the_standalone_file_holds_the_defaults() -> None:
    assert load(STANDALONE, []) == Settings()


def test_a_flag_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tuff.toml"
    file.write_text("[server]\nport = 1\nmax_connections = 2\n", "utf-8")

    settings = load(file, ["server.port=3"])

    assert (settings.server.port, settings.server.max_connections) == (3, 2)


@pytest.mark.parametrize(
    ("assignment", "read"),
    [
        ("messaging.max_block=2", 2.0),
        ("messaging.max_block=0.25", 0.25),
    ],
)
def test_durations_are_seconds_and_may_be_fractions(assignment: str, read: float) -> None:
    assert load(None, [assignment]).messaging.max_block_s == read


def test_plain_words_go_without_quotes_and_lists_are_toml() -> None:
    settings = load(None, ["messaging.store=memory", 'messaging.system_topics=["a", "b:3"]'])

    assert settings.messaging.store == "memory"
    assert settings.messaging.system_topics == ("a", "b:3")


@pytest.mark.parametrize(
    ("assignment", "named"),
    [
        ("nothing.port=1", "nothing"),
        ("server.prot=1", "server.prot"),
        ("server.port", "server.port"),
        ("port=1", "port=1"),
        ("server.port=high", "server.port"),
        ("server.port=70000", "server.port"),
        ("server.port=true", "server.port"),
        ("server.accept_clock=1", "server.accept_clock"),
        ("server.max_connections=0", "server.max_connections"),
        ("server.max_clock_jump=inf", "server.max_clock_jump"),
        ("server.log_level=loud", "server.log_level"),
        ("server.host=0.0.0.0", "server.allow_remote"),
        ("server.allowed_hosts=['*']", "server.allowed_hosts"),
        ("server.allowed_hosts=['*.example']", "server.allowed_hosts"),
        ("server.allowed_hosts=['tuff.example:80']", "server.allowed_hosts"),
        ("server.allowed_hosts=['http://tuff.example']", "server.allowed_hosts"),
        ("server.allowed_hosts=['']", "server.allowed_hosts"),
        ("tx.default_timeout=0", "tx.default_timeout"),
        ("tx.default_timeout=nan", "tx.default_timeout"),
        ("tx.prune_invalid=maybe", "tx.prune_invalid"),
        ("messaging.default_ttl=1.5", "messaging.default_ttl"),
        ("messaging.max_ttl=604799", "messaging.default_ttl"),
        ("messaging.max_ttl=0", "messaging.max_ttl"),
        ("hbase.wal=async", "hbase.wal"),
        ("hbase.wal=skip", "hbase.wal is sync or fsync"),  # no setting trades durability away
        ("messaging.store=tape", "messaging.store"),
        ("messaging.system_topics=a", "messaging.system_topics"),
        ('messaging.system_topics=["a b"]', "messaging.system_topics"),
        ("messaging.system_topics=[1]", "messaging.system_topics"),
        ("tx=1", "tx"),
        ("=1", "="),
        ("server.max_request_bytes=0", "server.max_request_bytes"),
        ("server.max_pending_requests=0", "server.max_pending_requests"),
        ("tx.default_timeout=90000", "timeout"),
        ("tx.max_timeout=x", "tx.max_timeout"),
        ("tx.snapshot_retain=0", "tx.snapshot_retain"),
        ("messaging.default_ttl=0", "messaging.default_ttl"),
        ("messaging.poll_limit_max=0", "messaging.poll_limit_max"),
        ("messaging.max_block=-1", "messaging.max_block"),
        ("messaging.cleanup_interval=nan", "messaging.cleanup_interval"),
    ],
)
def test_an_impossible_setting_is_named(assignment: str, named: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(None, [assignment])

    assert named in str(refused.value)


@pytest.mark.parametrize("value", ["true", "yes", "0", "1:2"])
def test_a_loss_is_accepted_by_its_name_only(value: str) -> None:
    with pytest.raises(SettingsError, match=r"server\.accept_lost_messages is"):
        load(None, [f"server.accept_lost_messages={value}"])


def test_a_password_in_the_address_of_the_collector_is_refused_and_not_repeated() -> None:
    with pytest.raises(SettingsError) as refused:
        load(None, ["server.otlp_endpoint=http://user:hunter2@collector:4318"])

    assert "OTEL_EXPORTER_OTLP_HEADERS" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_rows_in_hbase_live_for_all_that_may_keep_them_and_for_ever_without_a_bound() -> None:
    days = ["messaging.max_ttl=864000", "messaging.hold_max=86400", "server.max_clock_jump=172800"]

    bounded = load(None, [*days, "tx.max_timeout=3600", "tx.long_timeout=7200.5"])

    assert bounded.rows_live_s() == 864_000 + 86_400 + 172_800 + 7_201
    assert Settings().rows_live_s() == 2_147_483_647


def test_a_host_beyond_loopback_has_to_be_allowed() -> None:
    settings = load(None, ["server.host=0.0.0.0", "server.allow_remote=true"])

    assert settings.server.host == "0.0.0.0"


def test_a_file_that_is_not_there_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        load(tmp_path / "none.toml", [])

    assert str(refused.value) == (
        f"the settings file {tmp_path / 'none.toml'} can't be read: No such file or directory"
    )


def test_a_misspelt_key_gets_the_near_one() -> None:
    with pytest.raises(SettingsError, match=r"server\.log_levl; did you mean server\.log_level\?$"):
        load(None, ["server.log_levl=info"])
    with pytest.raises(SettingsError, match=r"server\.xyz; server has accept_clock, "):
        load(None, ["server.xyz=1"])


@pytest.mark.parametrize("text", ["[server\n", "port = 1\n", "[server]\nport = 1\nport = 2\n"])
def test_a_file_that_is_no_settings_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(text, "utf-8")

    with pytest.raises(SettingsError) as refused:
        load(file, [])

    assert "broken.toml" in str(refused.value)


@pytest.mark.parametrize("text", ["[foo]\n", "[foo]\na = 1\n", "[server]\n[serverr]\n"])
def test_a_section_that_is_none_is_named_even_if_it_is_empty(tmp_path: Path, text: str) -> None:
    file = tmp_path / "misspelt.toml"
    file.write_text(text, "utf-8")

    with pytest.raises(SettingsError, match=r"there is no section '(foo|serverr)'"):
        load(file, [])


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml"):
        load(tmp_path / "nowhere.toml", [])


def test_settings_that_differ_are_named_by_their_keys() -> None:
    settings = load(None, ["server.port=1", "tx.default_timeout=5", "messaging.store=leveldb"])

    assert changed(load(None, [])) == {}
    assert changed(settings) == {"server.port": 1, "tx.default_timeout": 5.0}


def test_the_log_level_is_one_of_four() -> None:
    levels = ["debug", "info", "warning", "error"]

    assert list(LEVELS) == levels
    assert [
        load(None, [f"server.log_level={level}"]).server.log_level for level in levels
    ] == levels


MEMBER = [
    "messaging.store=hbase",
    "server.max_request_bytes=8388608",
    "cluster.server_id=s1",
    "cluster.transactions_directory=/shared",
]


@pytest.mark.parametrize(
    ("assignments", "sentence"),
    [
        (
            ["messaging.store=leveldb"],
            "messaging.store must be 'hbase' in a cluster, whose servers share the tables; it is "
            "'leveldb'",
        ),
        (
            ['cluster.transactions_directory=""'],
            "cluster.transactions_directory must be a directory that all servers of the cluster "
            "share; it is ''",
        ),
        (
            ["messaging.observer_directory=/x"],
            "messaging.observer_directory must be '' in a cluster, since region observers know one "
            "server; it is '/x'",
        ),
        (
            ["server.access_file=/a"],
            "cluster.secret_file must be set together with server.access_file, so that servers can "
            "prove themselves to each other; it is ''",
        ),
        (
            [
                "server.tls_certificate_file=/c",
                "server.tls_key_file=/k",
                "cluster.address=http://a",
            ],
            "cluster.address must begin with https:// where the server has TLS, and else with "
            "http://; it is 'http://a'",
        ),
        (
            ["server.host=0.0.0.0", "server.allow_remote=true"],
            "cluster.address must be the URL at which the other servers reach this one, since "
            "server.host '0.0.0.0' names no single address; it is ''",
        ),
    ],
)
def test_a_server_of_a_cluster_needs_what_all_servers_share(
    assignments: list[str], sentence: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load(None, [*MEMBER, *assignments])

    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("server.tls_certificate_file=/x", "server.tls_key_file"),
        ("server.tls_client_ca_file=/x", "server.tls_client_ca_file"),
    ],
)
def test_files_for_tls_that_need_another_one_are_named(given: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        load(None, [given])


TLS = ["server.tls_certificate_file=/c", "server.tls_key_file=/k"]
EVERYWHERE = "server.host=0.0.0.0"


def test_access_control_and_tls_together_let_the_server_listen_beyond_loopback() -> None:
    assert load(None, [EVERYWHERE, *TLS, "server.access_file=/a"]).server.host == "0.0.0.0"
    for missing in (TLS, ["server.access_file=/a"]):
        with pytest.raises(SettingsError, match=r"server\.allow_remote"):
            load(None, [EVERYWHERE, *missing])


def test_a_server_that_listens_everywhere_joins_with_its_address() -> None:
    everywhere = ["server.host=0.0.0.0", "server.allow_remote=true"]

    settings = load(None, [*MEMBER, *everywhere, "cluster.address=http://s1:7411"])

    assert settings.cluster.hosts() == ("s1",)
