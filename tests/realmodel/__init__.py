"""A real model behind a real server, for tests."""
