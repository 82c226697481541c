"""Measures one of the reference's clients, one operation for each line it is told.

It answers each line with the seconds the operation took. The process stays warm, as a user's would.
"""

import asyncio
import io
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from agents.sandbox.entries import LocalDir
from agents.sandbox.manifest import Manifest
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from agents.sandbox.snapshot import LocalSnapshot


class Local:
    """One client, and one session that stays."""

    async def open(self):
        self.client = UnixLocalSandboxClient()
        self.live = await self.new()
        self.made = set()
        self.workspaces = {}
        self.changes = 0

    async def new(self, manifest=None):
        session = await self.client.create(manifest=manifest or Manifest())
        await session.start()
        return session

    async def remove(self, session):
        await session.shutdown()
        await self.client.delete(session)

    async def clear(self, session):
        """Removes a session where nobody measures how long that takes."""
        await self.remove(session)

    async def once(self, name, body):
        """Makes what an operation works on, at its first use."""
        if name not in self.made:
            await body()
            self.made.add(name)

    async def create(self):
        started = time.perf_counter()
        session = await self.new()
        result = await session.exec("echo", "hello", shell=False)
        took = time.perf_counter() - started
        assert result.stdout == b"hello\n", result
        await self.clear(session)
        return took

    async def delete(self):
        session = await self.new()
        started = time.perf_counter()
        await self.remove(session)
        return time.perf_counter() - started

    async def exec(self):
        started = time.perf_counter()
        result = await self.live.exec("/bin/true", shell=False)
        took = time.perf_counter() - started
        assert result.exit_code == 0, result
        return took

    async def exec_many(self, count):
        started = time.perf_counter()
        await asyncio.gather(*(self.live.exec("/bin/true", shell=False) for _ in range(count)))
        return time.perf_counter() - started

    async def output(self, size):
        started = time.perf_counter()
        result = await self.live.exec("head", "-c", str(size), "/dev/zero", shell=False)
        took = time.perf_counter() - started
        assert len(result.stdout) == size
        return took

    async def read(self, size):
        path = Path(f"read-{size}")
        await self.once(path, lambda: self.live.write(path, io.BytesIO(b"x" * size)))
        started = time.perf_counter()
        content = (await self.live.read(path)).read()
        took = time.perf_counter() - started
        assert len(content) == size
        return took

    async def write(self, size):
        content = io.BytesIO(b"x" * size)
        started = time.perf_counter()
        await self.live.write(Path(f"write-{size}"), content)
        return time.perf_counter() - started

    async def list(self, count):
        folder = f"list-{count}"
        line = f"mkdir {folder} && cd {folder} && seq {count} | xargs touch"
        await self.once(folder, lambda: self.live.exec(line))
        started = time.perf_counter()
        entries = await self.live.ls(Path(folder))
        took = time.perf_counter() - started
        assert len(entries) >= count
        return took

    async def folder_in(self, source):
        # It takes folders from beneath the folder it runs in.
        os.chdir(Path(source).parent)
        manifest = Manifest(entries={"project": LocalDir(src=Path(source))})
        started = time.perf_counter()
        session = await self.new(manifest)
        took = time.perf_counter() - started
        await self.clear(session)
        return took

    async def loaded(self, source):
        """A session with a folder of the host in its workspace, and where it is saved."""
        if source not in self.workspaces:
            session = await self.new()
            shutil.copytree(source, Path(session.state.manifest.root) / "project")
            snapshot = LocalSnapshot(id="saved", base_path=Path(tempfile.mkdtemp()))
            self.workspaces[source] = (session, snapshot)
            await self.save(source)
        return self.workspaces[source]

    async def save(self, source):
        """What stopping a session does to keep its workspace: a tar archive in a file."""
        session, snapshot = await self.loaded(source)
        started = time.perf_counter()
        archive = await session.persist_workspace()
        await snapshot.persist(archive)
        took = time.perf_counter() - started
        archive.close()
        return took

    async def save_again(self, source):
        session, _ = await self.loaded(source)
        if (Path(source) / "0").is_dir():
            change = self.changes % 100 * 100
            line = f"for k in $(seq 0 99); do echo changed >> project/$k/$((k + {change})); done"
            result = await session.exec(line)
            assert result.exit_code == 0, result
            self.changes += 1
        return await self.save(source)

    async def restore(self, source):
        _, snapshot = await self.loaded(source)
        session = await self.new()
        started = time.perf_counter()
        archive = await snapshot.restore()
        await session.hydrate_workspace(archive)
        took = time.perf_counter() - started
        archive.close()
        await self.clear(session)
        return took

    async def sessions(self, at_once):
        each = max(2, 16 // at_once)

        async def worker():
            for _ in range(each):
                session = await self.new()
                await session.exec("true", shell=False)
                await self.remove(session)

        started = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(at_once)))
        return (time.perf_counter() - started) / (each * at_once)


class Docker(Local):
    """The same in containers of the daemon that `DOCKER_HOST` names."""

    def __init__(self, image):
        self.options = {"image": image}

    async def open(self):
        import docker
        from agents.sandbox.sandboxes.docker import (
            DockerSandboxClient,
            DockerSandboxClientOptions,
        )

        self.options = DockerSandboxClientOptions(**self.options, network_mode="none")
        self.docker = docker.from_env()
        self.client = DockerSandboxClient(self.docker)
        self.live = await self.new()
        self.made = set()

    async def new(self, manifest=None):
        session = await self.client.create(manifest=manifest or Manifest(), options=self.options)
        await session.start()
        return session

    async def remove(self, session):
        await self.client.delete(session)

    async def clear(self, session):
        # Its first process does not answer to the first signal, and ten seconds pass.
        self.docker.containers.get(session.state.container_id).kill()
        await self.remove(session)

    async def folder_in(self, source):
        """Each file costs the same: a few of them tell what all would take."""
        few = 20
        files = sorted(path for path in Path(source).rglob("*") if path.is_file())
        with tempfile.TemporaryDirectory() as part:
            for number, path in enumerate(files[:few]):
                shutil.copy(path, Path(part) / str(number))
            empty = await self.create()
            took = await super().folder_in(part)
        return empty + max(0.0, took - empty) * len(files) / few


async def main():
    subject = Docker(sys.argv[2]) if sys.argv[1:2] == ["docker"] else Local()
    await subject.open()
    print("ready", flush=True)
    for line in sys.stdin:
        operation, *arguments = line.split()
        arguments = [int(word) if word.isdigit() else word for word in arguments]
        print(await getattr(subject, operation)(*arguments), flush=True)


asyncio.run(main())
