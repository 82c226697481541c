"""Performs scenarios on one of the reference's clients: a JSON line in, a JSON line out.

`reference.py local` or `reference.py docker IMAGE`. What comes back is raw: the comparer makes ids, paths and
times of both sides alike.
"""

import asyncio
import base64
import io
import json
import os
import sys
from pathlib import Path, PurePath

from agents.sandbox.capabilities.tools.apply_patch_tool import SandboxApplyPatchTool
from agents.sandbox.capabilities.tools.shell_tool import ExecCommandTool, WriteStdinTool
from agents.sandbox.capabilities.tools.view_image import ViewImageTool
from agents.sandbox.errors import SandboxError
from agents.sandbox.manifest import Manifest
from agents.sandbox.sandboxes.unix_local import (
    UnixLocalSandboxClient,
    UnixLocalSandboxClientOptions,
)
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.sinks import CallbackSink
from agents.sandbox.session.events import EventPayloadPolicy
from agents.sandbox.snapshot import LocalSnapshotSpec

# No call of a scenario takes longer.
STEP_SECONDS = 60


def plain(value):
    """A value as JSON has it."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def told(error):
    """An error as the recorded cases hold it."""
    if isinstance(error, SandboxError):
        return {
            "type": type(error).__name__,
            "code": str(getattr(error.error_code, "value", error.error_code)),
            "message": error.message,
            "context": plain(error.context),
            "retryable": error.retryable,
        }
    return {"type": type(error).__name__, "message": str(error), "context": {}}


class Local:
    """Sessions of the client for this machine."""

    def __init__(self):
        self.events = []
        policy = EventPayloadPolicy(include_exec_output=True)
        sink = CallbackSink(self.hear, mode="sync", payload_policy=policy)
        self.instrumentation = Instrumentation(sinks=[sink])
        self.connect()

    def connect(self):
        self.client = UnixLocalSandboxClient(
            instrumentation=self.instrumentation, inherit_host_environment=False
        )

    def hear(self, event, _session):
        self.events.append(json.loads(event.model_dump_json()))

    def options(self, scenario):
        ports = tuple(scenario.get("exposed_ports", ()))
        return UnixLocalSandboxClientOptions(exposed_ports=ports)

    def heard(self):
        events, self.events = self.events, []
        return events

    async def run(self, scenario):
        os.chdir(scenario["tmp"])
        self.archives = {}
        self.states = {}
        self.process = None
        calls = []
        self.session = None
        for step in [{"op": "open"}] + scenario["steps"]:
            self.events = []
            try:
                work = self.perform(scenario, step)
                result = await asyncio.wait_for(work, timeout=STEP_SECONDS)
                call = {"result": plain(result)}
            except Exception as error:
                call = {"error": told(error)}
            call["events"] = self.heard()
            calls.append(call)
            if self.session is None or (len(calls) == 1 and "error" in call):
                break
        answer = {"calls": calls}
        if self.session is not None:
            answer["session"] = str(self.session.state.session_id)
            answer["root"] = str(self.session.state.manifest.root)
            await self.end()
        return answer

    async def end(self):
        try:
            await self.session.pty_terminate_all()
            await self.session.shutdown()
            await self.client.delete(self.session)
        except Exception:
            pass

    async def open_session(self, scenario, step):
        manifest = Manifest.model_validate(scenario.get("manifest", {}))
        snapshot = None
        if scenario.get("snapshot"):
            snapshot = LocalSnapshotSpec(base_path=Path(scenario["tmp"]) / "snapshots")
        self.session = await self.client.create(
            manifest=manifest, snapshot=snapshot, options=self.options(scenario)
        )
        if scenario.get("start", True):
            await self.session.start()

    async def perform(self, scenario, step):
        op = "open_session" if step["op"] == "open" else step["op"]
        return await getattr(self, op)(scenario, step)

    async def start(self, scenario, step):
        await self.session.start()

    async def stop(self, scenario, step):
        await self.session.stop()

    async def shutdown(self, scenario, step):
        await self.session.shutdown()

    async def close(self, scenario, step):
        await self.session.aclose()

    async def delete(self, scenario, step):
        await self.client.delete(self.session)

    async def running(self, scenario, step):
        return await self.session.running()

    async def state(self, scenario, step):
        state = self.client.serialize_session_state(self.session.state)
        self.states[step.get("as", "")] = state
        return state

    async def resume(self, scenario, step):
        if "from" in step:
            state = self.states[step["from"]]
        else:
            state = self.client.serialize_session_state(self.session.state)
        state = json.loads(json.dumps(state))
        state = self.client.deserialize_session_state(state)
        self.session = await self.client.resume(state)
        await self.session.start()
        self.events = []

    async def together(self, scenario, step):
        """Calls that do not wait for each other."""

        async def one(inner):
            try:
                return {"result": plain(await self.perform(scenario, inner))}
            except Exception as error:
                return {"error": told(error)}

        return await asyncio.gather(*map(one, step["steps"]))

    async def exec(self, scenario, step):
        result = await self.session.exec(
            *step["command"],
            shell=step.get("shell", True),
            timeout=step.get("timeout"),
            user=step.get("user"),
        )
        return {
            "exit_code": result.exit_code,
            "stdout": result.stdout,
            "stderr": result.stderr,
        }

    async def read(self, scenario, step):
        stream = await self.session.read(Path(step["path"]), user=step.get("user"))
        try:
            return stream.read()
        finally:
            stream.close()

    async def read_bounded(self, scenario, step):
        return await self.session.read_bounded(Path(step["path"]), max_bytes=step["max_bytes"])

    def content(self, step):
        if "content_b64" in step:
            return io.BytesIO(base64.b64decode(step["content_b64"]))
        content = step.get("content", "") * step.get("times", 1)
        return io.BytesIO(content.encode())

    async def write(self, scenario, step):
        await self.session.write(Path(step["path"]), self.content(step), user=step.get("user"))

    async def write_new(self, scenario, step):
        path = Path(step["path"])
        await self.session._write_new_file(path, self.content(step), user=step.get("user"))

    async def ls(self, scenario, step):
        entries = await self.session.ls(Path(step["path"]), user=step.get("user"))
        listed = [
            {
                "path": entry.path,
                "permissions": str(entry.permissions),
                "size": 0 if entry.kind.value == "directory" else entry.size,
                "kind": entry.kind.value,
            }
            for entry in entries
        ]
        return sorted(listed, key=lambda entry: entry["path"].encode())

    async def mkdir(self, scenario, step):
        parents = step.get("parents", False)
        await self.session.mkdir(step["path"], parents=parents, user=step.get("user"))

    async def rm(self, scenario, step):
        recursive = step.get("recursive", False)
        await self.session.rm(step["path"], recursive=recursive, user=step.get("user"))

    async def mv(self, scenario, step):
        await self.session.mv(step["source"], step["destination"], user=step.get("user"))

    async def same_file(self, scenario, step):
        follow = step.get("follow", True)
        return await self.session.same_file(
            step["left"], step["right"], follow_symlinks=follow, user=step.get("user")
        )

    async def extract(self, scenario, step):
        scheme = step.get("scheme")
        await self.session.extract(step["path"], self.content(step), compression_scheme=scheme)

    async def persist(self, scenario, step):
        stream = await self.session.persist_workspace()
        archive = stream.read()
        self.archives[step.get("as", "")] = archive
        return {"tar": archive}

    async def hydrate(self, scenario, step):
        if "from" in step:
            data = io.BytesIO(self.archives.get(step["from"], b""))
        else:
            data = self.content(step)
        await self.session.hydrate_workspace(data)

    async def saved(self, scenario, step):
        """The archive of the local snapshot."""
        folder = Path(scenario["tmp"]) / "snapshots"
        (archive,) = folder.iterdir()
        return {"tar": archive.read_bytes()}

    async def host(self, scenario, step):
        """Something happens on the host meanwhile."""
        # What it says would be taken for an answer.
        process = await asyncio.create_subprocess_shell(
            step["line"], cwd=scenario["tmp"], stdout=asyncio.subprocess.DEVNULL
        )
        return await process.wait()

    async def resolve_exposed_port(self, scenario, step):
        found = await self.session.resolve_exposed_port(step["port"])
        return {"host": found.host, "port": found.port, "tls": found.tls, "query": found.query}

    async def skip(self, scenario, step):
        return self.session.register_persist_workspace_skip_path(step["path"])

    async def apply_manifest(self, scenario, step):
        done = await self.session.apply_manifest(only_ephemeral=step.get("only_ephemeral", False))
        files = [{"path": str(file.path), "sha256": file.sha256} for file in done.files]
        return sorted(files, key=lambda file: file["path"])

    async def apply_patch(self, scenario, step):
        tool = SandboxApplyPatchTool(session=self.session)
        return await tool._on_invoke_tool(None, step["patch"])

    async def exec_command(self, scenario, step):
        return await ExecCommandTool(session=self.session)._invoke(None, json.dumps(step["arguments"]))

    async def write_stdin(self, scenario, step):
        return await WriteStdinTool(session=self.session)._invoke(None, json.dumps(step["arguments"]))

    async def view_image(self, scenario, step):
        answer = await ViewImageTool(session=self.session)._invoke(None, json.dumps(step["arguments"]))
        return answer if isinstance(answer, str) else {"image_url": answer.image_url}

    def update(self, update):
        self.process = update.process_id or self.process
        return {
            "output": update.output,
            "exit_code": update.exit_code,
            "running": update.process_id is not None,
            "original_token_count": update.original_token_count,
        }

    async def pty_start(self, scenario, step):
        update = await self.session.pty_exec_start(
            *step["command"],
            shell=step.get("shell", True),
            user=step.get("user"),
            tty=step.get("tty", False),
            yield_time_s=step.get("yield_time_s"),
            max_output_tokens=step.get("max_output_tokens"),
        )
        return self.update(update)

    async def pty_write(self, scenario, step):
        update = await self.session.pty_write_stdin(
            session_id=step.get("process", self.process),
            chars=step["chars"],
            yield_time_s=step.get("yield_time_s"),
            max_output_tokens=step.get("max_output_tokens"),
        )
        return self.update(update)

    async def pty_terminate_all(self, scenario, step):
        await self.session.pty_terminate_all()


class Docker(Local):
    """Sessions in containers of the daemon that `DOCKER_HOST` names."""

    def __init__(self, image):
        self.image = image
        super().__init__()

    def connect(self):
        import docker
        from agents.sandbox.sandboxes.docker import DockerSandboxClient

        self.docker = docker.from_env()
        self.client = DockerSandboxClient(self.docker, instrumentation=self.instrumentation)

    def options(self, scenario):
        from agents.sandbox.sandboxes.docker import DockerSandboxClientOptions

        ports = tuple(scenario.get("exposed_ports", ()))
        mode = None if ports else "none"
        return DockerSandboxClientOptions(image=self.image, exposed_ports=ports, network_mode=mode)

    async def end(self):
        try:
            # Its first process does not answer to the first signal, and ten seconds would pass.
            self.docker.containers.get(self.session.state.container_id).kill()
        except Exception:
            pass
        try:
            await self.client.delete(self.session)
        except Exception:
            pass


async def main():
    # Commands read what this process reads; the orders are not for them.
    orders = os.fdopen(os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    subject = Docker(sys.argv[2]) if sys.argv[1] == "docker" else Local()
    for line in iter(orders.readline, ""):
        answer = await subject.run(json.loads(line))
        print(json.dumps(answer), flush=True)


asyncio.run(main())
