"""Containers, with a real daemon: where the variable of the other tests names one."""

import asyncio
import io
import json
import os
from pathlib import Path

import pytest
from agents.sandbox import errors as upstream
from agents.sandbox.entries import Dir, File
from agents.sandbox.manifest import Manifest
from agents.sandbox.snapshot import LocalSnapshotSpec

import bastide
from bastide.openai_agents import (
    BastideSandboxClient,
    BastideSandboxClientOptions,
    BastideSnapshotSpec,
)

IMAGE = "bastide-test/base"
ENGINE = os.environ.get("BASTIDE_TEST_DOCKER")

pytestmark = pytest.mark.skipif(not ENGINE, reason="BASTIDE_TEST_DOCKER names no daemon")


@pytest.fixture(autouse=True)
def _engine(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", ENGINE or "")


def _options(**more):
    return BastideSandboxClientOptions(backend="docker", image=IMAGE, **more)


async def test_a_sandbox_in_a_container():
    async with await bastide.Sandbox.create(backend="docker", image=IMAGE) as box:
        done = await box.run("pwd; echo oops >&2; exit 3")
        assert done.exit_code == 3 and done.stderr == b"oops\n"
        assert box.receipt["network"] == "none"
        await box.write("a", b"\xff\x00")
        assert await box.read("a") == b"\xff\x00"
        assert [item async for item in box.stream("echo a")] == [("stdout", b"a\n")]
        listed = await bastide.list_sessions(backend="docker")
        assert box.id in [info["id"] for info in listed]
        found = await bastide.Sandbox.attach(box.id, backend="docker")
        assert await found.read("a") == b"\xff\x00"


async def test_the_sdks_sessions_in_containers():
    manifest = Manifest(entries={"d": Dir(children={"f": File(content=b"\xfe")})})
    client = BastideSandboxClient(options=_options(exposed_ports=(8123,), memory=256 << 20, pids=200))
    session = await client.create(options=None, manifest=manifest)
    try:
        await session.start()
        with await session.read(Path("d/f")) as found:
            assert found.read() == b"\xfe"
        done = await asyncio.gather(*(session.exec(f"echo {n}") for n in range(4)))
        assert [one.stdout for one in done] == [f"{n}\n".encode() for n in range(4)]
        with pytest.raises(upstream.ExecTimeoutError):
            await session.exec("sleep 60", timeout=0.3)
        with pytest.raises(upstream.InvalidManifestPathError):
            await session.read(Path("/etc/passwd"))
        with pytest.raises(upstream.WorkspaceReadNotFoundError):
            await session.read(Path("nothing"))
        started = await session.pty_exec_start("cat", tty=True, yield_time_s=0.3)
        said = await session.pty_write_stdin(session_id=started.process_id, chars="hi\n")
        assert b"hi" in said.output
        endpoint = await session.resolve_exposed_port(8123)
        assert endpoint.port
        assert client.receipt(session)["network"] == "none"
    finally:
        await session.shutdown()
        await client.delete(session)
        await client.delete(session)


@pytest.mark.parametrize("kind", ["local", "store"])
async def test_sessions_in_containers_come_back_from_their_json(kind, tmp_path):
    spec = LocalSnapshotSpec(base_path=tmp_path) if kind == "local" else BastideSnapshotSpec()
    client = BastideSandboxClient(options=_options())
    session = await client.create(options=None, snapshot=spec)
    await session.start()
    await session.write(Path("kept"), io.BytesIO(b"1"))
    await session.stop()
    await session.shutdown()
    await client.delete(session)
    stored = json.loads(json.dumps(client.serialize_session_state(session.state)))
    again = await client.resume(client.deserialize_session_state(stored))
    try:
        await again.start()
        assert (await again.exec("cat kept")).stdout == b"1"
    finally:
        await again.shutdown()
        await client.delete(again)


async def test_an_image_that_is_not_there_is_told():
    options = BastideSandboxClientOptions(backend="docker", image="bastide-test/no-such-image")
    with pytest.raises(upstream.WorkspaceStartError) as refused:
        await BastideSandboxClient().create(options=options)
    assert "no-such-image" in str(refused.value.context["detail"])


async def test_a_daemon_that_is_not_there_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    with pytest.raises(upstream.WorkspaceStartError) as refused:
        await BastideSandboxClient().create(options=_options())
    assert refused.value.context["bastide"]["kind"]
