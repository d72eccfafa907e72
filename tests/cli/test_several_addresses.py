"""Commands for a cluster: `--url` and TUFF_URL have the addresses of several servers."""

from pathlib import Path

from tests.cli.command import tuff_command
from tests.http.process import ServerProcess

NOWHERE = "http://127.0.0.1:1"  # nothing listens there
ELSEWHERE = "http://127.0.0.1:2"


def test_a_command_uses_the_first_address_that_answers(server: ServerProcess) -> None:
    url = f"{NOWHERE},{server.url}"

    by_variable = tuff_command("status", url=url)
    by_option = tuff_command("status", "--url", url)

    assert by_variable.stdout.startswith(f"{server.url} is ")
    assert by_option.stdout.startswith(f"{server.url} is ")


def test_servers_of_which_none_answers_are_unreachable() -> None:
    done = tuff_command("topics", "ls", url=f"{NOWHERE},{ELSEWHERE}")

    assert done.returncode == 3
    assert f"no server answers at {NOWHERE} (" in done.stderr
    assert f" or {ELSEWHERE} (" in done.stderr


def test_an_address_that_is_not_valid_is_a_wrong_command_line() -> None:
    done = tuff_command("topics", "ls", url=f"{NOWHERE},localhost")

    assert done.returncode == 2
    assert "separated by commas" in done.stderr


def test_the_next_command_has_all_addresses(server: ServerProcess) -> None:
    url = f"{NOWHERE},{server.url}"

    done = tuff_command("topics", "show", "several:missing", "--url", url)

    assert f"next: tuff topics ls --url {url}\n" in done.stderr


def test_a_backup_comes_from_the_first_server_that_answers(
    server: ServerProcess, tmp_path: Path
) -> None:
    done = tuff_command("backup", tmp_path / "backup", url=f"{NOWHERE},{server.url}")

    assert done.returncode == 0
    assert (tmp_path / "backup").stat().st_size > 0


def test_a_backup_that_reaches_no_server_leaves_no_file(tmp_path: Path) -> None:
    done = tuff_command("backup", tmp_path / "backup", url=f"{NOWHERE},{ELSEWHERE}")

    assert done.returncode == 3
    assert f" or {ELSEWHERE} (" in done.stderr
    assert list(tmp_path.iterdir()) == []
