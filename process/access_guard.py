"""Checks the principal of each request.

Without an access file none of this is in the path of a request.
"""

from collections.abc import Callable, Mapping
from functools import partial
from hmac import compare_digest
from pathlib import Path
from typing import NamedTuple

from access.permission import require
from access.principals import (
    EVERY,
    SERVER,
    AccessFileError,
    Principal,
    Principals,
    hash_of,
    parse,
)
from access.quotas import Usage
from kernel.event_loop import InThread
from kernel.requests_and_replies import SERVER_SCHEME, Call, Caller, Reply, Request
from process.health import Check, Status
from process.watched_files import WatchedFileError, WatchedFiles
from tuff.protocol.errors import (
    ForbiddenError,
    QuotaExceededError,
    UnauthenticatedError,
)
from tuff.protocol.ids import TopicId
from tuff.protocol.operations import (
    BEGIN_EPOCH,
    RUN_TRANSACTION,
    START_TRANSACTION,
    Access,
    Operation,
    Right,
    Scope,
)
from tuff.protocol.sentences import counted

FILE_BYTES_MAX = 1 << 20  # bytes of the access file; thousands of principals
ALLOWED_COUNT_MAX = 10_000  # calls that are remembered as allowed; some MiB at most
ALLOWED_CHARACTERS_MAX = 512  # of such a call; no legal namespace, topic and token are longer
SHOWN_TOKEN = "[token]"  # in place of a token that a client sent as a name
_SCHEME = "bearer "
_STARTS = (START_TRANSACTION, RUN_TRANSACTION, BEGIN_EPOCH)  # of transactions

# Authorization, operation, namespace, topic, names in the certificate.
_AllowedCall = tuple[str | None, Operation, str | None, str | None, tuple[str, ...]]


