"""The transaction room: who writes, who reads, which writes a reader may see."""
