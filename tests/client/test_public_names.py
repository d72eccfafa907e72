"""The public names: what importing them costs (design §3), that all are there, and that `help(…)`
is enough to use them: promise, units, defaults, errors, an example."""

import ast
import builtins
import compileall
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import tuff
from tuff import admin, connectors, errors, replies
from tuff.protocol import errors as protocol_errors
from tuff.protocol.errors import BY_CODE

ROOT = Path(__file__).resolve().parents[2]
ERROR_TABLE = re.compile(r"^\| [45]\d\d \| (`.*) \|$", re.MULTILINE)  # of protocol §1

HEAVY = {"aiohttp", "asyncio", "click", "fastavro", "happybase", "plyvel", "pyspark",
         "rich"}  # fmt: skip

NAMES_COUNT_MAX = 60  # more than these nobody reads
CAUGHT_BY_MOST = {
    "TuffError", "ConnectionLostError", "OutcomeUnknownError", "TopicExistsError",
    "TopicNotFoundError", "TransactionConflictError", "WrongStateError",
}  # fmt: skip

IMPORT_S_MAX = 0.02  # seconds of the processor; a command or a test run begins with it


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


def test_it_works_without_source_files(tmp_path: Path) -> None:
    """As in a frozen program, or where only byte code is installed."""
    ignored = shutil.ignore_patterns("__pycache__")
    tuff_alone = shutil.copytree(ROOT / "tuff", tmp_path / "tuff", ignore=ignored)
    compileall.compile_dir(tuff_alone, quiet=1, legacy=True)
    for source in tuff_alone.rglob("*.py"):
        source.unlink()
    program = (
        "import tuff; assert tuff.__file__.endswith('.pyc')\n"
        "print(len(tuff.__all__), [each for each in tuff.__all__ if not hasattr(tuff, each)])"
    )

    printed = subprocess.check_output([sys.executable, "-c", program], text=True, cwd=tmp_path)

    assert printed == f"{len(tuff.__all__)} []\n"


def test_the_public_names_are_those_that_are_imported_for_type_checkers() -> None:
    tree = ast.parse((ROOT / "tuff/__init__.py").read_text("utf-8"))
    (choice,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in choice.orelse if isinstance(node, ast.ImportFrom)]

    assert tuff.__all__ == [alias.name for node in imports for alias in node.names]
    assert len(tuff.__all__) == len(set(tuff.__all__))


def test_a_program_finds_what_it_uses_among_few_names() -> None:
    assert len(tuff.__all__) <= NAMES_COUNT_MAX
    assert {name for name in tuff.__all__ if name.endswith("Error")} == CAUGHT_BY_MOST
    assert set(tuff.__all__) - CAUGHT_BY_MOST == {
        *("Client", "Consumer", "Publisher", "ShareConsumer", "SqlResolver", "SqlTransaction"),
        *("Subscriber", "TransactionContext", "TypedTopic"),
        *("AsyncClient", "AsyncConsumer", "AsyncPublisher", "AsyncShareConsumer"),
        *("AsyncSqlResolver", "AsyncSqlTransaction", "AsyncSubscriber", "AsyncTransactionContext"),
        "AsyncTypedTopic",
        *("Message", "MessageId", "NewMessage", "TopicId", "PartitionId", "Poll", "Published"),
        *("Ack", "Isolation", "Transaction", "TransactionType"),
        *(
            "Batch",
            "DeliveryMode",
            "GroupPreferences",
            "RetryPolicy",
            "DeadLetter",
            "read_dead_letter",
        ),
        *("TransactionAware", "AsyncTransactionAware"),
        *("TransactionalTable", "HBaseTransactionalTable", "TablePositions"),
        *("Serializer", "TypedMessage", "BYTES", "STR", "avro_serializer", "json_serializer"),
        *("admin", "connectors", "errors", "__version__"),
    }


def test_every_public_name_can_be_had() -> None:
    assert [name for name in tuff.__all__ if not hasattr(tuff, name)] == []


def test_the_errors_of_the_protocol_and_of_the_client_are_in_one_module() -> None:
    rows = ERROR_TABLE.findall((ROOT / "docs/protocol.md").read_text())
    codes = re.findall(r"`([a-z_]+)`", re.sub(r"\(.*?\)", "", "\n".join(rows)))
    kinds = {BY_CODE[code].__name__ for code in codes}
    defined = {
        name
        for name, value in vars(protocol_errors).items()
        if isinstance(value, type) and issubclass(value, tuff.TuffError)
    }

    assert len(kinds) > 30
    assert (kinds | defined) - public_names(errors) == set()


def test_what_the_pages_name_is_public() -> None:
    modules = {"errors": errors, "admin": admin, "connectors": connectors}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if page.parent.name == "decisions":
            continue
        text = page.read_text()
        names = set(re.findall(r"\btuff\.([A-Z]\w+)", text))
        assert names - set(tuff.__all__) == set(), page
        for module, name in re.findall(r"\btuff\.(errors|admin|connectors)\.([A-Z]\w+)", text):
            assert name in public_names(modules[module]), page


def test_the_errors_that_the_page_of_the_client_names_are_public() -> None:
    page = (ROOT / "docs/howto/client.md").read_text()
    named = set(re.findall(r"`(?:tuff\.)?(?:errors\.)?([A-Z]\w+Error)\b", page))

    assert len(named) > 10
    assert {name for name in named if not hasattr(builtins, name)} - public_names(errors) == set()


def test_every_reply_is_public() -> None:
    defined = {
        name
        for name, value in vars(replies).items()
        if isinstance(value, type) and value.__module__ == replies.__name__
    }

    assert defined - set(tuff.__all__) - public_names(admin) - public_names(connectors) == set()


def public_names(module: ModuleType) -> set[str]:
    return {name for name in vars(module) if not name.startswith("_")}


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
    (type(tuff.Client().holds), type(tuff.AsyncClient().holds)),
    (type(tuff.Client().positions), type(tuff.AsyncClient().positions)),
    (type(tuff.Client().delayed), type(tuff.AsyncClient().delayed)),
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
