import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import bastide
from bastide import errors, sync


def test_imports_neither_the_sdk_nor_pydantic():
    code = "import sys, bastide, bastide.sync; print([m for m in ('agents', 'pydantic') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


async def test_runs_commands_and_uses_files(tmp_path):
    async with await bastide.Sandbox.create({"entries": {"a.txt": {"type": "file", "content": "x"}}}) as box:
        done = await box.run("cat a.txt; echo oops >&2; exit 3")
        assert (done.stdout, done.stderr, done.exit_code, done.reason) == (b"x", b"oops\n", 3, "exited")
        assert (await box.run(["printf", "%s", "a b"])).stdout == b"a b"
        assert (await box.run("cat", input=b"in")).stdout == b"in"
        assert (await box.run("echo $A; pwd", env={"A": "1"}, cwd="/tmp")).stdout == b"1\n/tmp\n"
        await box.write("b", b"\xff\x00")
        assert await box.read("b") == b"\xff\x00"
        big = os.urandom(3 << 20)
        await box.write("big", big)
        assert await box.read("big") == big
        await box.mkdir("d/e", parents=True)
        await box.mv("b", "d/b")
        assert sorted(os.path.basename(e.path) for e in await box.ls("d")) == ["b", "e"]
        await box.rm("d", recursive=True)
        with pytest.raises(errors.NotFound) as missing:
            await box.read("d/b")
        assert isinstance(missing.value, FileNotFoundError)
        (tmp_path / "src").mkdir()
        (tmp_path / "src" / "f").write_bytes(b"up")
        await box.upload(tmp_path / "src", "src")
        await box.download("src", tmp_path / "down")
        assert (tmp_path / "down" / "f").read_bytes() == b"up"
        await box.run("truncate -s 2G holes; printf end >> holes")
        await box.download("holes", tmp_path / "holes")
        copied = (tmp_path / "holes").stat()
        assert copied.st_size == (2 << 30) + 3
        assert copied.st_blocks * 512 < 1 << 20
        with pytest.raises(errors.BastideError):
            await box.download("holes", tmp_path / "bounded", max_bytes=1 << 20)
        assert not (tmp_path / "bounded").exists()
        assert box.receipt["network"] == "none"


async def test_streams_as_it_is_said_and_types_on_terminals():
    async with await bastide.Sandbox.create() as box:
        said = [item async for item in box.stream("echo a; echo b >&2")]
        assert (("stdout", b"a\n") in said) and (("stderr", b"b\n") in said)
        async with await box.terminal("sh") as term:
            await term.write("stty size; exit 4\n")
            seen = b""
            async for _kind, data in term:
                seen += data
            assert b"24 80" in seen
            assert term.exit_code == 4


async def test_listens_to_ports():
    async with await bastide.Sandbox.create() as box:
        server = await box.spawn(["python3", "-m", "http.server", "8000"])
        url = await box.expose(8000)

        def fetch():
            import urllib.request

            deadline = time.monotonic() + 60
            while True:
                try:
                    return urllib.request.urlopen(url, timeout=5).status
                except OSError:
                    if time.monotonic() > deadline:
                        raise

        assert await asyncio.to_thread(fetch) == 200
        await server.end()


async def test_saves_and_restores():
    async with await bastide.Sandbox.create() as box:
        await box.write("kept", b"1")
        first = await box.snapshot("python-test")
        assert first["bytes_added"] > 0
        assert (await box.snapshot("python-test"))["bytes_added"] == 0
        await box.rm("kept")
        await box.restore("python-test")
        assert await box.read("kept") == b"1"


async def test_attaches_to_a_kept_sandbox_in_another_process():
    box = await bastide.Sandbox.create(keep=True)
    try:
        await box.write("a", b"1")
        code = (
            "import sys\nfrom bastide import sync\n"
            f"box = sync.Sandbox.attach({box.id!r})\nprint(box.read('a'))\nbox.close()"
        )
        said = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True
        )
        assert said.stdout == "b'1'\n", said.stderr
        assert await box.read("a") == b"1"
    finally:
        await box.delete()
    await box.delete()


async def test_a_timeout_ends_everything_descended():
    async with await bastide.Sandbox.create() as box:
        done = await box.run("setsid sleep 600 & sleep 600", timeout=0.3)
        assert done.reason == "timeout"
        left = await box.run("ps -e -o args= | grep '[s]leep 600' || true")
        assert left.stdout == b""


async def test_cancelling_a_call_ends_its_command():
    async with await bastide.Sandbox.create() as box:
        task = asyncio.create_task(box.run("echo on > started; setsid sleep 601 & sleep 601"))
        while (await box.run("cat started 2>/dev/null")).stdout != b"on\n":
            pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(60) if hasattr(asyncio, "timeout") else _forever():
            while (await box.run("ps -e -o args= | grep -c '[s]leep 601'")).stdout.strip() != b"0":
                pass


