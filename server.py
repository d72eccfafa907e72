"""The server process: read flags and settings, open the components, run the loops, serve.

Only this module reads clocks and flags, and starts tasks and threads (design §3). What the process
promises is in protocol §8.
"""

import argparse
import asyncio
import gc
import logging
import os
import resource
import secrets
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from errno import EROFS
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

# A start with `python -P` leaves the working directory out of the path, so that no file there
# replaces a module of the server. This file's own directory is added.
sys.path.insert(0, str(Path(__file__).resolve().parent))

# The extra that brings a library; a client works without.
_EXTRAS = dict.fromkeys(
    (
        "aiohttp", "google_crc32c", "httptools", "plyvel", "prometheus_client", "uvloop", "zlib_ng",
    ),
    "server",
) | dict.fromkeys(("happybase", "thriftpy2"), "hbase")  # fmt: skip


@contextmanager
def _server_libraries() -> Iterator[None]:
    """End the program with one sentence where a library of the server is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        print(
            f"tuff: the server needs {error.name}, which is not installed; "
            f"pip install 'tuff-messaging[{_EXTRAS[error.name]}]'",
            file=sys.stderr,
        )
        sys.exit(1)


def _empty_argument(arguments: Sequence[str]) -> str | None:
    """A sentence about an argument without a value. Python takes an empty path for the working
    directory, so a variable that is not set would name that."""
    for before, argument in pairwise(("", *arguments)):
        if not argument.strip():
            of = f" behind {before}" if before else ""
            return f"there is an empty argument{of}; is a variable not set?"
        if argument.startswith("--") and argument.endswith("=") and before != "--set":
            return f"{argument.rstrip('=')} has no value; is a variable not set?"
    return None


if __name__ == "__main__" and (found := _empty_argument(sys.argv[1:])) is not None:
    print(f"tuff: {found}", file=sys.stderr)
    sys.exit(2)

# Offline tools: they need few of the modules below, and start without waiting for the others.
if __name__ == "__main__" and sys.argv[1:2] == ["hbase"]:
    with _server_libraries():
        from admin import hbase_tables

    wall_ms = time.time_ns() // 1_000_000
    sys.exit(hbase_tables.main(sys.argv[2:], elapsed_s=time.perf_counter, now_ms=wall_ms))

if __name__ == "__main__" and sys.argv[1:2] == ["access"]:
    with _server_libraries():
        from admin import access_file

    sys.exit(access_file.main(sys.argv[2:], new_token=partial(secrets.token_urlsafe, 32)))

# The data has every message: what the server and the tools write is for its owner alone, whatever
# the shell or the unit says.
UMASK = 0o077

_TOOLS = ("fsck", "salvage", "backup", "restore", "inspect", "doctor", "explain")
if __name__ == "__main__" and sys.argv[1:] and sys.argv[1] in _TOOLS:
    with _server_libraries():
        from admin import commands

    os.umask(UMASK)
    wall_ms = time.time_ns() // 1_000_000
    new_store_id = partial(secrets.token_hex, 16)
    sys.exit(
        commands.main(
            sys.argv[1:], now_ms=wall_ms, elapsed_s=time.perf_counter, new_store_id=new_store_id
        )
    )


if __name__ == "__main__":
    # Nearly all that is loaded stays. Looking for the rest again and again while it grows, and once
    # more at the end, costs a fifth of a start, and what it finds is less than half a mebibyte.
    gc.disable()

with _server_libraries():
    import uvloop

    from kernel.event_loop import InThread, ThreadPool
    from kernel.log_events import event
    from process.clock import SteadyClock
    from process.components import STORE_HANGS_S_MAX, CannotJoinError, Components
    from process.directory_locks import DataDirectories, DirectoryNameError
    from process.listener import Listener, listen_failure
    from process.logging_setup import log_to
    from process.option_parser import OptionParser
    from process.protected_files import protected_files
    from process.runtime import Runtime
    from process.settings import (
        LOOPBACK_HOSTS,
        ServerSettings,
        Settings,
        SettingsError,
        changed,
        load,
    )
    from process.systemd import notify, watchdog_interval_s
    from tuff.version import __version__
    from tuff_storage.disk.file_modes import rights_within
    from tuff_storage.disk.locks import DirectoryLockedError

log = logging.getLogger("server")

EXIT_FAILED = 1  # the directory is in use, or the port can't be had
EXIT_USAGE = 2  # a flag or a setting that is not possible
# Seconds from a stop until the last client must have read its reply. Then the snapshot is written
# and a store that hangs is given up (process/components.py): the process ends within ten seconds.
REPLIES_S_MAX = 6.0
STDIN = 0  # the descriptor
STDIN_BYTES = 4096  # read at once and dropped: only the end of the input matters
FILES_S = 0.5  # seconds between two looks at the access file and the TLS files
TICK_S = 0.2  # seconds; a time-out takes effect within one second, so several ticks in it
FEW_CONNECTIONS = 1_000  # warned of, though no setting asks for more
SPARE_DESCRIPTORS = 1_000  # files besides connections: tables of the store, logs
# A writer thread waits that long for the interpreter after a sync. With Python's own 5 ms the disk
# is idle under load.
SWITCH_INTERVAL_S = 0.0005
# Young objects that start a garbage collection. Python's own 700 are a dozen requests under way,
# whose objects are freed a moment later anyway; 10,000 are some three hundred requests.
YOUNG_COUNT_MAX = 10_000


class Server:
    """Owns the threads, the tasks, and the order in which things start and stop."""

    def __init__(self, settings: Settings, directories: DataDirectories) -> None:
        self._settings = settings
        self._directories = directories
        self._tasks: set[asyncio.Task[None]] = set()
        self._pools: list[ThreadPool] = []
        self._executors: list[ThreadPoolExecutor] = []  # of threads that other threads ask
        self._stop = asyncio.Event()
        self._stopped_s = 0.0  # when, by the loop's clock
        self._components = Components(
            settings,
            directories,
            Runtime(
                clock=SteadyClock(wall_ns=time.time_ns, boot_ns=_boot_ns),
                elapsed_s=time.perf_counter,
                new_store_id=partial(secrets.token_hex, 16),
                spawn=self._spawn,
                spawn_writer=self._spawn_writer,
                threads=self._threads,
                background=self._background,
                die=self._die,
            ),
        )

    async def run(self, *, until_stdin_closes: bool) -> int:
        """Serve until SIGTERM or SIGINT, or the end of the input; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hang_up)
        if until_stdin_closes:
            try:
                asyncio.get_running_loop().add_reader(STDIN, self._read_stdin)
            except OSError as error:
                return _fail(f"the end of standard input can't be seen: {error}", EXIT_USAGE)
        server, listener = self._settings.server, self._components.listener()
        # Steps that can fail come before the stores: opening tables in HBase takes them from the
        # server that owns them, and a failed start would leave that server down.
        try:
            port = await listener.listen(server.host, server.port)
        except OSError as error:
            return _fail(listen_failure(error, host=server.host, port=server.port), EXIT_FAILED)
        _log_start(self._settings, self._directories)
        try:
            await self._open_stores(port)
        except (DirectoryLockedError, CannotJoinError) as error:
            await listener.close(within_s=0.0)
            return _fail(str(error), EXIT_FAILED)
        self._spawn_loops()
        try:
            return await self._serve(port, listener)
        finally:
            self._stop.set()
            left_s = REPLIES_S_MAX - (asyncio.get_running_loop().time() - self._stopped_s)
            await listener.close(within_s=left_s)
            await self._components.close()
            for pool in self._pools:
                pool.close()
            for executor in self._executors:
                executor.shutdown()
            log.info("stopped", extra=event("server_stopped"))

    def _spawn_loops(self) -> None:
        self._spawn(self._every(TICK_S, self._components.tick_messages))
        self._spawn(self._every(TICK_S, self._components.tick_transactions))
        if self._watches_files:
            self._spawn(self._every(FILES_S, self._components.refresh_files))
        self._spawn(
            self._every(self._settings.messaging.cleanup_interval_s, self._components.sweep)
        )

    async def _open_stores(self, port: int) -> None:
        """Raises: DirectoryLockedError, CannotJoinError."""
        opening = asyncio.ensure_future(self._components.open(url=self._url(port)))
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((opening, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        # A stop does not wait for a gateway that hangs.
        later = asyncio.get_running_loop().call_later
        giving_up = (
            later(STORE_HANGS_S_MAX, self._components.interrupt) if self._stop.is_set() else None
        )
        try:
            await opening
        finally:
            if giving_up is not None:
                giving_up.cancel()

    async def _serve(self, port: int, listener: Listener) -> int:
        # Objects that live until the end are never garbage; examining them again costs pauses.
        gc.freeze()
        gc.set_threshold(YOUNG_COUNT_MAX, *gc.get_threshold()[1:])
        gc.enable()
        if not self._stop.is_set():
            url = self._url(port)
            print(f"tuff ready on {url}", flush=True)
            log.info("ready on %s", url, extra=event("server_ready", url=url))
            _notify("READY=1")
            if (interval_s := watchdog_interval_s(os.environ.get("WATCHDOG_USEC"))) is not None:
                self._spawn(self._every(interval_s, _is_alive))
        await self._stop.wait()
        self._stopped_s = asyncio.get_running_loop().time()
        _notify("STOPPING=1")
        extra = event("server_stopping")
        log.info("stopping: refusing new work, finishing what is under way", extra=extra)
        listener.end_with_replies()
        await self._components.drain()
        return 0

    def _url(self, port: int) -> str:
        server = self._settings.server
        scheme = "https" if server.has_tls else "http"
        host = f"[{server.host}]" if ":" in server.host else server.host
        return f"{scheme}://{host}:{port}"

    @property
    def _watches_files(self) -> bool:
        return bool(self._settings.server.access_file) or self._settings.server.has_tls

    def _hang_up(self) -> None:
        if self._watches_files:
            self._spawn(self._components.refresh_files())
            return
        log.info("SIGHUP is ignored: settings are read at the start, and logs go to standard error")

    def _read_stdin(self) -> None:
        if not os.read(STDIN, STDIN_BYTES):
            asyncio.get_running_loop().remove_reader(STDIN)
            self._stop.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(task := asyncio.get_running_loop().create_task(work))
        task.add_done_callback(self._ended)

    def _spawn_writer(self, work: Coroutine[Any, Any, None]) -> None:
        self._spawn(_or_die(work))

    def _die(self, reason: str) -> None:
        # Another server may have replaced this one: nothing may be answered any more. A server that
        # is being stopped was to end anyway, and has not failed.
        is_stopping = self._stop.is_set()
        level = logging.INFO if is_stopping else logging.ERROR
        log.log(level, "%s; the process ends", reason, extra=event("process_ended"))
        os._exit(0 if is_stopping else EXIT_FAILED)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task failed", exc_info=error, extra=event("task_failed"))

    async def _every(self, interval_s: float, work: Callable[[], Awaitable[object]]) -> None:
        while not self._stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), interval_s)
                return
            try:
                await work()
            except Exception:  # one bad round must not end the loop that enforces time-outs
                log.exception("a periodic task failed", extra=event("task_failed"))

    def _threads(self, name: str, count: int, *, is_joined: bool = True) -> InThread:
        def start(work: Callable[[], None]) -> threading.Thread:
            # A daemon: a start that fails ends without having closed what it began.
            thread = threading.Thread(target=work, name=name, daemon=True)
            thread.start()
            return thread

        pool = ThreadPool(count, start=start)
        if is_joined:
            self._pools.append(pool)
        return pool.run

    def _background(self, name: str) -> Callable[[Callable[[], None]], object]:
        pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._executors.append(pool)
        return pool.submit


