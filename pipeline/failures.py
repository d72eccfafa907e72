"""Errors of Spark in one sentence: what it says, and the cause, without the traces of its tasks."""

SENTENCE_LENGTH_MAX = 1_000  # characters of each of the two

_NO_NEWS = ("An error occurred while calling", "Traceback (most recent", "Driver stacktrace:")


def failure_of_spark(error: Exception) -> str | None:
    """What Spark, its JVM or one of its tasks says of an error; None where none of them raised it.

    The first line says what failed, and the last one outside of a trace why.
    """
    if not _is_of_spark(error):
        return None
    said = str(error).partition("JVM stacktrace:")[0]
    # Frames of both languages are indented.
    lines = [line for line in said.splitlines() if line.strip() and not line[0].isspace()]
    told = [line.strip(": ") for line in lines if not line.startswith(_NO_NEWS)]
    if not told:
        return type(error).__name__
    return "; ".join(line[:SENTENCE_LENGTH_MAX] for line in dict.fromkeys((told[0], told[-1])))


def _is_of_spark(error: Exception) -> bool:
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
    except ModuleNotFoundError:
        return False
    return isinstance(error, PySparkException | Py4JError)
