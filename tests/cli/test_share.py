"""`tuff share` against a real server."""

import json

import tuff
from tests.cli.conftest import Tuff


def test_a_share_group_is_created_shown_and_deleted(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("cli", "shared")
    client.topics.create(topic)
    client.publish(topic, tuff.NewMessage("a", tags=["b"]))
    options = ("--from=earliest", "--order=key", "--tags=a|b")
    made = run("share", "create", "cli:shared", "mails", *options)
    assert made.stdout == "created the share group mails of cli:shared\n"
    refused = run("share", "create", "cli:shared", "mails")
    assert refused.returncode == 1
    assert refused.stderr.endswith("; next: tuff share show cli:shared mails\n")
    again = run("share", "create", "cli:shared", "mails", *options)
    assert again.stdout == "the share group mails of cli:shared is there already\n"

    with client.share_consumer(topic, group="mails") as worker:
        worker.poll()
        shown = json.loads(run("share", "show", "cli:shared", "mails", "--json").stdout)

    assert (shown["order"], shown["leased"], shown["behindMs"]) == ("key", 1, 0)
    assert json.loads(run("share", "ls", "cli:shared", "--json").stdout)[0]["name"] == "mails"
    assert "mails" in run("share", "ls", "cli:shared").stdout
    text = run("share", "show", "cli:shared", "mails").stdout
    assert "order key, tags a|b, lease 30 s" in text
    assert "oldest" in text
    deleted = run("share", "delete", "cli:shared", "mails", "--yes")
    assert deleted.stdout == "deleted the share group mails of cli:shared\n"
    assert run("share", "show", "cli:shared", "mails").returncode == 1
