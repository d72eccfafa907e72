"""Which topics this server owns, and how it claims and releases them (decision 0042, Topic
ownership).

The owner record of a topic is changed by compare-and-set only. What is cached here about other
servers is a hint: a request that goes to the wrong server is refused there, and asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from cluster.membership import Membership
from cluster.peers import Owner
from kernel.event_loop import FutureTask, InThread
from kernel.owner_floor import NO_FLOOR, Floor, Identity
from messaging.log.topics import topic_not_found
from messaging.topic_handover import TopicHandover
from metadata.member_records import ServerInfo
from metadata.placement import least_loaded, preferred, topics_to_release
from metadata.store_interface import (
    BadVersionError,
    EntryExistsError,
    Expected,
    MetadataError,
    NoEntryError,
    Versioned,
)
from metadata.topic_owner_records import OwnerInfo, OwnerRecords
from metadata.topic_records import (
    OwnerRange,
    PersistenceInfo,
    StaleClaimError,
    TopicRecords,
)
from tuff.protocol.errors import (
    OwnershipMovingError,
    TopicNotFoundError,
    TuffError,
    UnavailableError,
)
from tuff.protocol.ids import TopicId
from tuff_storage.disk.locks import StoreError

log = logging.getLogger(__name__)
T = TypeVar("T")

CLAIM_ATTEMPTS_MAX = 20  # each failure but the last is another server's success
CACHED_COUNT_MAX = 100_000  # owners of other topics that are remembered
ADOPTED_COUNT_MAX = 500  # topics that one call of `adopt` claims; the next call continues
CONCURRENT_COUNT_MAX = 32  # topics whose ownership changes at once; the rest waits
REBALANCE_TOLERANCE_PERCENT = 10  # more topics than the mean that a server keeps
REBALANCE_COUNT_MAX = 50  # topics that one look gives away

_LOST_RACES = (BadVersionError, EntryExistsError, NoEntryError, StaleClaimError)


class TopicClaims:
    """Lives on the event loop; the metadata store is asked in threads. One change of a topic's
    ownership is under way at a time.

    `chance(n)` is a number below n, each with the same probability.
    """

    def __init__(
        self,
        identity: Identity,
        membership: Membership,
        owners: OwnerRecords,
        persistence: TopicRecords,
        handover: TopicHandover,
        *,
        in_thread: InThread,
        chance: Callable[[int], int],
    ) -> None:
        self._me = identity
        self._membership = membership
        self._owners = owners
        self._persistence = persistence
        self._handover = handover
        self._in_thread = in_thread
        self._chance = chance
        self._owned: dict[TopicId, Versioned[OwnerInfo]] = {}  # the version is the epoch
        self._cached: dict[TopicId, tuple[str, int]] = {}  # server and incarnation
        self._changing: dict[TopicId, asyncio.Future[None]] = {}
        # The fences of ended servers, done or under way: one for each incarnation.
        self._fences: dict[tuple[str, int], FutureTask[Floor]] = {}
        self.members: Mapping[str, ServerInfo] = {}  # as of the last `refresh`
        self._are_members_old = False
        self._given: Counter[str] = Counter()  # topics that this server gave away since then
        self.is_draining = False
        # Topics to claim here, unless they have a live owner. Those that failed are tried later.
        self._orphans: set[TopicId] = set()
        self._failed: set[TopicId] = set()
        self._untold: dict[TopicId, ServerInfo] = {}  # given to servers that were not told yet
        self._looked_with: frozenset[object] | None = None  # the members at the last look
        self._has_failed_to_look = False
        self._incarnations: dict[str, int] = {}  # the highest that was looked for, by server
        self._unrecorded: set[TopicId] = set()  # topics whose generation is to be recorded
        self._recording = asyncio.Lock()
        self.claimed_count = 0
        self.released_count = 0

    async def owner_of(self, topic: TopicId, *, is_forwarded: bool, creates: bool) -> Owner | None:
        """The server that owns the topic, or shall claim it; None if it is this one, which then
        serves it.

        `is_forwarded`: another server has sent the request here, so this server claims a topic that
        has no owner. `creates`: the request creates the topic, so it need not exist.

        Raises:
            TopicNotFoundError: no topic ever had this name, and the request does not create it.
            OwnershipMovingError: nobody can tell now.
        """
        if topic in self._owned and topic not in self._changing:
            return None
        if (cached := self._live_owner(self._cached.get(topic))) is not None:
            if is_forwarded:
                del self._cached[topic]  # the other server believes that it is ours
            else:
                return cached
        # A draining server refuses what was forwarded to it, if another server takes topics.
        claims = is_forwarded and not self.is_draining
        return await _to_its_end(self._found_or_claimed(topic, claims=claims, creates=creates))

    def forget(self, topic: TopicId) -> None:
        """Look for the owner again at the next request: the server that is remembered refused
        one."""
        self._cached.pop(topic, None)
        self._are_members_old = True  # it may have begun to drain

    async def note_change(self, topic: TopicId) -> None:
        """A topic of this server was created or deleted: record its generation, which decides
        whether the servers list it. If that fails, `record_generations` repeats it."""
        self._unrecorded.add(topic)
        with suppress(MetadataError):
            await self.record_generations()

    async def record_generations(self) -> None:
        """Record the generations of topics that were created or deleted, and that could not be
        recorded then. Raises: MetadataError."""
        # One after the other: threads would write two generations of a topic in any order.
        async with self._recording:
            for topic in sorted(self._unrecorded):
                self._unrecorded.discard(topic)  # before the read: it may change again meanwhile
                try:
                    await self._record(topic)
                except BaseException:
                    self._unrecorded.add(topic)
                    raise

    async def _record(self, topic: TopicId) -> None:
        owned = self._owned.get(topic)
        if owned is not None:  # a topic that was given away is recorded by its new owner
            generation = self._handover.generation(topic)
            record = partial(self._record_generation, topic, generation, epoch=owned.version)
            await self._in_thread(record)
            if topic in self._owned and self._handover.generation(topic) != generation:
                self._unrecorded.add(topic)

    async def move(self, topic: TopicId, server_id: str) -> None:
        """Give a topic of this server to another one.

        Raises:
            OwnershipMovingError: this server does not own it, or the other one is not alive.
            UnavailableError: its kinds; who owns the topic now is in its owner record.
        """
        to = self.members.get(server_id)
        if to is None:
            raise OwnershipMovingError(f"there is no live server {server_id} in the cluster")
        async with self._change(topic):
            await self._release(topic, to)

    async def drain(self) -> None:
        """Give all topics to the other servers, and claim no more until `undrain`. If no other
        server takes topics, they stay here. Raises: UnavailableError (its kinds), MetadataError:
        some are still here."""
        self.is_draining = True
        await self.publish_load()
        await _each(sorted(self._owned), self._release_if_draining)

    async def leave(self) -> None:
        """Give all topics away before the session ends. What no other server takes is given to
        nobody: the next owner then need not fence this server. Raises: UnavailableError (its
        kinds), MetadataError: some are still here."""
        await self.drain()
        await _each(sorted(self._owned), self._release_to_nobody)

    async def undrain(self) -> None:
        """Claim topics again. Raises: MetadataError: the others learn of it later."""
        self.is_draining = False
        await self.publish_load()

    async def _release_if_draining(self, topic: TopicId) -> None:
        if self.is_draining:
            await self._release_to_any(topic)

    async def rebalance(self) -> None:
        """Give topics away if this server has many more than the others. Raises:
        UnavailableError (its kinds)."""
        loads = [each.topics for each in self.members.values() if not each.is_draining]
        if self.is_draining or not loads:
            return
        count = topics_to_release(
            len(self._owned),
            loads,
            tolerance_percent=REBALANCE_TOLERANCE_PERCENT,
            shed_max=REBALANCE_COUNT_MAX,
        )
        await _each(sorted(self._owned)[:count], self._release_to_any)

    async def refresh(self) -> None:
        """Read the members again. Raises: MetadataError."""
        self._are_members_old = False
        self.members = await self._in_thread(self._membership.members)
        self._given.clear()

    async def adopt(self) -> bool:
        """Claim this server's share of the topics without a live owner, and those that were moved
        here; whether there are more, which the next call claims. The retention of a topic, and the
        end of transactions in it, need an owner even while nobody asks for the topic.

        The owner records are read only if the members have changed: a live server knows itself
        which of its topics have lost their owner otherwise, or was told (decision 0042). What
        failed is tried again after `retry`.

        Raises: UnavailableError (its kinds), MetadataError.
        """
        await self._tell_released()
        released = partial(self._owners.take_released, self._me.server_id)
        self._orphans.update(await self._in_thread(released))
        await self._look_for_orphans()
        some = sorted(self._orphans)[:ADOPTED_COUNT_MAX]
        await _each(some, self._adopt)
        return bool(self._orphans)

    async def retry(self) -> None:
        """Let `adopt` try again what failed, and look for the topics of servers that were members
        between two looks only. Raises: MetadataError."""
        self._orphans |= self._failed
        self._failed.clear()
        found = await self._in_thread(self._membership.incarnations)
        is_new = any(self._incarnations.get(key, 0) < newest for key, newest in found.items())
        if is_new or self._has_failed_to_look:
            self.look_again()
        self._incarnations = found

    def look_again(self) -> None:
        """Let `adopt` read all owner records, although the members have not changed."""
        self._looked_with = None

    async def _look_for_orphans(self) -> None:
        # The members of the last `refresh`, and not newer ones: a change since then is noticed by
        # the next call, which looks again.
        members = self.members
        view = frozenset(
            (each.server_id, each.incarnation, each.is_draining) for each in members.values()
        )
        if view == self._looked_with:
            return
        look = partial(self._found_orphans, members, frozenset(self._owned))
        self._looked_with, self._has_failed_to_look = view, True
        self._orphans.update(await self._in_thread(look))
        self._has_failed_to_look = False
        for each in members.values():
            before = self._incarnations.get(each.server_id, 0)
            self._incarnations[each.server_id] = max(before, each.incarnation)

    async def _adopt(self, topic: TopicId) -> None:
        self._orphans.discard(topic)
        try:
            owner = await _to_its_end(self._found_or_claimed(topic, claims=True, creates=False))
        except TopicNotFoundError:
            return  # a claim that was to create it failed
        except BaseException:
            self._failed.add(topic)
            raise
        if owner is not None and (named := self.members.get(owner.server_id)) is not None:
            # The release to it may have been reported as failed, so it may not know.
            self._untold[topic] = named

    async def _tell_released(self) -> None:
        """Tell the servers which topics were given to them. A server that has ended meanwhile may
        have ended before it got them, and nobody looked for them since: this one claims them."""
        for server_id, incarnation in sorted(
            {(each.server_id, each.incarnation) for each in self._untold.values()}
        ):
            topics = {
                topic
                for topic, to in self._untold.items()
                if (to.server_id, to.incarnation) == (server_id, incarnation)
            }
            alive = partial(self._membership.is_alive, server_id, incarnation)
            if await self._in_thread(alive):
                note = partial(self._owners.note_released, server_id, topics)
                topics -= set(await self._in_thread(note))
            else:
                self._orphans |= topics
            for topic in topics:
                self._untold.pop(topic, None)

    async def publish_load(self) -> None:
        """Tell the others how many topics this server has, and whether it takes more. Raises:
        MetadataError."""
        told: bool | None = None
        # A drain that ends while its beginning is being written must be written behind it.
        while told is not self.is_draining:
            told = self.is_draining
            publish = partial(self._membership.publish_load, len(self._owned), is_draining=told)
            await self._in_thread(publish)

    @property
    def topics_count(self) -> int:
        """The number of topics of this server."""
        return len(self._owned)

    def topics(self) -> dict[TopicId, int]:
        """The topics of this server, with the epochs of their ownership."""
        return {topic: each.version for topic, each in self._owned.items()}

    def _change(self, topic: TopicId) -> _Change:
        return _Change(self._changing, topic)

    async def _found_or_claimed(
        self, topic: TopicId, *, claims: bool, creates: bool
    ) -> Owner | None:
        """The owner of a topic. `claims`: this server claims a topic without an owner, whatever the
        loads of the others."""
        async with self._change(topic):
            if topic in self._owned:
                return None
            # Another request may have found the owner while this one waited.
            cached = self._live_owner(self._cached.get(topic))
            if cached is not None and not claims:
                return cached
            return await self._find_or_claim(topic, claims=claims, creates=creates)

    async def _find_or_claim(self, topic: TopicId, *, claims: bool, creates: bool) -> Owner | None:
        for _ in range(CLAIM_ATTEMPTS_MAX):
            found = await self._in_thread(partial(self._owners.read_owner_info, topic))
            owner = await self._owner_in(found)
            if owner is not None:
                self._remember(topic, owner)
                return self._address_of(owner)
            if found is None and not creates and not await self._exists(topic):
                raise topic_not_found(topic)
            # A record that names this server is of a move to it, or of a claim that failed halfway.
            # Any other server would send the request back here.
            if not (claims or self._is_mine(found)):
                other = await self._lighter_server()
                if other is not None:
                    return other
            try:
                await self._claim(topic, found)
            except _LOST_RACES as error:
                log.info("lost the race for the topic %s: %s", topic, error)
                continue
            except BaseException:
                self._failed.add(topic)  # the record may name this server
                raise
            return None
        self._failed.add(topic)
        raise OwnershipMovingError(f"many servers claim the topic {topic} now; try again")

    async def _owner_in(self, found: Versioned[OwnerInfo] | None) -> tuple[str, int] | None:
        """The live server that an owner record names, other than this one."""
        if found is None or found.value.server_id is None or self._is_mine(found):
            return None
        server_id, incarnation = found.value.server_id, found.value.incarnation
        # The members that are known here may be old; a live server must not be fenced.
        alive = partial(self._membership.is_alive, server_id, incarnation)
        if not await self._in_thread(alive):
            return None
        known = self.members.get(server_id)
        if known is None or known.incarnation != incarnation:
            await self.refresh()
        return server_id, incarnation

    def _is_mine(self, found: Versioned[OwnerInfo] | None) -> bool:
        """Whether an owner record names this server, since its start."""
        return found is not None and (found.value.server_id, found.value.incarnation) == (
            self._me.server_id,
            self._me.incarnation,
        )

    async def _exists(self, topic: TopicId) -> bool:
        read = partial(self._persistence.read_topic_persistence_info, topic)
        return await self._in_thread(read) is not None

    async def _claim(self, topic: TopicId, found: Versioned[OwnerInfo] | None) -> None:
        """Raises: one of `_LOST_RACES`; UnavailableError (its kinds), MetadataError, StoreError."""
        floor = NO_FLOOR
        if found is not None:
            floor = found.value.floor
            before = found.value.server_id
            if before is not None and not self._is_mine(found):
                floor = floor.raised_to(await self._fenced(before, found.value.incarnation))
        claimed, recorded = await self._in_thread(partial(self._write_claim, topic, found, floor))
        await self._handover.take([topic], floor)
        self._owned[topic] = claimed
        self._cached.pop(topic, None)
        self.claimed_count += 1
        if self._handover.generation(topic) != recorded:
            await self.note_change(topic)  # its last owner could not record it

    async def _fenced(self, server_id: str, incarnation: int) -> Floor:
        """The floor of an ended server, once it is fenced.

        All topics of the server wait for one fence: each fence takes a slot of the journal from
        the one before, so fences at the same time make each other fail.
        """
        ended = server_id, incarnation
        fence = self._fences.get(ended)
        if fence is None:
            fence = self._fences[ended] = FutureTask(
                self._fence(server_id, incarnation), refusals=Exception
            )
            fence.go_on()
        return await asyncio.shield(fence.done)

    async def _fence(self, server_id: str, incarnation: int) -> Floor:
        try:
            return await self._in_thread(partial(self._membership.fence, server_id, incarnation))
        except BaseException:
            del self._fences[server_id, incarnation]  # the next claim tries again
            raise

    def _write_claim(
        self, topic: TopicId, found: Versioned[OwnerInfo] | None, floor: Floor
    ) -> tuple[Versioned[OwnerInfo], int]:
        """Write the owner record, and append to the persistence record; the owner record and the
        recorded generation. Blocks."""
        info = OwnerInfo(
            server_id=self._me.server_id, incarnation=self._me.incarnation, floor=floor
        )
        version = Expected.NEW if found is None else found.version
        epoch = self._owners.write_owner_info(topic, info, version)
        return Versioned(info, epoch), self._append_range(topic, epoch, floor)

    def _append_range(self, topic: TopicId, epoch: int, floor: Floor) -> int:
        stored = self._persistence.read_topic_persistence_info(topic)
        claimed = OwnerRange(
            epoch=epoch,
            server_id=self._me.server_id,
            incarnation=self._me.incarnation,
            start=floor.offset,
        )
        before = PersistenceInfo(generation=0) if stored is None else stored.value
        self._persistence.write_topic_persistence_info(
            topic, before.with_claim(claimed), Expected.NEW if stored is None else stored.version
        )
        return before.generation

    def _record_generation(self, topic: TopicId, generation: int, *, epoch: int) -> None:
        stored = self._persistence.read_topic_persistence_info(topic)
        if stored is None or stored.value.generation == generation:
            return
        if stored.value.ranges[-1].epoch != epoch:
            return  # another server has claimed the topic since, and records what it finds
        changed = replace(stored.value, generation=generation)
        self._persistence.write_topic_persistence_info(topic, changed, stored.version)

    async def _release_to_any(self, topic: TopicId) -> None:
        async with self._change(topic):
            to = self._lightest_other()
            if topic in self._owned and to is not None:
                await self._release(topic, to)

    async def _release_to_nobody(self, topic: TopicId) -> None:
        async with self._change(topic):
            if topic in self._owned:
                await self._release(topic, None)

    async def _release(self, topic: TopicId, to: ServerInfo | None) -> None:
        """Give a topic to a server, or to nobody."""
        owned = self._owned.pop(topic, None)
        if owned is None:
            raise OwnershipMovingError(f"this server does not own the topic {topic}")
        try:
            floor = await self._handover.give(topic)
        except BaseException:
            self._owned[topic] = owned
            raise
        info = OwnerInfo(
            server_id=None if to is None else to.server_id,
            incarnation=self._me.incarnation if to is None else to.incarnation,
            floor=owned.value.floor.raised_to(floor),
        )
        try:
            await self._in_thread(
                partial(self._owners.write_owner_info, topic, info, owned.version)
            )
        except BaseException:
            self._failed.add(topic)  # the record may still name this server, or name the other one
            raise
        if to is not None:
            self._untold[topic] = to
        self.released_count += 1

    def _found_orphans(
        self, members: Mapping[str, ServerInfo], owned: Collection[TopicId]
    ) -> list[TopicId]:
        """Topics that none of these members has, or that were moved here, and that this server
        shall claim. Blocks."""
        found = []
        for topic, stored in self._owners.scan():
            owner = stored.value
            known = members.get(owner.server_id or "")
            if self._is_mine(stored):
                is_orphan = topic not in owned
            elif known is not None and known.incarnation == owner.incarnation:
                is_orphan = False
            else:
                is_orphan = preferred(str(topic), members) == self._me.server_id
            if is_orphan:
                found.append(topic)
        return found

    def _remember(self, topic: TopicId, owner: tuple[str, int]) -> None:
        if len(self._cached) >= CACHED_COUNT_MAX:
            self._cached.clear()
        self._cached[topic] = owner

    def _live_owner(self, owner: tuple[str, int] | None) -> Owner | None:
        if owner is None:
            return None
        known = self.members.get(owner[0])
        if known is None or known.incarnation != owner[1]:
            return None
        return Owner(known.server_id, known.address)

    def _address_of(self, owner: tuple[str, int]) -> Owner:
        found = self._live_owner(owner)
        if found is None:
            raise OwnershipMovingError(f"the server {owner[0]} has just started or ended")
        return found

    async def _lighter_server(self) -> Owner | None:
        """Another server that shall claim a topic without an owner; None: this one. Raises:
        MetadataError."""
        if self._are_members_old:
            await self.refresh()
        if self._me.server_id not in self.members:
            return None
        candidates = dict(self.members)
        if self.is_draining:
            del candidates[self._me.server_id]  # its entry may not say so yet
        chosen = least_loaded(candidates, self._chance)
        if chosen is None or chosen == self._me.server_id:
            return None
        found = candidates[chosen]
        if not self.is_draining and len(self._owned) <= found.topics:
            return None
        return Owner(found.server_id, found.address)

    def _lightest_other(self) -> ServerInfo | None:
        others = {
            key: replace(each, topics=each.topics + self._given[key])
            for key, each in self.members.items()
            if key != self._me.server_id
        }
        chosen = least_loaded(others, self._chance)
        if chosen is None:
            return None
        self._given[chosen] += 1
        return others[chosen]


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of a change, which goes on when the caller gives up: a client that disconnects
    must not leave half of a claim."""
    task = FutureTask(work, refusals=TuffError)
    task.go_on()
    try:
        return await task.done
    finally:
        task.done.cancel()  # if the caller gave up


