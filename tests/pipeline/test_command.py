"""The command line `tuff-pipeline`: results, errors, exit codes, default names of sinks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tuff
from kernel.archive_manifest import Entry, Hour, Summary
from pipeline.command import run
from pipeline.frames import failure_of_spark
from pipeline.job import sink_of
from tests.pipeline.conftest import Place

ORDERS = tuff.TopicId("shop", "orders")
ROW = Entry(
    hour=Hour(480_000), generation=1, after_ms=0, path="hours/x",
    summary=Summary(count=1, first="00" * 20, last="00" * 20, checksum=0),
)  # fmt: skip


def test_errors_are_sentences_with_exit_codes(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = "http://127.0.0.1:9"
    root = place.home / "archive"
    archived = place.other("-archived")
    place.archive.record(archived, [ROW])
    topic, missing = str(place.topic), f"{place.topic}-missing"
    url = ("--url", place.client.url)
    expected = {
        ("lag",): (2, "at least one"),
        ("archive", "a b", "--root", "x"): (2, "name"),
        ("--url", "nowhere", "lag", "--topic", "t"): (2, "address"),
        ("--url", place.client.url, "lag", "--topic", "missing"): (1, "missing"),
        ("--url", nowhere, "lag", "--topic", "t"): (3, ""),
        (*url, "lag", "--checkpoint", str(root)): (1, "is not a checkpoint"),
        (*url, "archive", missing, "--root", str(root)): (1, f"no topic {missing}"),
        (*url, "archive", topic, "--root", "/proc/archive"): (1, "/proc/archive: No such file"),
        (*url, "compact", missing, "--root", str(root)): (1, f"it has {archived}"),
        (*url, "compact", topic, "--root", str(root / "x")): (1, "it has no topics"),
        (*url, "replay", missing, "--root", str(root), "--to", topic): (1, "has no archive of"),
        (*url, "replay", topic, "--root", str(root), "--to", topic): (2, "archived again"),
        (*url, "replay", str(archived), "--root", str(root), "--to", missing): (1, missing),
        (*url, "audit", missing, "--root", str(root), "--out", "x"): (1, "has no archive of"),
        (*url, "audit", topic, "--root", str(root), "--out", "x", "--kind", "a b"): (2, "member"),
    }
    for words, (code, part) in expected.items():
        assert run(list(words)) == code, words
        said = capsys.readouterr().err
        assert said.startswith("tuff-pipeline: "), words
        assert part in said, words
        assert len(said.splitlines()) == 1, words
    assert not (root / "x").exists(), "a wrong name makes no directory"


def test_errors_of_spark_are_reported_without_stack_traces() -> None:
    errors = pytest.importorskip("pyspark.errors")
    of_a_task = (
        "An error occurred while calling o57.parquet.\n"
        ": org.apache.spark.SparkException: [CANNOT_READ] the file can't be read.\n"
        "\tat org.apache.spark.Reader.read(Reader.scala:1109)\n"
        "Caused by: java.lang.RuntimeException: it is no Parquet file\n"
        "\tat org.apache.parquet.Reader.footer(Reader.java:7)\n"
    )
    of_python = (
        "[DATA_SOURCE] reading failed: Traceback (most recent call last):\n"
        '  File "reader.py", line 1, in read\n    raise\n'
        "tuff.TopicNotFoundError: there is no topic t\n\n"
        "JVM stacktrace:\norg.apache.spark.SparkException\n\tat org.apache.X"
    )

    told = [failure_of_spark(errors.PySparkException(said)) for said in (of_a_task, of_python)]

    assert told == [
        "org.apache.spark.SparkException: [CANNOT_READ] the file can't be read.; "
        "Caused by: java.lang.RuntimeException: it is no Parquet file",
        "[DATA_SOURCE] reading failed: Traceback (most recent call last); "
        "tuff.TopicNotFoundError: there is no topic t",
    ]
    assert failure_of_spark(ValueError("a bug")) is None


def test_lag_is_a_table_json_and_metrics(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    id = place.client.publish(place.topic, "1").ids[0]
    place.client.publish(place.topic, "2")
    place.client.positions.set(place.topic, "report", id)
    words = ["--url", place.client.url, "lag", "--topic", str(place.topic), "--format"]

    printed = {}
    for form in ("table", "json", "prometheus"):
        assert run([*words, form]) == 0
        printed[form] = capsys.readouterr().out

    (told,) = json.loads(printed["json"])
    assert (told["reader"], told["messages"], told["position"]) == ("report", 1, id.hex())
    assert "report" in printed["table"]
    assert "tuff_lag_messages" in printed["prometheus"]


def test_a_sink_has_the_names_of_its_job_and_its_topics() -> None:
    again = tuff.TopicId("shop", "again")

    assert sink_of("audit", ORDERS) == "audit/shop:orders"
    assert sink_of("replay", ORDERS, again) == "replay/shop:orders/shop:again"
    longest = tuff.TopicId("shop", "x" * (128 - len("audit/shop:")))
    assert sink_of("audit", longest) == f"audit/{longest}"


def test_names_too_long_for_a_sink_differ_by_a_hash(tuff_client: tuff.Client) -> None:
    """The server refused such names."""
    targets = [tuff.TopicId("shop", "x" * 120 + end) for end in "ab"]

    names = [sink_of("replay", ORDERS, target) for target in targets]

    assert names == [sink_of("replay", ORDERS, target) for target in targets]
    assert len(set(names)) == 2
    for name in names:
        assert name.startswith("replay/shop:orders/shop:xxxx")
        epoch = tuff_client.sinks.begin(name, 1, "run")
        assert epoch.sink == name
        assert epoch.transaction is not None
        tuff_client.transactions.commit(epoch.transaction)


def command(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """`tuff-pipeline` in a process of its own, outside of the checkout."""
    program = "from tuff.launch import run_pipeline; run_pipeline()"
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=600,  # a bound on what hangs; a first job takes minutes on a busy machine
        check=False,
    )


def test_the_command_is_found_by_its_path(tmp_path: Path) -> None:
    done = command(tmp_path, "--help")

    assert (done.returncode, done.stderr) == (0, "")
    for name in ("archive", "audit", "compact", "lag", "replay", "Exit codes"):
        assert name in done.stdout


@pytest.mark.slow
def test_a_command_starts_its_own_session_and_reports_progress(
    needs_spark: None, place: Place
) -> None:
    place.publish_hours(["1", "2"], ["3"])
    words = ("--url", place.client.url, "--master", "local[1]", "archive", place.topic)

    done = command(place.home, *words, "--root", place.home / "archive", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"hours": 2, "messages": 3, "truncatedBefore": None}
    told = [line for line in done.stderr.splitlines() if " message" in line]
    first, second = (row.hour for row in rows_of(place))
    assert told == [f"{first}: 2 messages", f"{second}: 1 message"]


@pytest.mark.slow
def test_a_failure_in_spark_is_one_sentence_without_a_stack_trace(
    needs_spark: None, place: Place
) -> None:
    place.publish_hours(["1"])
    root = place.home / "archive"
    words = ("--url", place.client.url, "--master", "no-such-master", "archive", place.topic)

    done = command(place.home, *words, "--root", root)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("tuff-pipeline: [JAVA_GATEWAY_EXITED]")
    assert "Traceback" not in done.stderr
    assert rows_of(place) == []


def rows_of(place: Place) -> list[Entry]:
    return place.archive.entries(place.topic)
