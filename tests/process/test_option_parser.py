"""Options of the server and of its offline commands are written in full."""

import subprocess
import sys
from pathlib import Path

import pytest

from process.option_parser import OptionParser

SERVER = Path(__file__).resolve().parents[2] / "server.py"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prot", "7411"], "there is no option --prot; --port is one; see `server.py --help`"),
        (["--prot=7411"], "there is no option --prot; --port is one; see `server.py --help`"),
        (["--until-stdin"], "there is no option --until-stdin; --until-stdin-closes is one; see "
         "`server.py --help`"),
        (["start"], "start is one word too many; see `server.py --help`"),
        # It was taken for --snapshots.
        (["fsck", "--snap", ".", "."], "there is no option --snap; --snapshots is one; see "
         "`server.py fsck --help`"),
        (["hbase", "compact", "--with=4"], "there is no option --with; --within is one; see "
         "`server.py hbase compact --help`"),
        (["access", "check", "file", "more"], "more is one word too many; see "
         "`server.py access check --help`"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_in_one_sentence(arguments: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", str(SERVER), *arguments], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"tuff: {said}\n")


def test_an_option_that_is_like_no_other_is_named_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = OptionParser(prog="server.py")
    parser.add_argument("--port")

    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--verbose", "--port", "1"])

    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "tuff: there is no option --verbose; see `server.py --help`\n"
    )
