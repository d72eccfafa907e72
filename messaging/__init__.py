"""The messaging room: what was said, in which order, until when."""
