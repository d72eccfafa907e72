"""Parts of sentences for people."""

from tuff.protocol.sentences import counted


def test_one_thing_is_singular() -> None:
    assert [counted(n, "topic") for n in range(3)] == ["0 topics", "1 topic", "2 topics"]
