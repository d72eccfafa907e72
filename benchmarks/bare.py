"""The bare handler, a limit: an aiohttp application that reads a body and sends an empty reply.

With `uvloop` as its argument it runs on the event loop of the server, else on Python's own, which
is aiohttp's default.
"""

import asyncio
import signal
import sys

import uvloop
from aiohttp import web


async def _handle(request: web.Request) -> web.Response:
    await request.read()
    return web.Response()


async def _serve() -> None:
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/", _handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    print(f"ready on http://{host}:{port}", flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await runner.cleanup()


if __name__ == "__main__":
    loop_factory = uvloop.new_event_loop if sys.argv[1:] == ["uvloop"] else None
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_serve())
