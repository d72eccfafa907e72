"""The syntax of commands: words, `name=value` options, and `topic<-message,message` publishes."""

import shlex
from collections.abc import Collection
from dataclasses import dataclass

NAMESPACE = "default"  # of every topic in a script
ARROW = "<-"


@dataclass(frozen=True, slots=True)
class Words:
    """The words behind the verb. Asking for an option that a verb does not know is a mistake of the
    script; `Words.of` finds it."""

    rest: tuple[str, ...]
    options: dict[str, str]

    @classmethod
    def of(cls, words: list[str], *, options: Collection[str], flags: Collection[str]) -> "Words":
        """Split the words of a command into those with a meaning of their own, and the rest."""
        found: dict[str, str] = {}
        rest = []
        for word in words:
            name, equals, value = word.partition("=")
            if equals and name in options:
                found[name] = value
            elif word in flags:
                found[word] = word
            else:
                rest.append(word)
        return cls(tuple(rest), found)

    def __contains__(self, name: str) -> bool:
        return name in self.options

    def __getitem__(self, name: str) -> str:
        return self.options[name]


def split(command: str) -> tuple[str, list[str]]:
    """The verb and the words of a command."""
    verb, *words = shlex.split(command)
    return verb, words


def entries(words: Collection[str]) -> list[dict[str, object]]:
    """The `publish` member of a commit or a run; no message at all writes a reference."""
    found: list[dict[str, object]] = []
    for word in words:
        if ARROW in word:
            topic, _, payloads = word.partition(ARROW)
            messages = payloads.split(",") if payloads else []
            found.append({"namespace": NAMESPACE, "topic": topic, "messages": messages})
    return found
