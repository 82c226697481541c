"""Sessions that are saved and come back, and what a stored state may say, on both clients."""

import contextlib
import io
import json
import os
import shutil
import tarfile
import uuid
from pathlib import Path

import pytest
from agents.sandbox import errors as upstream
from agents.sandbox.entries import File
from agents.sandbox.manifest import Manifest
from agents.sandbox.session.sandbox_session_state import SandboxSessionState
from agents.sandbox.snapshot import LocalSnapshotSpec, NoopSnapshot, RemoteSnapshotSpec
from live_session import Live, content

from bastide.openai_agents import (
    BastideSandboxClient,
    BastideSandboxClientOptions,
    BastideSnapshot,
    BastideSnapshotSpec,
    unix_local,
)


@pytest.fixture(params=[BastideSandboxClient, unix_local.UnixLocalSandboxClient])
def client(request):
    return request.param()


async def _saved(client, snapshot, **arguments):
    session = await client.create(options=None, snapshot=snapshot, **arguments)
    await session.start()
    await session.write(Path("kept"), content("1"))
    await session.stop()
    await session.shutdown()
    await client.delete(session)
    return json.loads(json.dumps(client.serialize_session_state(session.state)))


@contextlib.asynccontextmanager
async def _resumed(client, payload):
    session = await client.resume(client.deserialize_session_state(payload))
    await session.start()
    try:
        yield session
    finally:
        await session.shutdown()
        await client.delete(session)


async def test_a_session_comes_back_from_its_json(client, tmp_path):
    manifest = Manifest(entries={"e": File(content=b"e", ephemeral=True), "d": File(content=b"d")})
    payload = await _saved(client, LocalSnapshotSpec(base_path=tmp_path), manifest=manifest)
    (tar,) = tmp_path.iterdir()
    with tarfile.open(tar) as archive:
        names = {os.path.normpath(name) for name in archive.getnames()}
    assert {"kept", "d"} <= names and "e" not in names
    async with _resumed(client, payload) as session:
        assert (await session.exec("cat kept e d")).stdout == b"1ed"


async def test_store_snapshots_save_only_what_changed(client):
    payload = await _saved(client, BastideSnapshotSpec())
    async with _resumed(client, payload) as session:
        assert (await session.exec("cat kept")).stdout == b"1"


async def test_a_store_snapshot_works_as_an_archive(tmp_path):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        info = tarfile.TarInfo("a")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    archive.seek(0)
    snapshot = BastideSnapshot(id=f"tar-{uuid.uuid4().hex}")
    assert not await snapshot.restorable()
    await snapshot.persist(archive)
    assert await snapshot.restorable()
    with await snapshot.restore() as stream, tarfile.open(fileobj=stream) as tar:
        assert "a" in {os.path.normpath(name) for name in tar.getnames()}


async def test_programs_own_snapshots_work_through_streams():
    from agents.sandbox.session.dependencies import Dependencies

    kept = {}

    class Remote:
        async def upload(self, id, data):
            kept[id] = data.read()

        async def download(self, id):
            return io.BytesIO(kept[id])

        async def exists(self, id):
            return id in kept

    client = BastideSandboxClient(
        dependencies=Dependencies().bind_value("remote", Remote()),
        options=BastideSandboxClientOptions(),
    )
    payload = await _saved(client, RemoteSnapshotSpec(client_dependency_key="remote"))
    async with _resumed(client, payload) as session:
        assert (await session.exec("cat kept")).stdout == b"1"


async def test_start_after_shutdown_has_the_files(client):
    session = await client.create(options=None)
    await session.start()
    await session.write(Path("a"), content("1"))
    await session.shutdown()
    await session.shutdown()
    with pytest.raises(upstream.ExecTransportError):
        await session.exec("true")
    with pytest.raises(upstream.PtySessionNotFoundError):
        await session.pty_write_stdin(session_id=1, chars="")
    await session.start()
    assert (await session.exec("cat a")).stdout == b"1"
    await session.shutdown()
    await client.delete(session)


async def test_resuming_attaches_to_what_runs(client):
    async with Live(client) as session:
        await session.write(Path("a"), content("1"))
        await session.exec("sleep 600 & echo $! > pid")
        other = await client.resume(session.state)
        await other.start()
        assert (await other.exec("cat a; kill -0 $(cat pid)")).exit_code == 0


async def test_a_damaged_archive_leaves_the_workspace_as_it_was(client):
    hostile = io.BytesIO()
    with tarfile.open(fileobj=hostile, mode="w") as tar:
        good = tarfile.TarInfo("good")
        tar.addfile(good, io.BytesIO(b""))
        bad = tarfile.TarInfo("../out")
        tar.addfile(bad, io.BytesIO(b""))
    async with Live(client) as session:
        await session.write(Path("a"), content("1"))
        for data in (io.BytesIO(b"no archive" * 200), io.BytesIO(hostile.getvalue())):
            with pytest.raises(upstream.WorkspaceArchiveWriteError):
                await session.hydrate_workspace(data)
        assert (await session.exec("ls")).stdout == b"a\n"


