"""Reports the state of the server to systemd, as sd_notify(3) does."""

from contextlib import suppress
from socket import AF_UNIX, SOCK_DGRAM, socket


def notify(address: str, state: str) -> None:
    """Send a state, such as `READY=1`, to the socket whose address is in NOTIFY_SOCKET. It is lost
    if systemd does not take it at once."""
    path = f"\0{address[1:]}" if address.startswith("@") else address
    with suppress(OSError), socket(AF_UNIX, SOCK_DGRAM) as sending:
        sending.settimeout(0)
        sending.connect(path)
        sending.send(state.encode())


def watchdog_interval_s(usec: str | None) -> float | None:
    """Seconds between two signs of life for this value of WATCHDOG_USEC; None if it asks for none.
    One of them may be lost."""
    return int(usec) / 3_000_000 if usec is not None and usec.isdigit() and int(usec) > 0 else None
