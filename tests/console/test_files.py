"""The files of the console, and how they are served."""

import re

import pytest

from console.files import PAGE, files
from tests.http.client import Client, ok, refused
from tests.http.process import ServerProcess

SIZE_BYTES_MAX = 300_000  # of all files together


@pytest.fixture
def client(server: ServerProcess) -> Client:
    return server.client()


def test_the_page_names_its_files_by_their_version(client: Client) -> None:
    page = ok(client.get("/console"))
    named = re.findall(r'(?:href|src)="(/console/[^"]+)"', page.body.decode())

    assert page.header("Cache-Control") == "no-cache"
    assert len(named) == 3
    for address in named:
        reply = ok(client.get(address))
        assert "immutable" in str(reply.header("Cache-Control"))
        assert reply.header("X-Content-Type-Options") == "nosniff"


def test_a_slash_at_the_end_leads_to_the_page(client: Client) -> None:
    reply = client.get("/console/")

    assert (reply.status, reply.header("Location")) == (308, "/console")


def test_nothing_inline_and_nothing_from_elsewhere_is_allowed(client: Client) -> None:
    policy = str(ok(client.get("/console")).header("Content-Security-Policy"))

    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search(rb"<script(?![^>]* src=)|style=|\son\w+=", files().by_name[PAGE])


@pytest.mark.parametrize("address", ["0123456789abcdef/app.js", "{version}/none.js"])
def test_another_version_or_file_is_not_found(client: Client, address: str) -> None:
    refused(client.get(f"/console/{address.format(version=files().version)}"), 404, "not_found")


def test_all_files_together_are_small() -> None:
    assert sum(map(len, files().by_name.values())) < SIZE_BYTES_MAX


def test_no_script_makes_markup_of_a_text() -> None:
    sources = b"\n".join(files().by_name.values())

    assert not re.search(rb"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", sources)
