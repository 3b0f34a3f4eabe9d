"""Hardware, model and batch in; seconds, bytes and requests per second out. Pure."""
