"""Crash-safe append-only JSONL logs for dsh sessions."""

from dsh_persistence_jsonl._backend import JsonlPersistence
from dsh_persistence_jsonl._plugin import JsonlConfig, JsonlPlugin, default_root

__all__ = ["JsonlConfig", "JsonlPersistence", "JsonlPlugin", "default_root"]
