"""Measures the reference's local client, one operation for each line it is told.

It answers each line with the seconds the operation took. The process stays warm, as a user's would.
"""

import asyncio
import sys
import time

from agents.sandbox.manifest import Manifest
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient


async def main():
    client = UnixLocalSandboxClient()
    live = await client.create(manifest=Manifest())
    await live.start()

    async def create():
        started = time.perf_counter()
        session = await client.create(manifest=Manifest())
        await session.start()
        result = await session.exec("echo", "hello", shell=False)
        took = time.perf_counter() - started
        assert result.stdout == b"hello\n", result
        await session.shutdown()
        await client.delete(session)
        return took

    async def execute():
        started = time.perf_counter()
        result = await live.exec("true", shell=False)
        took = time.perf_counter() - started
        assert result.exit_code == 0, result
        return took

    operations = {"create": create, "exec": execute}
    print("ready", flush=True)
    for line in sys.stdin:
        print(await operations[line.strip()](), flush=True)
    await live.shutdown()
    await client.delete(live)


asyncio.run(main())
