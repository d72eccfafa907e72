"""The principal to which a transaction belongs: the one that started it (protocol §5.2,
TransactionPrincipals)."""

from collections import Counter
from collections.abc import Collection, Iterable

from kernel.exchange import Caller
from tuff.protocol.errors import ForbiddenError, QuotaExceededError


class TransactionPrincipals:
    """The principals of transactions, open or invalid, that were started under access control."""

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
                del self._by_id[transaction_id]

    def forget(self, pointers: Iterable[int]) -> None:
        """Transactions of these pointers are invalid no more."""
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


def caller_principal(caller: Caller | None) -> str | None:
    """The principal of a transaction that the caller starts."""
    return None if caller is None else caller.principal


def require_principal(
    caller: Caller | None, transaction_id: int, principals: TransactionPrincipals
) -> None:
    """Check that the caller may write to the transaction and end it.

    Raises:
        ForbiddenError: it belongs to another principal, or to none: it started without access
            control, or its start was lost in a crash.
    """
    if caller is None or caller.may_administer or caller.principal == principals.of(transaction_id):
        return
    raise _of_another(caller, transaction_id)


def require_writer(caller: Caller | None, transaction_id: int, principal: str | None) -> None:
    """Check that the caller may write messages under the transaction, or roll them back. Where its
    principal is not known, the right on the topic is enough.

    Raises: ForbiddenError: it belongs to another principal.
    """
    if (
        principal is None
        or caller is None
        or caller.may_administer
        or caller.principal == principal
    ):
        return
    raise _of_another(caller, transaction_id)


def require_quota(caller: Caller | None, principals: TransactionPrincipals) -> None:
    """Check that the caller may start one more transaction. Raises: QuotaExceededError."""
    if caller is None or caller.open_transactions_max is None:
        return
    if principals.open_count(caller.principal) >= caller.open_transactions_max:
        raise QuotaExceededError(
            f"principal {caller.principal} has {caller.open_transactions_max} transactions in "
            "progress, its quota open_transactions; end some first"
        )


def _of_another(caller: Caller, transaction_id: int) -> ForbiddenError:
    return ForbiddenError(
        f"transaction {transaction_id} does not belong to principal {caller.principal}; only the "
        "principal that started it, and one with the right administer on all topics, may write "
        "under it, change it or end it"
    )
