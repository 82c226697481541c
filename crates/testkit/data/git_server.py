"""Serves the repositories of a folder by git's own server, over TLS on loopback.

Prints the port it listens on. Ends when its input does."""

import http.server
import os
import ssl
import subprocess
import sys
import threading

served, certificate, key = sys.argv[1:4]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self):
        path, _, query = self.path.partition("?")
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": os.path.abspath(served),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": self.headers.get("git-protocol", ""),
            "REMOTE_ADDR": "127.0.0.1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        }
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        command = ["git", "http-backend"]
        output = subprocess.run(command, input=body, env=environment, capture_output=True).stdout
        head, _, rest = output.partition(b"\r\n\r\n")
        headers = [line.decode().partition(": ")[::2] for line in head.split(b"\r\n") if line]
        status = [value for name, value in headers if name.lower() == "status"]
        self.send_response(int(status[0].split()[0]) if status else 200)
        for name, value in headers:
            if name.lower() != "status":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest)

    do_GET = do_POST = answer


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
