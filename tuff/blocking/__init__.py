"""The client for programs that block; most of it is generated from that of `tuff.aio`."""
