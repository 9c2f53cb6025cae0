"""
What the tests of every distribution share: a real model, and the invariants in every harness (S-12).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest_plugins = ["realmodel.fixture"]


@pytest.fixture(autouse=True)
def _invariants_in_every_harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add the plugin to each harness that does not have it; `plain_harness` marks tests that count plugins."""
    if request.node.get_closest_marker("plain_harness"):
        yield
        return
    from dsh_core.harness import Harness
    from dsh_core.testing import invariants

    construct = Harness.__init__

    def with_invariants(self: Harness, *, plugins: Any = (), **keywords: Any) -> None:
        has_them = any(getattr(plugin, "name", None) == "invariants" for plugin in plugins)
        construct(self, plugins=plugins if has_them else (*plugins, invariants), **keywords)

    monkeypatch.setattr(Harness, "__init__", with_invariants)
    yield