def _log_start(settings: Settings, directories: DataDirectories) -> None:
    fields = {
        "version": __version__,
        "pid": os.getpid(),
        "messages": directories.messages,
        "snapshots": directories.snapshots,
        **changed(settings),
    }
    log.info("server starting", extra={"code": "server_starting", "fields": fields})
    _warn_of_exposed_files(settings)
    _warn_of_exposed_data(directories)
    _warn_of_missing_archive(settings)
    host = settings.server.host
    if host in LOOPBACK_HOSTS:
        return
    if not settings.server.has_tls:
        log.warning(
            "server.host=%s is not a loopback address, and the server has no TLS: tokens and "
            "messages are readable on the way; put a proxy with TLS in front of it",
            host,
        )
    if not settings.server.access_file:
        log.warning(
            "server.host=%s is not a loopback address, and the server has no access file: every "
            "client that reaches it can read, write and stop transactions; put a proxy that "
            "authenticates clients in front of it",
            host,
        )


def _warn_of_exposed_files(settings: Settings) -> None:
    for setting, file, rights in protected_files(settings):
        if rights is not None:
            log.warning(
                "every user of this machine may %s %s; chmod o-rw %s",
                rights,
                file,
                file,
                extra=event("file_exposed", setting=setting, file=file),
            )


