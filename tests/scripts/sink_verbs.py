"""The commands of sinks (protocol §5.3)."""

from collections.abc import Mapping

from tests.scripts.names import shown_time
from tests.scripts.session import Lines, Session, Verb
from tests.scripts.words import Words

_ROOT = "/v1/sinks"


class SinkVerbs:
    """Asks for epochs, and shows sinks; a script names the transaction that it is told first."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def verbs(self) -> dict[str, Verb]:
        return {
            "epoch": Verb(self.epoch, frozenset({"run", "lease", "as"})),
            "sink": Verb(self.sink),
            "sinks": Verb(self.sinks),
            "forget-sink": Verb(self.forget),
        }

    async def epoch(self, words: Words) -> Lines:
        sink, number = words.rest
        body: dict[str, object] = {"runId": words["run"]}
        if "lease" in words:
            body["lease"] = float(words["lease"])
        found = (await self._session.call("POST", f"{_ROOT}/{sink}/epochs/{number}", body)).body
        if found["transaction"] is None:
            return [f"{found['state']} by {found['runId']}"]
        pointer = int(found["transaction"]["transactionId"])
        if "as" in words:
            self._session.pointers.put(words["as"], pointer)
            self._session.objects[words["as"]] = found["transaction"]
        return [f"{found['state']}: {self._session.pointers.shown(pointer)}"]

    async def sink(self, words: Words) -> Lines:
        (name,) = words.rest
        return [self._shown((await self._session.call("GET", f"{_ROOT}/{name}")).body)]

    async def sinks(self, _words: Words) -> Lines:
        found = (await self._session.call("GET", _ROOT)).body["sinks"]
        return [f"{each['sink']}: {self._shown(each)}" for each in found] or ["(none)"]

    async def forget(self, words: Words) -> Lines:
        (name,) = words.rest
        await self._session.call("DELETE", f"{_ROOT}/{name}")
        return ["ok"]

    def _shown(self, sink: Mapping[str, object]) -> str:
        transaction = self._session.pointers.shown(str(sink["transactionId"]))
        since = shown_time(int(str(sink["updatedAt"])))
        return (
            f"epoch {sink['epoch']} of {sink['runId']} in {transaction}: {sink['state']} "
            f"since {since}"
        )
