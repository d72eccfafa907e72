"""Random tokens, certificates and access files are refused, and nothing breaks."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from access.principals import AccessFileError, parse
from kernel.requests_and_replies import Request
from process.access_guard import AccessGuard
from process.tls import names_of
from tests.secret_values import CLUSTER_SECRET as SECRET
from tests.secret_values import hash_of_token, require_no_secret
from tuff.protocol import operations
from tuff.protocol.errors import UnauthenticatedError

FILE = f'[principals.a]\ntokens = ["{hash_of_token("a")}"]\ncertificates = ["a.example"]\n'
ALMOST = f"Tuff-Server {SECRET[:-1]} "
SCHEMES = st.sampled_from(["Bearer ", "bearer  ", "Tuff-Server ", ALMOST, ""])
# As header fields are decoded: bytes that are no UTF-8 are surrogates.
TEXTS = st.binary(max_size=80).map(lambda each: each.decode("utf-8", "surrogateescape"))
KINDS = st.sampled_from(["DNS", "URI", "IP Address", "email"])


@pytest.fixture(scope="module")
def guard() -> AccessGuard:
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "access.toml"
        file.write_text(FILE)
        return AccessGuard(file, now_s=lambda: 0.0, cluster_secret=SECRET)


@given(scheme=SCHEMES, text=TEXTS, certificate=st.lists(TEXTS, max_size=3).map(tuple))
def test_no_other_token_and_no_other_name_is_a_principal(
    guard: AccessGuard, scheme: str, text: str, certificate: tuple[str, ...]
) -> None:
    head = Request({}, (), None, None, b"", False, False, scheme + text, certificate)
    for each in (head, head._replace(authorization=None)):
        with pytest.raises(UnauthenticatedError):
            guard.require_head(operations.LIST_NAMESPACES, each)


@given(names=st.lists(st.tuples(KINDS, TEXTS), max_size=5))
def test_only_names_for_dns_and_uris_count(names: list[tuple[str, str]]) -> None:
    found = names_of({"subjectAltName": tuple(names)})

    assert list(found) == [name for kind, name in names if kind in ("DNS", "URI")]


@given(text=st.text(max_size=200), cut=st.integers(0, len(FILE)))
def test_a_file_is_read_or_refused_with_a_sentence(text: str, cut: int) -> None:
    for each in (text, FILE[:cut] + text, FILE[:cut]):
        require_no_secret(_refusal_of(each), source="the refusal")


def _refusal_of(text: str) -> str:
    try:
        parse(text)
    except AccessFileError as error:
        return str(error)
    return ""
