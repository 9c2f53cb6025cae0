"""
The installed `dsh` as a process, and a model that says what a test wants: a loopback endpoint speaking the
protocol of chat completions. Nothing of dsh is replaced; only what is behind the network is scripted.
"""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attrs
import pytest

DSH = str(Path(sys.executable).with_name("dsh"))


class Model:
    """A scripted model behind a real endpoint; each request takes the next answer."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.waiting = threading.Event()
        self.ended = threading.Event()
        self._answers: list[Callable[[BaseHTTPRequestHandler], None]] = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                model.requests.append(json.loads(body))
                answer = model._answers.pop(0) if model._answers else model._exhausted
                try:
                    answer(self)
                except (BrokenPipeError, ConnectionResetError):
                    return

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # -- the script --------------------------------------------------------------------------------------

    def says(self, *pieces: str, finish: str = "stop") -> None:
        """Answer in words, one delta a piece."""
        self._answers.append(lambda to: self._stream(to, [{"content": piece} for piece in pieces], finish))

    def calls(self, name: str, **arguments: Any) -> None:
        """Call one tool."""
        call = {"index": 0, "id": f"call_{len(self._answers)}", "type": "function"}
        call["function"] = {"name": name, "arguments": json.dumps(arguments)}
        self._answers.append(lambda to: self._stream(to, [{"tool_calls": [call]}], "tool_calls"))

    def fails(self, status: int, message: str) -> None:
        """Refuse the request."""
        self._answers.append(lambda to: _refuse(to, status, message))

    def hangs(self, *pieces: str) -> None:
        """Begin an answer, set `waiting`, and say nothing more."""

        def answer(to: BaseHTTPRequestHandler) -> None:
            self._begin(to)
            for piece in pieces:
                _send(to, _chunk({"content": piece}))
            self.waiting.set()
            self.ended.wait(30)

        self._answers.append(answer)

    # -- the protocol ------------------------------------------------------------------------------------

    def _exhausted(self, to: BaseHTTPRequestHandler) -> None:
        _refuse(to, 400, f"the script has no answer for request {len(self.requests)}")

    def _begin(self, to: BaseHTTPRequestHandler) -> None:
        to.send_response(200)
        to.send_header("Content-Type", "text/event-stream")
        to.send_header("Connection", "close")
        to.end_headers()

    def _stream(self, to: BaseHTTPRequestHandler, deltas: list[dict[str, Any]], finish: str) -> None:
        self._begin(to)
        for delta in deltas:
            _send(to, _chunk(delta))
        _send(to, _chunk({}, finish))
        _send(to, {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}})
        to.wfile.write(b"data: [DONE]\n\n")
        to.close_connection = True


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _send(to: BaseHTTPRequestHandler, event: dict[str, Any]) -> None:
    to.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    to.wfile.flush()


def _refuse(to: BaseHTTPRequestHandler, status: int, message: str) -> None:
    body = json.dumps({"error": {"message": message, "type": "refused"}}).encode()
    to.send_response(status)
    to.send_header("Content-Type", "application/json")
    to.send_header("Content-Length", str(len(body)))
    to.end_headers()
    to.wfile.write(body)


@attrs.frozen
class Shown:
    """What a process showed and how it ended."""

    code: int
    out: str
    err: str
    raw: bytes

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of stdout as JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


class Dsh:
    """The command in a room of its own: home, configuration, state, working directory."""

    def __init__(self, room: Path, model: Model) -> None:
        self.room, self.model, self.command = room, model, DSH
        self.work, self.state, self.config = room / "work", room / "state", room / "config"
        for folder in (self.work, self.config):
            folder.mkdir()
        self.write_config("")
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
        self.env = {
            **kept,
            "HOME": str(room),
            "LANG": "C.UTF-8",
            "DSH_STATE_DIR": str(self.state),
            "DSH_CONFIG_DIR": str(self.config),
            "DSH_LOCAL_BASE_URL": model.url,
            "DSH_MODEL": "local/scripted",
            "TERM": "xterm",
            "PROMPT_TOOLKIT_NO_CPR": "1",
        }

    def start(self, *arguments: str, env: dict[str, str | None] | None = None, **options: Any) -> Any:
        """Start the command; a variable that is None is taken out of the environment."""
        merged = {**self.env, **(env or {})}
        environment = {name: value for name, value in merged.items() if value is not None}
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen([DSH, *arguments], cwd=options.pop("cwd", self.work), env=environment, **options)

    def __call__(self, *arguments: str, given: bytes | None = None, **options: Any) -> Shown:
        """Run the command to its end; it must never show a traceback."""
        if given is not None:
            options["stdin"] = subprocess.PIPE
        process = self.start(*arguments, **options)
        try:
            out, err = process.communicate(given, timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return shown(process.returncode, out, err)

    def write_config(self, text: str) -> None:
        """The user's configuration; what the scripted model can hold is always in it."""
        window = "[plugins.llm-openai.providers.local]\ncontext_window = 100000\n"
        (self.config / "config.toml").write_text(f"{text}\n{window}", encoding="utf-8")

    def install(self, name: str, source: str, *, group: str = "dsh", target: str | None = None) -> dict[str, str]:
        """A plugin as an installer leaves it: a module and a `dist-info`; returns the environment that has it."""
        site = self.room / "site"
        module = f"broken_{name}"
        info = site / f"{module}-1.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (site / f"{module}.py").write_text(source, encoding="utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
        groups = ["dsh"] if group == "dsh" else ["dsh", group]
        lines = [f"[{each}]\n{name} = {target or module}\n" for each in groups]
        (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
        return {"PYTHONPATH": str(site)}

    def log(self, session: str | None = None) -> list[dict[str, Any]]:
        """The events of the only session, or of the named one, as `dsh sessions show` reads them."""
        if session is None:
            (session,) = [line["id"] for line in self("sessions", "list", "--json").events]
        return self("sessions", "show", session, "--events").events

    def on_terminal(self, *arguments: str, **options: Any) -> OnTerminal:
        """Start the command with a terminal."""
        return OnTerminal(self, arguments, **options)


def shown(code: int, out: bytes, err: bytes) -> Shown:
    """Check what holds of everything that is shown."""
    result = Shown(code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), out + err)
    assert "Traceback" not in result.out + result.err, result.err
    return result


