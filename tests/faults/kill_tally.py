"""What a program that runs for a night has done so far, so that it may be interrupted.

tally := one JSON object a line, of each chunk that went well:
         {"version": …, "seed": …, "kills": …, "units": …, "seconds": …}
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("tuff", "tx", "messaging", "process")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Kills of one server on one data directory, all of them accounted for."""

    version: str
    seed: int
    kills: int
    units: int
    seconds: float


class Tally:
    """The chunks of one version of the server, in a file that has those of others too; without a
    file they are forgotten with the program."""

    def __init__(self, file: Path | None, *, version: str) -> None:
        self._file = file
        self._version = version
        self._chunks = [each for each in _read(file) if each.version == version]

    @property
    def kills(self) -> int:
        return sum(each.kills for each in self._chunks)

    @property
    def units(self) -> int:
        return sum(each.units for each in self._chunks)

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self._chunks)

    def add(self, *, seed: int, kills: int, units: int, seconds: float) -> None:
        """Enter a chunk, in the file at once."""
        chunk = Chunk(
            version=self._version, seed=seed, kills=kills, units=units, seconds=round(seconds, 1)
        )
        self._chunks.append(chunk)
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as file:
                file.write(json.dumps(asdict(chunk)) + "\n")


def version_here() -> str:
    """A digest of the server's sources: what was proven of one version says nothing of another."""
    digest = sha256()
    for path in sorted(
        [ROOT / "server.py", *(p for room in ROOMS for p in (ROOT / room).rglob("*.py"))]
    ):
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _read(file: Path | None) -> Iterator[Chunk]:
    if file is not None and file.exists():
        for line in file.read_text("utf-8").splitlines():
            yield Chunk(**json.loads(line))
