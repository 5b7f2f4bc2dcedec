"""Pure ASGI layers around the routes: they see raw messages, so that a stream passes through untouched."""
