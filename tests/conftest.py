"""Settings that every test shares."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Tests share two cores with others: how long one example takes says nothing about the code.
settings.register_profile(
    "tuff", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tuff")

# Hundreds of servers are started here. Where somebody set this, each would compile itself anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what the scenario scripts print now into their files; read the diff",
    )
