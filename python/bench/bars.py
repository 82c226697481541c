"""Measures the Python clients beside the SDK's own, in one process and in turns, and compares medians with what is promised.

    python bars.py [--rounds N] [--only TEXT] [--check] [--json]

Each row is our median over the SDK's, but for imports, which are told in milliseconds.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FILES = 10_000

# What is measured, what it may be at most, and in which unit.
BARS = {
    "exec": (0.6, "x"),
    "8 execs at once": (0.7, "x"),
    "create, start, first output": (1.0, "x"),
    "listing 10,000 entries": (1 / 3, "x"),
    "folder of 10,000 files": (1 / 8, "x"),
    "manifest of 10,000 files": (1 / 8, "x"),
    "stop with a local snapshot of 10,000 files": (0.6, "x"),
    "import over agents.sandbox.sandboxes.unix_local": (50.0, "ms"),
    "import bastide over an empty program": (50.0, "ms"),
}


def clients():
    from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient as Theirs

    from bastide.openai_agents.unix_local import UnixLocalSandboxClient as Ours

    return Ours(), Theirs()


async def started(client, **arguments):
    session = await client.create(options=None, **arguments)
    await session.start()
    return session


async def ended(client, session):
    await session.shutdown()
    await client.delete(session)


async def in_turns(rounds, ours, theirs):
    """The medians of two things done in turns."""
    taken = ([], [])
    for turn in range(rounds + 1):
        for which, act in enumerate((ours, theirs)):
            seconds = await act()
            # The first of each warms up.
            if turn:
                taken[which].append(seconds)
    return [statistics.median(one) for one in taken]


def timed(work):
    async def act():
        begin = time.perf_counter()
        await work()
        return time.perf_counter() - begin

    return act


async def of_live_sessions(rounds, use, **arguments):
    pair = clients()
    sessions = [await started(client, **arguments) for client in pair]
    try:
        works = [timed(lambda session=session: use(session)) for session in sessions]
        return await in_turns(rounds, *works)
    finally:
        for client, session in zip(pair, sessions, strict=True):
            await ended(client, session)


async def exec_once(session):
    assert (await session.exec("true")).exit_code == 0


async def exec_eight(session):
    await asyncio.gather(*(session.exec("true") for _ in range(8)))


async def listing(rounds):
    async def use(session):
        assert len(await session.ls("many")) == FILES

    pair = clients()
    sessions = [await started(client) for client in pair]
    try:
        for session in sessions:
            made = f"mkdir many; cd many; seq {FILES} | xargs touch"
            assert (await session.exec(made)).exit_code == 0
        works = [timed(lambda session=session: use(session)) for session in sessions]
        return await in_turns(rounds, *works)
    finally:
        for client, session in zip(pair, sessions, strict=True):
            await ended(client, session)


def life(manifest=None, snapshot=None, measured="start", made=None):
    """One session from its creation to its end, and how long a part of that takes. `made` is a command that fills it."""

    def of(client):
        async def act():
            begin = time.perf_counter()
            session = await client.create(options=None, manifest=manifest, snapshot=snapshot)
            await session.start()
            if measured == "first":
                assert (await session.exec("echo hi")).stdout == b"hi\n"
            taken = time.perf_counter() - begin
            if made is not None:
                assert (await session.exec(made)).exit_code == 0
            if measured == "stop":
                begin = time.perf_counter()
                await session.stop()
                taken = time.perf_counter() - begin
            await ended(client, session)
            return taken

        return act

    return of


async def lives(rounds, **what):
    ours, theirs = (life(**what)(client) for client in clients())
    return await in_turns(rounds, ours, theirs)


async def manifests(rounds):
    """The SDK goes through the whole manifest for each of its entries, which takes a quarter of an hour for all of them. It is
    given a tenth, and taken to need ten times as long for all: it needs more."""
    from agents.sandbox.entries import File
    from agents.sandbox.manifest import Manifest

    def of(count):
        return life(manifest=Manifest(entries={f"f{n}": File(content=b"x") for n in range(count)}))

    ours, theirs = clients()
    taken = await in_turns(rounds, of(FILES)(ours), of(FILES // 10)(theirs))
    return [taken[0], taken[1] * 10]


def imports(rounds, ours, theirs):
    def run(code):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - begin

    taken = ([], [])
    for _ in range(rounds):
        for which, code in enumerate((ours, theirs)):
            taken[which].append(run(code))
    return [statistics.median(one) for one in taken]


async def measure(title, rounds, folder):
    from agents.sandbox.entries import LocalDir
    from agents.sandbox.manifest import Manifest
    from agents.sandbox.snapshot import LocalSnapshotSpec

    few = max(1, rounds // 10)
    if title == "exec":
        return await of_live_sessions(rounds, exec_once)
    if title == "8 execs at once":
        return await of_live_sessions(max(2, rounds // 4), exec_eight)
    if title == "create, start, first output":
        return await lives(max(2, rounds // 2), measured="first")
    if title == "listing 10,000 entries":
        return await listing(few)
    if title == "folder of 10,000 files":
        source = folder / "many"
        if not source.exists():
            source.mkdir()
            for number in range(FILES):
                (source / f"f{number}").write_bytes(b"x")
        os.chdir(folder)
        return await lives(few, manifest=Manifest(entries={"d": LocalDir(src=Path("many"))}))
    if title == "manifest of 10,000 files":
        return await manifests(few)
    if title == "stop with a local snapshot of 10,000 files":
        spec = LocalSnapshotSpec(base_path=folder / "snapshots")
        made = f"seq {FILES} | while read -r n; do echo $n > f$n; done"
        return await lives(few, snapshot=spec, measured="stop", made=made)
    if title.startswith("import over"):
        theirs = "import agents.sandbox.sandboxes.unix_local"
        return imports(few + 2, "import bastide.openai_agents.unix_local", theirs)
    return imports(few + 4, "import bastide", "pass")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", default="")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bastide-bars-"))
    os.environ["BASTIDE_HOME"] = str(folder / "home")
    missed = 0
    try:
        for title, (bar, unit) in BARS.items():
            if arguments.only not in title:
                continue
            ours, theirs = asyncio.run(measure(title, arguments.rounds, folder))
            found = ours / theirs if unit == "x" else (ours - theirs) * 1000
            holds = found <= bar
            missed += not holds
            if arguments.json:
                row = {"title": f"python: {title}", "value": found, "bar": bar, "unit": unit}
                print(json.dumps({**row, "ours_s": ours, "theirs_s": theirs}), flush=True)
            else:
                verdict = "" if holds else "   MISSED"
                print(f"python: {title:48} {found:8.3f} {unit:2} (≤ {bar:.3g}){verdict}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.check and missed:
        sys.exit(f"{missed} of what is promised for Python does not hold")


if __name__ == "__main__":
    main()
