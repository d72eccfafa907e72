"""The blocking client is what `make blocking` makes of the asyncio one (decision 0009)."""

import pytest

from tests.client.generate_blocking import NAMES, PHRASES, blocking, generated, source_of, target_of


@pytest.mark.tools
@pytest.mark.parametrize("name", NAMES)
def test_each_generated_file_is_what_its_source_gives(name: str) -> None:
    assert target_of(name).read_text() == generated(name), "run `make blocking`"


def test_each_phrase_to_be_replaced_is_in_a_source() -> None:
    sources = "".join(source_of(name).read_text() for name in NAMES)

    assert [phrase for phrase, _ in PHRASES if phrase not in sources] == []


def test_nothing_of_asyncio_is_left() -> None:
    source = (
        "async def run(one: AsyncOne, do: Callable[[], Awaitable[T]]) -> T:\n"
        "    async with one as two:\n"
        "        async for three in two:\n"
        "            return await three\n"
    )

    assert blocking(source) == (
        "def run(one: One, do: Callable[[], T]) -> T:\n"
        "    with one as two:\n"
        "        for three in two:\n"
        "            return three\n"
    )
