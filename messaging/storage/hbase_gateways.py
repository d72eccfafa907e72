"""The gateways that settings name, as whoever reads or writes the tables reaches them."""

from collections.abc import Callable
from typing import Any

from messaging.storage.hbase_settings import HBaseSettings
from tuff.hbase_gateway import Addresses, Gateways


def gateways_of(
    settings: HBaseSettings,
    *,
    elapsed_s: Callable[[], float],
    addresses: Addresses | None = None,
    timeout_s: float | None = None,
    **others: Any,
) -> Gateways:
    """Not connected yet. `elapsed_s` is a clock that only goes forward; `addresses`: other ones
    than those of the Thrift1 gateways; `timeout_s`: of one call, if not that of the settings;
    `others` are arguments of `Gateways`."""
    return Gateways(
        addresses or Addresses(settings.addresses()),
        timeout_s=settings.timeout_s if timeout_s is None else timeout_s,
        idle_s=settings.idle_s,
        elapsed_s=elapsed_s,
        **others,
    )
