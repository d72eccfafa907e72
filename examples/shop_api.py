"""A small service with FastAPI whose rows and messages agree, in both directions.

    pip install 'tuff-messaging[sqlalchemy]' fastapi uvicorn
    make run
    uvicorn --app-dir examples shop_api:app

`POST /orders` inserts a row and publishes a message: both commit, or neither. A consumer in a
thread marks orders as paid by the messages of another topic, each exactly once. A resolver settles
what a killed process left behind.
"""

import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from sqlalchemy import create_engine, text, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import tuff
from tuff.sql.dialects import CREATE_POSITIONS
from tuff.sql.sqlalchemy import SqlAlchemyDatabase

ORDERS, PAYMENTS = "shop:api-orders", "shop:api-payments"

engine = create_engine(os.environ.get("SHOP_DATABASE", "sqlite:///shop-api.sqlite"))
shop = SqlAlchemyDatabase(engine, "shop")
client = tuff.Client(os.environ.get("TUFF_URL", "http://127.0.0.1:7411"))


class Base(DeclarativeBase):
    """The tables of the service."""


class Order(Base):
    """One order; `is_paid` follows the messages of PAYMENTS."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    is_paid: Mapped[bool] = mapped_column(default=False)


def create_tables() -> None:
    """What a migration does in a real service."""
    Base.metadata.create_all(engine)
    for statement in (shop.dialect.create_table, CREATE_POSITIONS):
        with engine.begin() as connection:
            connection.execute(
                text(statement.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
            )
    for topic in (ORDERS, PAYMENTS):
        client.topics.create(topic, exist_ok=True)


def pay(session: Session, payments: "tuff.Consumer[tuff.SqlTransaction, Session]") -> None:
    """Mark orders as paid until the consumer is stopped. A payment is the id of an order."""

    def process(batch: tuff.Batch, _tx: tuff.SqlTransaction) -> None:
        ids = [int(message.payload) for message in batch]
        session.execute(update(Order).where(Order.id.in_(ids)).values(is_paid=True))

    payments.run(process, session)


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """The consumer and the resolver work in threads as long as the service runs."""
    create_tables()
    with (
        Session(engine) as session,
        client.sql_resolver(shop),
        client.consumer(
            PAYMENTS, group="payments", database=shop, retry=tuff.RetryPolicy()
        ) as payments,
    ):
        thread = threading.Thread(target=pay, args=(session, payments))
        thread.start()
        yield
        payments.stop()
        thread.join()
    client.close()


app = FastAPI(lifespan=lifespan)


@app.post("/orders")
def create_order(item: str) -> dict[str, int]:
    """Insert an order, and announce it."""
    with Session(engine) as session, client.sql_transaction(shop, session) as tx:
        order = Order(item=item)
        session.add(order)
        session.flush()
        number = order.id
        tx.publish(ORDERS, f"{number} {item}")
    return {"id": number}


@app.get("/orders/{number}")
def show_order(number: int) -> dict[str, object]:
    """The order, and whether it is paid."""
    with Session(engine) as session:
        order = session.get_one(Order, number)
        return {"id": order.id, "item": order.item, "paid": order.is_paid}
