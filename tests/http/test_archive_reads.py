"""A running server continues reads in an archive, for every client (protocol §3.4, Archive)."""

import shutil
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

import tuff
from kernel.archive_manifest import Hour
from tests.cli.command import tuff_command
from tests.http.calls import payloads
from tests.http.client import Client, Reply, ok, refused
from tests.http.process import serve
from tests.messaging.archives import ArchiveJob
from tuff.protocol.attributes import NO_ATTRIBUTES, Attributes
from tuff.protocol.ids import MessageId, TopicId
from tuff.read_calls import PollQuestion
from tuff.serializers import STR

ORDERS = TopicId("shop", "orders")
PATH = "/v1/namespaces/shop/topics/orders"
TTL_S = 3_600


@pytest.fixture
def job(tmp_path: Path) -> ArchiveJob:
    """An archive of three messages, of the hours before the present one and before that."""
    job = ArchiveJob(tmp_path / "archive", ORDERS)
    now = Hour.at(time.time_ns() // 1_000_000)
    for hour, texts in ((Hour(now.number - 9), (b"1", b"2")), (Hour(now.number - 8), (b"3",))):
        job.add_hour([(MessageId(hour.start_ms + i, 0), text) for i, text in enumerate(texts)])
    return job


@pytest.fixture
def reader(tmp_path: Path, job: ArchiveJob) -> Iterator[Client]:
    with serve(tmp_path, f"messaging.archive_directory={job.archive.root}") as process:
        client = Client(process.port)
        ok(client.put(PATH, {"ttl": TTL_S}))
        ok(client.post(f"{PATH}/publish", {"messages": ["4", "5"]}))
        yield client
        client.close()


def browse(client: Client, **query: object) -> Reply:
    return client.get(f"{PATH}/messages", **query)


def test_the_replies_of_a_browse_lead_from_the_archive_into_the_log(reader: Client) -> None:
    archived = ok(browse(reader, **{"from": 0}))
    live = ok(browse(reader, **{"from": archived.header("Tuff-Next"), "inclusive": "false"}))

    assert (payloads(archived), payloads(live)) == (["1", "2", "3"], ["4", "5"])
    assert [each.header("Tuff-Archive") for each in (archived, live)] == ["true", None]
    assert [each.header("Tuff-Caught-Up") for each in (archived, live)] == ["false", "true"]


def test_the_reply_of_a_request_without_a_start_is_what_it_always_was(reader: Client) -> None:
    polled = ok(reader.post(f"{PATH}/poll", {}))
    offsets = ok(reader.get(f"{PATH}/offsets"))

    assert (payloads(polled), polled.header("Tuff-Archive")) == (["4", "5"], None)
    assert offsets.json.keys() == {"generation", "earliest", "end", "blockedBy"}
    assert offsets.json["earliest"] == polled.json[0]["id"]


def test_offsets_name_the_first_archived_message(reader: Client, job: ArchiveJob) -> None:
    found = ok(reader.get(f"{PATH}/offsets", archive="true"))

    assert found.json["archivedFrom"] == job.archive.entries(ORDERS)[0].summary.first
    refused(reader.get(f"{PATH}/offsets", archive="yes"), 400, "bad_request")


def test_the_archive_of_partition_0_is_read_whichever_name_the_job_was_given(
    reader: Client, job: ArchiveJob
) -> None:
    shutil.rmtree(job.archive.root)
    named = ArchiveJob(job.archive.root, ORDERS.partition(0))
    hour = Hour(Hour.at(time.time_ns() // 1_000_000).number - 9)
    row = named.add_hour([(MessageId(hour.start_ms, 0), b"archived")])

    for path in (PATH, f"{PATH}:0"):
        offsets = ok(reader.get(f"{path}/offsets", archive="true"))

        assert payloads(ok(reader.get(f"{path}/messages", **{"from": 0}))) == ["archived"]
        assert offsets.json["archivedFrom"] == row.summary.first


def test_without_the_directory_only_reads_before_the_log_are_refused(
    reader: Client, job: ArchiveJob
) -> None:
    shutil.rmtree(job.archive.root)

    for reply in (
        browse(reader, **{"from": 0}),
        reader.get(f"{PATH}/splits", n=2, start="0" * 40),
        reader.get(f"{PATH}/offsets", archive="true"),
    ):
        refused(reply, 503, "archive_unavailable", naming=str(job.archive.root))
    assert payloads(ok(browse(reader))) == ["4", "5"]


def test_archived_messages_have_their_attributes_and_those_of_version_0_1_0_have_none(
    reader: Client, job: ArchiveJob
) -> None:
    hour = Hour(Hour.at(time.time_ns() // 1_000_000).number - 7)
    all_of_them = Attributes(b"k\xff", ("eu", "paid"), (("a", b"\x00"), ("a", b"")))
    given = [all_of_them, NO_ATTRIBUTES, Attributes(key=b""), Attributes(tags=("eu",))]
    ids = [MessageId(hour.start_ms + index, 0) for index in range(len(given))]
    job.add_hour([(each, b"new") for each in ids], attributes=given)

    with tuff.Client(f"http://127.0.0.1:{reader.port}") as client:
        *old, _, _, _, _ = found = client.poll(ORDERS, 0)
        batch = client.poll_batch(ORDERS, PollQuestion(start=ids[0]), attributes=True).batch

    assert [each.payload for each in old] == [b"1", b"2", b"3"]
    assert [(each.key, each.tags, each.headers) for each in found] == [
        *[NO_ATTRIBUTES] * 3, *given,
    ]  # fmt: skip
    assert batch["key"].to_pylist() == [b"k\xff", None, b"", None]
    assert batch["tags"].to_pylist() == [["eu", "paid"], None, None, ["eu"]]


def test_a_subscription_and_polls_of_the_client_cross_into_the_log(reader: Client) -> None:
    with tuff.Client(f"http://127.0.0.1:{reader.port}") as client:
        messages = client.subscribe(ORDERS, 0, batch=2)
        first = client.poll(ORDERS, 0)

        assert [each.payload for each in islice(messages, 5)] == [b"1", b"2", b"3", b"4", b"5"]
        assert (first.archived, client.poll(ORDERS, first[-1].id).archived) == (True, True)
        assert not client.poll(ORDERS, first.next_id, inclusive=False).archived
        assert client.poll_batch(ORDERS, PollQuestion(start=0)).archived
        assert client.topic(ORDERS, STR).poll(0).archived


def test_a_truncated_topic_begins_with_the_archive_for_a_reader_from_a_time(
    reader: Client,
) -> None:
    ok(reader.post(f"{PATH}/truncate", {"before": 99_999_999_999_999}))
    ok(reader.post(f"{PATH}/publish", {"messages": ["6"]}))

    replies = [ok(browse(reader, **{"from": 1}))]
    replies.append(
        ok(browse(reader, **{"from": replies[0].header("Tuff-Next"), "inclusive": "false"}))
    )

    assert [payloads(each) for each in replies] == [["1", "2", "3"], ["6"]]


def test_an_archive_that_is_not_there_is_logged_at_the_start(tmp_path: Path) -> None:
    with serve(tmp_path, f"messaging.archive_directory={tmp_path / 'away'}") as process:
        assert f"code=archive_missing directory={tmp_path / 'away'}" in process.stderr()


def test_a_tail_with_tags_is_refused_in_the_archive(reader: Client) -> None:
    """It printed the messages of the log, and said nothing of those in the archive."""
    ok(reader.post(f"{PATH}/publish", {"messages": [{"payload": "6", "tags": ["eu"]}]}))
    url = f"http://127.0.0.1:{reader.port}"

    def tail(*options: str) -> tuple[int, str, str]:
        done = tuff_command("tail", "shop:orders", *options, url=url)
        return done.returncode, done.stdout.strip(), done.stderr

    code, printed, said = tail("--tags", "eu", "--from", "0")
    assert (code, printed) == (2, "")
    assert "shop:orders has older ones in its archive at this start" in said
    assert "--from earliest" in said
    assert "without --tags" in said
    for start in (["--from", "earliest"], ["--from", "10m"], []):
        code, printed, said = tail("--tags", "eu", *start)
        assert (code, printed[-1:], said) == (0, "6", "")
    assert len(tail("--from", "0")[1].splitlines()) == 6
