"""Reads on and on from a place, over long polls and whatever happens to the server (protocol §3.4).

The place after each reply is its `Tuff-Next`: what that reply left out, skipped or held back is
exactly what the next one begins with, and a reply that is lost is simply asked for again. So
nothing is skipped, and nothing comes twice.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from tuff import calls
from tuff.calls import LATEST, Call, PollQuestion
from tuff.flows import Backoff, Flow, ask
from tuff.protocol.errors import TuffError
from tuff.protocol.names import TopicId
from tuff.replies import Offsets, Poll
from tuff.retries import is_passing

AWAY_FIRST_S = 0.1  # seconds; a server that restarts is back within one or two
AWAY_MOST_S = 5.0  # seconds; what a reader adds to the time that a server is away


def located(
    topic: TopicId, question: PollQuestion, ask: Callable[[Call[Offsets]], Flow[Offsets]]
) -> Flow[PollQuestion]:
    """The question with a start that stays where it is: `latest` becomes the place that this reader
    can read up to now. What was published before and is decided later still comes."""
    if question.start != LATEST:
        return question
    offsets = yield from ask(calls.offsets(topic, isolation=question.isolation or "all"))
    return replace(question, start=offsets.end, inclusive=offsets.end is None)


class Subscription:
    """Where one reader of a topic is. Belongs to one thread or task."""

    def __init__(
        self,
        topic: TopicId,
        question: PollQuestion,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._topic = topic
        self._question = question
        self._backoff = Backoff(AWAY_FIRST_S, AWAY_MOST_S, chance)

    def poll(self) -> Flow[Poll]:
        """The next messages, or none when the wait was over; however long the server is away."""
        failed_count = 0
        while True:
            try:
                self._question = yield from located(self._topic, self._question, ask)
                poll = yield from ask(calls.poll(self._topic, self._question))
            except TuffError as error:
                if not is_passing(error):
                    raise
                failed_count += 1
                at_least_s = min(error.retry_after_s, AWAY_MOST_S)
            else:
                self._question = replace(self._question, start=poll.next_id, inclusive=False)
                return poll
            yield self._backoff.pause(failed_count, at_least_s=at_least_s)
