"""Reads the facts about one message and one reader, and the HTTP route of the explanation
(protocol §3.14)."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kernel.requests_and_replies import Reply, Request, Route, json_reply, read_object
from messaging.engines.row_store import Store
from messaging.log.rows_by_transaction import IndexedRange
from messaging.log.scan import read
from messaging.log.state_in_memory import OpenStore, StoreState
from messaging.log.topics import Topic, TopicRecord, topic_not_found, topic_of
from messaging.model.parameters import choice, transaction_named
from messaging.model.row_format import (
    DamagedRowError,
    MessageRow,
    delayed_key,
    message_key,
    payload_key,
    prefix_of,
    split_undecided,
    undecided_key,
)
from messaging.model.visibility import (
    BEGINNING,
    Query,
    Verdict,
    as_stored,
    id_before,
    live_after,
    visibility,
)
from messaging.read.explanation_decision import (
    Blocker,
    DelayedFacts,
    Explanation,
    Facts,
    Reason,
    explain,
    explain_delayed,
)
from messaging.read.lost_messages import LostMessages
from messaging.read.offsets_and_splits import first_indexed, first_live, first_undecided
from messaging.read.poll import Poll, may_read_again, query_of, query_of_all, snapshot_for
from tuff.protocol import operations
from tuff.protocol.errors import (
    BadRequestError,
    DamagedRecordError,
    TopicNotFoundError,
    TransactionsUnavailableError,
)
from tuff.protocol.ids import DELAYED_ID_SIZE, DelayedId, MessageId, Offset, TopicId
from tuff.protocol.json_bodies import pointer_to_json, transaction_from_json
from tuff.protocol.json_objects import to_json
from tuff.protocol.requests import Isolation
from tuff.protocol.transaction import Transaction, TransactionStatus

if TYPE_CHECKING:
    from messaging.read.archive import ArchiveReader

GENERATIONS_COUNT_MAX = 16  # deleted generations that are searched, the newest first
NAMESPACES_COUNT_MAX = 64  # topics with the same name that are searched

MayRead = Callable[[Request, TopicId], bool]


class Explainer:
    """Explains what a reader receives. Lives on the event loop; threads read the rows."""

    def __init__(
        self,
        store: OpenStore,
        state: StoreState,
        lost_messages: LostMessages,
        *,
        archive: "ArchiveReader | None" = None,
    ) -> None:
        self._store = store
        self._state = state
        self._archive = archive
        self._lost_messages = lost_messages

    async def explain(
        self, topic: TopicId, id: str, poll: Poll, *, may_read: Callable[[TopicId], bool]
    ) -> dict[str, object]:
        """Why a reader with the snapshot of this poll does or does not receive the message with
        this id in hex, as JSON. Topics of other namespaces are searched, and groups of them named,
        if `may_read` is true for them.

        Raises:
            TransactionsUnavailableError: they are down, and the message is undecided, or one before
                it.
            DamagedRecordError: a delayed message can't be read.
            TuffError (its kinds): the store can't be read; the id is no id; a delayed message has
                no topic; and what `TransactionView.snapshot_of` raises.
        """
        if len(id) == 2 * DELAYED_ID_SIZE:
            found = await self._delayed_facts(topic, DelayedId.from_hex(id))
            return _body(found, explain_delayed(found))
        message_id = MessageId.from_hex(id)
        facts = await self._facts(topic, message_id, poll, may_read)
        explanation = explain(facts)
        body = _body(facts, explanation)
        if facts.elsewhere:
            body["elsewhere"] = [
                {"namespace": each.namespace, "topic": each.name} for each in facts.elsewhere
            ]
        if explanation.reason in (Reason.EXPIRED, Reason.TRUNCATED):
            lost_by = self._lost_by(facts.topic, message_id, may_read)
            body |= {"lostBy": lost_by} if lost_by else {}
        return body

    def _lost_by(
        self, topic: TopicId, id: MessageId, may_read: Callable[[TopicId], bool]
    ) -> list[dict[str, str]]:
        return [
            {
                "kind": each.group.kind.value,
                "namespace": each.group.namespace,
                "group": each.group.name,
                "cause": each.cause.value,
                "after": each.after.hex(),
            }
            for each in self._lost_messages.of_message(topic, id)
            if each.group.namespace == topic.namespace
            or may_read(TopicId(each.group.namespace, each.group.name))
        ]

    async def _facts(
        self, topic: TopicId, id: MessageId, poll: Poll, may_read: Callable[[TopicId], bool]
    ) -> Facts:
        self._store.require_up()
        # As in a poll: the snapshot first and the rows second. The index before both, as for the
        # offsets of a topic.
        indexed = self._indexed(topic)
        snapshot = await snapshot_for(self._state, poll)
        without: list[Facts] = []
        for found, record in self._logs(topic):
            facts = await self._facts_in(found, record, id, poll, snapshot)
            if facts.row is not None or facts.older_generation is not None:
                break
            without.append(facts)
        else:
            # Of several partitions, the one that removed most is the likeliest to have had it.
            facts = max(without, key=_removed_before, default=Facts(id=id, topic=topic))
            elsewhere = await self._elsewhere(topic, id, may_read)
            facts = replace(facts, topic=topic, elsewhere=elsewhere)
        if isinstance(facts.row, MessageRow) and facts.query is not None:
            pointer = facts.row.tx_pointer
            blocker = await self._blocker(facts, facts.query, indexed, poll)
            facts = replace(facts, blocker=blocker)
            is_blocked = blocker is not None or visibility(pointer, snapshot) is Verdict.BLOCK
            if is_blocked and await may_read_again(self._state, snapshot):
                return await self._facts(topic, id, poll, may_read)
        return facts

    async def _delayed_facts(self, topic: TopicId, id: DelayedId) -> DelayedFacts:
        self._store.require_up()
        found: DelayedFacts | None = None
        for log, record in self._logs(topic):
            if record.generation < 0:
                continue
            is_waiting, pointer = await self._store.read(
                partial(_delayed_row, log.prefix(record.generation), id)
            )
            is_here = is_waiting or pointer is not None
            found = DelayedFacts(
                id=id,
                topic=log.id if is_here else topic,
                generation=record.generation,
                now_ms=self._state.now_ms(),
                is_waiting=is_waiting,
                pointer=pointer,
                status=await self._status(pointer),
            )
            if is_here:
                break
        if found is None:
            raise topic_not_found(topic)
        return found

    def _logs(self, topic: TopicId) -> list[tuple[Topic, TopicRecord]]:
        """The topic, or the partitions of one with several, with their records, also deleted ones.
        Raises: DamagedRecordError, OwnershipMovingError."""
        try:
            base = self._state.topics.find(topic)
        except TopicNotFoundError:
            return []
        base.require_readable()
        if base.durable is None:
            return []
        if base.durable.generation < 0 or not base.durable.is_several(topic):
            return [(base, base.durable)]
        numbers = base.durable.partitions.readable
        logs = [self._state.topics.find(topic.partition(number)) for number in numbers]
        return [(log, log.durable) for log in logs if log.durable is not None]

    def _indexed(self, topic: TopicId) -> list[IndexedRange]:
        return [
            entry
            for log, record in self._logs(topic)
            for entry in self._state.index.undecided_in(log.id, record.generation)
        ]

    async def _facts_in(
        self,
        log: Topic,
        record: TopicRecord,
        id: MessageId,
        poll: Poll,
        snapshot: Transaction | None,
    ) -> Facts:
        generation = abs(record.generation)
        facts = Facts(id=id, topic=log.id, has_fixed_snapshot=poll.is_fixed)
        if record.generation < 0:
            return replace(facts, is_deleted=True)
        query = query_of(self._state, log, record, poll, id_before(id.to_bytes()), snapshot)
        row = await self._store.read(partial(stored_row, query=query, id=id))
        facts = replace(facts, generation=generation, query=query, row=row)
        if isinstance(row, MessageRow):
            expires_ms = log.rule_of(record).expires_ms(id.offset, own_ttl_s=row.ttl_s)
            status = await self._status(row.tx_pointer)
            return replace(facts, status=status, expires_at_ms=expires_ms)
        if id.to_bytes() <= live_after(query):
            is_archived = await self._is_archived(log.id, generation, query, id)
            return replace(facts, is_archived=is_archived)
        older = await self._store.read(partial(_older_generation, log.id, query, generation, id))
        return replace(facts, older_generation=older)

    async def _status(self, pointer: int | None) -> TransactionStatus | None:
        if pointer is None:
            return None
        try:
            return await self._state.transactions.status(abs(pointer))
        except TransactionsUnavailableError:
            return None  # a reader without a snapshot needs no transactions

    async def _is_archived(
        self, topic: TopicId, generation: int, query: Query, id: MessageId
    ) -> bool:
        if self._archive is None:
            return False
        through = replace(query, through=id.to_bytes(), limit=1)
        return bool((await self._archive.read(topic, generation, through)).messages)

    async def _blocker(
        self, facts: Facts, query: Query, indexed: list[IndexedRange], poll: Poll
    ) -> Blocker | None:
        """The row before the message at which the reader stops. A reader without a snapshot does
        not stop at transactions."""
        assert isinstance(facts.row, MessageRow)
        if visibility(facts.row.tx_pointer, query.snapshot) is not Verdict.ACCEPT:
            return None
        if query.snapshot is None or facts.id.offset <= first_live(query):
            return None
        here = [each for each in indexed if each.topic == facts.topic]
        assert facts.generation is not None
        start = max(first_indexed(facts.generation, query, poll, here), first_live(query))
        before = replace(query, high_water_mark=Offset.from_int(facts.id.offset.to_int() - 1))
        offset, row = await self._store.read(partial(first_undecided, query=before, start=start))
        if offset >= facts.id.offset:
            return None
        pointer = None if row is None else row.tx_pointer
        return Blocker(offset, pointer, await self._status(pointer))

    async def _elsewhere(
        self, topic: TopicId, id: MessageId, may_read: Callable[[TopicId], bool]
    ) -> tuple[TopicId, ...]:
        """The topics of other namespaces, with the same name, that have the message."""
        others = [
            each
            for each in self._state.topics
            if each.id.name.partition(":")[0] == topic.base.name
            and each.id.namespace != topic.namespace
            and (each.id.number is not None or not each.id.is_internal)
            and each.durable is not None
            and each.durable.generation > 0
            and may_read(each.id.base)
        ]
        found = []
        for other in others[:NAMESPACES_COUNT_MAX]:
            assert other.durable is not None
            query = query_of_all(self._state, other, other.durable)
            if await self._store.read(partial(stored_row, query=query, id=id)) is not None:
                found.append(other.id)
        return tuple(found)


def _removed_before(facts: Facts) -> bytes:
    return BEGINNING if facts.query is None else live_after(facts.query)


def stored_row(store: Store, *, query: Query, id: MessageId) -> MessageRow | str | None:
    """The row of a message, with the message's own time to live, also if it has expired or is
    before the log start; the finding if it can't be read, None without one. Raises: StoreError."""
    one = replace(
        as_stored(query),
        after=id_before(id.to_bytes()),
        through=id.to_bytes(),
        limit=1,
        snapshot=None,
        tags=None,
    )
    try:
        messages = read(store, one).messages
    except DamagedRecordError as error:
        return error.detail
    if not messages or messages.last_id != id.to_bytes():
        return None
    return _decoded(store, query.prefix, id)


