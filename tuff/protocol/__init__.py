"""What goes over the wire: pure values, bytes and names, shared by client and server."""
