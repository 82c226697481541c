"""Networks with a policy."""

import http.server
import threading

import pytest
from pydantic import ValidationError

import bastide
from bastide import errors, sync
from bastide.openai_agents import BastideSandboxClient, BastideSandboxClientOptions
from bastide.openai_agents.unix_local import UnixLocalSandboxClient


@pytest.fixture
def page():
    """A server of this machine that remembers what it was asked; its port and what it heard."""
    heard = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            heard.append((self.path, self.headers.get("authorization")))
            self.send_response(200)
            self.send_header("content-length", "5")
            self.end_headers()
            self.wfile.write(b"page\n")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], heard
    server.shutdown()
    server.server_close()


def get(port, path):
    code = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=30).status)"
    return ["python3", "-c", code, f"http://page.test:{port}{path}"]


async def test_a_policy_leads_to_its_places_and_nowhere_else(page):
    port, heard = page
    policy = {
        "rules": [
            {
                "allow": "page.test",
                "ports": [port],
                "protocol": "http",
                "http": [{"methods": ["GET"], "paths": ["/ok/**"]}],
            }
        ],
        "hosts": {"page.test": "127.0.0.1"},
    }
    async with await bastide.Sandbox.create(policy=policy) as box:
        assert box.receipt["network"] == "policy"
        done = await box.run(get(port, "/ok/1"))
        assert done.stdout == b"200\n", done.stderr
        done = await box.run(get(port, "/no"))
        assert b"403" in done.stderr
    assert heard == [("/ok/1", None)]


async def test_a_policy_may_be_a_file_or_a_few_words(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("rules:\n- allow: example.org\n")
    async with await bastide.Sandbox.create(policy=path, allow=["db.example.org:5432"]) as box:
        assert any("2 rules" in wall for wall in box.receipt["walls"]), box.receipt


def test_a_secret_is_a_placeholder_inside(monkeypatch):
    monkeypatch.setenv("BASTIDE_TEST_KEY", "hidden-7c1f")
    secrets = {"API_KEY": "env:BASTIDE_TEST_KEY@api.example.org"}
    with sync.Sandbox.create(allow=["api.example.org"], secrets=secrets) as box:
        inside = box.run("echo $API_KEY; env").stdout
        assert inside.startswith(b"bst-secret-") and b"hidden-7c1f" not in inside


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"allow": ["a..b"]}, "allow"),
        ({"allow": "example.org"}, "list of places"),
        ({"policy": {"rules": [{"allow": "a.org", "ports": [0]}]}}, "rules.0.ports"),
        ({"policy": {"rule": []}}, "did you mean"),
        ({"network": "policy"}, "needs a policy"),
        ({"network": "host", "allow": ["a.org"]}, "not for `host`"),
        ({"allow": ["a.org"], "secrets": {"K": "env:NOBODY_SET_THIS@a.org"}}, "the secret K"),
        ({"allow": ["a.org"], "secrets": {"K": "sk-hidden@a.org"}}, "secrets"),
        ({"secrets": {"K": "env:K@a.org"}}, "no rule lets commands reach a.org"),
        ({"allow": ["a.org"], "isolation": "landlock"}, "needs the rung `namespaces`"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_name(options, said):
    with pytest.raises(errors.BastideError) as refused:
        await bastide.Sandbox.create(**options)
    assert said in str(refused.value), refused.value
    assert "sk-hidden" not in str(refused.value)


def _policy(port):
    return {
        "rules": [{"allow": "page.test", "ports": [port], "protocol": "http"}],
        "hosts": {"page.test": "127.0.0.1"},
    }


@pytest.fixture(params=["bastide", "unix_local"])
def with_policy(request):
    """A client whose sessions have the network of a policy."""
    if request.param == "unix_local":
        return lambda policy: UnixLocalSandboxClient(policy=policy)
    return lambda policy: BastideSandboxClient(options=BastideSandboxClientOptions(policy=policy))


async def test_clients_of_the_sdk_take_a_policy(page, with_policy):
    port, heard = page
    client = with_policy(_policy(port))
    session = await client.create(options=None)
    try:
        await session.start()
        assert client.receipt(session)["network"] == "policy"
        done = await session.exec(*get(port, "/a"), shell=False)
        assert done.stdout == b"200\n", done.stderr
        done = await session.exec("getent hosts elsewhere.test")
        assert done.exit_code != 0
        stored = client.serialize_session_state(session.state)
    finally:
        await client.delete(session)
    # And they have it again when they are resumed.
    again = await client.resume(client.deserialize_session_state(stored))
    try:
        await again.start()
        done = await again.exec(*get(port, "/b"), shell=False)
        assert done.stdout == b"200\n", done.stderr
    finally:
        await client.delete(again)
    assert [path for path, _ in heard] == ["/a", "/b"]


async def test_a_stored_state_brings_no_policy(page, tmp_path):
    port, heard = page
    maker = BastideSandboxClient(options=BastideSandboxClientOptions(policy=_policy(port)))
    session = await maker.create()
    stored = maker.serialize_session_state(session.state)
    await maker.delete(session)
    for change in ({"seal": None}, {"seal": "00"}, {}):
        other = BastideSandboxClient(home=tmp_path / "home")
        with pytest.raises(ValueError, match="a policy"):
            await other.resume(other.deserialize_session_state({**stored, **change}))
    assert heard == []


def test_options_of_networks_that_contradict_each_other():
    for wrong in (
        {"network": "policy"},
        {"network": "host", "allow": ("example.org",)},
        {"network": "bridge", "policy": {}},
    ):
        with pytest.raises(ValidationError):
            BastideSandboxClientOptions(**wrong)
    with pytest.raises(ValueError):
        UnixLocalSandboxClient(network="host", allow=["example.org"])
    with pytest.raises(ValueError):
        UnixLocalSandboxClient(network="bridge")
    with pytest.raises(TypeError):
        UnixLocalSandboxClient(allow="example.org")


@pytest.mark.parametrize("policy", [{"rules": [{"alow": "x"}]}, {"nothing": 1}])
async def test_a_policy_that_says_nothing_is_refused(with_policy, policy):
    with pytest.raises(ValueError):
        await with_policy(policy).create(options=None)
    assert await bastide.list_sessions() == []
