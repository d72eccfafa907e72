"""Files on which the security depends, and that every user of the machine may read or write."""

from dataclasses import replace
from pathlib import Path

import pytest

from process.protected_files import protected_files
from process.settings import Settings


@pytest.mark.parametrize(
    ("setting", "mode", "rights"),
    [
        ("server.tls_key_file", 0o640, None),
        ("server.tls_key_file", 0o604, "read"),
        ("server.tls_key_file", 0o602, "write"),
        ("cluster.secret_file", 0o606, "read and write"),
        ("server.access_file", 0o664, None),
        ("server.access_file", 0o606, "write"),
        ("server.tls_client_ca_file", 0o602, "write"),
        ("cluster.tls_ca_file", 0o602, "write"),
    ],
)
def test_a_file_that_every_user_may_read_or_write_is_found(
    tmp_path: Path, setting: str, mode: int, rights: str | None
) -> None:
    file = tmp_path / "file"
    file.touch()
    file.chmod(mode)
    settings = Settings()
    section, key = setting.split(".")
    changed = getattr(settings, section)
    object.__setattr__(changed, key, str(file))  # alone, which no settings file may do

    found = list(protected_files(replace(settings, **{section: changed})))

    assert found == [(setting, file, rights)]


def test_a_file_that_is_gone_is_another_error(tmp_path: Path) -> None:
    settings = Settings()
    gone = replace(settings, server=replace(settings.server, access_file=str(tmp_path / "gone")))

    assert [each.rights for each in protected_files(gone)] == [None]
