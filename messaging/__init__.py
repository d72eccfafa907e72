"""The message store: topics, their messages in order, and retention."""
