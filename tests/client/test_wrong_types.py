"""Arguments of a wrong type are refused by their name, before anything is sent."""

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, get_args

import pytest

import tuff
from tuff.connectors import PollQuestion

Misuse = Callable[[tuff.Client, tuff.TopicId], object]

MISUSES: list[tuple[Misuse, str]] = [
    (
        lambda client, topic: client.share_consumer(topic, group="g", retry=3),
        "retry has the type Re",
    ),
    (
        lambda client, topic: client.share_consumer(topic, group="g", batch="9"),
        "batch has the type",
    ),
    (lambda client, topic: client.share_consumer(topic, group=3), "is a string, not 3"),
    (lambda client, topic: client.consumer(3, group="g"), "topics is a collection"),
    (lambda client, topic: client.consumer("orders", group="g"), "'orders' is no topic"),
    (lambda client, topic: client.publish(3, "x"), "3 is no topic"),
    (lambda client, topic: client.topic("orders", tuff.STR), "'orders' is no topic"),
    (lambda client, topic: client.publisher().publish(b"n:t", "x"), "b'n:t' is no topic"),
    (lambda client, topic: client.consumer(topic, group=3), "is a string, not 3"),
    (
        lambda client, topic: client.consumer(topic, group="g", retry=3),
        "retry is a RetryPolicy",
    ),
    (
        lambda client, topic: client.publisher(batch_bytes="9"),
        "batch_bytes has the type",
    ),
    (lambda client, topic: client.publisher(buffer_messages="9"), "buffer_messages has"),
    (
        lambda client, topic: next(client.merged(topic, partitions=3)),
        "partitions is a collection",
    ),
    (lambda client, topic: client.poll_batch(topic, 3), "question has the type PollQuestion"),
    (lambda client, topic: client.rollback(topic, 3), "detail has the type RollbackDetail"),
    (lambda client, topic: client.explain(topic, "0", transaction="x"), "transaction has the type"),
    (lambda client, topic: client.transaction(chain="yes"), "chain has the type bool, and not"),
    (lambda client, topic: client.poll(topic, inclusive="no"), "inclusive has the type bool"),
    (
        lambda client, topic: client.poll_batch(
            topic, tuff.connectors.PollQuestion(), attributes="no"
        ),
        "attributes has the type bool",
    ),
    (lambda client, topic: client.delayed.list(topic, payloads="no"), "payloads has the type bool"),
    (
        lambda client, topic: client.transactions.commit(1, read_only="no"),
        "read_only has the type bool",
    ),
    (lambda client, topic: client.run(3), "the work is a function of the transaction, not 3"),
    (lambda client, topic: client.run(print, attempts="9"), "attempts has the type int"),
    (lambda client, topic: client.groups.reset("n", "g", 3), "starts is a mapping"),
    (
        lambda client, topic: client.groups.reset("n", "g", {"a": None}),
        "'a' is no topic",
    ),
    (lambda client, topic: client.sinks.begin("s", "1", "r"), "epoch has the type int"),
    (
        lambda client, topic: client.topics.create(topic, properties=3),
        "properties is a",
    ),
    (lambda client, topic: client.transactions.run("x"), "publish is a collection"),
    (lambda client, topic: client.transactions.run(["x"]), "an entry of publish has the type"),
    (lambda client, topic: client.transactions.truncate(ids=3), "ids is a collection"),
    (lambda client, topic: tuff.Client(timeout="9"), "timeout is a number of seconds"),
    (lambda client, topic: tuff.Client(retries="9"), "retries"),
    (lambda client, topic: tuff.Client(url=3), "url"),
    (lambda client, topic: tuff.Client(token=3), "token"),
    (lambda client, topic: tuff.Client(transport=3), "transport"),
    (lambda client, topic: tuff.Client(transport="grpc"), "transport"),
    (lambda client, topic: tuff.Client(client_id=3), "client_id"),
    (lambda client, topic: tuff.Client(ssl_context="x"), "ssl_context"),
    (lambda client, topic: tuff.AsyncClient(transport=3), "transport"),
    (lambda client, topic: tuff.AsyncClient(transport="grpc"), "transport"),
]


@pytest.mark.parametrize(("misuse", "naming"), MISUSES)
def test_an_argument_of_a_wrong_type_is_named(
    client: tuff.Client, topic: tuff.TopicId, misuse: Misuse, naming: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=naming):
        misuse(client, topic)


CLIENT = tuff.Client("http://127.0.0.1:1", retries=0)  # no server is asked
GIVEN: dict[str, Any] = {  # valid arguments, by the names of parameters
    "topic": "shop:orders",
    "topics": "shop:orders",
    "group": "billing",
    "name": "billing",
    "sink": "sink",
    "run_id": "run",
    "tx": 1,
    "id": "00" * 20,
    "start": "earliest",
    "count": 1,
    "epoch": 1,
    "server_id": "one",
    "max_age": 1,
    "transaction": 1,
    "database": "shop",
    "process": lambda messages, tx: None,
    "function": lambda tx: None,
    "positions": SimpleNamespace(load=None, save=None),
    "question": PollQuestion(),
    "connection": None,
    "outcome": "abort",
    "changes": (),
}
SAID = {"tx": "a transaction"}  # how errors name parameters, if not by the name itself


def numeric_parameters() -> Iterator[tuple[str, Callable[..., object], str]]:
    """Each parameter of the client's methods that takes a number or a duration."""
    owners = [CLIENT, *(each for name, each in vars(CLIENT).items() if not name.startswith("_"))]
    for owner in owners:
        if isinstance(owner, str):  # the client's id
            continue
        for name, method in inspect.getmembers(owner, inspect.ismethod):
            if name.startswith("_"):
                continue
            for parameter in inspect.signature(method).parameters.values():
                kinds = [parameter.annotation, *get_args(parameter.annotation)]
                if str not in kinds and any(each in (int, float, timedelta) for each in kinds):
                    yield (
                        f"{type(owner).__name__}.{name}({parameter.name}=)",
                        method,
                        parameter.name,
                    )


@pytest.mark.parametrize("wrong", ["4", True], ids=["text", "bool"])
@pytest.mark.parametrize(
    ("method", "parameter"),
    [pytest.param(method, name, id=id) for id, method, name in numeric_parameters()],
)
def test_each_number_and_duration_is_checked_before_anything_is_sent(
    method: Callable[..., object], parameter: str, wrong: object
) -> None:
    """`partitions="4"` was sent, and `poll(transaction="12")` read outside of the transaction."""
    given: dict[str, object] = {}
    payloads: list[str] = []
    for each in inspect.signature(method).parameters.values():
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            payloads += ["hello"] if each.name == "payloads" else []
        elif each.default is inspect.Parameter.empty:
            given[each.name] = GIVEN[each.name]
    topic = [given.pop("topic")] if payloads else []

    with pytest.raises(TypeError, match=SAID.get(parameter, parameter)):
        begun(method(*topic, *payloads, **{**given, parameter: wrong}))


def begun(result: object) -> object:
    """The result; an iteration is begun, as its arguments are checked then."""
    return next(result) if isinstance(result, Iterator) else result
