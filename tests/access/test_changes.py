"""Rights that are given and taken by command."""

import pytest

from access.changes import granted, revoked
from access.principals import AccessFileError, hash_of, parse
from tuff.protocol.operations import Right

TOKEN = f'tokens = ["sha256:{hash_of("secret")}"]'
FILE = f"""# who may do what
[principals.billing]
{TOKEN}  # the old one

[[principals.billing.rights]]
namespace = "shop"
topics = ["orders"]
allow = ["publish", "read"]

# only for a while
[[principals.billing.rights]]
allow = ["transact"]
"""


def test_a_right_is_added_and_taken_away_and_comments_stay() -> None:
    more = granted(FILE, "billing", Right.READ, "shop", "invoices-*")

    assert more.startswith(FILE.rstrip())
    assert parse(more).by_name["billing"].may(Right.READ, "shop", "invoices-7")
    assert granted(more, "billing", Right.READ, "shop", "invoices-*") == more
    assert revoked(more, "billing", Right.READ, "shop", "invoices-*").rstrip() == FILE.rstrip()


def test_a_right_leaves_its_table_and_the_others_stay() -> None:
    less = revoked(FILE, "billing", Right.READ, "shop", "orders")
    billing = parse(less).by_name["billing"]

    assert not billing.may(Right.READ, "shop", "orders")
    assert billing.may(Right.PUBLISH, "shop", "orders")
    assert "# only for a while" in less
    assert "# the old one" in less


@pytest.mark.parametrize(
    ("right", "namespace", "pattern", "naming"),
    [
        (Right.READ, "shop", "orders-1", "does not have the right read"),
        (Right.TRANSACT, "shop", "orders", r"table 2 of rights, on \*:\*"),
    ],
)
def test_a_right_that_would_stay_or_is_not_there_changes_nothing(
    right: Right, namespace: str, pattern: str, naming: str
) -> None:
    with pytest.raises(AccessFileError, match=naming):
        revoked(FILE, "billing", right, namespace, pattern)


def test_a_right_on_one_of_several_topics_splits_their_table() -> None:
    several = FILE.replace('topics = ["orders"]', 'topics = ["orders", "invoices-*"]')

    less = revoked(several, "billing", Right.READ, "shop", "orders")
    billing = parse(less).by_name["billing"]

    assert not billing.may(Right.READ, "shop", "orders")
    assert billing.may(Right.PUBLISH, "shop", "orders")
    assert billing.may(Right.READ, "shop", "invoices-1")
    assert billing.may_somewhere(Right.TRANSACT, "shop")


def test_transact_has_no_topic_and_leaves_its_whole_table() -> None:
    text = f'[principals.a]\n{TOKEN}\n[[principals.a.rights]]\ntopics = ["a", "b"]\n'
    text += 'allow = ["read", "transact"]\n'

    less = revoked(text, "a", Right.TRANSACT, "*", "a")

    assert not parse(less).by_name["a"].may_somewhere(Right.TRANSACT, "*")
    assert parse(less).by_name["a"].may(Right.READ, "shop", "b")


@pytest.mark.parametrize("pattern", ["", "or ders", "orders:1", "shop/orders"])
def test_topics_that_can_t_exist_are_not_granted(pattern: str) -> None:
    with pytest.raises(AccessFileError, match="no topic can match"):
        granted(FILE, "billing", Right.READ, "shop", pattern)


def test_rights_in_another_form_are_left_to_the_user() -> None:
    inline = f'[principals.a]\n{TOKEN}\nrights = [{{allow = ["read"]}}]\n'
    for change in (granted, revoked):
        with pytest.raises(AccessFileError, match="edit the file"):
            change(inline, "a", Right.READ if change is revoked else Right.CREATE, "*", "*")
