"""The principal to which a transaction belongs: the one that started it (protocol §5.2,
Principals), and the tenant of that principal (decision 0066).

    full name := principal | principal "@" tenant
"""

from collections import Counter
from collections.abc import Collection, Iterable

from kernel.requests_and_replies import Caller
from tuff.protocol.errors import ForbiddenError, QuotaExceededError, TransactionUnknownError

_TENANT = "@"  # in no name of a principal, tenant or sink
_KEYS = b"\0tenant\0"  # in front of the changes of a tenant


class TransactionPrincipals:
    """The principals of transactions that were started under access control, by their full names:
    while these are open or invalid, and of a tenant also while their outcomes are remembered."""

    def __init__(self, principals: Iterable[tuple[int, str]], opened: Collection[int]) -> None:
        """`principals` by transaction id; `opened` are the transactions in progress."""
        self._by_id = dict(principals)
        self._open = Counter(each for id_, each in self._by_id.items() if id_ in opened)

    def __bool__(self) -> bool:
        return bool(self._by_id)

    def start(self, transaction_id: int, principal: str | None) -> None:
        """Note the principal of a transaction that starts; None: there is no access control."""
        if principal is not None:
            self._by_id[transaction_id] = principal
            self._open[principal] += 1

    def end(self, transaction_id: int, *, is_invalid: bool) -> None:
        """The transaction ended. An invalid one can still be aborted, so it keeps its principal."""
        if (principal := self._by_id.get(transaction_id)) is not None:
            self._open[principal] -= 1
            if not is_invalid:
                self.abort_invalid(transaction_id)

    def abort_invalid(self, transaction_id: int) -> None:
        """The transaction is neither in progress nor invalid any more."""
        if not tenant_of(self._by_id.get(transaction_id)):
            self._by_id.pop(transaction_id, None)

    def forget(self, pointers: Iterable[int]) -> None:
        """Transactions of these pointers are not remembered any more."""
        if self._by_id:
            for pointer in pointers:
                self._by_id.pop(pointer, None)

    def of(self, transaction_id: int) -> str | None:
        """None where none is known, as without access control at its start."""
        return self._by_id.get(transaction_id)

    def open_count(self, principal: str) -> int:
        """How many transactions of the principal are in progress."""
        return self._open[principal]

    def image(self) -> tuple[tuple[int, str], ...]:
        """Each transaction id with its principal."""
        return tuple(self._by_id.items())


def principal_name(full_name: str) -> str:
    """The name of a principal, without its tenant."""
    return full_name.partition(_TENANT)[0]


def tenant_of(full_name: str | None) -> str:
    """The tenant of a principal; empty without one."""
    return "" if full_name is None else full_name.partition(_TENANT)[2]


def tenant_changes(changes: frozenset[bytes], principal: str | None) -> frozenset[bytes]:
    """The changes of a transaction, so that they conflict with those of its tenant only."""
    if tenant := tenant_of(principal):
        prefix = b"%s%s\0" % (_KEYS, tenant.encode())
        return frozenset(prefix + each for each in changes)
    if any(each.startswith(_KEYS) for each in changes):  # a program that plays the tenant
        return frozenset(_KEYS + b"\0" + e if e.startswith(_KEYS) else e for e in changes)
    return changes


def named_change(change: bytes) -> bytes:
    """A change as its transaction has named it."""
    if not change.startswith(_KEYS):
        return change
    _, found, named = change.removeprefix(_KEYS).partition(b"\0")
    return named if found else change


def tenant_sink(name: str, caller: Caller | None) -> str:
    """The sink of this name of the caller's tenant."""
    return f"{caller.tenant}{_TENANT}{name}" if caller is not None and caller.tenant else name


def shown_sink(sink: str, caller: Caller | None) -> str | None:
    """The name by which the caller knows a sink; None: it does not know it."""
    if caller is None:
        return sink
    tenant, _, name = sink.rpartition(_TENANT)
    if tenant == caller.tenant:
        return name
    return sink if caller.may_administer else None


def may_know(caller: Caller | None, principal: str | None) -> bool:
    """Whether the caller may know of the transactions of a principal: they are of one tenant."""
    return caller is None or caller.may_administer or tenant_of(principal) == caller.tenant


def require_known(caller: Caller | None, transaction_id: int, principal: str | None) -> None:
    """Raises: TransactionUnknownError: the transaction has ended, and is of another tenant."""
    if not may_know(caller, principal):
        raise TransactionUnknownError(
            f"no transaction {transaction_id} is remembered: it never started, or ended too long "
            "ago"
        )


def require_principal(
    caller: Caller | None, transaction_id: int, principals: TransactionPrincipals
) -> None:
    """Check that the caller may write to the transaction and end it.

    Raises:
        ForbiddenError: it belongs to another principal, or to none: it started without access
            control, or its start was lost in a crash.
    """
    _require_owner(caller, transaction_id, principals.of(transaction_id))


def require_writer(caller: Caller | None, transaction_id: int, principal: str | None) -> None:
    """Check that the caller may write messages under the transaction, or roll them back. Where its
    principal is not known, the right on the topic is enough.

    Raises: ForbiddenError: it belongs to another principal.
    """
    if principal is not None:
        _require_owner(caller, transaction_id, principal)


def _require_owner(caller: Caller | None, transaction_id: int, principal: str | None) -> None:
    if caller is None or caller.may_administer or caller.full_name == principal:
        return
    raise ForbiddenError(
        f"transaction {transaction_id} does not belong to principal {caller.principal}; only the "
        "principal that started it, and one with the right administer on all topics, may write "
        "under it, change it or end it"
    )


def require_quota(caller: Caller | None, principals: TransactionPrincipals) -> None:
    """Check that the caller may start one more transaction. Raises: QuotaExceededError."""
    if caller is None or caller.open_transactions_max is None:
        return
    if principals.open_count(caller.full_name) >= caller.open_transactions_max:
        raise QuotaExceededError(
            f"principal {caller.principal} has {caller.open_transactions_max} transactions in "
            "progress, its quota open_transactions; end some first"
        )
