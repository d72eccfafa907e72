"""`tuff-pipeline`, which is started by its path, like the server (tuff/launch.py): the name
`pipeline` is too general for a top-level package in site-packages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tuff.optional_packages import Extra, MissingExtraError

if __name__ == "__main__":
    try:
        with Extra("tuff-pipeline", "spark"):
            from pipeline.command import main

            main()
    except MissingExtraError as missing:
        sys.exit(f"tuff-pipeline: {missing}")
