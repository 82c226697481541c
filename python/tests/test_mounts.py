"""Storage that the host mounts, over a server of a few lines that speaks like S3."""

import io
import json
import os
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from agents.sandbox import entries
from agents.sandbox import errors as upstream
from agents.sandbox.entries import File, S3Mount
from agents.sandbox.manifest import Manifest
from agents.sandbox.snapshot import LocalSnapshotSpec

from bastide.openai_agents import (
    BastideHostMountStrategy,
    BastideSandboxClient,
    BastideSandboxClientOptions,
)

KEY = "AKIDTESTTESTTEST"
SECRET = "very-secret-key-of-the-store"


class Bucket(BaseHTTPRequestHandler):
    """One bucket: lists, reads and writes objects, whoever asks."""

    protocol_version = "HTTP/1.1"

    def _split(self):
        url = urllib.parse.urlsplit(self.path)
        key = urllib.parse.unquote(url.path).removeprefix("/pictures").lstrip("/")
        return key, dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))

    def _answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        key, query = self._split()
        objects = self.server.objects
        if not key:
            prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
            folders, rows = set(), []
            for name in sorted(objects):
                rest = name.removeprefix(prefix)
                if not name.startswith(prefix):
                    continue
                if delimiter and delimiter in rest:
                    folders.add(prefix + rest.split(delimiter)[0] + delimiter)
                    continue
                rows.append(
                    f"<Contents><Key>{name}</Key><Size>{len(objects[name])}</Size>"
                    "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag></Contents>"
                )
            rows += [f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in sorted(folders)]
            body = (
                '<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>'
                f"<Name>pictures</Name><KeyCount>{len(rows)}</KeyCount>{''.join(rows)}</ListBucketResult>"
            ).encode()
            self._answer(200, body, Content_Type="application/xml")
            return
        if key not in objects:
            body = b"<Error><Code>NoSuchKey</Code></Error>"
            self._answer(404, body, Content_Type="application/xml")
            return
        data, status, headers = objects[key], 200, {}
        if wanted := self.headers.get("Range"):
            first, last = wanted.removeprefix("bytes=").split("-")
            begin, end = int(first), min(int(last or len(data) - 1), len(data) - 1)
            headers["Content_Range"] = f"bytes {begin}-{end}/{len(data)}"
            data, status = data[begin : end + 1], 206
        if self.command == "HEAD":
            headers["Content_Length"] = str(len(data))
        stamp = "Thu, 01 Jan 2026 00:00:00 GMT"
        self._answer(status, data, ETag='"e"', Last_Modified=stamp, **headers)

    do_HEAD = do_GET

    def do_PUT(self):
        key, _query = self._split()
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if source := self.headers.get("x-amz-copy-source"):
            source = urllib.parse.unquote(source).lstrip("/").removeprefix("pictures/")
            self.server.objects[key] = self.server.objects[source]
            body = b"<CopyObjectResult><ETag>&quot;e&quot;</ETag></CopyObjectResult>"
            self._answer(200, body, Content_Type="application/xml")
            return
        self.server.objects[key] = data
        self._answer(200, ETag='"e"')

    def do_DELETE(self):
        key, _query = self._split()
        self.server.objects.pop(key, None)
        self._answer(204)

    def log_message(self, *_):
        pass


@pytest.fixture
def bucket():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    server.objects = {"cat.txt": b"meow\n", "deep/dog.txt": b"bark\n"}
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    yield server
    server.shutdown()
    server.server_close()


ENGINE = os.environ.get("BASTIDE_TEST_DOCKER")


@pytest.fixture(params=["local", "docker"])
def options(request, monkeypatch):
    """Where sessions are made that are mounted into."""
    if request.param == "local":
        return BastideSandboxClientOptions()
    if not ENGINE:
        pytest.skip("BASTIDE_TEST_DOCKER names no daemon")
    monkeypatch.setenv("DOCKER_HOST", ENGINE)
    return BastideSandboxClientOptions(backend="docker", image="bastide-test/base")


def _mount(bucket, **more):
    return S3Mount(
        bucket="pictures",
        endpoint_url=f"http://127.0.0.1:{bucket.server_address[1]}",
        s3_provider="Other",
        access_key_id=KEY,
        secret_access_key=SECRET,
        mount_strategy=BastideHostMountStrategy(),
        **more,
    )


async def _started(client, **arguments):
    try:
        session = await client.create(options=None, **arguments)
        await session.start()
    except (upstream.WorkspaceStartError, upstream.MountConfigError) as error:
        if not os.access("/dev/fuse", os.R_OK):
            pytest.skip(f"nothing can be mounted here: {error}")
        raise
    return session


async def test_the_host_mounts_and_keys_stay_outside(bucket, options, tmp_path):
    client = BastideSandboxClient(home=tmp_path, options=options)
    manifest = Manifest(entries={"data": _mount(bucket), "own": File(content=b"own")})
    snapshot = LocalSnapshotSpec(base_path=tmp_path / "snapshots")
    session = await _started(client, manifest=manifest, snapshot=snapshot)
    try:
        said = await session.exec("cat data/cat.txt data/deep/dog.txt own")
        assert said.stdout == b"meow\nbark\nown", said.stderr
        with await session.read(Path("data/cat.txt")) as found:
            assert found.read() == b"meow\n"
        told = await session.exec("env; cat /proc/*/environ /proc/*/cmdline /proc/mounts 2>/dev/null")
        assert SECRET.encode() not in told.stdout
        # A mount is for reading unless it is said otherwise.
        assert (await session.exec("echo x > data/new")).exit_code != 0
        await session.stop()
        stored = json.dumps(client.serialize_session_state(session.state))
        assert SECRET not in stored
    finally:
        await session.shutdown()
        await client.delete(session)
    (archive,) = (tmp_path / "snapshots").iterdir()
    assert b"meow" not in archive.read_bytes()
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert SECRET.encode() not in kept and sorted(bucket.objects) == ["cat.txt", "deep/dog.txt"]


async def test_what_is_written_to_a_mount_is_stored_when_the_session_ends(bucket, options, tmp_path):
    client = BastideSandboxClient(home=tmp_path, options=options)
    manifest = Manifest(entries={"data": _mount(bucket, read_only=False)})
    session = await _started(client, manifest=manifest)
    try:
        assert (await session.exec("echo new > data/new.txt")).exit_code == 0
        await session.write(Path("data/bytes"), io.BytesIO(b"\xff"))
        # Starting again goes on with what is mounted.
        await session.shutdown()
        assert bucket.objects["new.txt"] == b"new\n" and bucket.objects["bytes"] == b"\xff"
        await session.start()
        assert (await session.exec("cat data/new.txt")).stdout == b"new\n"
    finally:
        await session.shutdown()
        await client.delete(session)
    assert "new.txt" in bucket.objects


async def test_mounts_that_cannot_be_made_are_refused_before_anything_is_made(options, tmp_path):
    client = BastideSandboxClient(home=tmp_path, options=options)
    inside = entries.InContainerMountStrategy(pattern=entries.RcloneMountPattern())
    for mount in (
        S3Mount(bucket="b", mount_strategy=inside),
        S3Mount(bucket="b", mount_strategy=entries.DockerVolumeMountStrategy(driver="rclone")),
    ):
        with pytest.raises(upstream.MountConfigError):
            await client.create(options=None, manifest=Manifest(entries={"m": mount}))
    with pytest.raises(upstream.MountConfigError):
        entries.BoxMount(path="x", mount_strategy=BastideHostMountStrategy())
    assert await client.list() == []
