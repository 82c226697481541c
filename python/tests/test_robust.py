"""What programs do to sandboxes that nobody meant: forks, threads, hostile names, forged states."""

import asyncio
import gc
import io
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from agents.sandbox.manifest import Manifest
from agents.sandbox.snapshot import LocalSnapshotSpec, NoopSnapshot

import bastide
from bastide import errors, sync
from bastide.openai_agents import (
    BastideSandboxClient,
    BastideSandboxClientOptions,
    BastideSandboxSession,
    BastideSandboxSessionState,
    unix_local,
)


def _python(code, **options):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, **options
    )


def _gone(name):
    deadline = time.monotonic() + 60
    while any(info["id"] == name for info in sync.list_sessions()):
        assert time.monotonic() < deadline, f"{name} is still there"


# -- forks ------------------------------------------------------------------------------------------

FORKS = """
import os, sys, threading
from bastide import sync
stop = threading.Event()
def busy():
    while not stop.is_set():
        # Sessions that are kept are in the index, whose thread is in SQLite then.
        sync.Sandbox.create(keep=True).delete()
threads = [threading.Thread(target=busy) for _ in range(2)]
for thread in threads: thread.start()
for _ in range(8):
    child = os.fork()
    if child == 0:
        with sync.Sandbox.create(keep=True, audit=True) as box:
            assert box.run("echo hi").stdout == b"hi\\n"
            assert box.id in [info["id"] for info in sync.list_sessions()]
            box.delete()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads: thread.join()
print("done")
"""


def test_children_forked_while_threads_make_sandboxes_wait_for_nothing():
    said = _python(FORKS)
    assert said.stdout == "done\n", said.stderr[-2000:]


def test_garbage_that_is_collected_before_a_fork_goes_afterwards():
    code = """
import gc, os
from bastide import sync
box = sync.Sandbox.create()
name = box.id
class Cycle: pass
cycle = Cycle(); cycle.own, cycle.box = cycle, box
# Hooks registered before those of the package run after them.
gc.disable()
del box, cycle
gc.collect()
child = os.fork()
if child == 0: os._exit(0)
os.waitpid(child, 0)
print(name)
"""
    hook = "import os, gc\nos.register_at_fork(before=gc.collect)\n"
    said = _python(hook + code.replace("gc.collect()\n", ""))
    assert said.returncode == 0, said.stderr[-2000:]
    _gone(said.stdout.strip())


def test_a_child_of_multiprocessing_has_sandboxes_of_its_own():
    code = """
import multiprocessing
from bastide import sync
def work(n):
    with sync.Sandbox.create() as box:
        return box.run(f"echo {n}").stdout
if __name__ == "__main__":
    with sync.Sandbox.create() as box:
        box.run("true")
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(work, range(3)))
        print(box.run("echo parent").stdout)
"""
    said = _python(code)
    assert said.stdout == "[b'0\\n', b'1\\n', b'2\\n']\nb'parent\\n'\n", said.stderr[-2000:]


# -- loops and threads ------------------------------------------------------------------------------


