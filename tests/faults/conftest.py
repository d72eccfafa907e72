"""The factory of servers, as the HTTP tests have it."""

from tests.http.conftest import new_server as new_server
