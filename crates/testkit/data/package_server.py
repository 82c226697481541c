"""Serves packages of pip, npm and cargo, a page and a git repository that can be pushed to, over TLS on loopback.

Everything is made here, in the folder of the first argument; names in it are those of `packages.test`. Prints the port it
listens on and, for servers without TLS, a second one. Ends when its input does."""

import base64
import hashlib
import http.server
import io
import json
import os
import ssl
import subprocess
import sys
import tarfile
import threading
import zipfile

folder, certificate, key, count = sys.argv[1:4] + [int(sys.argv[4])]
static = {}


def tar(files):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


def wheel():
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("tiny.py", "ANSWER = 42\n")
        about = "tiny-1.0.dist-info/"
        archive.writestr(about + "METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr(about + "WHEEL", "Wheel-Version: 1.0\nGenerator: none\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(about + "RECORD", "tiny.py,,\n")
    return data.getvalue()


def make(origin):
    static["/page"] = b"page\n"
    static["/simple/tiny/"] = b'<a href="../../tiny-1.0-py3-none-any.whl">tiny-1.0-py3-none-any.whl</a>'
    static["/tiny-1.0-py3-none-any.whl"] = wheel()
    locked = {"": {"name": "many", "version": "1.0.0", "dependencies": {}}}
    for number in range(count):
        name = f"package-{number}"
        about = json.dumps({"name": name, "version": "1.0.0"}).encode()
        code = b"module.exports = 1\n" * 200
        packed = tar({"package/package.json": about, "package/index.js": code})
        path = f"/{name}/-/{name}-1.0.0.tgz"
        static[path] = packed
        digest = base64.b64encode(hashlib.sha512(packed).digest()).decode()
        locked[""]["dependencies"][name] = "1.0.0"
        locked[f"node_modules/{name}"] = {
            "version": "1.0.0", "resolved": origin + path, "integrity": f"sha512-{digest}"}
    lock = {"name": "many", "version": "1.0.0", "lockfileVersion": 3, "requires": True, "packages": locked}
    static["/package-lock.json"] = json.dumps(lock).encode()
    static["/package.json"] = json.dumps(locked[""]).encode()
    crate = tar({
        "small-1.0.0/Cargo.toml": b'[package]\nname = "small"\nversion = "1.0.0"\nedition = "2021"\n',
        "small-1.0.0/src/lib.rs": b"",
    })
    static["/crates/small-1.0.0.crate"] = crate
    static["/index/config.json"] = json.dumps({"dl": origin + "/crates/{crate}-{version}.crate"}).encode()
    entry = {"name": "small", "vers": "1.0.0", "deps": [], "cksum": hashlib.sha256(crate).hexdigest(),
             "features": {}, "yanked": False}
    static["/index/sm/al/small"] = json.dumps(entry).encode()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # What is written piece by piece waits for answers otherwise.
    wbufsize = -1

    def log_message(self, *_):
        pass

    def reply(self, status, headers, body):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer(self):
        path, _, query = self.path.partition("?")
        if path.startswith("/git/"):
            return self.git(path.removeprefix("/git"), query)
        if path.startswith("/zeros/"):
            return self.zeros(int(path.removeprefix("/zeros/")))
        body = static.get(path)
        kind = "text/html" if path.endswith("/") else "application/octet-stream"
        if body is None:
            return self.reply(404, [], b"")
        self.reply(200, [("Content-Type", kind)], body)

    def zeros(self, left):
        self.send_response(200)
        self.send_header("Content-Length", str(left))
        self.end_headers()
        piece = bytes(1 << 20)
        while left > 0:
            self.wfile.write(piece[:left])
            left -= len(piece)

    def git(self, path, query):
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": os.path.abspath(folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": self.headers.get("git-protocol", ""),
            "REMOTE_ADDR": "127.0.0.1",
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "GIT_CONFIG_KEY_1": "http.receivepack",
            "GIT_CONFIG_VALUE_1": "true",
        }
        body = self.body()
        command = ["git", "http-backend"]
        output = subprocess.run(command, input=body, env=environment, capture_output=True).stdout
        head, _, rest = output.partition(b"\r\n\r\n")
        headers = [line.decode().partition(": ")[::2] for line in head.split(b"\r\n") if line]
        status = [value for name, value in headers if name.lower() == "status"]
        kept = [(name, value) for name, value in headers if name.lower() != "status"]
        self.reply(int(status[0].split()[0]) if status else 200, kept, rest)

    def body(self):
        if self.headers.get("transfer-encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    do_GET = do_HEAD = do_POST = answer


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    context = None

    def finish_request(self, request, address):
        # In the thread of the connection: a slow client keeps nobody waiting.
        if self.context:
            request = self.context.wrap_socket(request, server_side=True)
        super().finish_request(request, address)

    def handle_error(self, *_):
        pass


safe, plain = Server(("127.0.0.1", 0), Handler), Server(("127.0.0.1", 0), Handler)
Server.context = None
safe.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
safe.context.load_cert_chain(certificate, key)
make(f"https://packages.test:{safe.server_address[1]}")
for server in (safe, plain):
    threading.Thread(target=server.serve_forever, daemon=True).start()
print(safe.server_address[1], plain.server_address[1], flush=True)
sys.stdin.read()
