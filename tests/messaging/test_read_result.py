"""`Messages`: what fits, what a cut removes, and ranges of messages of one write pointer."""

from messaging.log.read_result import Messages, PublishedRange

IDS = [number.to_bytes(20, "big") for number in range(4)]


def test_a_cut_removes_what_was_appended_since_the_mark() -> None:
    messages = Messages(limit=4, bytes_max=100)
    messages.append(IDS[0], b"a", pointer=7)
    sizes = messages.sizes()
    messages.extend(IDS[1:3], [b"bb", b"cc"], pointer=7)
    messages.append(IDS[3], b"d", pointer=8)
    assert messages.pointers == [PublishedRange(0, 3, 7), PublishedRange(3, 4, 8)]

    messages.cut(sizes)

    assert messages.items() == [(IDS[0], b"a")]
    assert messages.pointers == [PublishedRange(0, 1, 7)]
    assert (len(messages), messages.size_bytes, messages.last_id) == (1, 1, IDS[0])


def test_neighbours_of_different_pointers_are_different_ranges() -> None:
    messages = Messages(limit=4, bytes_max=100)
    for message_id, pointer in zip(IDS, (7, None, 7, 8), strict=True):
        messages.append(message_id, b"", pointer=pointer)

    assert messages.pointers == [
        PublishedRange(0, 1, 7),
        PublishedRange(2, 3, 7),
        PublishedRange(3, 4, 8),
    ]


def test_as_many_messages_are_appended_as_fit_and_the_first_one_always() -> None:
    by_bytes, by_count, large = (
        Messages(limit=4, bytes_max=3),
        Messages(limit=2, bytes_max=100),
        Messages(limit=4, bytes_max=1),
    )
    payloads = [b"aa", b"b", b"c", b"d"]

    assert by_bytes.extend(IDS, payloads) == 2
    assert not by_bytes.append(IDS[2], b"c")
    assert by_bytes.append(IDS[2], b"")
    assert by_count.extend(IDS, payloads) == 2
    assert by_count.extend(IDS[2:], payloads[2:]) == 0
    assert large.extend(IDS, payloads) == 1
    assert large.extend(IDS[1:], [b"", b"", b""]) == 0
    assert by_bytes.items() == [*zip(IDS[:3], [b"aa", b"b", b""], strict=True)]
