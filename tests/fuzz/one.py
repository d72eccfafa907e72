"""`python -m tests.fuzz.one TARGET FLAGS… CORPUS`: one target under libFuzzer, guided by coverage.

Ends with an error if the decoder raises an unexpected exception, or takes more memory or time than
the flags allow; the input is saved at `-artifact_prefix`.
"""

import sys

import atheris

with atheris.instrument_imports(
    include=["admin", "messaging", "process", "tuff", "tuff_cli", "tuff_storage", "tx"]
):
    from tests.fuzz.targets import TARGETS


def main(arguments: list[str]) -> None:
    """Never returns: libFuzzer ends the process."""
    name, *flags = arguments
    (target,) = [each for each in TARGETS if each.name == name]
    atheris.Setup([name, *flags], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
