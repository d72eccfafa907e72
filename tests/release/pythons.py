"""The Pythons of this machine that Tuff supports. `python -m tests.release.pythons` prints the path
of the newest."""

import shutil
import subprocess
from collections.abc import Mapping
from glob import glob
from pathlib import Path

MINORS = range(11, 15)  # of Python 3
# Where pyenv and uv put theirs; the search path need not lead there.
HOMES = ("~/.pyenv/versions/*/bin", "~/.local/share/uv/python/*/bin")


def pythons() -> Mapping[str, str]:
    """For each supported version that is here and can make environments, its path; oldest first."""
    directories = [each for home in HOMES for each in glob(str(Path(home).expanduser()))]
    found = {}
    for minor in MINORS:
        name = f"python3.{minor}"
        beside = [shutil.which(name, path=each) for each in directories]
        for path in [shutil.which(name), *beside]:
            if path is not None and _works(path):
                found[f"3.{minor}"] = path
                break
    return found


def _works(path: str) -> bool:
    command = [path, "-c", "import ensurepip, venv"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    print(list(pythons().values())[-1])
