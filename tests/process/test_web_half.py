"""What a start of the server loads of aiohttp, seen in processes of their own."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _say(program: str) -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_start_loads_the_server_and_not_the_client() -> None:
    said = _say(
        "import runpy, sys; sys.argv = ['server.py', '--host']\n"
        "try: runpy.run_path('server.py', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print(*('aiohttp.' + name in sys.modules for name in ('web', 'client', 'connector')))"
    )

    assert said == "True False False"


def test_an_aiohttp_that_can_not_be_halved_is_loaded_whole() -> None:
    said = _say(
        "from importlib import import_module\n"
        "from process.web_half import load_server_half\n"
        "def load(name):\n"
        "    import_module(name)\n"
        "    raise ImportError('needs more')\n"
        "load_server_half(load)\n"
        "import aiohttp, aiohttp.web\n"
        "print(aiohttp.ClientSession.__name__, aiohttp.web.Application.__name__)"
    )

    assert said == "ClientSession Application"
