"""
The contract of stores of sessions, as tests for a backend's own repository.

::

    from dsh_core.testing import PersistenceContract

    class TestMyBackend(PersistenceContract):
        @pytest.fixture
        def backend_factory(self, tmp_path):
            return lambda: MyPersistence(tmp_path)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.register_assert_rewrite(
    "dsh_core.testing._stores",
    "dsh_core.testing._persistence_faults",
    "dsh_core.testing._persistence_model",
    "dsh_core.testing._persistence_ownership",
    "dsh_core.testing._persistence_recovery",
    "dsh_core.testing._persistence_rules",
)

from dsh_core.testing._persistence_faults import FaultRules  # noqa: E402 - behind the rewriting of their asserts
from dsh_core.testing._persistence_model import ModelRules  # noqa: E402
from dsh_core.testing._persistence_ownership import OwnershipRules  # noqa: E402
from dsh_core.testing._persistence_recovery import RecoveryRules, UpdateRules  # noqa: E402
from dsh_core.testing._persistence_rules import StoreRules  # noqa: E402

if TYPE_CHECKING:
    from dsh_core.testing._stores import BackendFactory

__all__ = ["PersistenceContract"]


class PersistenceContract(StoreRules, RecoveryRules, UpdateRules, OwnershipRules, FaultRules, ModelRules):
    """
    Every rule a backend has to keep, one test each.

    Define the fixture `backend_factory`: it returns a function that is called several times, and every
    instance it makes sees the same store, which is empty when a test begins.

    Optional abilities are attributes of the test class; a skip says why:

    - `persistent`: False for a store in memory;
    - `cross_process`: False for a store that only one process can reach;
    - `disk_faults`: False for a backend that does not write through the functions of `os`;
    - `corrupt_tail(self, session_id)`: a method that leaves half a record at the end of a log.
    """

    @pytest.fixture
    def backend_factory(self) -> BackendFactory:
        """To be defined by the backend's test class."""
        raise NotImplementedError(
            f"{type(self).__name__} has no fixture `backend_factory`; define one that returns a function which makes "
            "an instance of your backend on the same store each time"
        )
