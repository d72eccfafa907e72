"""Calls of the service for epochs of a sink."""

from tests.tx.service import Service
from tx.outcomes import OpenTransaction
from tx.sinks import EpochRequest


async def ask(
    service: Service,
    epoch: int,
    run_id: str,
    *,
    sink: str = "s",
    lease_s: float | None = None,
    client: str = "c",
) -> OpenTransaction | None:
    """The transaction of the epoch; None where it has committed."""
    asked = EpochRequest(sink=sink, epoch=epoch, run_id=run_id, client=client, lease_s=lease_s)
    found, opened = await service.sinks.begin(asked)
    assert (found.name, found.epoch) == (sink, epoch)
    return opened


async def begin(service: Service, epoch: int, run_id: str, *, sink: str = "s") -> OpenTransaction:
    opened = await ask(service, epoch, run_id, sink=sink)
    assert opened is not None
    return opened


async def state(service: Service, sink: str = "s") -> tuple[int, str, str]:
    found, told = await service.sinks.show(sink)
    return found.epoch, found.run_id, told


async def commit(service: Service, tx: OpenTransaction) -> None:
    await service.runner.commit(tx.transaction_id)
