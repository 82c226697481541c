"""What a command in a sandbox must not get at, tried through Python."""

import os
import socket

import pytest
from agents.sandbox.errors import InvalidManifestPathError, SandboxError
from agents.sandbox.manifest import Manifest
from agents.sandbox.workspace_paths import SandboxPathGrant

import bastide
from bastide.openai_agents import BastideSandboxClient
from bastide.openai_agents.unix_local import UnixLocalSandboxClient


@pytest.fixture(params=[BastideSandboxClient, UnixLocalSandboxClient])
def client(request):
    return request.param()


async def _session(client, **arguments):
    session = await client.create(options=None, **arguments)
    await session.start()
    return session


async def _end(client, session):
    await session.shutdown()
    await client.delete(session)


async def test_sees_no_files_of_the_host(client, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    session = await _session(client)
    try:
        told = await session.exec(f"cat {secret}")
        assert told.exit_code != 0 and b"secret\n" not in told.stdout
        for path in (str(secret), f"../..{secret}", "/etc/shadow"):
            with pytest.raises(InvalidManifestPathError):
                await session.read(path)
        await session.exec(f"ln -s {secret} link; ln -s / root")
        for path in ("link", f"root{secret}"):
            with pytest.raises(SandboxError):
                await session.read(path)
        with pytest.raises(SandboxError):
            import io

            await session.write("link", io.BytesIO(b"changed"))
        assert secret.read_text() == "secret"
    finally:
        await _end(client, session)


async def test_sees_no_environment_and_no_processes_of_the_host(client, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    session = await _session(client)
    try:
        told = await session.exec("env; cat /proc/*/environ; ls /proc | grep -c '^[0-9]'")
        assert b"sk-secret" not in told.stdout
        told = await session.exec(f"cat /proc/{os.getpid()}/cmdline; kill -0 {os.getpid()}")
        assert b"pytest" not in told.stdout
    finally:
        await _end(client, session)


async def test_reaches_neither_loopback_nor_abstract_sockets_of_the_host(client):
    name = b"\0bastide-python-" + os.urandom(8).hex().encode()
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        unix.bind(name)
        unix.listen()
        script = (
            "import socket\n"
            f"for family, to in ((socket.AF_INET, ('127.0.0.1', {tcp.getsockname()[1]})), "
            f"(socket.AF_UNIX, {name!r})):\n"
            "    try:\n        socket.socket(family).connect(to)\n        print('reached')\n"
            "    except OSError:\n        print('refused')\n"
        )
        session = await _session(client)
        try:
            told = await session.exec("python3", "-c", script, shell=False)
            assert told.stdout == b"refused\nrefused\n", told.stderr
        finally:
            await _end(client, session)


async def test_cannot_write_to_what_was_granted_for_reading(client, tmp_path):
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "a").write_text("1")
    os.chmod(tmp_path, 0o755)
    grants = (SandboxPathGrant(path=str(folder), read_only=True),)
    session = await _session(client, manifest=Manifest(extra_path_grants=grants))
    try:
        assert (await session.exec(f"cat {folder}/a")).stdout == b"1"
        await session.exec(f"echo 2 > {folder}/a; echo 3 > {folder}/b; rm -rf {folder}/*")
        with pytest.raises(SandboxError):
            import io

            await session.write(folder / "a", io.BytesIO(b"2"))
        assert sorted(os.listdir(folder)) == ["a"] and (folder / "a").read_text() == "1"
    finally:
        await _end(client, session)


async def test_links_exchanged_under_a_reader_lead_nowhere(client, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    session = await _session(client)
    try:
        await session.exec("mkdir d; echo own > d/f; ln -s / e")
        name = secret.relative_to("/").as_posix()
        await session.exec(f"mkdir -p d/{os.path.dirname(name)}; echo own > d/{name}")
        flip = "while :; do mv -T d x; mv -T e d; mv -T d e; mv -T x d; done"
        update = await session.pty_exec_start(flip, yield_time_s=0.25)
        assert update.exit_code is None
        for _ in range(200):
            try:
                with await session.read(f"d/{name}") as found:
                    assert found.read() == b"own\n"
            except SandboxError:
                pass
    finally:
        await _end(client, session)


async def test_the_standalone_interface_is_as_closed(tmp_path):
    (tmp_path / "secret").write_text("secret")
    async with await bastide.Sandbox.create() as box:
        assert (await box.run(f"cat {tmp_path}/secret")).exit_code != 0
        with pytest.raises(bastide.BastideError):
            await box.read(str(tmp_path / "secret"))
