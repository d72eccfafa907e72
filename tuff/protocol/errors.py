"""Every refusal, as a class with its status and stable code (protocol §1, Errors).

The server raises these, and the client raises the same classes from the problem document that it
received (`from_problem`). They use inheritance so that a caller can catch a whole group.
"""

from base64 import b64decode
from collections.abc import Mapping
from typing import ClassVar


class TuffError(Exception):
    """The root of every error of Tuff: a stable `code`, one plain sentence `detail`, whether the
    same call may safely be repeated (`retry_safe`), after `retry_after_s` seconds, and whether it
    may have made its change all the same (`outcome_unknown`)."""

    status: ClassVar[int] = 500
    code: str = "internal"
    retry_safe: bool = False
    outcome_unknown: bool = False
    retry_after_s: float = 0.0

    def __init__(
        self, detail: str, *, code: str | None = None, members: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.members: dict[str, object] = dict(members or {})
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        # Pickles the attributes, not the arguments: the classes have different constructors, and a
        # process pool that can't unpickle an error is broken for ever.
        return _restored, (type(self), self.args, self.__dict__)

    def problem(self) -> dict[str, object]:
        """The body of the `application/problem+json` reply (RFC 9457)."""
        title = self.code.replace("_", " ").capitalize()
        return {
            "type": "about:blank",
            "title": title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            **self.members,
        }


class InternalError(TuffError):
    """A bug of the server; `detail` names the id under which it was logged."""


class DamagedRecordError(TuffError):
    """A stored record fails its checksum. Members: `id`, and `next`, where a reader may
    continue."""

    code = "damaged_record"


class BadRequestError(TuffError, ValueError):
    """The request is not valid; `code` says why."""

    status = 400
    code = "bad_request"


class InvalidNameError(BadRequestError):
    code = "invalid_name"


class InvalidTopicPropertiesError(BadRequestError):
    code = "invalid_topic_properties"


class PartitionRequiredError(BadRequestError):
    """The topic has several partitions, and this call is for one. Member: `partitions`, the
    numbers of those that can be read."""

    code = "partition_required"


class InvalidTtlError(BadRequestError):
    code = "invalid_ttl"


class InvalidDelayError(BadRequestError):
    code = "invalid_delay"


class EmptyPublishError(BadRequestError):
    code = "empty_publish"


class InvalidMessageIdError(BadRequestError):
    code = "invalid_message_id"


class FuturePositionError(BadRequestError):
    """An offset or a position is in the future: nothing was published there yet."""

    code = "future_position"


class InvalidTimeoutError(BadRequestError):
    code = "invalid_timeout"


class InvalidTransactionError(BadRequestError):
    code = "invalid_transaction"


class UnauthenticatedError(TuffError):
    """The server has an access file, and the request has no token of it."""

    status = 401
    code = "unauthenticated"


class ForbiddenError(TuffError):
    """The principal does not have the right that the request needs."""

    status = 403
    code = "forbidden"


class HostNotAllowedError(TuffError):
    """The request names a host to which the server does not answer."""

    status = 403
    code = "host_not_allowed"


class CrossSiteError(TuffError):
    """A browser sent the request for a web page of another site or origin."""

    status = 403
    code = "cross_site_request"


class NotFoundError(TuffError):
    """The address does not exist."""

    status = 404
    code = "not_found"


class TopicNotFoundError(NotFoundError):
    """The topic was never created, or was deleted. Member: `topic`, the one to create."""

    code = "topic_not_found"

    def __str__(self) -> str:
        """The fact, and what a program can do; other callers of the server do something else."""
        topic = self.members.get("topic")
        return self.detail + (f'; client.topics.create("{topic}") creates it' if topic else "")


class HoldNotFoundError(NotFoundError):
    """The topic has no hold of that name, or the hold has expired."""

    code = "hold_not_found"


class PositionNotFoundError(NotFoundError):
    """The topic has no position of that name."""

    code = "position_not_found"


class DelayedNotFoundError(NotFoundError):
    """No such delayed message waits: it was cancelled, has entered its topic, or never was."""

    code = "delayed_not_found"


class SinkNotFoundError(NotFoundError):
    """The sink does not exist."""

    code = "sink_not_found"


class ServerNotFoundError(NotFoundError):
    """The cluster has no live server of that id."""

    code = "server_not_found"


class GroupNotFoundError(NotFoundError):
    """The namespace has no consumer group of that name."""

    code = "group_not_found"


class MethodNotAllowedError(TuffError):
    """The address exists, but does not accept this method."""

    status = 405
    code = "method_not_allowed"


class NotAcceptableError(TuffError):
    """The reply can't be had in the form that was asked for; `detail` says what is missing."""

    status = 406
    code = "not_acceptable"


class UpgradeRequiredError(TuffError):
    """The address takes only a request that changes to another protocol, which `detail` names."""

    status = 426
    code = "upgrade_required"


class TopicExistsError(TuffError):
    """A topic of that name exists already."""

    status = 409
    code = "topic_already_exists"


class GroupExistsError(TuffError):
    """A share group of this name exists, with other properties."""

    status = 409
    code = "group_already_exists"


class LeaseLostError(TuffError):
    """Another worker of a share group has got messages that were to be acknowledged in a
    transaction; `ids` names them. Nothing was acknowledged. Abort the transaction, and go on."""

    status = 409
    code = "lease_lost"


class PartitionRetiredError(TuffError):
    """The partition is retired: it can be read, and takes no messages."""

    status = 409
    code = "partition_retired"


class TopicHeldError(TuffError):
    """Holds keep messages that would be removed. Member: `holds`, their names."""

    status = 409
    code = "topic_held"


class TopicNotMovableError(TuffError):
    """In a cluster, the topics can't go there: the server has them already or takes none, or there
    is no other server."""

    status = 409
    code = "topic_not_movable"


class TooManyHoldsError(TuffError):
    """The topic has the maximum number of holds."""

    status = 409
    code = "too_many_holds"


class TooManyGroupsError(TuffError):
    """The topic has the maximum number of share groups, or the namespace that of consumer
    groups."""

    status = 409
    code = "too_many_groups"


class TooManyPositionsError(TuffError):
    """The topic has the maximum number of named positions."""

    status = 409
    code = "too_many_positions"


class StartWithdrawnError(TuffError):
    """The client has withdrawn the start with this request id. Nothing was started."""

    status = 409
    code = "start_withdrawn"


class RequestForgottenError(TuffError):
    """A publish was sent again, and the server does not remember whether it was executed before.
    This attempt published nothing; an earlier one may have."""

    status = 409
    code = "request_forgotten"


class RequestIdReusedError(TuffError):
    """A publish has the request id of an earlier one with other messages. Nothing was published."""

    status = 409
    code = "request_id_reused"


class SinkError(TuffError):
    """The sink does not accept that epoch or that change."""

    status = 409
    code = "sink_in_use"


class SinkInUseError(SinkError):
    """The transaction of the sink's epoch is in progress."""


class SinkEpochSupersededError(SinkError):
    """The sink is at a later epoch already. Member: `epoch`, the later one."""

    code = "sink_epoch_superseded"


class SinkEpochOpenError(SinkError):
    """An earlier epoch of the sink has not committed. Member: `epoch`, the earlier one."""

    code = "sink_epoch_open"


class SinkFencedError(SinkError):
    """Another run has taken over the sink, for ever."""

    code = "sink_fenced"


class TooManySinksError(SinkError):
    """The server has the maximum number of sinks."""

    code = "too_many_sinks"


class GroupError(TuffError):
    """The consumer group does not accept that request of that member."""

    status = 409
    code = "unknown_member"


class UnknownMemberError(GroupError):
    """The group has no such member: it left, or its session is over. It joins again."""


class FencedMemberEpochError(GroupError):
    """The member has another epoch. It gives up its partitions, and joins again."""

    code = "fenced_member_epoch"


class UnreleasedInstanceIdError(GroupError):
    """Another member has that instance id, and its session is not over."""

    code = "unreleased_instance_id"


class StaleMemberEpochError(GroupError):
    """A commit names another epoch than the member has. Member: `memberEpoch`, the present one."""

    code = "stale_member_epoch"


class PartitionNotAssignedError(GroupError):
    """A commit names partitions that the member does not have, or had lost meanwhile. Member:
    `partitions`."""

    code = "partition_not_assigned"


class GroupNotEmptyError(GroupError):
    """The group has members, or offsets in transactions that are in progress."""

    code = "group_not_empty"


class TooManyMembersError(GroupError):
    """The group has the maximum number of members."""

    code = "too_many_members"


class RequestTooLargeError(TuffError):
    """The request is larger than the server accepts."""

    status = 413
    code = "request_too_large"


class ChangeSetTooLargeError(RequestTooLargeError):
    """The change set has more keys or bytes than the server accepts."""

    code = "change_set_too_large"


class UnsupportedMediaTypeError(TuffError):
    """The body has a media type that this endpoint does not accept."""

    status = 415
    code = "unsupported_media_type"


class OverloadedError(TuffError):
    """A queue is full; nothing was done. Try again later."""

    status = 429
    code = "overloaded"
    retry_safe = True


class QuotaExceededError(OverloadedError):
    """The principal is above one of its quotas; nothing was done. Try again later."""

    code = "quota_exceeded"


class UnavailableError(TuffError):
    """A component of the server can't answer now."""

    status = 503
    code = "shutting_down"


class ShuttingDownError(UnavailableError):
    """The server is stopping; nothing was done."""

    retry_safe = True


class StartingError(UnavailableError):
    """The server is starting, and has not recovered its stores yet; nothing was done."""

    code = "starting"
    retry_safe = True


class OwnershipMovingError(UnavailableError):
    """In a cluster, another server is about to own the topic or to lead the transactions; nothing
    was done."""

    code = "ownership_moving"
    retry_safe = True


class StorageUnavailableError(UnavailableError):
    """The message store can't be read or written now; nothing was written."""

    code = "storage_unavailable"
    retry_safe = True


class StorageOutcomeUnknownError(StorageUnavailableError):
    """The message store, or the server that owns the topic, failed during the call. What it was to
    write may or may not be there."""

    code = "storage_outcome_unknown"
    retry_safe = False
    outcome_unknown = True


class ArchiveUnavailableError(UnavailableError):
    """The archive of a topic, in which a read would continue, can't be read now."""

    code = "archive_unavailable"


class TransactionsUnavailableError(UnavailableError):
    """The transaction service is down. Messages without a transaction continue. A change of a
    transaction may or may not have happened."""

    outcome_unknown = True
    code = "transactions_unavailable"


class TooManyPreparedError(UnavailableError):
    """The server has the maximum number of prepared transactions; nothing was done."""

    code = "too_many_prepared"
    retry_safe = True


class TransactionError(TuffError):
    """The transaction does not allow the call."""

    status = 409
    code = "transaction_conflict"


class TransactionConflictError(TransactionError):
    """Another transaction committed an equal change after this one started.

    Members: `key` (payload form), `conflictingTransaction`, `conflictingClient`.
    """

    @property
    def key(self) -> bytes | None:
        """The key that both wrote; None if the server did not name it."""
        match self.members.get("key"):
            case str() as text:
                return text.encode("utf-8")
            case {"base64": str() as text}:
                return b64decode(text)
            case _:
                return None

    @property
    def transaction(self) -> int | None:
        """The id of the transaction that committed first; None if the server did not name it."""
        other = self.members.get("conflictingTransaction")
        return int(other) if isinstance(other, str) else None

    @property
    def client(self) -> str | None:
        """The client of that transaction; None if the server did not name it."""
        other = self.members.get("conflictingClient")
        return other if isinstance(other, str) else None


class TransactionPreparedError(TransactionError):
    """The transaction is prepared: its database decides, and only a resolve ends it.

    Members: `database`, `preparedAt` (ms since the epoch).
    """

    code = "transaction_prepared"


class TransactionNotPreparedError(TransactionError):
    """The transaction is in progress and was not prepared, so it can't be resolved as committed."""

    code = "transaction_not_prepared"


class TransactionsInProgressError(TransactionError):
    """The call requires that certain transactions have ended, and they are in progress."""

    code = "transactions_in_progress"


class TransactionNotInProgressError(TransactionError):
    """The transaction has ended, or is unknown."""

    code = "transaction_unknown"


class TransactionTimedOutError(TransactionNotInProgressError):
    code = "transaction_timed_out"


class TransactionInvalidatedError(TransactionNotInProgressError):
    code = "transaction_invalidated"


class TransactionCommittedError(TransactionNotInProgressError):
    code = "transaction_committed"


class TransactionAbortedError(TransactionNotInProgressError):
    code = "transaction_aborted"


class TransactionUnknownError(TransactionNotInProgressError):
    """The server knows no transaction of that id: it never existed, or ended too long ago."""

    status = 404


def _restored(
    kind: type[TuffError], args: tuple[object, ...], members: Mapping[str, object]
) -> TuffError:
    error = kind.__new__(kind, *args)
    error.args = args  # an OSError leaves them to its constructor
    error.__dict__.update(members)
    return error


def _with_subclasses(kind: type[TuffError]) -> list[type[TuffError]]:
    return [kind, *(found for sub in kind.__subclasses__() for found in _with_subclasses(sub))]


# The most derived class wins a code, as it comes last.
BY_CODE: Mapping[str, type[TuffError]] = {kind.code: kind for kind in _with_subclasses(TuffError)}

_PROBLEM_MEMBERS = frozenset({"type", "title", "status", "detail", "code"})


def from_problem(body: Mapping[str, object], *, status: int) -> TuffError:
    """The error that a problem document describes; the root class for a code that this version does
    not know."""
    code = body.get("code")
    detail = body.get("detail")
    kind = BY_CODE.get(code, TuffError) if isinstance(code, str) else TuffError
    sentence = f"the server answered {status} without a reason; check the address"
    return kind(
        detail if isinstance(detail, str) else sentence,
        code=code if isinstance(code, str) else "internal",
        members={name: body[name] for name in body if name not in _PROBLEM_MEMBERS},
    )
