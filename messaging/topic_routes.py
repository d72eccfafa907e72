"""The HTTP routes of topics (protocol §2, §3.5)."""

from collections.abc import Mapping

from messaging.message_routes import TOPIC_PATH, id_or_time_from, no_members, topic_of
from messaging.service import MessagingService
from messaging.topics import parse_properties
from tuff.protocol.errors import BadRequestError, InvalidTopicPropertiesError
from tuff.protocol.exchange import (
    EMPTY_REPLY,
    Reply,
    Request,
    Route,
    json_reply,
    read_object,
    read_query,
    require_json,
)
from tuff.protocol.ids import TopicId, check_name
from tuff.protocol.json_forms import numbers_as_written, parse_json


def routes(service: MessagingService) -> list[Route]:
    """Every route of topics."""
    topics = _TopicRoutes(service)
    return [
        Route("POST", f"{TOPIC_PATH}/truncate", topics.truncate),
        Route("PUT", f"{TOPIC_PATH}/properties", topics.update),
        Route("PUT", TOPIC_PATH, topics.create),
        Route("GET", TOPIC_PATH, topics.get),
        Route("DELETE", TOPIC_PATH, topics.delete),
        Route("GET", "/v1/namespaces", topics.namespaces),
        Route("GET", "/v1/namespaces/{ns}/topics", topics.list),
    ]


class _TopicRoutes:
    def __init__(self, service: MessagingService) -> None:
        self._service = service

    async def namespaces(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        return json_reply(self._service.topics.namespaces())

    async def list(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        namespace = check_name(request.parameters["ns"], what="namespace")
        return json_reply(self._service.topics.names(namespace))

    async def create(self, request: Request) -> Reply:
        topic, properties = self._named_properties(request)
        await self._service.topics.create(topic, properties)
        return EMPTY_REPLY

    async def update(self, request: Request) -> Reply:
        topic, properties = self._named_properties(request)
        await self._service.topics.update(topic, properties)
        return EMPTY_REPLY

    def _named_properties(self, request: Request) -> tuple[TopicId, Mapping[str, str]]:
        topic = topic_of(request)
        require_json(request.content_type, request.body)
        if not request.body:
            return topic, {}
        try:
            value = parse_json(request.body)
        except BadRequestError as error:
            raise InvalidTopicPropertiesError(error.detail) from None
        if isinstance(value, dict):
            value = {**value, **numbers_as_written(request.body)}
        return topic, parse_properties(value)

    async def get(self, request: Request) -> Reply:
        info = self._service.topics.get(topic_of(request))
        form = {
            "name": info.topic.name,
            "properties": dict(info.properties),
            "generation": info.generation,
        }
        return json_reply(form)

    async def delete(self, request: Request) -> Reply:
        topic = topic_of(request)
        no_members(request, what="the deletion of a topic")
        await self._service.topics.delete(topic)
        return EMPTY_REPLY

    async def truncate(self, request: Request) -> Reply:
        topic = topic_of(request)
        body = read_object(
            request.body,
            request.content_type,
            members={"before"},
            what="a truncation",
        )
        offset = id_or_time_from(body.get("before"), what="before")
        earliest = await self._service.topics.truncate(topic, offset)
        return json_reply({"earliest": earliest and earliest.hex()})