async def test_either_client_resumes_what_the_other_saved(tmp_path):
    from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient as Theirs

    ours, theirs = unix_local.UnixLocalSandboxClient(), Theirs()
    for saver, resumer in ((ours, theirs), (theirs, ours)):
        payload = await _saved(saver, LocalSnapshotSpec(base_path=tmp_path))
        async with _resumed(resumer, payload) as session:
            assert (await session.exec("cat kept")).stdout == b"1"


async def test_a_caller_keeps_the_folder_that_was_the_workspace(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a").write_text("1")
    ours = unix_local.UnixLocalSandboxClient()
    async with Live(ours, manifest=Manifest(root=str(folder))) as session:
        assert (await session.exec("cat a; echo 2 > b")).stdout == b"1"
    assert (folder / "b").read_text() == "2\n"


@pytest.mark.parametrize("kind", ["unix_local", "bastide"])
async def test_a_folder_that_was_taken_away_comes_back_from_its_snapshot(tmp_path, kind):
    root = tmp_path / "project"
    snapshot = LocalSnapshotSpec(base_path=tmp_path / "snaps")
    client = unix_local.UnixLocalSandboxClient()
    if kind == "bastide":
        options = BastideSandboxClientOptions(workspace="host")
        client = BastideSandboxClient(options=options)
    session = await client.create(manifest=Manifest(root=str(root)), snapshot=snapshot)
    await session.start()
    await session.exec("printf kept > a")
    await session.stop()
    await session.shutdown()
    shutil.rmtree(root)
    back = await client.resume(session.state)
    await back.start()
    assert (await back.exec("cat a")).stdout == b"kept"
    await back.shutdown()
    await client.delete(back)


async def test_a_folder_that_is_as_it_was_saved_is_used(tmp_path):
    client = unix_local.UnixLocalSandboxClient()
    root = tmp_path / "project"
    root.mkdir()
    snapshot = LocalSnapshotSpec(base_path=tmp_path / "snaps")
    session = await client.create(manifest=Manifest(root=str(root)), snapshot=snapshot)
    await session.start()
    await session.exec("printf kept > a; mkdir d; ln -s a d/l")
    await session.stop()
    await session.shutdown()
    stored = client.serialize_session_state(session.state)
    await client.delete(session)
    back = await client.resume(client.deserialize_session_state(stored))
    await back.start()
    assert (await back.exec("cat a; readlink d/l")).stdout == b"kepta\n"
    await back.shutdown()
    await client.delete(back)
    # What changed since is the caller's, and not given up.
    (root / "a").write_text("changed")
    other = await client.resume(client.deserialize_session_state(stored))
    with pytest.raises(upstream.SandboxError):
        await other.start()
    assert (root / "a").read_text() == "changed"
    await other.shutdown()
    await client.delete(other)


async def test_states_of_other_classes(client):
    state = SandboxSessionState(
        type="x", snapshot=NoopSnapshot(id="a"), manifest=Manifest()
    )
    with pytest.raises(TypeError):
        await client.resume(state)


def test_malformed_states_are_refused_without_theircontent(client):
    for bad in ({"type": client.backend_id, "manifest": "secret-content"}, {"session_id": "secret-content"}):
        with pytest.raises(ValueError) as refused:
            client.deserialize_session_state(dict(bad))
        assert "secret-content" not in str(refused.value)


async def test_a_stored_state_grants_nothing_that_was_not_sealed(tmp_path):
    client = BastideSandboxClient()
    session = await client.create(options=None)
    payload = client.serialize_session_state(session.state)
    await client.delete(session)

    def forged(**changes):
        copy = json.loads(json.dumps(payload))
        copy["session_id"] = str(uuid.uuid4())
        for key, value in changes.items():
            if key in ("root", "extra_path_grants", "entries"):
                copy["manifest"][key] = value
            elif key in ("network", "isolation"):
                copy["options"][key] = value
            else:
                copy[key] = value
        return client.deserialize_session_state(copy)

    for changes, told in (
        ({"root": "/etc"}, "/etc"),
        ({"extra_path_grants": [{"path": "/root"}]}, "/root"),
        ({"network": "host"}, "network"),
        ({"isolation": "unconfined"}, "isolation"),
        ({"snapshot": {"type": "local", "id": "a", "base_path": str(tmp_path)}}, "snapshot"),
        ({"entries": {"s": {"type": "local_dir", "src": "/etc"}}}, "source at 's'"),
    ):
        with pytest.raises(ValueError, match=told):
            await client.resume(forged(**changes))
    # What asks for nothing is made, and what the client gives is not asked for.
    for other, changes in (
        (client, {}),
        (BastideSandboxClient(options=BastideSandboxClientOptions(pids=500)), {}),
    ):
        if other is not client:
            changes = {"options": BastideSandboxClientOptions(pids=500).model_dump(mode="json")}
        found = await other.resume(forged(**changes))
        await other.delete(found)
