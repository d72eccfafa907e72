"""LevelDB itself: plyvel, or its fork plyvel-next where plyvel has no wheels (decision 0052)."""

from tuff.optional_packages import Extra

with Extra("a LevelDB database", "tables"):
    try:
        import plyvel
    except ModuleNotFoundError as missing:
        try:
            import plyvel_next as plyvel
        except ModuleNotFoundError:
            raise missing from None

__all__ = ["plyvel"]
