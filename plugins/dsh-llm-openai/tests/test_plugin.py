"""Which providers there are, and a whole turn through the harness."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import subprocess
import sys

import dsh_llm_openai
import httpx2
import pytest
from dsh_llm_openai import PROFILES, OpenAIAdapter, OpenAIConfig, OpenAIPlugin, Profile, ProviderConfig

import dsh_core as dsh
from dsh_core.config import Config
from dsh_core.errors import ConfigError, LlmError
from dsh_core.tools.names import wire_name

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch):
    """No key or address of this machine reaches a test."""
    for profile in PROFILES.values():
        for name in (profile.api_key_env, profile.base_url_env):
            if name:
                monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("DSH_LOCAL_BASE_URL", raising=False)


def _providers(harness: dsh.Harness) -> set[str]:
    """Names under which a model can be asked for."""
    found = set()
    for name in (*PROFILES, "local", "work", "mine"):
        with contextlib.suppress(LlmError):
            found.add(harness.llm.resolve(f"{name}/m")[0])
    return found


def _harness(config: OpenAIConfig | None = None, **options) -> dsh.Harness:
    return dsh.Harness(plugins=[OpenAIPlugin(config)], autoload=False, **options)


def test_the_package_exports_what_it_says():
    """10-api: the classes of the plugin."""
    assert {"OpenAIAdapter", "OpenAIPlugin", "PROFILES", "Profile"} <= set(dsh_llm_openai.__all__)
    assert all(hasattr(dsh_llm_openai, name) for name in dsh_llm_openai.__all__)


def test_the_entry_point_is_the_plugin():
    """H-8: group `dsh`, name `llm-openai`."""
    (entry,) = importlib.metadata.entry_points(group="dsh", name="llm-openai")
    assert entry.load() is OpenAIPlugin


def test_importing_the_package_does_not_import_the_sdk():
    """40-quality: `openai` and its HTTP client only on first use."""
    code = "import sys, dsh_llm_openai; print(sorted({'openai', 'httpx2', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_known_profiles():
    """§7: the providers known by name, each with a place and a key where one is needed."""
    known = {
        "openai",
        "deepseek",
        "openrouter",
        "groq",
        "mistral",
        "moonshot",
        "alibaba",
        "xai",
        "ollama",
        "llama.cpp",
        "vllm",
    }
    assert known <= set(PROFILES)
    assert all(PROFILES[name].base_url for name in known)
    assert {name for name in known if PROFILES[name].api_key_env is None} == {"ollama", "llama.cpp", "vllm"}
    with pytest.raises(ValueError, match="unknown profile 'opnai'; choose one of generic, openai"):
        OpenAIAdapter(profile="opnai")
    with pytest.raises(ValueError, match="'mine' needs a base_url"):
        OpenAIAdapter(profile=Profile(name="mine"))


async def test_nothing_is_registered_without_keys_and_configuration():
    """§7: an empty environment gives no provider."""
    async with _harness() as harness:
        assert "openai" not in _providers(harness)


async def test_a_key_in_the_environment_registers_its_provider(monkeypatch):
    """§7: known providers by their key variable, `local` by its address."""
    monkeypatch.setenv("DEEPSEEK_API_KEY", "k")
    monkeypatch.setenv("GROQ_API_KEY", "")
    monkeypatch.setenv("DSH_LOCAL_BASE_URL", "http://127.0.0.1:1/v1")
    async with _harness() as harness:
        assert {"deepseek", "local"} <= _providers(harness)
        assert "groq" not in _providers(harness)
        assert harness.llm.resolve("deepseek/deepseek-chat") == ("deepseek", "deepseek-chat")
    async with _harness(OpenAIConfig(discover=False)) as harness:
        assert not {"deepseek", "local"} & _providers(harness)


async def test_configured_providers():
    """§7, M-5: own names, models, windows; any further model is taken too."""
    table = {
        "providers": {
            "work": {"base_url": "http://x/v1", "models": ["big", "small"], "context_window": 100, "profile": "vllm"},
            "mine": {"base_url": "http://y/v1", "context_windows": {"a": 5}},
            "ollama": {},
        }
    }
    config = Config.from_mapping({"plugins": {"llm-openai": table}})
    structured = config.structure(table, OpenAIPlugin.Config, "plugins.llm-openai")
    async with _harness(structured) as harness:
        assert harness.llm.resolve("small") == ("work", "small")
        assert harness.llm.context_window("work", "big") == 100
        assert [harness.llm.context_window("mine", name) for name in ("a", "b")] == [5, None]
        assert "ollama" in _providers(harness)


@pytest.mark.parametrize(
    ("name", "provider", "words"),
    [
        ("work", ProviderConfig(), r"plugins\.llm-openai\.providers\.work: needs a base_url"),
        ("work", ProviderConfig(base_url="http://x", profile="nope"), r"work\.profile: unknown profile 'nope'"),
        ("local", ProviderConfig(), r"providers\.local: needs a base_url"),
    ],
)
async def test_a_provider_that_cannot_work_is_named(name, provider, words):
    """§9: key path and expected form."""
    plugin = OpenAIPlugin(OpenAIConfig(providers={name: provider}))
    with pytest.raises(ConfigError, match=words):
        plugin.register(dsh.Harness(autoload=False))


async def test_a_model_of_a_known_provider_without_its_key_names_the_variable():
    """M-3: AUTH and the variable to set, not "no provider"."""
    async with (
        _harness() as harness,
        await harness.agents.create(options=dsh.AgentOptions(model="deepseek/deepseek-chat")) as handle,
    ):
        result = await handle.agent.send("hi")
    assert result.reason.kind == "error"
    assert result.reason.code == "AUTH"
    assert "DEEPSEEK_API_KEY" in result.reason.message


async def test_unloading_the_plugin_takes_its_providers_away():
    """H-7: adapters go with their plugin and are closed."""
    config = OpenAIConfig(providers={"work": ProviderConfig(base_url="http://x/v1")})
    async with _harness(config) as harness:
        assert "work" in _providers(harness)
        await harness.plugins.unload("llm-openai")
        assert "work" not in _providers(harness)


async def test_the_environment_of_openai_is_for_openai_alone(wire, monkeypatch):
    """§9: organisation, project and custom headers may be secrets."""
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Gate: s3cret")
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-openai")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://proxy.test/v1")
    other = wire.say(wire.delta("stop", content="x"))
    await other.ask()
    sent = {name.lower(): value for name, value in other.headers[0].items()}
    assert not {"openai-organization", "openai-project", "x-gate", "authorization"} & set(sent)
    own = wire.say(wire.delta("stop", content="x"), base_url=None, profile="openai")
    await own.ask()
    assert own.urls == ["https://proxy.test/v1/chat/completions"]
    assert own.headers[0]["openai-organization"] == "org-1"
    assert own.headers[0]["x-gate"] == "s3cret"
    assert own.headers[0]["authorization"] == "Bearer key-of-openai"


async def test_headers_and_members_of_every_request(wire):
    """§7: from the configuration; the key as a bearer token, the user agent the SDK's."""
    provider = wire.say(
        wire.delta("stop", content="x"),
        api_key="k",
        request_headers={"X-Team": "a"},
        extra_body={"seed": 7},
        base_url="http://x.test/api/",
    )
    await provider.ask()
    assert provider.urls == ["http://x.test/api/chat/completions"]
    assert (provider.headers[0]["x-team"], provider.headers[0]["authorization"]) == ("a", "Bearer k")
    assert provider.headers[0]["content-type"] == "application/json"
    assert provider.requests[0]["seed"] == 7


