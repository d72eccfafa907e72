"""Databases of Django, each under an alias of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

import django
from django.conf import settings
from django.db import connections

import tuff
from tests.sql.test_psycopg import ORDERS
from tuff.sql.django import DjangoDatabase

if not settings.configured:
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.dummy"}})
    django.setup()


@contextmanager
def alias_of(name: str, **options: object) -> Iterator[str]:
    """The alias of a database with these settings; its connection is closed at last."""
    alias = f"of_{name}"
    configured = connections.configure_settings({"default": {}, alias: {"NAME": name, **options}})
    connections.settings[alias] = configured[alias]
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias]


def sell(client: tuff.Client, alias: str) -> None:
    """A row and a message in one block."""
    with client.sql_transaction(DjangoDatabase("shop", alias), None) as tx:
        with connections[alias].cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES ('apple')")
        tx.publish(ORDERS, "sold one apple")
