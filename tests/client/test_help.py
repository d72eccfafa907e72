"""`help(…)` is enough to use what is public: promise, units, defaults, errors, an example."""

import inspect

import pytest

import tuff

TWINS = (
    (tuff.Client, tuff.AsyncClient),
    (tuff.TransactionContext, tuff.AsyncTransactionContext),
    (tuff.Subscriber, tuff.AsyncSubscriber),
    (tuff.Publisher, tuff.AsyncPublisher),
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
def test_what_everybody_uses_shows_an_example_its_units_and_its_errors(
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
