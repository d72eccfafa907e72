"""Runs the commands of a script, one after the other."""

import asyncio
from pathlib import Path

from tests.scripts.message_verbs import MessageVerbs
from tests.scripts.server_verbs import ServerVerbs
from tests.scripts.session import Lines, RefusedError, Session, Verb
from tests.scripts.sink_verbs import SinkVerbs
from tests.scripts.transaction_verbs import TransactionVerbs
from tests.scripts.words import Words, split

ANSWER_S_MAX = 5.0  # seconds; what has no answer by then waits for something that never comes


class Script:
    """One script, in a world of its own."""

    def __init__(self, directory: Path) -> None:
        self._session = Session(directory)
        self._verbs = {
            **MessageVerbs(self._session).verbs(),
            **TransactionVerbs(self._session).verbs(),
            **SinkVerbs(self._session).verbs(),
            **ServerVerbs(self._session).verbs(),
            "meanwhile": Verb(self._meanwhile),
            "answer": Verb(self._answer),
        }

    async def open(self) -> None:
        await self._session.world.start()

    async def close(self) -> None:
        under_way = list(self._session.under_way.values())
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self._session.world.stop()

    async def run(self, command: str) -> Lines:
        """The output of the command."""
        name, words = split(command)
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                lines = await self._run_verb(name, words)
        except TimeoutError:
            raise AssertionError(f"{command!r} has no answer after {ANSWER_S_MAX} s") from None
        await self._session.world.settle()
        return lines

    async def _run_verb(self, name: str, words: Lines) -> Lines:
        assert name in self._verbs, f"no verb {name!r}; there are {', '.join(sorted(self._verbs))}"
        verb = self._verbs[name]
        try:
            return await verb.run(Words.of(words, options=verb.options, flags=verb.flags))
        except RefusedError as error:
            return [self._session.told(error.reply)]

    async def _meanwhile(self, words: Words) -> Lines:
        """Runs a command beside those that follow, under a name."""
        name, verb, *rest = words.rest
        task = asyncio.get_running_loop().create_task(self._run_verb(verb, rest))
        self._session.under_way[name] = task
        await self._session.world.settle()
        return self._session.under_way.pop(name).result() if task.done() else ["(no answer yet)"]

    async def _answer(self, words: Words) -> Lines:
        """The output of a command that runs beside the others; with `yet` it is not waited for."""
        name = words.rest[0]
        if words.rest[1:] == ("yet",) and not self._session.under_way[name].done():
            return ["(no answer yet)"]
        return await self._session.under_way.pop(name)