class OnTerminal:
    """The command with a pseudo terminal: what it shows is collected, what is typed reaches it."""

    def __init__(self, dsh: Dsh, arguments: tuple[str, ...], *, width: int = 80, **options: Any) -> None:
        self._leader, follower = pty.openpty()
        _resize(follower, width)
        self.process = dsh.start(
            *arguments, stdin=follower, stdout=follower, stderr=follower, start_new_session=True, **options
        )
        os.close(follower)
        self.text = ""
        self._seen = 0

    def until(self, words: str, seconds: float = 30) -> None:
        """Read until `words` were shown after what was waited for before."""
        deadline = time.monotonic() + seconds
        while (found := self.text.find(words, self._seen)) < 0:
            assert time.monotonic() < deadline, f"{words!r} was never shown:\n{self.text}"
            if not self._read(0.2) and self.process.poll() is not None:
                assert words in self.text[self._seen :], f"it ended without showing {words!r}:\n{self.text}"
        self._seen = found + len(words)

    def type(self, keys: str) -> None:
        """Type."""
        os.write(self._leader, keys.encode())

    def end(self) -> Shown:
        """Wait for its end."""
        deadline = time.monotonic() + 30
        while self._read(0.2) or self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end:\n{self.text}"
        os.close(self._leader)
        return shown(self.process.wait(), self.text.encode(), b"")

    def interrupt(self) -> None:
        """What Ctrl-C sends to a program that has not taken the keyboard over."""
        self.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._leader], [], [], seconds)
        try:
            data = os.read(self._leader, 65536) if ready else b""
        except OSError:  # EIO: the other end is closed
            data = b""
        self.text += data.decode("utf-8", "replace")
        return bool(data)


def _resize(descriptor: int, width: int) -> None:
    import fcntl
    import struct
    import termios

    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))


@pytest.fixture
def model() -> Iterator[Model]:
    """A scripted model."""
    scripted = Model()
    yield scripted
    scripted.close()


@pytest.fixture
def dsh(tmp_path: Path, model: Model) -> Dsh:
    """The installed command, with the scripted model."""
    return Dsh(tmp_path, model)
