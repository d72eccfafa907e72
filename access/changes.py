"""Changes of an access file by command: the text before and after, with its comments.

A right is given as a table of its own at the end of the file. It is taken from the tables that give
exactly this pattern. What else a table gives is kept; comments inside of a table that changes are
lost, all others stay.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from access.principals import AccessFileError, Principal, Right, Rights, parse


def granted(text: str, principal: str, right: Right, namespace: str, pattern: str) -> str:
    """The file with one more right; the same text if the principal has it already.

    Raises:
        AccessFileError: the file is not valid or has no such principal, or the right can't be added
            to it by command.
    """
    found = _principal(text, principal)
    if found.may(right, namespace, pattern):
        return text
    added = Rights(namespace, (pattern,), frozenset({right}))
    changed = f"{text.rstrip()}\n\n{_table(principal, added)}"
    return _checked(text, changed, replace(found, rights=(*found.rights, added)))


def revoked(text: str, principal: str, right: Right, namespace: str, pattern: str) -> str:
    """The file without a right of the principal on this pattern.

    Raises:
        AccessFileError: as `granted`; or another table gives the right on the same topics.
    """
    found = _principal(text, principal)
    kept = [
        _without(each, right) if (each.namespace, each.topics) == (namespace, (pattern,)) else each
        for each in found.rights
    ]
    left = replace(found, rights=tuple(each for each in kept if each.allow))
    if left.may(right, namespace, pattern):
        raise AccessFileError(
            f"other tables of principals.{principal} give the right {right} on these topics, too; "
            "edit the file, and check it with `tuff access check`"
        )
    if left == found:
        raise AccessFileError(
            f"principals.{principal} does not have the right {right} on these topics"
        )
    parts = list(_parts(text, principal))
    tables = [index for index, (is_table, _) in enumerate(parts) if is_table]
    if len(tables) != len(found.rights):
        raise _not_by_command(principal)
    for index, before, after in zip(tables, found.rights, kept, strict=True):
        if before != after:
            parts[index] = (True, _table(principal, after) if after.allow else "")
    return _checked(text, "".join(part for _, part in parts), left)


def _principal(text: str, name: str) -> Principal:
    by_name = parse(text).by_name
    if name not in by_name:
        raise AccessFileError(f"it has no principal {name!r}; it has {', '.join(by_name)}")
    return by_name[name]


def _without(rights: Rights, right: Right) -> Rights:
    return replace(rights, allow=rights.allow - {right})


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
