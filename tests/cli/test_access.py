"""`tuff access`: tokens, and the check of an access file."""

import json
import os
from pathlib import Path

import pytest

from access.principals import parse
from tests.cli.command import tuff_command
from tuff.protocol.operations import Right

RIGHTS = """
[[principals.billing.rights]]
namespace = "shop"
topics = ["orders-*"]
allow = ["read", "publish"]
"""


def test_a_new_token_works_with_the_printed_lines(tmp_path: Path) -> None:
    made = json.loads(tuff_command("access", "token", "billing", "--json").stdout)
    file = tmp_path / "access.toml"
    file.write_text(f"{made['lines']}\n{RIGHTS}")

    principal = parse(file.read_text()).of_token(made["token"])

    assert principal is not None
    assert principal.may(Right.READ, "shop", "orders-1")
    assert made["token"] not in file.read_text()
    checked = tuff_command("access", "check", str(file), "--json")
    assert json.loads(checked.stdout) == {
        "principal": "billing", "namespace": "shop", "topics": "orders-*", "allow": "publish read",
        "quotas": {}, "tenant": "",
    }  # fmt: skip
    for topic, answer in (("shop:orders-1", "yes\n"), ("shop:other", "no\n")):
        assert tuff_command("access", "may", str(file), "billing", "read", topic).stdout == answer


def test_the_check_shows_quotas_and_principals_without_rights(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(
        f'[principals.a]\ntokens = ["sha256:{"0" * 64}"]\nrequests_per_second = 50\n'
        '[principals.b]\ncertificates = ["b.example"]\n'
    )

    shown = tuff_command("access", "check", str(file)).stdout.splitlines()

    assert shown[-2].split() == ["a", "requests_per_second=50"]
    assert shown[-1].split() == ["b"]


def test_the_check_names_principals_of_two_tenants_that_write_in_one_namespace(
    tmp_path: Path,
) -> None:
    rights = {
        "orders": ("acme", "shop", "publish"), "worker": ("", "shop", "publish"),
        "reader": ("beta", "shop", "read"), "other": ("beta", "bank", "publish"),
        "operator": ("", "*", "publish", "administer"),
    }  # fmt: skip
    file = tmp_path / "access.toml"
    file.write_text(
        "\n".join(
            f'[principals.{name}]\ncertificates = ["{name}"]\n'
            + (f'tenant = "{tenant}"\n' if tenant else "")
            + f'[[principals.{name}.rights]]\nnamespace = "{namespace}"\nallow = {list(allow)}'
            for name, (tenant, namespace, *allow) in rights.items()
        )
    )

    checked = tuff_command("access", "check", str(file))

    assert checked.stdout.splitlines()[2].split() == ["orders", "shop", "*", "publish", "acme"]
    assert checked.stderr.splitlines() == [
        "tuff: orders and worker may both publish in namespace shop, and are of different tenants: "
        "neither finds conflicts with the other"
    ]


def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text("[principals.a]\ntokens = ['hunter2']")

    checked = tuff_command("access", "check", str(file))

    assert checked.returncode == 2
    assert f"{file}: principals.a.tokens has an entry that is not sha256" in checked.stderr
    assert "hunter2" not in checked.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_server_can_still_read_a_file_that_root_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(f'[principals.a]\ntokens = ["sha256:{"0" * 64}"]\n')
    os.chown(file, 65_534, 65_534)

    given = tuff_command("access", "grant", str(file), "a", "read", "orders")

    assert given.returncode == 0, given.stderr
    assert (file.stat().st_uid, file.stat().st_gid) == (65_534, 65_534)


def test_a_right_is_given_and_taken(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(f'[principals.a]\ntokens = ["sha256:{"0" * 64}"]\n# a comment\n')
    file.chmod(0o600)
    before = file.read_text()

    for said in ("changed\n", "the principal has this right already\n"):
        given = tuff_command("access", "grant", str(file), "a", "read", "shop:orders-*")
        assert (given.returncode, given.stdout) == (0, said), given.stderr
    assert parse(file.read_text()).by_name["a"].may(Right.READ, "shop", "orders-1")
    taken = tuff_command("access", "revoke", str(file), "a", "read", "shop:orders-*")

    assert (taken.returncode, taken.stdout) == (0, "changed\n")
    assert file.read_text().rstrip() == before.rstrip()
    assert file.stat().st_mode & 0o777 == 0o600
    refused = tuff_command("access", "revoke", str(file), "a", "read", "shop:orders-*")
    assert refused.returncode == 2
    assert "principals.a does not have the right read" in refused.stderr
