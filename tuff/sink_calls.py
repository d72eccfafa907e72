"""The calls of sinks, as values (protocol §5.3)."""

from collections.abc import Mapping
from urllib.parse import quote

from tuff.calls import Call, Request, Response, json_array, json_body, json_object, nothing, text
from tuff.protocol.errors import BadRequestError
from tuff.protocol.forms import pointer_from_json, transaction_from_json, whole_number
from tuff.protocol.media import shown
from tuff.replies import Epoch, Sink

_ROOT = "/v1/sinks"


def begin(sink: str, epoch: int, run_id: str, *, lease_s: float | None, client: str) -> Call[Epoch]:
    body: dict[str, object] = {"runId": run_id, "client": client}
    if lease_s is not None:
        body["lease"] = lease_s

    def read(response: Response) -> Epoch:
        found = json_object(response)
        begun = found["transaction"]
        if begun is not None and not isinstance(begun, dict):
            raise BadRequestError(f"a transaction is an object, not {shown(begun)}")
        encoded = None if begun is None else text(begun["encoded"])
        return Epoch(
            sink=text(found["sink"]),
            epoch=whole_number(found["epoch"], what="epoch"),
            run_id=text(found["runId"]),
            transaction=None if encoded is None else transaction_from_json(encoded),
        )

    # The same run is told the same transaction again.
    request = Request(
        method="POST",
        path=f"{_path(sink)}/epochs/{epoch}",
        body=json_body(body),
        is_repeatable=True,
    )
    return Call(request, read)


def get(sink: str) -> Call[Sink]:
    request = Request(method="GET", path=_path(sink), is_read=True)
    return Call(request, lambda response: _read_sink(json_object(response)))


def list_sinks() -> Call[list[Sink]]:
    def read(response: Response) -> list[Sink]:
        found = json_array(json_object(response)["sinks"])
        return [_read_sink(item) for item in found]

    return Call(Request(method="GET", path=_ROOT, is_read=True), read)


def delete(sink: str) -> Call[None]:
    return Call(Request(method="DELETE", path=_path(sink)), nothing)


def _path(sink: str) -> str:
    return f"{_ROOT}/{quote(sink, safe='')}"


def _read_sink(item: object) -> Sink:
    if not isinstance(item, Mapping):
        raise BadRequestError(f"a sink is an object, not {shown(item)}")
    return Sink(
        sink=text(item["sink"]),
        epoch=whole_number(item["epoch"], what="epoch"),
        run_id=text(item["runId"]),
        state=text(item["state"]),
        transaction_id=pointer_from_json(item["transactionId"], what="transactionId"),
        updated_at_ms=whole_number(item["updatedAt"], what="updatedAt"),
    )
