"""The calls that the machine of transactions takes, as values: what each asks for, and how it is
answered (protocol §5.2)."""

from collections.abc import Callable, Sequence

from kernel.requests_and_replies import Caller
from tuff.protocol.requests import PublishEntry
from tuff.protocol.transaction import TransactionType
from tuff.protocol.values import value
from tx.outcomes import UNKNOWN_CLIENT, OpenTransaction

Answer = Callable[[object], None]  # takes the result, or the error with which the call is refused


class Call:
    """One call. `answer` is called once; a caller that has given up is answered before its call is
    decided."""

    __slots__ = ("answer", "is_answered", "is_decided", "is_ending", "pointer")

    def __init__(self, answer: Answer, pointer: int = 0) -> None:
        self.answer = answer
        self.pointer = pointer
        self.is_answered = False
        self.is_decided = False
        self.is_ending = False  # no other call ends the transaction meanwhile

    def finish(self, result: object) -> None:
        """Answer the call, unless its caller has given up: with its result, or with an error."""
        if not self.is_answered:
            self.is_answered = True
            self.answer(result)


@value(kw_only=True)
class StartRequest:
    """The arguments of a start, with times in seconds. `request_id` makes it safe to repeat, and
    lets it be withdrawn. `is_messages_only`: no other store than the messages takes part, unless
    one joins."""

    type: TransactionType = TransactionType.SHORT
    timeout_s: float | None = None
    client: str = UNKNOWN_CLIENT
    lease_s: float | None = None
    request_id: str | None = None
    is_messages_only: bool = False
    caller: Caller | None = None


class Start(Call):
    """Start a transaction. Its result is an OpenTransaction."""

    __slots__ = ("request",)

    def __init__(self, answer: Answer, request: StartRequest) -> None:
        super().__init__(answer)
        self.request = request


class Commit(Call):
    """Commit, or with a `database` prepare. `changes` None: those of the can-commits before it. A
    read-only commit names an empty set. The result of a commit is what it published, that of a
    prepare an OpenTransaction."""

    __slots__ = (
        "changes", "claimed", "database", "doubt_lsn", "entries", "has_waited", "is_checked",
        "is_read_only", "opened", "request_id",
    )  # fmt: skip

    def __init__(
        self,
        answer: Answer,
        pointer: int,
        changes: frozenset[bytes] | None = None,
        entries: Sequence[PublishEntry] = (),
        *,
        is_read_only: bool = False,
        request_id: str | None = None,
        database: str | None = None,
    ) -> None:
        Call.__init__(self, answer, pointer)
        self.changes = changes
        self.entries = entries
        self.is_read_only = is_read_only
        self.request_id = request_id
        self.database = database
        self.is_checked = False  # the entries, by the message store
        self.has_waited = False  # for the end of a prepared transaction, for long enough
        # Set when its rows are written: the transaction, and all changes that it named.
        self.opened: OpenTransaction | None = None
        self.claimed: frozenset[bytes] = frozenset()
        self.doubt_lsn = 0  # of the edit that says that it commits if its rows are there


class Run(Call):
    """Start a transaction, publish the entries in it, and commit it. Each request id runs once. The
    result is what was published."""

    __slots__ = ("entries", "request_id", "start")

    def __init__(
        self,
        answer: Answer,
        entries: Sequence[PublishEntry],
        start: StartRequest,
        request_id: str | None,
    ) -> None:
        super().__init__(answer)
        self.entries = entries
        self.start = start
        self.request_id = request_id


class CanCommit(Call):
    """Check these changes together with those named before, and remember them."""

    __slots__ = ("changes",)

    def __init__(self, answer: Answer, pointer: int, changes: frozenset[bytes]) -> None:
        super().__init__(answer, pointer)
        self.changes = changes


class CommitPrepared(Call):
    """Commit a prepared transaction. Its result is what it published."""

    __slots__ = ()


class Abort(Call):
    """End without committing. `may_be_prepared`: the database has not committed, and never will.
    Its result is an Outcome."""

    __slots__ = ("may_be_prepared",)

    def __init__(self, answer: Answer, pointer: int, *, may_be_prepared: bool = False) -> None:
        super().__init__(answer, pointer)
        self.may_be_prepared = may_be_prepared


class Invalidate(Call):
    """End as invalid. Its result is an Outcome."""

    __slots__ = ()


class Checkpoint(Call):
    """Give the transaction a new write pointer. Its result is the OpenTransaction with it."""

    __slots__ = ()


class Join(Call):
    """Let another store take part in the transaction. Its result is the OpenTransaction."""

    __slots__ = ()


class Use(Call):
    """Wait until no end of the transaction is under way. Its result is the OpenTransaction."""

    __slots__ = ()


class Renew(Call):
    """Let the transaction's lease begin anew. Its result is the OpenTransaction."""

    __slots__ = ()


class SetAside(Call):
    """Let readers pass the messages of a prepared transaction, unless it ends before."""

    __slots__ = ()
