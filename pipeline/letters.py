"""Letters: what a message that could not be processed becomes, as a message of another topic.

They are those of a subscriber (docs/howto/poison-messages.md): JSON with the members `topic`, `id`,
`timestamp`, `payload` (text, or `{"base64":"…"}`), `reason` and `attempts`.
"""

from typing import TYPE_CHECKING

from tuff.protocol.names import TopicId

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DEAD_SUFFIX = ".dlq"
TEXT = "is_valid_utf8(string(value))"


def dead_letters_of(topic: TopicId) -> TopicId:
    """The topic for letters that nobody tries again. Raises: InvalidNameError: it is too long."""
    return TopicId(topic.namespace, f"{topic.name}{DEAD_SUFFIX}")


def letters(frame: "DataFrame", topic: TopicId, *, reason: str) -> "DataFrame":
    """These messages as letters, with their ids, in a column `value`."""
    return frame.select("id", letter(topic, reason=reason).alias("value"))


def letter(topic: TopicId, *, reason: str) -> "Column":
    """The letter of a message of `topic`, as binary."""
    from pyspark.sql.functions import expr, lit, struct, to_json, when

    def form(payload: str) -> "Column":
        return to_json(
            struct(
                lit(str(topic)).alias("topic"),
                expr("lower(hex(id))").alias("id"),
                expr("unix_millis(timestamp)").alias("timestamp"),
                expr(payload).alias("payload"),
                lit(reason).alias("reason"),
                lit(1).alias("attempts"),
            )
        )

    encoded = form("named_struct('base64', base64(value))")
    return when(expr(TEXT), form("string(value)")).otherwise(encoded).cast("binary")
