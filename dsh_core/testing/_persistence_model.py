"""Rules of the persistence contract: random use against a model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from dsh_core.errors import SessionExists, SessionLocked, SessionNotFound
from dsh_core.testing._stores import TURN, Stores, header, rule, turn

if TYPE_CHECKING:
    from dsh_core.persistence import SessionPersistence
    from dsh_core.session import SessionEvent

__all__ = ["ModelRules"]

NAMES = ("a", "A", "b")


class ModelRules:
    """Whatever is done in whatever order, the store and a dict agree."""

    @pytest.mark.parametrize("seed", range(12))
    @rule
    async def test_random_use_agrees_with_a_model(self, stores: Stores, seed: int) -> None:
        """§1: create, append, load, release, reopen, update, delete by two instances."""
        await _Play(stores, random.Random(seed)).run(120)


class _Play:
    def __init__(self, stores: Stores, chance: random.Random) -> None:
        self.stores = stores
        self.chance = chance
        self.instances = [stores(), stores()]
        self.owner: dict[str, SessionPersistence] = {}
        self.logs: dict[str, list[SessionEvent]] = {}
        self.metadata: dict[str, dict[str, int]] = {}
        self.pending: dict[str, dict[str, int]] = {}

    async def run(self, steps: int) -> None:
        moves = [self.create, self.append, self.append, self.load, self.release, self.reopen, self.update, self.delete]
        for _ in range(steps):
            await self.chance.choice(moves)(self.chance.choice(self.instances), self.chance.choice(NAMES))
            await self.compare()

    async def compare(self) -> None:
        reader = self.instances[0]
        assert {found.id async for found in reader.list()} == self.logs.keys()
        for name in NAMES:
            assert await reader.has(name) == (name in self.logs)
            if name in self.logs:
                stored = await reader.inspect(name)
                assert stored.events == tuple(self.logs[name])
                assert dict(stored.header.metadata) == self.metadata[name]

    def elsewhere(self, store: SessionPersistence, name: str) -> bool:
        return self.owner.get(name, store) is not store

    async def create(self, store: SessionPersistence, name: str) -> None:
        if self.elsewhere(store, name):
            with pytest.raises(SessionLocked):
                await store.create(header(name))
        elif name in self.logs or name in self.owner:
            with pytest.raises(SessionExists):
                await store.create(header(name))
        else:
            await store.create(header(name))
            self.owner[name], self.pending[name] = store, {}

    async def append(self, store: SessionPersistence, name: str) -> None:
        length = len(self.logs.get(name, ()))
        batch: Sequence[SessionEvent] = turn(length // TURN + 1, length)
        if self.elsewhere(store, name):
            with pytest.raises(SessionLocked):
                await store.append(name, batch)
        elif name not in self.logs and name not in self.owner:
            with pytest.raises(SessionNotFound):
                await store.append(name, batch)
        else:
            await store.append(name, batch)
            self.owner[name] = store
            self.metadata.setdefault(name, self.pending.get(name, {}))
            self.logs.setdefault(name, []).extend(batch)

    async def load(self, store: SessionPersistence, name: str) -> None:
        if self.elsewhere(store, name):
            with pytest.raises(SessionLocked):
                await store.load(name)
        elif name not in self.logs:
            with pytest.raises(SessionNotFound):
                await store.load(name)
        else:
            assert (await store.load(name)).events == tuple(self.logs[name])
            self.owner[name] = store

    async def release(self, store: SessionPersistence, name: str) -> None:
        await store.release(name)
        if self.owner.get(name) is store:
            del self.owner[name]

    async def reopen(self, store: SessionPersistence, _: str) -> None:
        await store.aclose()
        self.owner = {name: owner for name, owner in self.owner.items() if owner is not store}
        self.instances[self.instances.index(store)] = self.stores()

    async def update(self, store: SessionPersistence, name: str) -> None:
        metadata = {"n": self.chance.randrange(1000)}
        if self.elsewhere(store, name):
            with pytest.raises(SessionLocked):
                await store.update(name, metadata=metadata)
        elif name not in self.logs and name not in self.owner:
            with pytest.raises(SessionNotFound):
                await store.update(name, metadata=metadata)
        else:
            await store.update(name, metadata=metadata)
            (self.metadata if name in self.logs else self.pending)[name] = metadata

    async def delete(self, store: SessionPersistence, name: str) -> None:
        if name in self.owner:
            with pytest.raises(SessionLocked):
                await store.delete(name)
        elif name not in self.logs:
            with pytest.raises(SessionNotFound):
                await store.delete(name)
        else:
            await store.delete(name)
            del self.logs[name], self.metadata[name]
            self.pending.pop(name, None)
