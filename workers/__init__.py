"""Front-end processes: they accept HTTP, and forward each call to the process that decides."""
