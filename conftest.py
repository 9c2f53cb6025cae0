"""Fixtures that the tests of every distribution share."""

pytest_plugins = ["realmodel.fixture"]
