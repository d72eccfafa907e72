"""The access file, and the rights that it gives."""

import pytest

from access.principals import EVERY, AccessFileError, hash_of, parse
from tuff.protocol.operations import Right

BILLING = f"""
[principals.billing]
tokens = ["sha256:{hash_of("secret")}"]
[[principals.billing.rights]]
namespace = "shop"
topics = ["orders", "invoices-*"]
allow = ["publish"]
[[principals.billing.rights]]
namespace = "logs"
allow = ["read", "transact"]
"""


@pytest.mark.parametrize(
    ("right", "namespace", "topic", "may"),
    [
        (Right.PUBLISH, "shop", "orders", True),
        (Right.PUBLISH, "shop", "invoices-2026", True),
        (Right.PUBLISH, "shop", "orders2", False),
        (Right.PUBLISH, "shop", "Orders", False),
        (Right.PUBLISH, "shop", EVERY, False),
        (Right.READ, "shop", "orders", False),
        (Right.PUBLISH, "other", "orders", False),
        (Right.READ, "logs", "anything", True),
        (Right.READ, "logs", EVERY, True),
        (Right.READ, EVERY, EVERY, False),
    ],
)
def test_a_right_holds_for_the_topics_of_its_patterns(
    right: Right, namespace: str, topic: str, *, may: bool
) -> None:
    billing = parse(BILLING).by_name["billing"]

    assert billing.may(right, namespace, topic) is may


def test_a_token_is_found_by_its_hash_and_the_hash_is_no_token() -> None:
    principals = parse(BILLING)

    assert principals.of_token("secret") is principals.by_name["billing"]
    assert principals.of_token("Secret") is None
    assert principals.of_token(hash_of("secret")) is None
    assert principals.of_token("") is None


@pytest.mark.parametrize(
    ("text", "naming"),
    [
        ("principals = 1", "principals is a table"),
        ("[principal.a]", "no key 'principal'"),
        ("x = ", "no TOML"),
        ("", "no principal has a token"),
        ("[principals.a]\ntoken = []", "principals.a has no key 'token'"),
        ('[principals.a]\ntokens = ["hunter2"]', "not sha256"),
        ('[principals.a]\ntokens = "x"', "list of texts"),
        ("[principals.'a b']", "legal name"),
        ("[principals.a]\ntenant = 1", "principals.a.tenant is a text"),
        ("[principals.a]\ntenant = 'a@b'", "principals.a.tenant"),
        ("[principals.a]\ntenant = ''", "legal name"),
        ("[principals.a]\nrights = 1", "list of tables"),
        ("[[principals.a.rights]]\nallow = ['write']", "create, publish, read"),
        ("[[principals.a.rights]]\nallow = []", "create, publish, read"),
        ("[[principals.a.rights]]\nnamespace = 'a/b'\nallow = ['read']", "legal name"),
        (f"{BILLING}[principals.b]\ntokens = ['sha256:{hash_of('secret')}']", "billing has too"),
    ],
)
def test_a_file_that_is_not_valid_is_refused_with_the_place(text: str, naming: str) -> None:
    with pytest.raises(AccessFileError) as caught:
        parse(text)

    assert naming in str(caught.value)
    assert "hunter2" not in str(caught.value)
