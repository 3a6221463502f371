"""A proxy that loses answers: it forwards each request, but the first time it reads the whole answer and closes the connection."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Losing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream = ("127.0.0.1", 0)
    seen = set()
    lost = 0

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        upstream = http.client.HTTPConnection(*self.upstream, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        upstream.request("POST", self.path, body, headers)
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        self.close_connection = True
        if (self.path, body) not in self.seen:
            self.seen.add((self.path, body))
            Losing.lost += 1
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection", "date"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(content)


def start(host, port):
    """Starts the proxy for a server; returns its address."""
    Losing.upstream = (host, port)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Losing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"
