"""The settings of the running server with their sources, and their route (protocol §8)."""

from dataclasses import fields

from kernel.requests_and_replies import Reply, Request, Route, json_reply, read_query
from process.settings import SECTIONS, Settings, key_of
from tuff.protocol import operations


def routes(settings: Settings) -> list[Route]:
    """The route of the settings. None of them is a secret."""

    async def show(request: Request) -> Reply:
        read_query(request.query, parameters=())
        return json_reply({"settings": rows(settings)})

    return [Route(operations.GET_SETTINGS, show)]


def rows(settings: Settings) -> list[dict[str, object]]:
    """Each setting: its value, its default, and where the value comes from."""
    default = Settings()
    return [
        {
            "name": (name := f"{section}.{key_of(entry)}"),
            "value": getattr(getattr(settings, section), entry.name),
            "default": getattr(getattr(default, section), entry.name),
            "source": settings.sources.get(name, "default"),
        }
        for section in SECTIONS
        for entry in fields(SECTIONS[section])
    ]