def _warn_of_missing_archive(settings: Settings) -> None:
    directory = settings.messaging.archive_directory
    if directory and not Path(directory).is_dir():
        log.warning(
            "messaging.archive_directory=%s is no directory (is it mounted?): reads that start "
            "before the log are refused until it is there",
            directory,
            extra=event("archive_missing", directory=directory),
        )


def _warn_of_exposed_data(directories: DataDirectories) -> None:
    for directory in (directories.messages, directories.snapshots):
        if (rights := rights_within(directory)) is not None:
            log.warning(
                "every user of this machine may %s what is in %s; chmod o-rwx %s",
                rights,
                directory,
                directory,
                extra=event("data_exposed", directory=directory),
            )


def _notify(state: str) -> None:
    if address := os.environ.get("NOTIFY_SOCKET"):
        notify(address, state)


async def _is_alive() -> None:
    _notify("WATCHDOG=1")


async def _or_die(work: Coroutine[Any, Any, None]) -> None:
    # Without its writer the server would accept requests and never answer them. Acknowledged
    # writes are on the disk, and the next start recovers them.
    try:
        await work
    except Exception:
        extra = event("process_ended")
        log.exception(
            "a writer has a bug; the process ends, and the next start recovers", extra=extra
        )
        os._exit(EXIT_FAILED)


