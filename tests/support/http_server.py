"""A web server on this computer that can hang up, refuse and lie, for tests of downloads."""

import http.server
import threading


class Server:
    """Serves `files` on localhost; `cuts` are how many bytes to send before hanging up, one for each answer."""

    def __init__(self, *, ranges=True, tag='"v1"'):
        self.files, self.requests, self.cuts, self.errors = {}, [], [], []
        self.ranges, self.tag, self.lies = ranges, tag, {}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def do_HEAD(self):
                outer.answer(self)

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *args):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, handler):
        wanted = handler.headers.get("Range")
        self.requests.append((handler.path, wanted))
        content = self.files.get(handler.path)
        if self.errors or content is None:
            code, headers = self.errors.pop(0) if self.errors else (404, {})
            handler.send_response(code)
            for key, value in headers.items():
                handler.send_header(key, value)
            handler.end_headers()
            return
        start = 0
        if wanted and self.ranges and handler.headers.get("If-Range", self.tag) == self.tag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                handler.send_response(416)
                handler.end_headers()
                return
            handler.send_response(206)
            handler.send_header(
                "Content-Range", f"bytes {start + self.lies.get('start', 0)}-{len(content) - 1}/{len(content)}"
            )
        else:
            handler.send_response(200)
        if self.tag:
            handler.send_header("ETag", self.tag)
        if "length" not in self.lies:
            handler.send_header("Content-Length", str(len(content) - start))
        # Before the headers: a client that hangs up on them must not leave its cut to the next request.
        cut = self.cuts.pop(0) if self.cuts and handler.command == "GET" else None
        handler.end_headers()
        if handler.command == "HEAD":
            return
        handler.wfile.write(content[start:] if cut is None else content[start : start + cut])
        handler.close_connection = True
