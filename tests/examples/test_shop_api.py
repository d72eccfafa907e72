"""The example with FastAPI: rows and messages in both directions."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from fastapi.testclient import TestClient

import tuff
from tests.http.client import until
from tests.http.process import serve

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("SHOP_DATABASE", f"sqlite:///{tmp_path / 'shop.sqlite'}")
    monkeypatch.syspath_prepend(EXAMPLES)
    sys.modules.pop("shop_api", None)
    with serve(tmp_path / "server").wait_ready() as server:
        monkeypatch.setenv("TUFF_URL", server.url)
        yield importlib.import_module("shop_api")


def test_an_order_is_announced_and_its_payment_is_consumed(service: ModuleType) -> None:
    with TestClient(service.app) as api, tuff.Client(service.client.url) as other:
        number = api.post("/orders", params={"item": "apple"}).json()["id"]
        announced = [message.payload for message in other.poll(service.ORDERS)]
        other.publish(service.PAYMENTS, str(number))
        until(lambda: api.get(f"/orders/{number}").json()["paid"], what="the payment")

    assert announced == [f"{number} apple".encode()]