def main(arguments: list[str]) -> int:
    """The program; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        settings = load(options.config, _assignments(options))
        directories = DataDirectories.below(options.data)
        if settings.cluster.transactions_directory and settings.cluster.is_member:
            directories = directories.sharing(Path(settings.cluster.transactions_directory))
    except (SettingsError, DirectoryNameError) as error:
        return _fail(str(error), EXIT_USAGE)
    os.umask(UMASK)
    server = settings.server
    log_to(sys.stderr, level=server.log_level, log_format=server.log_format)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    settings = _within_file_limit(settings)
    with ExitStack() as locks:
        try:
            directories.lock(locks)
        except DirectoryLockedError as error:
            return _fail(str(error), EXIT_FAILED)
        except OSError as error:
            return _fail(_unusable(error), EXIT_FAILED)
        # The loop in C takes much less of the processor for each request than Python's own.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            serving = _run(settings, directories, until_stdin_closes=options.until_stdin_closes)
            return runner.run(serving)


async def _run(
    settings: Settings, directories: DataDirectories, *, until_stdin_closes: bool
) -> int:
    try:
        server = Server(settings, directories)
    except SettingsError as error:
        return _fail(str(error), EXIT_USAGE)
    return await server.run(until_stdin_closes=until_stdin_closes)


def _parser() -> OptionParser:
    default = ServerSettings()
    parser = OptionParser(
        prog="server.py",
        description="Serve transactions and messages over HTTP.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE.toml", help="settings file")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="holds everything: messages, snapshots; without it data/ and snapshots/ here do",
    )
    parser.add_argument("--host", help=f"address to listen on ({default.host})")
    parser.add_argument("--port", help=f"0 takes a free one ({default.port})")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="section.key=value",
        help="one setting, as often as needed; conf/standalone.toml has all of them",
    )
    parser.add_argument(
        "--until-stdin-closes",
        action="store_true",
        help="end with the process that holds the other end of the standard input",
    )
    return parser


def _assignments(options: argparse.Namespace) -> list[str]:
    flags = {"server.host": options.host, "server.port": options.port}
    return [
        *options.set,
        *(f"{name}={value}" for name, value in flags.items() if value is not None),
    ]


def _fail(sentence: str, code: int) -> int:
    print(f"tuff: {sentence}", file=sys.stderr)
    return code


def _unusable(error: OSError) -> str:
    """Why a data directory can't be used, and what to do."""
    reason = f"{error.filename} can't hold data: {error.strerror}"
    if isinstance(error, FileExistsError | NotADirectoryError):
        reason = f"{error.filename} can't hold data: it is a file, and no directory"
    if error.errno == EROFS:
        return f"{reason}; mount it for writing, or give another with --data"
    if not isinstance(error, PermissionError):
        return f"{reason}; give another with --data"
    user, group = os.geteuid(), os.getegid()
    owner = user
    with suppress(OSError):
        path = Path(error.filename)
        owner = (path if path.exists() else path.parent).stat().st_uid
    if owner == user:
        return f"{reason}; let its owner write (`chmod -R u+rwX`), or give another with --data"
    return (
        f"{reason}: it belongs to the user {owner}, and the server runs as {user}; give it the "
        f"whole directory (`chown -R {user}:{group}`), as after a restore by root, or give another "
        "with --data"
    )


def _boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _within_file_limit(settings: Settings) -> Settings:
    """Raise the limit of descriptors as far as `server.max_connections` needs. Where that is not
    allowed, fewer connections are: those that take the last descriptors would take the message
    store down, which opens files."""
    connections_max = settings.server.max_connections
    limit = _raise_file_limit(connections_max + SPARE_DESCRIPTORS)
    allowed = limit - min(SPARE_DESCRIPTORS, limit // 2)
    if allowed >= connections_max:
        return settings
    is_default = connections_max == ServerSettings().max_connections
    log.log(
        logging.INFO if is_default and allowed >= FEW_CONNECTIONS else logging.WARNING,
        "the limit of file descriptors of this process is %d, so it takes %d connections in place "
        "of server.max_connections=%d; raise it (LimitNOFILE of the unit, or ulimit -n)",
        limit,
        allowed,
        connections_max,
        extra=event("few_file_descriptors", limit=limit, connections=allowed),
    )
    return replace(settings, server=replace(settings.server, max_connections=allowed))


def _raise_file_limit(wanted: int) -> int:
    """Returns the limit, `wanted` at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (ValueError, OSError):
        return soft
    return limit


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