class _forever:
    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        return None


async def test_no_call_holds_the_loop_up():
    async with await bastide.Sandbox.create() as box:
        beats = 0

        async def beat():
            nonlocal beats
            while True:
                await asyncio.sleep(0.01)
                beats += 1

        beating = asyncio.create_task(beat())
        # The command ends when it is told to, after the loop was seen to go on.
        process = await box.spawn("read x")
        running = asyncio.create_task(_drain(process))
        while beats < 10:
            await asyncio.sleep(0)
        await process.write("x\n")
        await running
        beating.cancel()


async def _drain(process):
    async for _ in process:
        pass


def test_serves_any_loop_and_thread():
    box = sync.Sandbox.create()
    try:

        async def use():
            found = await asyncio.gather(*(box._inner.run(f"echo {n}") for n in range(8)))
            return [done.stdout for done in found]

        results = []

        def thread():
            results.append(asyncio.run(use()))

        threads = [threading.Thread(target=thread) for _ in range(3)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert results == [[f"{n}\n".encode() for n in range(8)]] * 3
        assert asyncio.run(use()) == results[0]
    finally:
        box.close()


def test_waits_without_a_loop_and_refuses_one():
    with sync.Sandbox.create() as box:
        assert box.run("echo hi").stdout == b"hi\n"
        assert [data for _kind, data in box.stream("echo a")] == [b"a\n"]

        async def inside():
            with pytest.raises(RuntimeError, match="event loop"):
                box.run("true")

        asyncio.run(inside())


def test_answers_ctrl_c():
    code = (
        "from bastide import sync\n"
        "with sync.Sandbox.create() as box:\n"
        "    try:\n        print('up', flush=True)\n        box.run('sleep 600')\n"
        "    except KeyboardInterrupt:\n        print('interrupted', box.run('echo on').stdout)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "up\n"
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert out == "interrupted b'on\\n'\n"


def test_a_forked_child_can_use_nothing_of_its_parent_and_keeps_nothing_up(home):
    code = """
import os, sys
from bastide import sync
box = sync.Sandbox.create()
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.close(read)
    said = []
    for use in (lambda: box.run("true"), lambda: box.id):
        try:
            use()
            said.append("no error")
        except RuntimeError as error:
            said.append("fork" if "fork" in str(error) else str(error))
    with sync.Sandbox.create() as own:
        said.append(own.run("echo own").stdout.decode().strip())
    print(*said, flush=True)
    sys.stdin.read()
    os._exit(0)
print(box.run("echo parent").stdout.decode().strip(), box.id, flush=True)
sys.stdin.readline()
os._exit(0)
"""
    program = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        lines = {program.stdout.readline(), program.stdout.readline()}
        assert "fork fork own\n" in lines
        (parent,) = [line for line in lines if line.startswith("parent")]
        name = parent.split()[1]
        program.stdin.write("go\n")
        program.stdin.flush()
        program.wait(timeout=60)
        # The child still has its input open. Nothing it inherited keeps the session up.
        deadline = time.monotonic() + 60
        while any(info["id"] == name for info in sync.list_sessions()):
            assert time.monotonic() < deadline
    finally:
        program.stdin.close()


def test_a_killed_program_leaves_nothing():
    code = (
        "import time\nfrom bastide import sync\nbox = sync.Sandbox.create()\n"
        "print(box.id, flush=True)\nbox.run('sleep 600')"
    )
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    name = program.stdout.readline().strip()
    program.kill()
    program.wait()
    deadline = time.monotonic() + 60
    while any(info["id"] == name for info in sync.list_sessions()):
        assert time.monotonic() < deadline


def test_says_what_is_wrong():
    with pytest.raises(errors.InvalidInput):
        sync.Sandbox.create(memory="much")
    with pytest.raises(errors.InvalidInput):
        sync.Sandbox.create(image="debian")
    with pytest.raises(errors.BastideError):
        sync.Sandbox.create({"entries": {"../a": {"type": "dir"}}})
    with pytest.raises(errors.BastideError):
        sync.Sandbox.attach("0" * 32)
    with sync.Sandbox.create() as box, pytest.raises(errors.BastideError):
        box.run("true", cwd="relative")


async def test_a_silent_command_can_be_ended_while_somebody_listens():
    async with await bastide.Sandbox.create() as box:
        async with await box.spawn("sleep 1000") as process:
            listening = asyncio.create_task(anext(aiter(process)))
            await asyncio.sleep(0)
        # Leaving the block ends it, whoever listens.
        with pytest.raises((errors.NotFound, StopAsyncIteration)):
            await asyncio.wait_for(listening, 30)
