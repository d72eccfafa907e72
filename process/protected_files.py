"""The files on which the security of a server depends, and what every user may do with them."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from process.settings import Settings
from tuff_storage.disk.file_modes import READ, WRITE, rights_of_others


class ProtectedFile(NamedTuple):
    """A file that not every user of the machine should read or write. `setting` names it; `rights`
    are those that every user has nevertheless: `read`, `write` or both; None: none of them."""

    setting: str
    file: Path
    rights: str | None


def protected_files(settings: Settings) -> Iterator[ProtectedFile]:
    """The files of the settings on which the security depends, with their modes. Blocks."""
    for section, key, unwanted in (
        ("server", "tls_key_file", READ | WRITE),
        ("cluster", "secret_file", READ | WRITE),
        # They are no secrets, and who writes them can give rights and certificates.
        ("server", "access_file", WRITE),
        ("server", "tls_client_ca_file", WRITE),
        ("cluster", "tls_ca_file", WRITE),
    ):
        name = getattr(getattr(settings, section), key)
        if name:
            rights = rights_of_others(Path(name), unwanted)
            yield ProtectedFile(f"{section}.{key}", Path(name), rights)
