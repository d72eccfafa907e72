"""The pytest plug-in, in real runs of an inner pytest."""

import os
import re
import socket
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from tests.http.client import until

pytest_plugins = ["pytester"]

# The inner run loads the plug-in as users do, by its entry point, and not those of this project.
QUIET = ("-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:aiohttp", "-p", "no:hypothesis")


def pids(result: pytest.RunResult) -> set[int]:
    return {int(pid) for pid in re.findall(r"pid=([0-9]+)", result.stdout.str())}


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_test_may_stop_its_own_clock(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import time
        from freezegun import freeze_time

        @freeze_time("2030-01-01")
        def test_publish_and_poll(tuff_client, tuff_topic):
            assert time.gmtime().tm_year == 2030
            with tuff_client.transaction() as tx:
                tx.publish(tuff_topic, "hello")
            (message,) = tuff_client.poll(tuff_topic, isolation="committed", wait=5)
            assert message.payload == b"hello"
            assert time.gmtime(message.timestamp_ms / 1000).tm_year != 2030
        """
    )

    result = pytester.runpytest_subprocess(*QUIET)

    result.assert_outcomes(passed=1)


def test_a_test_is_given_a_client_and_a_topic_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        def test_publish_and_poll(tuff_client, tuff_topic):
            tuff_client.publish(tuff_topic, "hello")
            assert [m.payload for m in tuff_client.poll(tuff_topic)] == [b"hello"]

        @pytest.mark.parametrize("payload", ["a/b: é", "x" * 300])
        def test_the_topic_is_fresh_whatever_the_test_is_called(tuff_client, tuff_topic, payload):
            assert len(tuff_client.poll(tuff_topic)) == 0
            tuff_client.publish(tuff_topic, payload)

        def test_a_loop_of_the_tests_own_has_a_client_too(tuff_async_client, tuff_topic):
            async def publish_and_poll():
                async with tuff_async_client as client:
                    await client.publish(tuff_topic, "hello")
                    return [m.payload for m in await client.poll(tuff_topic)]

            import asyncio
            assert asyncio.run(publish_and_poll()) == [b"hello"]

        def test_transactions_carry_the_name_of_the_test(tuff_client):
            transaction = tuff_client.transactions.start()
            (one,) = tuff_client.transactions.overview().in_progress
            assert one.client == "test_transactions_carry_the_name_of_the_test"
            tuff_client.transactions.abort(transaction)
        """
    )

    result = pytester.runpytest_subprocess(*QUIET, "-W", "error")

    result.assert_outcomes(passed=5)


@pytest.mark.slow
def test_one_server_serves_the_session_and_ends_with_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_one(tuff_server): print(f"pid={tuff_server.pid}")
        def test_two(tuff_server): print(f"pid={tuff_server.pid}")
        """
    )

    result = pytester.runpytest_subprocess(*QUIET, "-s")

    result.assert_outcomes(passed=2)
    (pid,) = pids(result)
    assert not is_running(pid)


@pytest.mark.slow
def test_each_worker_of_a_parallel_run_has_a_server_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(4))
        def test_publish(tuff_server, tuff_client, tuff_topic, number):
            tuff_client.publish(tuff_topic, "hello")
            assert len(tuff_client.poll(tuff_topic)) == 1
            print(f"pid={tuff_server.pid}")
        """
    )

    result = pytester.runpytest_subprocess(*QUIET, "-n", "2", "--dist", "each", "-rP")

    result.assert_outcomes(passed=8)
    found = pids(result)
    assert len(found) == 2
    assert [pid for pid in found if is_running(pid)] == []


@pytest.mark.slow
def test_a_failed_test_shows_what_the_server_said(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it_fails(tuff_server): assert False
        def test_it_fails_without_a_server(): assert False
        """
    )

    result = pytester.runpytest_subprocess(*QUIET)

    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*tuff server (*log.txt)*", "*transactions are up*"])
    assert result.stdout.str().count("transactions are up") == 1


def is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as caller:
        return caller.connect_ex((host, int(port))) == 0


@pytest.mark.slow
def test_the_server_of_a_run_that_is_killed_ends_with_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import signal

        def test_it(tuff_server):
            print(f"at={tuff_server.url}", flush=True)
            signal.pause()
        """
    )
    command = [sys.executable, "-m", "pytest", *QUIET, "-s"]
    with subprocess.Popen(command, cwd=pytester.path, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        line = next(line for line in run.stdout if "at=http://" in line)
        address = line.strip().rpartition("http://")[2]
        assert is_listening(address)

        run.kill()

    until(lambda: not is_listening(address), what="the server to end")


def test_a_server_that_does_not_start_is_one_sentence(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import tuff.launch
        from pathlib import Path

        tuff.launch._CANDIDATES = (Path("nowhere/server.py"),)
        """
    )
    pytester.makepyfile("def test_it(tuff_server): pass")

    result = pytester.runpytest_subprocess(*QUIET)

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["no server is installed beside *"])
    assert "Traceback" not in result.stdout.str()


@pytest.mark.slow
def test_a_run_without_the_fixtures_starts_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(tmp_path_factory): print(tmp_path_factory.getbasetemp())")

    result = pytester.runpytest_subprocess(*QUIET, "--basetemp", str(pytester.path / "temporary"))

    result.assert_outcomes(passed=1)
    assert list((pytester.path / "temporary").glob("tuff*")) == []


@pytest.mark.slow
def test_it_can_be_named_although_it_is_on_and_be_turned_off(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(tuff_topic): pass")

    named = pytester.runpytest_subprocess(*QUIET, "-p", "tuff.testing")
    off = pytester.runpytest_subprocess(*QUIET, "-p", "no:tuff.testing")

    named.assert_outcomes(passed=1)
    off.stdout.fnmatch_lines(["*fixture 'tuff_topic' not found*"])


def test_it_is_on_by_its_entry_point() -> None:
    found = {entry.name: entry.value for entry in entry_points(group="pytest11")}

    assert found["tuff.testing"] == "tuff.testing"


def test_importing_it_loads_nothing_of_the_client() -> None:
    program = (
        "import pytest, sys; before = set(sys.modules); import tuff.testing; "
        "print(*sorted(set(sys.modules) - before))"
    )

    said = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout

    assert [name for name in said.split() if name.startswith("tuff")] == [
        "tuff", "tuff.launch", "tuff.protocol", "tuff.protocol.errors", "tuff.testing",
    ]  # fmt: skip
