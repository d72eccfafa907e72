"""What is remembered is asked once, and takes no more than its bound."""

from process.plain_requests import Remembered


def test_an_answer_is_found_once_and_all_are_forgotten_at_the_bound() -> None:
    asked: list[str] = []

    def answer(word: str) -> str | None:
        asked.append(word)
        return None if word == "none" else word.upper()

    remembered = Remembered(answer, is_kept=lambda word: len(word) < 9, count_max=3)

    assert [remembered[word] for word in ("a", "a", "none", "none")] == ["A", "A", None, None]
    assert [remembered["much too long"] for _ in range(2)] == ["MUCH TOO LONG"] * 2
    assert asked == ["a", "none", "much too long", "much too long"]
    assert [remembered[word] for word in ("b", "c")] == ["B", "C"]
    assert dict(remembered) == {"c": "C"}