def read_access_file(file: Path, audit_topic: TopicId | None = None) -> Principals:
    """The principals of a file. Blocks. `audit_topic` is the topic that has their acts.

    Raises:
        WatchedFileError: it can't be read, or is not valid.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise WatchedFileError(f"{file} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise WatchedFileError(f"{file} is not in UTF-8") from None
    if len(content) > FILE_BYTES_MAX:
        raise WatchedFileError(f"{file} is larger than {FILE_BYTES_MAX} bytes")
    try:
        kept = None if audit_topic is None else (audit_topic.namespace, audit_topic.name)
        return parse(text, kept)
    except AccessFileError as error:
        raise WatchedFileError(f"{file}: {error}") from None


class _Admitted(NamedTuple):
    """A principal that may do a call. `usage` is what it has used of its quota; None: it has no
    quota of requests or bytes."""

    principal: Principal
    caller: Caller
    usage: Usage | None


class AccessGuard:
    """Finds the principal of a request, and refuses what it may not do. Lives on one event loop.

    `now_s` is a monotonic clock. `cluster_secret` proves that a request is from another server of
    the cluster; None: there is no cluster. `file` has the principals of the newest valid file.
    """

    def __init__(
        self,
        file: Path,
        *,
        now_s: Callable[[], float],
        cluster_secret: str | None = None,
        audit_topic: TopicId | None = None,
    ) -> None:
        """Reads the file, and blocks. Raises: WatchedFileError: it is not valid."""
        self._now_s = now_s
        self._secret_hash = None if cluster_secret is None else hash_of(cluster_secret)
        self.file = WatchedFiles(
            [file], lambda: read_access_file(file, audit_topic), name="access file"
        )
        # Calls that the principals may do, whatever their bodies are.
        self._allowed: dict[_AllowedCall, _Admitted] = {}
        self._usages: dict[str, Usage] = {}
        # Requests that were above a quota, by principal, since the start.
        self.quota_refusals: dict[str, int] = {}

    def admitted(self, call: Call, operation: Operation, request: Request) -> Request:
        """The request, as one of its principal, whose quota its reply is charged to.

        Raises: UnauthenticatedError, ForbiddenError, QuotaExceededError, BadRequestError.
        """
        needed = operation.access
        if needed.scope is Scope.OPEN:
            return request
        found = self._find(operation, needed, request)
        if found.usage is not None:
            self._charge(found.principal, found.usage, request.size)
            call.watch(partial(_meter, found.usage))
        if found.caller.open_transactions_max is not None and operation in _STARTS:
            call.watch(partial(self._count_refusal, found.principal))
        # Transactions have owners, and a forwarded request has the name of its principal.
        request = request.of_caller(found.caller)
        if request.is_forwarded and not self.is_of_server(request):
            request = request._replace(is_forwarded=False)
        return request

    def may_administer(self, request: Request) -> bool:
        """Whether the principal of a request may administer the server; False without one."""
        try:
            return self._principal_of(request).may(Right.ADMINISTER, EVERY, EVERY)
        except UnauthenticatedError:
            return False

    def is_of_server(self, request: Request) -> bool:
        """Whether a server of the cluster sends the request."""
        scheme, _, rest = (request.authorization or "").partition(" ")
        if self._secret_hash is None or scheme != SERVER_SCHEME:
            return False
        return compare_digest(hash_of(rest.partition(" ")[0]), self._secret_hash)

    def principal_name(self, request: Request) -> str | None:
        """The name of the principal of a request; None without one."""
        try:
            return self._principal_of(request).name
        except UnauthenticatedError:
            return None

    def refusal(self, request: Request) -> UnauthenticatedError | None:
        """Why this request is that of no principal; None where it is that of one."""
        try:
            self._principal_of(request)
        except UnauthenticatedError as error:
            return error
        return None

    def shown_parameters(self, request: Request) -> Mapping[str, str]:
        """The names in the path of a request, without tokens that are there by mistake."""
        return {
            name: SHOWN_TOKEN if self._is_token(value) else value
            for name, value in request.parameters.items()
        }

    def _without_tokens(self, sentence: str, request: Request) -> str:
        for value in filter(self._is_token, request.parameters.values()):
            sentence = sentence.replace(value, SHOWN_TOKEN)
        return sentence

    def _is_token(self, text: str) -> bool:
        return self.file.value.of_token(text) is not None

    def may_read(self, request: Request, topic: TopicId) -> bool:
        """Whether the principal of a request may read a topic."""
        return self._principal_of(request).may(Right.READ, topic.namespace, topic.name)

    async def refresh(self, in_thread: InThread) -> bool:
        """Read the file again if it has changed; returns whether the principals may have."""
        has_changed = await self.file.refresh(in_thread)
        if has_changed:
            self._allowed.clear()
        return has_changed

    def check(self) -> Check:
        """The state of the access file, for `/health/ready`."""
        if self.file.failure is not None:
            return Check(
                Status.DEGRADED, f"the access file is not used as it is now: {self.file.failure}"
            )
        return Check(Status.OK, f"access for {counted(len(self.file.value.by_name), 'principal')}")

    def require_head(self, operation: Operation, head: Request) -> None:
        """Check what the head of a request says, before its body is read.

        Raises: UnauthenticatedError, ForbiddenError.
        """
        needed = operation.access
        if needed.scope is not Scope.OPEN:
            self._find(operation, needed._replace(of_topics=None), head)

    def _find(self, operation: Operation, needed: Access, request: Request) -> _Admitted:
        """The principal of a request, without a check of its quota."""
        get = request.parameters.get
        call = (request.authorization, operation, get("ns"), get("t"), request.certificate)
        known = self._allowed.get(call)
        if known is not None:
            return known
        principal = self._principal_of(request)
        try:
            require(principal, needed, request.parameters, _body_of(request))
        except ForbiddenError as error:
            raise ForbiddenError(self._without_tokens(error.detail, request)) from None
        # The first server has charged a request that another one forwards.
        usage = None if self.is_of_server(request) else self._usage_of(principal)
        admitted = _Admitted(principal, _caller(principal), usage)
        # Where the body names topics, the next one may name others.
        if operation.access.of_topics is None and _is_short(call):
            if len(self._allowed) >= ALLOWED_COUNT_MAX:
                self._allowed.clear()
            self._allowed[call] = admitted
        return admitted

    def _usage_of(self, principal: Principal) -> Usage | None:
        """The usage goes on when the file is read again, unless the quota has changed."""
        quota = principal.quota
        if not quota.limits_rates:
            return None
        usage = self._usages.get(principal.name)
        if usage is None or usage.quota != quota:
            usage = self._usages[principal.name] = Usage(quota)
        return usage

    def _charge(self, principal: Principal, usage: Usage, size_bytes: int) -> None:
        """Raises: QuotaExceededError."""
        exceeded = usage.exceeded(now_s=self._now_s())
        if exceeded is not None:
            name, wait_s = exceeded
            error = QuotaExceededError(
                f"principal {principal.name} is above its quota {name}="
                f"{getattr(principal.quota, name):g}; nothing was done, try again after Retry-After"
            )
            error.retry_after_s = wait_s
            self._count_refusal(principal, error)
            raise error
        usage.take_request(size_bytes)

    def _count_refusal(self, principal: Principal, reply: Reply | Exception) -> None:
        if isinstance(reply, QuotaExceededError):
            name = principal.name
            self.quota_refusals[name] = self.quota_refusals.get(name, 0) + 1

    def _principal_of(self, request: Request) -> Principal:
        """Raises: UnauthenticatedError."""
        authorization = request.authorization
        if authorization is None:
            return self._of_certificate(request)
        if self.is_of_server(request):
            return self._of_server(authorization)
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            raise UnauthenticatedError(
                "the server takes `Authorization: Bearer TOKEN`, and no other scheme"
            )
        found = self.file.value.of_token(authorization[len(_SCHEME) :].strip())
        if found is None:
            raise UnauthenticatedError(
                "the token is not in the access file of the server; `tuff access token NAME` makes "
                "one, and its hash belongs into that file"
            )
        return found

    def _of_server(self, authorization: str) -> Principal:
        """The principal that another server has found, or that server itself."""
        _, _, name = authorization.removeprefix(f"{SERVER_SCHEME} ").partition(" ")
        if not name:
            return SERVER
        found = self.file.value.by_name.get(name)
        if found is None:
            raise UnauthenticatedError(
                f"another server of the cluster knows the principal {name}, and this one does not; "
                "all servers need the same access file"
            )
        return found

    def _of_certificate(self, request: Request) -> Principal:
        found = self.file.value.of_certificate(request.certificate)
        if found is not None:
            return found
        if request.certificate:
            raise UnauthenticatedError(
                "the names in the client certificate are those of no principal in the access file, "
                "or of several; `certificates` of a principal has one of them"
            )
        raise UnauthenticatedError(
            "the request has no token, and no client certificate with a subject alternative name "
            "for DNS or a URI; send a token as `Authorization: Bearer TOKEN` (`token` of the "
            "client, TUFF_TOKEN of the command)"
        )


def _caller(principal: Principal) -> Caller:
    return Caller(
        principal.name,
        principal.may(Right.ADMINISTER, EVERY, EVERY),
        principal.quota.open_transactions,
        principal.tenant,
    )


def _is_short(call: _AllowedCall) -> bool:
    """Whether an entry of the cache is worth its memory. A client can name topics that are as long
    as an address, and that do not exist."""
    authorization, _, namespace, topic, _ = call
    given = (authorization, namespace, topic)
    return sum(len(each) for each in given if each is not None) <= ALLOWED_CHARACTERS_MAX


def _body_of(request: Request) -> object:
    """The body for `require`: bytes, or the value that a session has brought."""
    return request.body if request.members is None else request.members


def _meter(usage: Usage, reply: Reply | Exception) -> None:
    if isinstance(reply, Reply):
        usage.take_bytes(len(reply.body))
