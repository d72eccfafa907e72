"""Changes of an access file by command: the text before and after, with its comments.

A right is given as a table of its own at the end of the file. It is taken from the tables that name
this pattern. A table with other patterns, too, becomes two. What else a table gives is kept;
comments inside of a table that changes are lost, all others stay.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from access.principals import EVERY, AccessFileError, Principal, Rights, parse
from tuff.protocol.ids import check_name
from tuff.protocol.operations import Right

_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!-]+")


def granted(text: str, principal: str, right: Right, namespace: str, pattern: str) -> str:
    """The file with one more right; the same text if the principal has it already.

    Raises:
        AccessFileError: the file is not valid or has no such principal, or the right can't be added
            to it by command, or no topic can match the pattern.
    """
    found = _principal(text, principal)
    _check_topics(namespace, pattern)
    if found.may(right, namespace, pattern):
        return text
    added = Rights(namespace, (pattern,), frozenset({right}))
    changed = f"{text.rstrip()}\n\n{_table(principal, added)}"
    return _checked(text, changed, replace(found, rights=(*found.rights, added)))


def revoked(text: str, principal: str, right: Right, namespace: str, pattern: str) -> str:
    """The file without a right of the principal on this pattern.

    Raises:
        AccessFileError: as `granted`; or the principal would still have the right on these topics,
            by another pattern.
    """
    found = _principal(text, principal)
    kept = [_without(each, right, namespace, pattern) for each in found.rights]
    left = replace(found, rights=tuple(each for table in kept for each in table))
    _check_gone(left, right, namespace, pattern)
    if left == found:
        raise AccessFileError(
            f"principals.{principal} does not have the right {right} on these topics"
        )
    parts = list(_parts(text, principal))
    tables = [index for index, (is_table, _) in enumerate(parts) if is_table]
    if len(tables) != len(found.rights):
        raise _not_by_command(principal)
    for index, before, after in zip(tables, found.rights, kept, strict=True):
        if after != [before]:
            parts[index] = (True, "\n".join(_table(principal, each) for each in after))
    return _checked(text, "".join(part for _, part in parts), left)


def _principal(text: str, name: str) -> Principal:
    by_name = parse(text).by_name
    if name not in by_name:
        raise AccessFileError(f"it has no principal {name!r}; it has {', '.join(by_name)}")
    return by_name[name]


def _check_topics(namespace: str, pattern: str) -> None:
    if namespace != EVERY:
        check_name(namespace, what="namespace")
    if _PATTERN.fullmatch(pattern) is None:
        raise AccessFileError(
            f"no topic can match {pattern!r}: the name of a topic has A-Z a-z 0-9 . _ -, and a "
            "pattern * ? [ ] ! besides; the partitions of a topic have the rights of the topic"
        )


def _without(rights: Rights, right: Right, namespace: str, pattern: str) -> list[Rights]:
    """What is left of a table: nothing, one table or two."""
    if rights.namespace != namespace or pattern not in rights.topics or right not in rights.allow:
        return [rights]
    # `transact` has no topic, so no other pattern of the table keeps it.
    is_of_topic = right is not Right.TRANSACT
    others = tuple(each for each in rights.topics if is_of_topic and each != pattern)
    topics = (pattern,) if others else rights.topics
    left = [
        replace(rights, topics=others),
        Rights(namespace, topics, rights.allow - {right}),
    ]
    return [each for each in left if each.topics and each.allow]


def _check_gone(left: Principal, right: Right, namespace: str, pattern: str) -> None:
    for number, each in enumerate(left.rights):
        covers = right is Right.TRANSACT or each.cover(namespace, pattern)
        if right in each.allow and covers:
            topics = " ".join(f"{each.namespace}:{topic}" for topic in each.topics)
            raise AccessFileError(
                f"principals.{left.name} would still have the right {right}, by its table "
                f"{number + 1} of rights, on {topics}; revoke it there, or edit the file and check "
                "it with `tuff access check`"
            )


def _table(principal: str, rights: Rights) -> str:
    return (
        f'[[principals."{principal}".rights]]\n'
        f"namespace = {json.dumps(rights.namespace)}\n"
        f"topics = {_list(rights.topics)}\n"
        f"allow = {_list([each for each in Right if each in rights.allow])}\n"
    )


def _list(texts: Sequence[str]) -> str:
    return json.dumps([str(each) for each in texts])


def _parts(text: str, principal: str) -> Iterator[tuple[bool, str]]:
    """The text in parts: the tables of the principal's rights, and what is between them. Comments
    in front of the next table belong to that one."""
    name = re.escape(principal)
    head = (
        rf'^[ \t]*\[\[[ \t]*principals[ \t]*\.[ \t]*(?:"{name}"|{name})[ \t]*\.[ \t]*rights\b.*\n?'
    )
    rest = r"(?:(?![ \t]*[\[#\n]).*\n?)*"  # up to the next header, comment or blank line
    last = 0
    for table in re.finditer(head + rest, text, re.MULTILINE):
        yield False, text[last : table.start()]
        yield True, table[0]
        last = table.end()
    yield False, text[last:]


def _checked(text: str, changed: str, expected: Principal) -> str:
    """The changed text, if it says what it shall, and nothing else."""
    before = parse(text)
    try:
        after = parse(changed)
    except AccessFileError:
        raise _not_by_command(expected.name) from None
    if after.by_name != {**before.by_name, expected.name: expected}:
        raise _not_by_command(expected.name)
    return changed


def _not_by_command(principal: str) -> AccessFileError:
    return AccessFileError(
        f"the rights of principals.{principal} are written in a form that the command does not "
        "change; edit the file, and check it with `tuff access check`"
    )
