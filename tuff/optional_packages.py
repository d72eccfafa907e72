"""The sentence that names a missing optional package, and the extra that brings it."""

from types import TracebackType


class MissingExtraError(ModuleNotFoundError):
    """A package of an extra is not installed; the text names the extra."""


class Extra:
    """Within this block, `what` imports packages of an extra: one that is not installed raises a
    `MissingExtraError`.

        with Extra("tuff.otel", "otel"):
            from opentelemetry.context import Context
    """

    def __init__(self, what: str, extra: str) -> None:
        self._what = what
        self._extra = extra

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, ModuleNotFoundError) or error.name is None:
            return
        if isinstance(error, MissingExtraError):
            return  # of a narrower extra
        package = error.name.partition(".")[0]
        if not package.startswith("tuff"):
            raise MissingExtraError(
                f"{self._what} needs {package}, which is not installed; "
                f"pip install 'tuff-messaging[{self._extra}]'",
                name=error.name,
            ) from None