def _decoded(store: Store, prefix: bytes, id: MessageId) -> MessageRow | None:
    key = message_key(prefix, id.offset)
    value = store.get(key)
    if value is None:  # retention has removed it meanwhile
        return None
    row = MessageRow.from_bytes(key, value)
    if row.reference is None or row.tx_pointer is None:
        return row
    stored_at = Offset(id.write_timestamp_ms, id.payload_seq_id)
    inner_key = payload_key(prefix, abs(row.tx_pointer), stored_at)
    inner = store.get(inner_key)
    own = [row.ttl_s, None if inner is None else MessageRow.from_bytes(inner_key, inner).ttl_s]
    return replace(row, ttl_s=min((each for each in own if each is not None), default=None))


def _older_generation(
    topic: TopicId, query: Query, generation: int, id: MessageId, store: Store
) -> int | None:
    """The newest deleted generation that has the message; retention removes it some time."""
    for older in range(generation - 1, max(0, generation - 1 - GENERATIONS_COUNT_MAX), -1):
        of_older = replace(query, prefix=prefix_of(topic, older))
        if stored_row(store, query=of_older, id=id) is not None:
            return older
    return None


def _delayed_row(prefix: bytes, id: DelayedId, store: Store) -> tuple[bool, int | None]:
    """Whether the message waits for its due time; and the pointer of its undecided row, while it is
    there."""
    # The undecided row first: a commit may replace it by the other one between the two calls.
    key = undecided_key(prefix, id.offset)
    value = store.get(key)
    if store.get(delayed_key(prefix, id)) is not None:
        return True, None
    try:
        return False, None if value is None else split_undecided(key, value)[0]
    except DamagedRowError as error:
        raise DamagedRecordError(
            f"the delayed message {id.hex()} {error.finding}; {error.advice}",
            members={"id": id.hex(), "next": None},
        ) from None


