"""The store keeps the persistence contract."""

from __future__ import annotations

import pytest
from dsh_persistence_jsonl import JsonlPersistence

from dsh_core.testing.persistence import PersistenceContract


class TestJsonlPersistence(PersistenceContract):
    """Without exceptions."""

    @pytest.fixture
    def backend_factory(self, root):
        return lambda: JsonlPersistence(root)

    @pytest.fixture(autouse=True)
    def _where(self, root):
        self.root = root

    def corrupt_tail(self, session_id):
        with JsonlPersistence(self.root)._path(session_id).open("ab") as file:
            file.write(b'{"seq":5,"time":1700')
