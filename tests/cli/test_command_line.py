"""Parsing of the command line, and its errors without a server."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from tests.cli.command import tuff_command
from tuff.protocol.errors import RequestTooLargeError
from tuff.protocol.ids import MessageId, TopicId
from tuff_cli.options import Start, parse_start, topic_of
from tuff_cli.output import Table, moment, payload_text, print_table, seconds, shown
from tuff_cli.program import EXIT_CODES, program
from tuff_cli.pub import gather, read_lines, split_groups
from tuff_cli.snapshot_log_table import difference

NOW_MS = 1480000000000
NO_SERVER = "http://127.0.0.1:1"  # no HTTP server listens on port 1


def reads(*chunks: bytes) -> Callable[[int], bytes]:
    waiting = [*chunks, b""]
    return lambda _size: waiting.pop(0)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0000015896dfd0000005" + "0" * 20, MessageId(NOW_MS, 5)),
        ("10m", NOW_MS - 600_000),
        ("1.5h", NOW_MS - 5_400_000),
        ("250ms", NOW_MS - 250),
        ("999999999d", 0),
        ("1480000000001", 1480000000001),
        ("0", 0),
        ("1480000060000", NOW_MS + 60_000),  # the clock of the server may be ahead
        ("2016-11-24T15:06:40Z", NOW_MS),
        ("2016-11-24T16:06:40+01:00", NOW_MS),
    ],
)
def test_a_start_position_has_many_forms(text: str, start: Start) -> None:
    assert parse_start(text, now_ms=NOW_MS) == start


@pytest.mark.parametrize("text", ["", "yesterday", "-1", "10 m", "2016-13-01", "g" * 40])
def test_an_invalid_start_position_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_start(text, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1480000000", "1480000000 ms since the epoch was before 1974"),  # in seconds
        ("2016", "2016 ms since the epoch was before 1974"),
        ("1480000000000000", "is in the future"),  # in microseconds
        ("1480000000000000000", "is in the future"),  # in nanoseconds
        ("2116-11-24", r"2116-11-24 is in the future \(2116-11-24T"),
        ("9999-12-31T23:59:59Z", "is in the future"),
        ("7" + "f" * 39, "is in the future"),
    ],
)
def test_a_start_in_a_wrong_unit_or_in_the_future_is_refused(text: str, reason: str) -> None:
    with pytest.raises(click.BadParameter, match=reason):
        parse_start(text, now_ms=NOW_MS)


def test_a_topic_without_a_namespace_is_in_the_default_one() -> None:
    assert topic_of("orders") == TopicId("default", "orders")
    assert topic_of("shop:orders") == TopicId("shop", "orders")


@pytest.mark.parametrize("text", ["", ":", "a:", "a:b:c", "a/b", ".."])
def test_an_illegal_topic_name_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        topic_of(text)


def test_lines_are_published_as_they_arrive_also_across_reads() -> None:
    batches = split_groups(read_lines(reads(b"one\ntw", b"o\n\nth", b"ree")))

    assert list(batches) == [[b"one"], [b"two", b""], [b"three"]]


def test_lines_from_windows_lose_their_carriage_returns() -> None:
    lines = read_lines(reads(b"one\r\ntwo\r", b"\na\rb\n\r\nlast\r"))

    assert list(lines) == [[b"one"], [b"two", b"a\rb", b""], [b"last\r"]]


def test_many_lines_at_once_become_several_publishes() -> None:
    lines = read_lines(reads(b"x\n" * 2500))

    assert [len(batch) for batch in split_groups(lines)] == [1000, 1000, 500]


def test_a_batch_has_the_given_number_of_messages() -> None:
    lines = read_lines(reads(b"1\n2\n3\n4\n5\n", b"6\n", b"7"))

    assert list(gather(lines, count=3)) == [[b"1", b"2", b"3"], [b"4", b"5", b"6"], [b"7"]]


def test_a_line_that_never_ends_is_refused() -> None:
    chunk = b"x" * (1 << 20)

    with pytest.raises(RequestTooLargeError):
        list(read_lines(lambda _size: chunk))


def test_control_characters_of_a_message_are_escaped() -> None:
    assert payload_text(b"a\x1b[2Jb\r\xff\tc \xc3\xa9") == "a\\x1b[2Jb\\r\\xff\tc é"


def test_a_long_cell_is_cut() -> None:
    assert shown("x" * 200) == "x" * 119 + "…"


def test_times_and_durations_are_readable() -> None:
    assert moment(NOW_MS) == "2016-11-24T15:06:40.000Z"
    assert moment((1 << 64) - 1) == "18446744073709551615 ms"
    assert [seconds(ms) for ms in (1499, 61_000, 7_260_000, -2000)] == [
        "1 s", "1 min 1 s", "2 h 1 min", "-2 s",
    ]  # fmt: skip


def test_a_table_without_rows_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(Table(("a", "b"), [], "nothing here"))

    assert capsys.readouterr().out == "nothing here\n  none\n"


def test_a_table_in_a_pipe_has_unwrapped_lines_without_colours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(Table(("name", "value"), [("x", "y" * 100), ("[red]z", None)], "rows"))

    lines = capsys.readouterr().out.splitlines()
    assert lines == ["rows", "name    value", "x       " + "y" * 100, "[red]z  -"]


def test_a_difference_has_removed_and_added_rows() -> None:
    before: list[dict[str, object]] = [{"kind": "open", "id": "1"}, {"kind": "open", "id": "2"}]
    after: list[dict[str, object]] = [{"kind": "open", "id": "2"}, {"kind": "invalid", "id": "1"}]

    assert list(difference(before, after)) == [
        {"change": "+", "kind": "invalid", "id": "1"},
        {"change": "-", "kind": "open", "id": "1"},
    ]


@pytest.mark.parametrize("words", ["topics ls", "status --json", "tail t --follow"])
def test_an_unreachable_server_is_exit_3_and_names_the_command_that_starts_one(words: str) -> None:
    done = tuff_command(*words.split(), url=NO_SERVER)

    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"tuff: no server answers at {NO_SERVER} ")
    assert "`tuff serve`" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_address_can_stand_before_the_command_or_in_the_environment() -> None:
    in_environment = tuff_command("topics", "ls", url="http://127.0.0.1:2")
    typed = tuff_command("--url", "http://127.0.0.1:3", "topics", "ls", url="http://127.0.0.1:2")

    assert (in_environment.returncode, typed.returncode) == (3, 3)
    assert "http://127.0.0.1:2" in in_environment.stderr
    assert "http://127.0.0.1:3" in typed.stderr


@pytest.mark.parametrize(
    ("line", "said", "command"),
    [
        ("tipics", "No such command 'tipics'", "tuff"),
        ("topics create", "Missing argument 'TOPIC'", "tuff topics create"),
        ("tx start --timeout", "Option '--timeout' requires an argument", "tuff tx start"),
        ("--url tx topics ls --nope", "No such option '--nope'", "tuff topics ls"),
        ("topics ls --url nowhere", "'nowhere' is no address of a server", "tuff topics ls"),
        ("pub a/b x", "'default:a/b' is no topic", "tuff pub"),
        ("topics ls a/b", "namespace 'a/b' is not a legal name", "tuff topics ls"),
        ("holds rm t a/b", "name 'a/b' is not a legal name", "tuff holds rm"),
        ("positions set t n no-id", "'no-id' is not a message id", "tuff positions set"),
        ("tail t --from yesterday", "can't start from 'yesterday'", "tuff tail"),
        ("tail t --from 1480000000", "such a number has 13 digits", "tuff tail"),
        ("share create t g --from 2900-01-01", "is in the future", "tuff share create"),
        ("groups reset g t --to 2900-01-01", "is in the future", "tuff groups reset"),
        ("holds set t n --from yesterday", "can't start from 'yesterday'", "tuff holds set"),
        ("tx commit abc", "'abc' is not a valid transaction id", "tuff tx commit"),
        ("tx show -1", "No such option '-1'", "tuff tx show"),
        (f"tx show {1 << 64}", "is not in the range 0<=x<=", "tuff tx show"),
        ("pub t m --ttl -1", "-1 is not in the range x>=1", "tuff pub"),
        ("topics create t --ttl 0", "0 is not in the range x>=1", "tuff topics create"),
        ("tx start --timeout -1", "-1.0 is not in the range x>0", "tuff tx start"),
        ("tx start --timeout nan", "'nan' is not a valid number of seconds", "tuff tx start"),
        ("tx start --type long --lease inf", "'inf' is not a valid number of", "tuff tx start"),
        ("holds set t n --max-age 0", "0.0 is not in the range x>0", "tuff holds set"),
        ("topics create t --property x", "'x' is not NAME=VALUE", "tuff topics create"),
        ("topics set t", "nothing to set; give --ttl, --property, --unset or", "tuff topics set"),
        ("topics set t --ttl 5 --unset ttl", "ttl can't be set and unset", "tuff topics set"),
        ("topics set t --ttl 5 --property ttl=6", "ttl is given twice", "tuff topics set"),
        ("backup a b c", "give TARGET for a running server", "tuff backup"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_2_without_a_request(
    line: str, said: str, command: str
) -> None:
    done = tuff_command(*line.split(), url=NO_SERVER)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tuff: ")
    assert said in done.stderr
    assert done.stderr.endswith(f"; next: {command} --help\n")
    assert done.stderr.count("\n") == 1


def test_the_help_and_the_page_name_the_same_exit_codes() -> None:
    page = Path(__file__).resolve().parents[2] / "docs/howto/command.md"
    there = re.findall(r"^\| ([0-9]+) \| (.*) \|$", page.read_text("utf-8"), re.MULTILINE)

    assert re.findall(r"^  ([0-9]+) +(.*)$", EXIT_CODES, re.MULTILINE) == there
    assert [code for code, _ in there] == ["0", "1", "2", "3", "130"]


def parameters(command: click.Command) -> Iterator[click.Parameter]:
    yield from command.params
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from parameters(below)


def test_every_option_has_a_help_text() -> None:
    options = [one for one in parameters(program) if isinstance(one, click.Option)]

    assert [one.opts for one in options if not one.help] == []
    assert len(options) > 40


def modules_after(arguments: list[str]) -> set[str]:
    """The modules that a command loads."""
    program = (
        "import sys; from tuff_cli.program import program; "
        f"program.main({arguments}, standalone_mode=False); print(*sys.modules)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    return set(said.split())


def test_help_does_not_load_rich() -> None:
    assert "rich" not in {name.partition(".")[0] for name in modules_after(["--help"])}


def test_a_command_loads_its_own_module_alone() -> None:
    """Each command took the time in which all of them load."""
    loaded = {name for name in modules_after(["tail", "--help"]) if name.startswith("tuff_cli.")}

    assert loaded == {"tuff_cli.program", "tuff_cli.options", "tuff_cli.output", "tuff_cli.tail"}
