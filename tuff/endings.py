"""How the commit of a context ended, and what a program is told where nobody knows."""

from dataclasses import dataclass
from typing import NoReturn

from tuff.protocol.errors import TuffError
from tuff.protocol.transaction import Transaction
from tuff.transport import ConnectionLostError


class OutcomeUnknownError(ConnectionLostError):
    """Neither `rollback_tx` nor `post_commit` has run: the transaction may have committed."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, outcome_unknown=True)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a commit went: `committed` is None while nobody knows; `error` is what it raised."""

    committed: bool | None
    error: BaseException | None


def did_not_happen(error: BaseException) -> bool:
    """Whether the server, or the want of one, proves that this commit did not happen."""
    if isinstance(error, ConnectionLostError):
        return not error.outcome_unknown
    return isinstance(error, TuffError) and (error.retry_safe or 400 <= error.status < 500)


def raise_unknown(transaction: Transaction, cause: BaseException) -> NoReturn:
    """Tell which transaction it is. Raises: OutcomeUnknownError, or the interrupt that it was."""
    sentence = (
        f"whether transaction {transaction.transaction_id} committed can't be learned now; ask "
        f"`tuff tx show {transaction.transaction_id}` before going on"
    )
    if not isinstance(cause, Exception):
        cause.add_note(sentence)
        raise cause
    raise OutcomeUnknownError(f"{sentence} ({type(cause).__name__}: {cause})") from cause
