"""The commands of transactions (protocol §5)."""

from collections.abc import Mapping

from tests.scripts.names import shown_range, shown_time, time_of
from tests.scripts.session import Lines, Session, Verb
from tests.scripts.words import ARROW, Words, entries
from tuff.protocol.ids import Offset

_ROOT = "/v1/transactions"


class TransactionVerbs:
    """Starts, ends and shows transactions, which a script calls by their names."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def verbs(self) -> dict[str, Verb]:
        return {
            "begin": Verb(
                self.begin, frozenset({"timeout", "client", "lease"}), frozenset({"long"})
            ),
            "renew": Verb(self.renew),
            "checkpoint": Verb(self.checkpoint),
            "can-commit": Verb(self.can_commit),
            "commit": Verb(self.commit, flags=frozenset({"no-changes", "read-only"})),
            "run": Verb(self.run_once, frozenset({"request"})),
            "abort": Verb(self.abort),
            "invalidate": Verb(self.invalidate),
            "outcome": Verb(self.outcome),
            "invalids": Verb(self.invalids),
            "forget": Verb(self.forget, frozenset({"before"})),
            "snapshot": Verb(self.snapshot),
            "stop-service": Verb(self.stop),
            "start-service": Verb(self.start),
        }

    async def begin(self, words: Words) -> Lines:
        (name,) = words.rest
        body: dict[str, object] = {"client": words.options.get("client", f"client-{name}")}
        if "long" in words:
            body["type"] = "long"
        for option in ("timeout", "lease"):
            if option in words:
                body[option] = float(words[option])
        started = (await self._session.call("POST", _ROOT, body)).body
        self._session.pointers.put(name, int(started["writePointer"]))
        self._session.objects[name] = started
        return [self._shown_snapshot(started)]

    async def renew(self, words: Words) -> Lines:
        (name,) = words.rest
        body = (await self._session.call("POST", self._path(name, "renew"))).body
        lease, expires = shown_time(body["leaseExpiresAt"]), shown_time(body["expiresAt"])
        return [f"leased until {lease}, expires at {expires}"]

    async def checkpoint(self, words: Words) -> Lines:
        (name,) = words.rest
        body = (await self._session.call("POST", self._path(name, "checkpoint"))).body
        pointer_name = self._session.pointers.next_checkpoint(name)
        self._session.pointers.put(pointer_name, int(body["writePointer"]))
        self._session.objects[name] = body
        written = self._session.pointers.shown_list(body["checkpointWritePointers"])
        return [f"writes with {pointer_name}; checkpoints: {written}"]

    def _shown_snapshot(self, started: Mapping[str, object]) -> str:
        show, pointers = self._session.pointers.shown_list, started["inProgress"]
        assert isinstance(pointers, list)
        invalids = started["invalids"]
        assert isinstance(invalids, list)
        read = self._session.pointers.shown(str(started["readPointer"]))
        return f"reads up to {read}; in progress: {show(pointers)}; invalid: {show(invalids)}"

    async def can_commit(self, words: Words) -> Lines:
        name, *changes = words.rest
        reply = await self._session.call(
            "POST", self._path(name, "can-commit"), {"changes": changes}
        )
        return [reply.body["state"]]

    async def commit(self, words: Words) -> Lines:
        name, *rest = words.rest
        changes = [word for word in rest if ARROW not in word]
        body: dict[str, object] = {}
        if changes or "no-changes" in words:
            body["changes"] = changes
        if publish := entries(rest):
            body["publish"] = publish
        if "read-only" in words:
            body["readOnly"] = True
        reply = await self._session.call("POST", self._path(name, "commit"), body)
        return _shown_commit(reply.body)

    async def run_once(self, words: Words) -> Lines:
        body: dict[str, object] = {"publish": entries(words.rest)}
        if "request" in words:
            body["requestId"] = words["request"]
        return _shown_commit((await self._session.call("POST", f"{_ROOT}/run", body)).body)

    async def abort(self, words: Words) -> Lines:
        return await self._end(words, "abort")

    async def invalidate(self, words: Words) -> Lines:
        return await self._end(words, "invalidate")

    async def _end(self, words: Words, how: str) -> Lines:
        (name,) = words.rest
        return [(await self._session.call("POST", self._path(name, how))).body["state"]]

    async def outcome(self, words: Words) -> Lines:
        (name,) = words.rest
        body = (await self._session.call("GET", self._path(name))).body
        reason = f": {body['reason']}" if body["reason"] else ""
        topics = " ".join(topic.partition(":")[2] for topic in body["topics"])
        return [f"{body['state']}{reason}{f', wrote to {topics}' if topics else ''}"]

    async def invalids(self, _words: Words) -> Lines:
        body = (await self._session.call("GET", f"{_ROOT}/invalid")).body
        show = self._session.pointers.shown_list
        return [f"invalid: {show(body['invalids'])}; prunable: {show(body['prunable'])}"]

    async def forget(self, words: Words) -> Lines:
        """Truncates the invalid list."""
        body: dict[str, object] = {
            "ids": [str(self._session.pointers[name]) for name in words.rest]
        }
        if "before" in words:
            body = {"before": time_of(words["before"])}
        found = (await self._session.call("POST", f"{_ROOT}/invalid/truncate", body)).body
        return [
            f"removed {found['removed']}; kept: {self._session.pointers.shown_list(found['kept'])}"
        ]

    async def snapshot(self, _words: Words) -> Lines:
        body = (await self._session.call("POST", f"{_ROOT}/snapshot")).body
        return [f"snapshot.{shown_time(int(body['file'].removeprefix('snapshot.')))}"]

    async def stop(self, _words: Words) -> Lines:
        return [(await self._session.call("POST", f"{_ROOT}/service/stop")).body["state"]]

    async def start(self, _words: Words) -> Lines:
        return [(await self._session.call("POST", f"{_ROOT}/service/start")).body["state"]]

    def _path(self, name: str, call: str = "") -> str:
        pointer = name if name.isdigit() else self._session.pointers[name]
        return f"{_ROOT}/{pointer}" + (f"/{call}" if call else "")


def _shown_commit(body: Mapping[str, object]) -> Lines:
    published = body["published"]
    assert isinstance(published, list)
    places = [
        shown_range(
            Offset(each["startTimestamp"], each["startSequenceId"]),
            Offset(each["endTimestamp"], each["endSequenceId"]),
        )
        for each in published
    ]
    return [str(body["state"]), *places]
