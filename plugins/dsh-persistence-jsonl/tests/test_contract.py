"""The store keeps the persistence contract, and the contract catches stores that do not."""

from __future__ import annotations

import inspect
import itertools
import os
import socket
from contextlib import suppress

import pytest
from dsh_persistence_jsonl import JsonlPersistence
from dsh_persistence_jsonl._files import append_all, make_private_dir
from dsh_persistence_jsonl._lines import seal
from dsh_persistence_jsonl._names import file_stem

from dsh_core.errors import SessionLocked
from dsh_core.persistence import encode_header
from dsh_core.testing import PersistenceContract


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


# -- backends with a fault of the disk's kind: each writes as the real one does but for one thing ---------


class KeepsHalfBatches(JsonlPersistence):
    """Does not roll back what a failed write left."""

    async def _write(self, header, records, *, first):
        if first:
            return await super()._write(header, records, first=True)
        append_all(self._locks.held[header.id].fd, b"".join(map(seal, records)))


class IgnoresShortWrites(JsonlPersistence):
    """Takes the first answer of `write` for the last."""

    async def _write(self, header, records, *, first):
        if first:
            return await super()._write(header, records, first=True)
        os.write(self._locks.held[header.id].fd, b"".join(map(seal, records)))


class SwallowsSyncErrors(JsonlPersistence):
    """Says that it is durable, whatever the disk says."""

    async def sync(self, session_id):
        with suppress(OSError):
            await super().sync(session_id)


class NamesTheLogFirst(JsonlPersistence):
    """A first batch that fails leaves an empty log."""

    async def _write(self, header, records, *, first):
        if first:
            await super()._write(header, [], first=True)
        await super()._write(header, records, first=False)


class UpdatesInPlace(JsonlPersistence):
    """A failed update leaves a log without its header."""

    async def _update(self, header):
        path = self._path(header.id)
        data = path.read_bytes()
        with open(os.open(path, os.O_WRONLY | os.O_TRUNC), "wb", buffering=0) as file:
            os.write(file.fileno(), seal(encode_header(header)))
            os.write(file.fileno(), data.partition(b"\n")[2])


class LocksForEver(JsonlPersistence):
    """Locks with a file that says who, and nothing else: a killed owner stays in the way for ever."""

    async def _lock(self, session_id):
        path = self.root / f"{file_stem(session_id)}.pid"
        make_private_dir(self.root)
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            raise SessionLocked(f"locked by {path.read_text()}") from None
        os.write(fd, f"{os.getpid()} on {socket.gethostname()}".encode())
        os.close(fd)
        return lambda: path.unlink(missing_ok=True)


FAULTY = [KeepsHalfBatches, IgnoresShortWrites, SwallowsSyncErrors, NamesTheLogFirst, UpdatesInPlace, LocksForEver]

FAULT_RULES = [
    name
    for name in dir(PersistenceContract)
    if any(word in name for word in ("full_disk", "short_writes", "sync", "errors_of", "dead_one"))
]


def broken_rules(faulty, tmp_path):
    """The rules about disks and processes that this backend is found to break."""
    broken = []
    for number, name in enumerate(FAULT_RULES):
        test = getattr(PersistenceContract, name)
        marks = [mark.args for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        for index, values in enumerate(itertools.product(*(list(values) for _, values in marks))):
            arguments = {argument: value for (argument, _), value in zip(marks, values, strict=True)}
            root = tmp_path / f"{number}-{index}"
            with pytest.MonkeyPatch.context() as patch:
                if "monkeypatch" in inspect.signature(test).parameters:
                    arguments["monkeypatch"] = patch
                try:
                    test(PersistenceContract(), lambda root=root: faulty(root), **arguments)
                except (Exception, pytest.fail.Exception):
                    broken.append(name)
    return broken


@pytest.mark.parametrize("faulty", FAULTY, ids=lambda faulty: faulty.__name__)
def test_the_contract_catches_faults_of_the_disks_kind(faulty, tmp_path):
    """Quality: the suite must fail for wrong backends."""
    assert broken_rules(faulty, tmp_path)


def test_the_real_store_breaks_none_of_these_rules(tmp_path):
    """Quality: what is counted is the fault, not the check."""
    assert len(FAULT_RULES) >= 6
    assert broken_rules(JsonlPersistence, tmp_path) == []
