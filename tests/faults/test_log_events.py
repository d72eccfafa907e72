"""Lines of the log about a disk that fails, about damage and about bugs (docs/logs.md)."""

import errno
import os
import signal
from pathlib import Path

from tests.faults.disk import Shim, failing, slow
from tests.faults.test_hang_ups_and_stops import hang_up
from tests.http.calls import begin, created, entry, metrics_of
from tests.http.client import ok, refused, until
from tests.http.process import ServerProcess, serve
from tests.http.test_damaged_records import damage
from tests.http.test_logs import AS_JSON, codes_in

BUGGY = Path(__file__).with_name("buggy_server.py")
WITHIN_S = 30.0
SETTINGS = (AS_JSON, "messaging.cleanup_interval=0.2", "tx.snapshot_interval=0.2")


def logged(server: ServerProcess, *codes: str) -> None:
    until(lambda: {*codes} <= {*codes_in(server)}, within_s=WITHIN_S, what=f"{codes} in the log")


def test_a_message_store_that_can_not_be_written_is_logged(shim: Shim, tmp_path: Path) -> None:
    with serve(tmp_path / "home", *SETTINGS, environment=shim.environment()) as server:
        server.may_log_traces = True  # of the error of the disk
        client = server.client()
        orders = created(client, "default", "orders")
        open_one = begin(client, timeout=600)
        ok(orders.publish("undone", tx=open_one.id))
        ok(orders.publish("late", delay=0.5))

        with shim.injecting(failing("write", "messages/", errno.ENOSPC)):
            ok(orders.publish("lost", ack="none"))
            logged(server, "store_write_failed", "retention_failed", "delayed_wait")
            ok(open_one.invalidate())
            logged(server, "rows_not_marked")

        logged(server, "store_opened_again", "publish_lost")
        until(lambda: orders.committed() == ["late"], within_s=WITHIN_S)


def test_changes_that_wait_for_the_message_store_are_logged(shim: Shim, tmp_path: Path) -> None:
    with serve(tmp_path / "home", AS_JSON, environment=shim.environment()) as server:
        server.may_log_traces = True
        orders = created(server.client(), "default", "orders")

        # The batch of the commit is written, and not the one that deletes its index rows.
        with shim.injecting(failing("write", "messages/", errno.ENOSPC, first=2)):
            ok(begin(orders.client).commit(publish=[entry(orders, "a")]))
            logged(server, "changes_not_written")

        logged(server, "store_opened_again")
        assert orders.committed() == ["a"]


def test_a_snapshot_that_can_not_be_written_is_logged(shim: Shim, tmp_path: Path) -> None:
    with (
        serve(tmp_path / "home", *SETTINGS, environment=shim.environment()) as server,
        shim.injecting(failing("create", "snapshots/snapshot", errno.ENOSPC)),
    ):
        begin(server.client())
        logged(server, "snapshot_failed")


def test_requests_that_a_stop_cuts_off_are_logged(shim: Shim, tmp_path: Path) -> None:
    with serve(tmp_path / "home", AS_JSON, environment=shim.environment()) as server:
        orders = created(server.client(), "default", "orders")
        with shim.injecting(slow("fdatasync", "messages/", wait_ms=120_000)):
            hang_up(server, f"{orders.path}/publish", {"messages": ["a"]})
            until(lambda: metrics_of(orders.client)["tuff_requests_under_way"] == 1)
            os.kill(server.pid, signal.SIGTERM)
            logged(server, "requests_cut_off")

        assert server.wait_exit() == 0


def test_a_backup_of_a_damaged_store_is_logged(tmp_path: Path) -> None:
    server = serve(tmp_path)
    ok(created(server.client(), "default", "orders").publish("to be damaged"))
    server.kill()
    assert damage(server.data / "messages", b"to be damaged") == 1

    with serve(tmp_path, AS_JSON) as again:
        ok(again.client().get("/v1/backup"))
        logged(again, "backup_failed")


def test_bugs_are_logged_and_one_in_a_writer_ends_the_process(tmp_path: Path) -> None:
    with serve(tmp_path, AS_JSON, "messaging.cleanup_interval=0.2", program=BUGGY) as server:
        server.may_log_traces = True
        client = server.client()
        refused(client.post("/v1/transactions/service/stop"), 500, "internal")
        logged(server, "bug", "task_failed")
        orders = created(client, "default", "orders")  # the server goes on

        (tmp_path / "bug").touch()
        hang_up(server, f"{orders.path}/publish", {"messages": ["a"]})
        assert server.wait_exit() == 1

        logged(server, "process_ended")
