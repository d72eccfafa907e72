"""What the components of the server share: requests, replies, the event loop, log events."""
