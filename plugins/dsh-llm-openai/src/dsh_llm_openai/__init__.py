"""
Models behind OpenAI-compatible chat completions.

The `openai` package is imported on the first request, never here.
"""

from __future__ import annotations

from dsh_llm_openai.adapter import OpenAIAdapter
from dsh_llm_openai.plugin import OpenAIConfig, OpenAIPlugin, ProviderConfig
from dsh_llm_openai.profiles import PROFILES, Profile

__all__ = ["OpenAIAdapter", "OpenAIConfig", "OpenAIPlugin", "PROFILES", "Profile", "ProviderConfig"]
