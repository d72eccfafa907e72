"""The transaction service: snapshot isolation, conflicts, and which writes a reader may see."""