async def test_a_client_of_ones_own(wire):
    """10-api: an `AsyncOpenAI` brings its own key and place, and stays open."""
    import openai

    seen = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append((str(request.url), request.headers["authorization"]))
        return httpx2.Response(500, json={"error": {"message": "no"}})

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
        client = openai.AsyncOpenAI(api_key="own", base_url="http://own.test/v1", http_client=http)
        adapter = OpenAIAdapter(client=client, profile="deepseek")
        with pytest.raises(LlmError):
            await wire.drain(adapter.stream(wire.asked()))
        await adapter.aclose()
        assert seen == [("http://own.test/v1/chat/completions", "Bearer own")]
        assert not http.is_closed


async def test_a_whole_turn_with_a_tool(wire):
    """L-10, llm-17: the call goes back to the tool's own name, and the history to its wire name."""
    answers = [
        wire.sse(
            wire.delta(tool_calls=[wire.call('{"city":', index=0, id="c1", name=wire_name("get.weather"))]),
            wire.delta("tool_calls", tool_calls=[wire.call('"Rome"}', index=0)]),
        ),
        wire.sse(wire.delta(content="sunny"), wire.delta("stop")),
    ]
    bodies = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(request.content))
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=answers[len(bodies) - 1])

    @dsh.tool(name="get.weather")
    async def weather(city: str) -> str:
        """Current weather."""
        return f"sun over {city}"

    class Provide:
        @dsh.hookimpl
        def register(self, harness):
            client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
            harness.llm.register("test", OpenAIAdapter("http://x.test/v1", profile="generic", client=client))

    async with dsh.open(model="test/m", tools=[weather], plugins=[Provide()], autoload=False) as chat:
        result = await chat.ask("weather in Rome?")
    assert (str(result), result.reason.kind) == ("sunny", "completed")
    sent_name = bodies[0]["tools"][0]["function"]["name"]
    assert sent_name == wire_name("get.weather") != "get.weather"
    assistant, tool = bodies[1]["messages"][-2:]
    assert assistant["tool_calls"][0]["function"] == {"name": sent_name, "arguments": '{"city":"Rome"}'}
    assert tool == {"role": "tool", "tool_call_id": assistant["tool_calls"][0]["id"], "content": "sun over Rome"}


async def test_concurrent_first_requests_make_one_client(wire):
    """M-1: the import happens once, in a thread, whoever comes first."""
    provider = wire.say(wire.delta("stop", content="x"))
    adapter = provider.adapter()
    heard = await asyncio.gather(*(wire.drain(adapter.stream(wire.asked())) for _ in range(10)))
    assert all(heard)
    assert len(provider.requests) == 10