def test_a_session_made_by_hand_is_booted_once_whichever_loops_want_it():
    state = BastideSandboxSessionState(
        session_id=uuid.uuid4(), snapshot=NoopSnapshot(id="a"), manifest=Manifest()
    )
    state._is_own = True
    session = BastideSandboxSession(state=state)
    barrier = threading.Barrier(3)
    said = []

    def thread():
        async def use():
            barrier.wait()
            return (await session.exec("echo hi")).stdout

        said.append(asyncio.run(use()))

    threads = [threading.Thread(target=thread) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert said == [b"hi\n"] * 3

    async def end():
        assert (await session.exec("echo again")).stdout == b"again\n"
        await session.shutdown()
        await session.shutdown()
        client = session._client()
        await client.delete(client._wrap_session(session))

    asyncio.run(end())


async def test_shutting_down_while_it_boots_leaves_nothing():
    state = BastideSandboxSessionState(
        session_id=uuid.uuid4(), snapshot=NoopSnapshot(id="a"), manifest=Manifest()
    )
    state._is_own = True
    session = BastideSandboxSession(state=state)
    using = asyncio.create_task(session.exec("true"))
    await asyncio.sleep(0)
    using.cancel()
    await session.shutdown()
    client = session._client()
    await client.delete(client._wrap_session(session))
    assert state.session_id.hex not in [info["id"] for info in await client.list()]


def test_uvloop_serves_as_any_other_loop():
    uvloop = pytest.importorskip("uvloop")

    async def use():
        async with await bastide.Sandbox.create() as box:
            done = await asyncio.gather(*(box.run(f"echo {n}") for n in range(4)))
            assert [one.stdout for one in done] == [f"{n}\n".encode() for n in range(4)]
            task = asyncio.create_task(box.run("sleep 600"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [item async for item in box.stream("echo a")] == [("stdout", b"a\n")]

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(use(), 120))
    finally:
        loop.close()


async def test_what_a_cancelled_reader_was_not_told_is_told_the_next_one():
    async with await bastide.Sandbox.create() as box:
        async with await box.spawn("i=0; while [ $i -lt 300 ]; do echo $i; i=$((i+1)); done") as process:
            seen = b""
            while process.exit_code is None:
                reader = aiter(process)
                task = asyncio.ensure_future(anext(reader))
                for _ in range(3):
                    await asyncio.sleep(0)
                # Whether it was told in time or not, nothing may be missing.
                task.cancel()
                try:
                    seen += (await task)[1]
                except asyncio.CancelledError:
                    pass
                except StopAsyncIteration:
                    break
                else:
                    continue
                async for _kind, data in process:
                    seen += data
                    break
        assert seen == b"".join(f"{n}\n".encode() for n in range(300))


def test_sandboxes_that_nobody_has_any_more_go():
    box = sync.Sandbox.create()
    name = box.id
    del box
    gc.collect()
    _gone(name)


async def test_closing_twice_is_once(tmp_path):
    box = await bastide.Sandbox.create()
    await box.close()
    await box.close()
    await box.delete()
    for client in (BastideSandboxClient(), unix_local.UnixLocalSandboxClient()):
        session = await client.create(options=None, snapshot=LocalSnapshotSpec(base_path=tmp_path))
        await session.start()
        await session.aclose()
        await session.aclose()
        await client.delete(session)
        await client.delete(session)


def test_a_detached_sandbox_outlives_its_program():
    said = _python("from bastide import sync\nprint(sync.Sandbox.create().detach())")
    name = said.stdout.strip()
    box = sync.Sandbox.attach(name)
    try:
        assert box.run("echo on").stdout == b"on\n"
        (info,) = [info for info in sync.list_sessions() if info["id"] == name]
        assert info["status"] == "running" and not info["tied_to_owner"]
    finally:
        box.delete()
    _gone(name)


# -- content and names ------------------------------------------------------------------------------


async def test_names_and_output_that_are_no_text():
    async with await bastide.Sandbox.create() as box:
        done = await box.run(["sh", "-c", "printf '\\377\\376'; touch \"$(printf 'a\\377')\"; ls | od -c"])
        assert done.stdout.startswith(b"\xff\xfe")
        (entry,) = await box.ls(".")
        assert entry.kind == "file"
        for path in ("a\udcff", "a\0b", ""):
            with pytest.raises((ValueError, errors.BastideError)):
                await box.read(path)
        done = await box.run(["echo", "a\0b"])
        assert done.reason == "not_started" and done.stdout == b""
        assert (await box.run(["printf", "%s", "\udcff"])).stdout == b"\xff"


async def test_much_output_and_sparse_files_take_little(tmp_path):
    async with await bastide.Sandbox.create() as box:
        done = await box.run("head -c 50000000 /dev/zero", output_limit=1 << 20)
        assert done.truncated and len(done.stdout) <= 2 << 20
        await box.run("truncate -s 256M big; printf end >> big")
        number = await box._session.read("big")
        try:
            found = os.fstat(number)
            assert found.st_size == (256 << 20) + 3 and found.st_blocks * 512 < 16 << 20
            assert os.pread(number, 8, 256 << 20) == b"end"
        finally:
            os.close(number)


async def test_copies_have_the_modes_of_what_was_copied(tmp_path):
    (tmp_path / "plain").write_bytes(b"1")
    os.chmod(tmp_path / "plain", 0o640)
    (tmp_path / "program").write_bytes(b"2")
    os.chmod(tmp_path / "program", 0o755)
    async with await bastide.Sandbox.create() as box:
        await box.upload(tmp_path)
        said = await box.run("stat -c %a plain program")
        assert said.stdout == b"640\n755\n"


async def test_copying_out_goes_as_deep_as_folders_do_and_follows_no_link(tmp_path):
    async with await bastide.Sandbox.create() as box:
        await box.run("mkdir -p $(printf 'd/%.0s' $(seq 1200)); mkdir -p t/sub; echo own > t/sub/f")
        await box.download("d", tmp_path / "deep")
        (tmp_path / "other").mkdir()
        (tmp_path / "to").mkdir()
        (tmp_path / "to" / "sub").symlink_to(tmp_path / "other")
        with pytest.raises(FileExistsError):
            await box.download("t", tmp_path / "to")
        assert list((tmp_path / "other").iterdir()) == []
    subprocess.run(["rm", "-rf", str(tmp_path / "deep")], check=True)


def test_limits_that_are_none_are_refused():
    for bad in (
        {"memory": -1},
        {"memory": 0},
        {"pids": -5},
        {"pids": 1.5},
        {"cpus": -1},
        {"disk": "-1g"},
        {"env": {"A": 1}},
        {"network": "all"},
        {"isolation": "some"},
    ):
        with pytest.raises(ValueError):
            sync.Sandbox.create(**bad)


def test_errors_can_be_sent_to_other_processes():
    for cls in (errors.NotFound, errors.Timeout, errors.InvalidInput, errors.Conflict):
        again = pickle.loads(pickle.dumps(cls("m", hint="h", context={"a": 1})))
        assert type(again) is cls and str(again) == "m (h)" and again.context == {"a": 1}


# -- states -----------------------------------------------------------------------------------------


async def test_states_edited_by_hand_are_refused():
    client = BastideSandboxClient()
    session = await client.create(options=None)
    try:
        payload = json.loads(json.dumps(client.serialize_session_state(session.state)))

        def edited(**changes):
            return client.deserialize_session_state({**payload, **changes})

        for seal in ("é", "", "0" * 64, "\udcff"):
            # It would get at a session of this home.
            with pytest.raises(ValueError, match="sealed"):
                await client.resume(edited(seal=seal))
        with pytest.raises(ValueError, match="port 22"):
            await client.resume(edited(exposed_ports=[22], session_id=str(uuid.uuid4())))
        # Sealed for another session.
        other = edited(session_id=str(uuid.uuid4()), exposed_ports=[22])
        with pytest.raises(ValueError):
            await client.resume(other)
        # As it was, it fits.
        again = await client.resume(edited())
        assert again._inner._native.id == session._inner._native.id
    finally:
        await client.delete(session)


async def test_a_state_cannot_have_any_folder_removed(tmp_path):
    client = unix_local.UnixLocalSandboxClient()
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "kept").write_text("1")
    session = await client.create(options=None)
    await session.shutdown()
    payload = client.serialize_session_state(session.state)
    await client.delete(session)
    payload["manifest"]["root"] = str(folder)
    payload["session_id"] = str(uuid.uuid4())
    forged = await client.resume(client.deserialize_session_state(payload))
    await client.delete(forged)
    assert (folder / "kept").read_text() == "1"


RESUME = """
import asyncio, json, sys
from bastide.openai_agents import BastideSandboxClient
async def main():
    client = BastideSandboxClient()
    session = await client.resume(client.deserialize_session_state(json.loads(sys.argv[1])))
    await session.start()
    print((await session.exec("cat kept")).stdout, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await client.delete(session)
asyncio.run(main())
"""


async def test_two_processes_resume_one_state(tmp_path):
    client = BastideSandboxClient()
    session = await client.create(options=None, snapshot=LocalSnapshotSpec(base_path=tmp_path))
    await session.start()
    await session.write(Path("kept"), io.BytesIO(b"1"))
    await session.stop()
    await session.shutdown()
    await client.delete(session)
    stored = json.dumps(client.serialize_session_state(session.state))

    def resume():
        return subprocess.Popen(
            [sys.executable, "-c", RESUME, stored],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def both():
        programs = [resume(), resume()]
        said = [program.stdout.readline() for program in programs]
        for program in programs:
            program.stdin.write("\n")
            program.stdin.flush()
        return said, [program.communicate(timeout=120)[1] for program in programs]

    said, trouble = await asyncio.to_thread(both)
    # One made it, and the other came to it, before or after its files were there.
    assert "b'1'\n" in said, trouble
    assert all(not text or text == "b'1'\n" or text == "b''\n" for text in said), trouble


# -- hints ------------------------------------------------------------------------------------------


async def test_commands_that_want_a_network_are_told_how_to_get_one():
    script = (
        "import socket\n"
        "for to in (('192.0.2.1', 80), ('example.com', 80)):\n"
        "    try: socket.create_connection(to, 5)\n"
        "    except OSError as error: print(error)\n"
        "raise SystemExit(1)"
    )
    for client in (BastideSandboxClient(), unix_local.UnixLocalSandboxClient()):
        session = await client.create(options=None)
        try:
            done = await session.exec("python3", "-c", script, shell=False)
            assert "network='host'" in done.hint, done
            assert (await session.exec("exit 3")).hint is None
        finally:
            await client.delete(session)
    options = BastideSandboxClientOptions(network="host")
    session = await BastideSandboxClient().create(options=options)
    try:
        done = await session.exec("echo 'Could not resolve host' >&2; exit 6")
        assert getattr(done, "hint", None) is None
    finally:
        await BastideSandboxClient().delete(session)


async def test_secrets_are_not_in_the_log(tmp_path):
    client = BastideSandboxClient(audit=True, secrets={"TOKEN": "sk-very-secret"}, home=tmp_path)
    session = await client.create(options=None)
    name = session.state.session_id.hex
    await session.start()
    await session.exec("echo sk-very-secret")
    await session.shutdown()
    await client.delete(session)
    logs = b"".join(path.read_bytes() for path in (tmp_path / "audit").rglob("*") if path.is_file())
    assert name.encode() in logs and b"sk-very-secret" not in logs and b"TOKEN" in logs


def test_the_doctor_says_what_the_machine_can_do():
    from bastide._program import program

    try:
        program()
    except errors.Unsupported:
        pytest.skip("the program is not installed")
    found = sync.doctor()
    assert {"rungs", "auto", "docker"} <= found.keys()
