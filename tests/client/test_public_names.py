"""The public names: what importing them costs (design §3), that all are there, and that `help(…)`
is enough to use them: promise, units, defaults, errors, an example."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tuff
from tuff import client_errors, replies
from tuff.protocol.errors import BY_CODE

ROOT = Path(__file__).resolve().parents[2]
ERROR_TABLE = re.compile(r"^\| [45]\d\d \| (`.*) \|$", re.MULTILINE)  # of protocol §1

HEAVY = {"aiohttp", "asyncio", "click", "fastavro", "happybase", "msgpack", "plyvel", "pyspark",
         "rich"}  # fmt: skip

IMPORT_S_MAX = 0.15  # seconds of the processor; a command or a test run begins with it


def loaded_by(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}\nprint(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_a_client_a_transaction_and_a_subscriber_load_nothing_heavy() -> None:
    program = "import tuff; tuff.Client().transaction(); tuff.Subscriber, tuff.TablePositions"

    assert HEAVY & loaded_by(program) == set()


def test_the_asyncio_client_loads_only_asyncio_and_aiohttp() -> None:
    loaded = loaded_by("import tuff; tuff.AsyncClient()")

    assert HEAVY & loaded == {"aiohttp", "asyncio"}


def test_importing_costs_little_time() -> None:
    program = (
        "import time; began = time.process_time(); import tuff;print(time.process_time() - began)"
    )

    # Of the processor, and the best of a few: what a busy machine adds is none of ours.
    spent_s = min(float(subprocess.check_output([sys.executable, "-c", program])) for _ in range(5))
    assert spent_s < IMPORT_S_MAX


def test_every_public_name_can_be_had() -> None:
    assert [name for name in tuff.__all__ if not hasattr(tuff, name)] == []


def test_every_error_of_the_protocol_and_every_name_of_the_client_page_is_public() -> None:
    rows = ERROR_TABLE.findall((ROOT / "docs/protocol.md").read_text())
    codes = re.findall(r"`([a-z_]+)`", re.sub(r"\(.*?\)", "", "\n".join(rows)))
    kinds = {BY_CODE[code].__name__ for code in codes}
    page = (ROOT / "docs/howto/client.md").read_text()
    named = set(re.findall(r"`(?:tuff\.)?([A-Z]\w+(?:Error|Positions|Table))\b", page))
    named |= set(re.findall(r"\btuff\.([A-Za-z]\w+)", page)) - {"publish"}

    assert len(kinds) > 30
    assert (kinds | named) - set(tuff.__all__) - {
        "ValueError",
        "TypeError",
        "RuntimeError",
    } == set()


def test_every_reply_and_every_error_of_the_client_is_public() -> None:
    defined = {
        name
        for module in (replies, client_errors)
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    }

    assert defined - set(tuff.__all__) == set()


def test_a_table_in_hbase_says_what_has_to_be_installed_for_it() -> None:
    program = (
        "import sys, tuff\n"
        "sys.modules['happybase'] = None\n"
        "try: tuff.HBaseTransactionalTable('127.0.0.1:9090', 'stock')\n"
        "except ModuleNotFoundError as error: print(error)"
    )

    said = subprocess.check_output([sys.executable, "-c", program], text=True)

    assert "needs happybase, which is not installed; pip install 'tuff-messaging[hbase]'" in said


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        tuff.nothing_of_that_name  # noqa: B018 - the look-up itself is what raises


TWINS = (
    (tuff.Client, tuff.AsyncClient),
    (tuff.TransactionContext, tuff.AsyncTransactionContext),
    (tuff.Subscriber, tuff.AsyncSubscriber),
    (tuff.Publisher, tuff.AsyncPublisher),
    (tuff.TypedTopic, tuff.AsyncTypedTopic),
    (type(tuff.Client().topics), type(tuff.AsyncClient().topics)),
    (type(tuff.Client().transactions), type(tuff.AsyncClient().transactions)),
    (type(tuff.Client().sinks), type(tuff.AsyncClient().sinks)),
)


def methods(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(value)
        for name, value in vars(kind).items()
        if not name.startswith("_") and callable(value)
    }


@pytest.mark.parametrize("kind", [kind for twins in TWINS for kind in twins])
def test_every_public_method_says_what_it_promises(kind: type) -> None:
    silent = [name for name in methods(kind) if not inspect.getdoc(getattr(kind, name))]

    assert silent == []


@pytest.mark.parametrize("name", ["publish", "poll", "subscribe", "transaction", "run",
                                  "publisher", "subscriber"])  # fmt: skip
@pytest.mark.parametrize("client", [tuff.Client, tuff.AsyncClient])
def test_the_main_methods_document_an_example_each_parameter_and_the_errors(
    client: type, name: str
) -> None:
    method = getattr(client, name)
    doc = inspect.getdoc(method) or ""

    assert "\n    " in doc, "an example"
    assert "Raises" in doc
    unsaid = [
        parameter
        for parameter in inspect.signature(method).parameters
        if parameter not in {"self", "topic", "messages", "function", "participants", "process"}
        and f"`{parameter}" not in doc
    ]
    assert unsaid == []


@pytest.mark.parametrize(("blocking", "on_a_loop"), TWINS, ids=lambda kind: kind.__name__)
def test_both_clients_have_the_same_methods_with_the_same_parameters(
    blocking: type, on_a_loop: type
) -> None:
    """That of a generated class is true by itself; the two publishers are written by hand."""
    ours, theirs = methods(blocking), methods(on_a_loop)

    assert list(ours) == list(theirs)
    for name, signature in ours.items():
        assert [(p.name, p.kind, p.default) for p in signature.parameters.values()] == [
            (p.name, p.kind, p.default) for p in theirs[name].parameters.values()
        ], name
