"""``make demo``: all of it on this machine, on a real API server."""