class _Change:
    """One change of a topic's ownership at a time. A failure of a store is an OwnershipMovingError:
    nothing was done for the client."""

    def __init__(self, changing: dict[TopicId, asyncio.Future[None]], topic: TopicId) -> None:
        self._changing = changing
        self._topic = topic

    async def __aenter__(self) -> None:
        while (before := self._changing.get(self._topic)) is not None:
            await asyncio.shield(before)
        self._changing[self._topic] = asyncio.get_running_loop().create_future()

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._changing.pop(self._topic).set_result(None)
        if isinstance(error, MetadataError | StoreError):
            raise OwnershipMovingError(
                f"the owner of the topic {self._topic} is not known: {error}"
            ) from None
        if isinstance(error, UnavailableError) and not isinstance(error, OwnershipMovingError):
            raise OwnershipMovingError(
                f"the topic {self._topic} can't be served yet: {error}"
            ) from None


async def _each(topics: Sequence[TopicId], change: Callable[[TopicId], Awaitable[None]]) -> None:
    """Change the ownership of these topics, some at a time: they share batches and waits. Raises:
    the first error, after all were tried."""
    errors: list[BaseException] = []
    for start in range(0, len(topics), CONCURRENT_COUNT_MAX):
        part = topics[start : start + CONCURRENT_COUNT_MAX]
        results = await asyncio.gather(*map(change, part), return_exceptions=True)
        errors += [each for each in results if each is not None]
    if errors:
        raise errors[0]
