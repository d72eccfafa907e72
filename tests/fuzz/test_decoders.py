"""Every decoder returns a value or raises its own error for any bytes, in little memory.

A short form of `python -m tests.fuzz`.
"""

import ast
import re
import sys
import tracemalloc
from collections.abc import Iterator
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import ROOT, TARGETS, Target

MEMORY_BYTES_MAX = 2 << 20  # bytes at once, of an input of a few hundred
CHANGES_MAX = 6

ROOMS = ("admin", "messaging", "process", "tuff", "tuff_cli", "tuff_storage", "tx")
NAMES = re.compile(r"from_bytes|decoded|unpack|(decode|unpack|parse|read|open|split)_\w+")

targets = pytest.mark.parametrize("target", TARGETS, ids=str)


@st.composite
def mutated(draw: st.DrawFn, target: Target) -> bytes:
    """A valid input with random cuts and changes, or random bytes."""
    data = draw(st.sampled_from([*target.seeds(), b""]))
    for _ in range(draw(st.integers(1, CHANGES_MAX))):
        at = draw(st.integers(0, len(data)))
        stop = at + draw(st.integers(0, 9))
        interesting = st.sampled_from([b"\xff" * 4, b"\x7f" * 8, b"\x80" * 9, b"-1", b"[", b"\x00"])
        data = data[:at] + draw(st.binary(max_size=9) | interesting) + data[stop:]
    return data


@targets
def test_the_initial_inputs_are_valid(target: Target) -> None:
    seeds = [seed for seed in target.seeds() if not seed.startswith(b"!")]

    assert seeds
    for seed in seeds:
        target.decode(seed)


def decoders() -> Iterator[tuple[str, int, str]]:
    """The place of each public function that takes bytes and is named like a decoder."""
    for path in sorted(file for room in ROOMS for file in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and NAMES.fullmatch(node.name):
                taken = [ast.unparse(each.annotation or node) for each in node.args.args]
                if "bytes" in taken or "Readable" in taken:
                    first = min([node, *node.decorator_list], key=lambda each: each.lineno)
                    yield str(path), first.lineno, node.name


def test_every_decoder_is_reached_by_the_initial_inputs() -> None:
    called: set[tuple[str, int, str]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        called.add((code.co_filename, code.co_firstlineno, code.co_name))

    inputs = [(target, seed) for target in TARGETS for seed in target.seeds()]
    sys.setprofile(note)
    try:
        for target, seed in inputs:
            target.run(seed)
    finally:
        sys.setprofile(None)

    assert [each for each in decoders() if each not in called] == []


@settings(max_examples=200)
@given(st.data())
def test_a_decoder_raises_nothing_but_its_own_error(data: st.DataObject) -> None:
    target = data.draw(st.sampled_from(TARGETS))

    target.run(data.draw(mutated(target)))


@pytest.mark.slow
@targets
def test_a_decoder_takes_little_memory_whatever_an_input_says(target: Target) -> None:
    @settings(max_examples=200)
    @given(mutated(target))
    def decode(data: bytes) -> None:
        # Measured for each input, since Hypothesis keeps some of them.
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        target.run(data)
        assert tracemalloc.get_traced_memory()[1] < before + MEMORY_BYTES_MAX

    tracemalloc.start()
    try:
        decode()
    finally:
        tracemalloc.stop()
