"""The commands of topics and messages (protocol §2, §3)."""

from collections.abc import Mapping

from tests.scripts.names import id_of, shown_id, time_of
from tests.scripts.session import Lines, Session, Verb
from tests.scripts.words import NAMESPACE, Words
from tests.scripts.world import Reply

PAGE_COUNT_MAX = 100  # pages; a reader that gets the same page again must end
_READ_OPTIONS = frozenset({"tx", "snapshot", "from", "after", "limit", "through", "wait"})
_READ_FLAGS = frozenset({"committed", "skip"})


class MessageVerbs:
    """Publishes and reads. It knows each publish, for a rollback, and where the last read ended."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._published: dict[tuple[str, str], list[object]] = {}
        self._next_id = ""

    def verbs(self) -> dict[str, Verb]:
        return {
            "topic": Verb(self.topic, frozenset({"ttl"})),
            "properties": Verb(self.properties, frozenset({"ttl"})),
            "describe": Verb(self.describe),
            "delete": Verb(self.delete),
            "truncate": Verb(self.truncate, frozenset({"before"})),
            "publish": Verb(self.publish, frozenset({"tx", "ttl"})),
            "reference": Verb(self.publish, frozenset({"tx"})),
            "store": Verb(self.store, frozenset({"tx", "ttl"})),
            "rollback": Verb(self.rollback, frozenset({"tx"})),
            "poll": Verb(self.poll, _READ_OPTIONS, _READ_FLAGS),
            "pages": Verb(self.pages, _READ_OPTIONS, _READ_FLAGS),
            "offsets": Verb(self.offsets, frozenset({"tx"}), frozenset({"committed"})),
        }

    async def topic(self, words: Words) -> Lines:
        await self._session.call("PUT", topic_path(words.rest[0]), words.options)
        return ["ok"]

    async def properties(self, words: Words) -> Lines:
        await self._session.call("PUT", f"{topic_path(words.rest[0])}/properties", words.options)
        return ["ok"]

    async def describe(self, words: Words) -> Lines:
        body = (await self._session.call("GET", topic_path(words.rest[0]))).body
        properties = " ".join(f"{name}={value}" for name, value in body["properties"].items())
        return [f"generation {body['generation']} {properties}"]

    async def delete(self, words: Words) -> Lines:
        await self._session.call("DELETE", topic_path(words.rest[0]))
        return ["ok"]

    async def truncate(self, words: Words) -> Lines:
        body = {"before": place(words["before"])}
        reply = await self._session.call("POST", f"{topic_path(words.rest[0])}/truncate", body)
        return [f"earliest {maybe_id(reply.body['earliest'])}"]

    async def publish(self, words: Words) -> Lines:
        topic, *messages = words.rest
        body, query = self._message_body(words, messages)
        reply = await self._session.call("POST", f"{topic_path(topic)}/publish", body, query)
        if reply.body is not None:
            self._published.setdefault((topic, words["tx"]), []).append(reply.body)
        first, last = reply.headers["Tuff-First-Id"], reply.headers["Tuff-Last-Id"]
        return [shown_id(first) if first == last else f"{shown_id(first)} .. {shown_id(last)}"]

    async def store(self, words: Words) -> Lines:
        topic, *messages = words.rest
        body, query = self._message_body(words, messages)
        await self._session.call("POST", f"{topic_path(topic)}/store", body, query)
        return ["ok"]

    def _message_body(
        self, words: Words, messages: Lines
    ) -> tuple[dict[str, object], dict[str, str]]:
        body: dict[str, object] = {"messages": messages}
        if "tx" in words:
            body["transactionWritePointer"] = str(self._session.pointers[words["tx"]])
        return body, {"ttl": words["ttl"]} if "ttl" in words else {}

    async def rollback(self, words: Words) -> Lines:
        """Rolls back the last publish of a transaction to a topic, or the n-th."""
        topic, *numbers = words.rest
        published = self._published[topic, words["tx"]]
        detail = published[int(numbers[0]) - 1 if numbers else -1]
        await self._session.call("POST", f"{topic_path(topic)}/rollback", detail)
        return ["ok"]

    async def poll(self, words: Words) -> Lines:
        reply = await self._read(words, start={})
        shown = [f"{shown_id(each['id'])} {each['payload']}" for each in reply.body]
        return [*(shown or ["(nothing)"]), *self._remarks(reply.headers)]

    async def pages(self, words: Words) -> Lines:
        """Reads page after page, one a line, until a page is empty or the reader has caught up."""
        lines: Lines = []
        start: dict[str, object] = {}
        for _ in range(PAGE_COUNT_MAX):
            reply = await self._read(words, start=start)
            if reply.body:
                lines.append("  ".join(f"{shown_id(m['id'])} {m['payload']}" for m in reply.body))
            if not reply.body or reply.headers["Tuff-Caught-Up"] == "true":
                return [*(lines or ["(nothing)"]), *self._remarks(reply.headers)]
            start = {"startFrom": reply.headers["Tuff-Next"], "inclusive": False}
        raise AssertionError(f"the reader is still not done after {PAGE_COUNT_MAX} pages")

    async def _read(self, words: Words, *, start: dict[str, object]) -> Reply:
        body = start or self._start(words)
        if "limit" in words:
            body["limit"] = int(words["limit"])
        if "snapshot" in words:
            body["transaction"] = self._session.objects[words["snapshot"]]
        query = self._read_query(words)
        reply = await self._session.call("POST", f"{topic_path(words.rest[0])}/poll", body, query)
        self._next_id = reply.headers["Tuff-Next"]
        return reply

    def _start(self, words: Words) -> dict[str, object]:
        if "from" in words:
            return {"startFrom": place(words["from"])}
        if "after" in words:
            after = words["after"]
            start = self._next_id if after == "next" else place(after)
            return {"startFrom": start, "inclusive": False}
        return {}

    def _read_query(self, words: Words) -> dict[str, str]:
        query = {name: words[name] for name in ("wait",) if name in words}
        if "through" in words:
            query["through"] = id_of(words["through"])
        if "tx" in words:
            query["tx"] = str(self._session.pointers[words["tx"]])
        if "committed" in words:
            query["isolation"] = "committed"
        if "skip" in words:
            query["undecided"] = "skip"
        return query

    def _remarks(self, headers: Mapping[str, str]) -> Lines:
        lines = []
        if "Tuff-Blocked-By" in headers:
            lines.append(f"(blocked by {self._session.pointers.shown(headers['Tuff-Blocked-By'])})")
        elif headers["Tuff-Caught-Up"] == "false":
            lines.append("(there is more)")
        if headers.get("Tuff-Expired") == "true":
            lines.append("(the start is expired: some may have been missed)")
        return lines

    async def offsets(self, words: Words) -> Lines:
        query = {"isolation": "committed"} if "committed" in words else {}
        if "tx" in words:
            query["tx"] = str(self._session.pointers[words["tx"]])
        body = (
            await self._session.call("GET", f"{topic_path(words.rest[0])}/offsets", None, query)
        ).body
        blocked_by = body["blockedBy"]
        blocked = f", blocked by {self._session.pointers.shown(blocked_by)}" if blocked_by else ""
        earliest, end = maybe_id(body["earliest"]), maybe_id(body["end"])
        return [f"earliest {earliest}, end {end}{blocked}"]


def topic_path(topic: str) -> str:
    return f"/v1/namespaces/{NAMESPACE}/topics/{topic}"


def place(text: str) -> str | int:
    """A message id in hex, or a publish time in ms."""
    return id_of(text) if "/" in text else time_of(text)


def maybe_id(digits: str | None) -> str:
    return shown_id(digits) if digits else "-"
