"""aiohttp's server without its client.

`import aiohttp` loads both, and its client reads every certificate of the system, twice. That was
a third of what a start of the server costs, which needs nothing of it.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType

_PACKAGE = "aiohttp"


def load_server_half(load: Callable[[str], ModuleType] = import_module) -> None:
    """Load `aiohttp.web` into a package that was not executed; `aiohttp` itself stays empty.

    A version of aiohttp that can't do with that is loaded whole by whoever imports it next.
    """
    assert _PACKAGE not in sys.modules
    spec = find_spec(_PACKAGE)
    assert spec is not None
    package = module_from_spec(spec)
    package.__dict__["__version__"] = ""  # told to browsers, and replaced in our replies
    sys.modules[_PACKAGE] = package
    try:
        load(f"{_PACKAGE}.web")
    except ImportError:
        for name in [name for name in sys.modules if name.split(".")[0] == _PACKAGE]:
            del sys.modules[name]
