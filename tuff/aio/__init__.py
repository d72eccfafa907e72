"""The client for programs on an event loop, and the source of the blocking one."""
