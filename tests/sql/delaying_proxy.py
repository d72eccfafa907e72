"""Between a program and PostgreSQL: it holds an answer back, as a slow network does."""

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit

READ_BYTES = 65_536  # bytes; each statement of the tests is answered by one such part


class DelayingProxy:
    """Passes everything on, until `holding` names an answer."""

    def __init__(self, dsn: str) -> None:
        self._parts = urlsplit(dsn)
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers_left: int | None = None
        self._held = asyncio.Event()
        self._released = asyncio.Event()
        self._server: asyncio.Server | None = None

    @property
    def dsn(self) -> str:
        assert self._server is not None, "it was entered"
        port = self._server.sockets[0].getsockname()[1]
        return self._parts._replace(netloc=f"{self._parts.username}@127.0.0.1:{port}").geturl()

    async def holding(self, answer: int, task: "asyncio.Task[None]") -> None:
        """Cancel the task while the answer of that number is on its way, or let it end before; then
        let the answer come. 0: the next one."""
        self._answers_left = answer
        held = asyncio.create_task(self._held.wait())
        await asyncio.wait({held, task}, return_when=asyncio.FIRST_COMPLETED)
        held.cancel()
        task.cancel()
        await asyncio.sleep(0)  # the task is told
        self._answers_left = None
        self._released.set()

    async def __aenter__(self) -> "DelayingProxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_raised: object) -> None:
        assert self._server is not None, "it was entered"
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a server calls it in one"
        self._tasks.add(task)
        from_database, to_database = await asyncio.open_connection(
            self._parts.hostname, self._parts.port
        )
        with suppress(asyncio.CancelledError, ConnectionError):
            await asyncio.gather(
                self._pass_on(reader, to_database, are_answers=False),
                self._pass_on(from_database, writer, are_answers=True),
            )
        to_database.close()
        writer.close()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, are_answers: bool
    ) -> None:
        while part := await reader.read(READ_BYTES):
            if are_answers and self._answers_left is not None:
                if self._answers_left == 0:
                    self._held.set()
                    await self._released.wait()
                else:
                    self._answers_left -= 1
            writer.write(part)
        writer.close()
