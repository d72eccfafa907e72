"""Answers that are asked for again and again, kept within a bound."""

from collections.abc import Callable, Hashable
from typing import TypeVar

Question = TypeVar("Question", bound=Hashable)
Answer = TypeVar("Answer")


class Remembered(dict[Question, Answer]):
    """Looked up like a dict, which a known question costs no more than. An unknown one is answered
    by `answer`, and kept if `is_kept` says so; when `count_max` are kept, all are forgotten."""

    def __init__(
        self,
        answer: Callable[[Question], Answer],
        *,
        is_kept: Callable[[Question], bool],
        count_max: int,
    ) -> None:
        super().__init__()
        self._answer = answer
        self._is_kept = is_kept
        self._count_max = count_max

    def __missing__(self, question: Question) -> Answer:
        found = self._answer(question)
        if self._is_kept(question):
            if len(self) >= self._count_max:
                self.clear()
            self[question] = found
        return found
