"""
Allow, ask and deny rules for the tools of a dsh agent.
"""

from __future__ import annotations

from dsh_permission.plugin import PermissionConfig, PermissionPlugin
from dsh_permission.policy import PermissionPolicy
from dsh_permission.verdict import Part, Verdict

__all__ = ["Part", "PermissionConfig", "PermissionPlugin", "PermissionPolicy", "Verdict"]
