"""The commands that show the server's files, over the files of a server that ran."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

import tuff
from tests.cli.command import tuff_command as run
from tests.http.process import ServerProcess, serve


@dataclass(frozen=True)
class Files:
    """What a server left behind: two snapshots that it was asked for, its logs, its store."""

    directory: Path
    before: Path
    after: Path
    log: Path
    messages: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    home = tmp_path_factory.mktemp("files")
    orders = tuff.TopicId("shop", "orders")
    snapshots = home / "data" / "snapshots"
    with (
        serve(home) as server,
        tuff.Client(server.url, client_id="unlucky") as client,
    ):
        log = max(snapshots.glob("txlog.*"))
        client.topics.create(orders)
        before = client.transactions.take_snapshot().file
        client.publish(orders, "sold\x1b one apple")
        client.transactions.invalidate(client.transactions.start())
        after = client.transactions.take_snapshot().file
    return Files(snapshots, snapshots / before, snapshots / after, log, home / "data" / "messages")


def rows(*arguments: str | Path) -> list[dict[str, object]]:
    done = run(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_snapshot_is_shown(files: Files) -> None:
    done = run("snapshot", "show", files.after)

    assert (done.returncode, done.stderr) == (0, "")
    assert "unlucky" in done.stdout
    assert "invalidated" in done.stdout
    assert "header" in {row["kind"] for row in rows("snapshot", "show", files.after)}


def test_two_snapshots_are_compared(files: Files) -> None:
    found = rows("snapshot", "diff", files.before, files.after)

    ended = [row for row in found if row["kind"] == "ended"]
    assert [(row["change"], row["state"]) for row in ended] == [("+", "invalid")]


def test_the_snapshots_of_a_directory_are_listed(files: Files) -> None:
    done = run("snapshot", "ls", files.directory)

    assert (done.returncode, done.stderr) == (0, "")
    assert files.before.name in done.stdout
    assert files.log.name in done.stdout


def test_a_log_is_shown_in_its_order(files: Files) -> None:
    kinds = [row["kind"] for row in rows("log", "show", files.log)]
    done = run("log", "show", files.log)

    assert kinds[0] == "header"
    assert "BlockReserved" in kinds
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == kinds


def test_the_rows_of_a_store_are_shown_with_control_characters_escaped(files: Files) -> None:
    done = run("table", "show", files.messages)

    assert (done.returncode, done.stderr) == (0, "")
    assert "sold\\x1b one apple" in done.stdout


def test_corruption_names_its_file_and_is_exit_1(files: Files, tmp_path: Path) -> None:
    damaged = tmp_path / files.after.name
    data = bytearray(files.after.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)

    done = run("snapshot", "show", damaged)

    assert done.returncode == 1
    assert f"tuff: {damaged.name} is damaged at byte " in done.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("snapshot", "show"), "is not a snapshot"),
        (("log", "show"), "is not a transaction log"),
    ],
)
def test_a_file_of_another_kind_is_not_called_damaged(
    tmp_path: Path, command: tuple[str, ...], said: str
) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("nothing of a server's\n")

    done = run(*command, other)

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "damage" not in done.stderr
    assert "salvage" not in done.stderr


def test_a_log_given_as_a_snapshot_names_the_right_command(
    files: Files,
) -> None:
    for wrong, file, right in (
        (("snapshot", "show"), files.log, "tuff log show"),
        (("log", "show"), files.after, "tuff snapshot show"),
    ):
        done = run(*wrong, file)

        assert done.returncode == 2
        assert f"`{right} {file}`" in done.stderr
        assert run(*right.split()[1:], file).returncode == 0


@pytest.mark.parametrize("place", ["empty", "data"])
def test_a_directory_without_a_store_is_not_called_damaged(
    files: Files, tmp_path: Path, place: str
) -> None:
    (tmp_path / "empty").mkdir()
    directory = files.messages.parent if place == "data" else tmp_path / "empty"

    done = run("table", "show", directory)

    assert (done.returncode, done.stdout) == (2, "")
    assert "is not a message store" in done.stderr
    assert (str(files.messages) in done.stderr) is (place == "data")


def test_a_snapshot_equals_itself(files: Files) -> None:
    done = run("snapshot", "diff", files.after, files.after)

    name = files.after.name
    assert (done.returncode, done.stdout) == (0, f"{name} and {name} are equal\n")
    assert done.stderr == ""


def test_two_corrupt_snapshots_are_not_equal(files: Files, tmp_path: Path) -> None:
    damaged = tmp_path / files.after.name
    damaged.write_bytes(files.after.read_bytes()[:-1])

    for form in ((), ("--json",)):
        done = run("snapshot", "diff", damaged, damaged, *form)

        assert (done.returncode, done.stdout) == (1, "")
        assert "is damaged" in done.stderr


def test_a_snapshot_is_taken(server: ServerProcess) -> None:
    taken = json.loads(run("snapshot", "take", "--json", url=server.url).stdout)

    assert taken["file"].startswith("snapshot.")
    assert taken["bytes"] > 0
    assert run("snapshot", "take", url=server.url).stdout.startswith("wrote snapshot.")