def routes(explainer: Explainer, may_read: MayRead = lambda _request, _topic: True) -> list[Route]:
    """The HTTP routes: a GET for a reader by isolation or transaction, and a POST with a snapshot
    in the body. `may_read`: whether the client of a request may read a topic."""

    async def get(request: Request) -> Reply:
        topic = topic_of(request, parameters=("isolation", "tx"))
        query = dict(request.query)
        isolation, tx = choice(query, "isolation", Isolation), transaction_named(query)
        if isolation is not None and tx is not None:
            raise BadRequestError("give at most one of isolation and tx")
        by_default = Isolation.COMMITTED if tx is None else Isolation.ALL
        return await answer(request, topic, Poll(tx=tx, isolation=isolation or by_default))

    async def post(request: Request) -> Reply:
        topic = topic_of(request)
        body = read_object(
            request.body, request.content_type, members=("transaction",), what="the request"
        )
        if "transaction" not in body:
            raise BadRequestError("the body needs the member transaction: the snapshot to read in")
        snapshot = transaction_from_json(body["transaction"])
        return await answer(request, topic, Poll(transaction=snapshot))

    async def answer(request: Request, topic: TopicId, poll: Poll) -> Reply:
        id = request.parameters["message"]
        may_read_topic = partial(may_read, request)
        return json_reply(await explainer.explain(topic, id, poll, may_read=may_read_topic))

    return [Route(operations.EXPLAIN, get), Route(operations.EXPLAIN_IN_SNAPSHOT, post)]


def _body(facts: Facts | DelayedFacts, explanation: Explanation) -> dict[str, object]:
    status, blocked_by = facts.status, explanation.blocked_by
    return {
        "id": facts.id.hex(),
        "namespace": facts.topic.namespace,
        "topic": facts.topic.name,
        "generation": facts.generation,
        "visible": explanation.reason in (Reason.VISIBLE, Reason.ARCHIVED),
        "reason": explanation.reason.value,
        "detail": explanation.detail,
        "advice": explanation.advice,
        "blockedBy": None if blocked_by is None else pointer_to_json(blocked_by),
        "transaction": None if status is None else to_json(status),
    }
