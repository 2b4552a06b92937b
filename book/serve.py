"""Serve site/ on a local port and print its address.

    python book/serve.py              the first free port from 8000 on
    python book/serve.py --port 9000

Types are those of a real host (modules, WebAssembly, fonts); what is not there gets the site's own 404 page.
"""

import argparse
import sys
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SITE = Path(__file__).resolve().parent.parent / "site"


class Handler(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm", ".woff2": "font/woff2",
        ".svg": "image/svg+xml", ".json": "application/json", ".ipynb": "application/x-ipynb+json",
        ".whl": "application/zip", ".css": "text/css", ".html": "text/html; charset=utf-8",
    }

    def send_error(self, code, message=None, explain=None):
        lost = Path(self.directory) / "404.html"
        if code != HTTPStatus.NOT_FOUND or not lost.is_file():
            return super().send_error(code, message, explain)
        body = lost.read_bytes()
        self.send_response(code)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format, *args):
        pass


class Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):    # a reader who leaves half-way is no error
            super().handle_error(request, client_address)


def server(site: Path = SITE, port: int | None = None) -> Server:
    """A server of `site` on this machine only; without `port` the first free one from 8000 on, 0 for any."""
    handler = partial(Handler, directory=str(site))
    for candidate in [port] if port is not None else [*range(8000, 8020), 0]:
        try:
            return Server(("127.0.0.1", candidate), handler)
        except OSError:
            if port is not None:
                raise
    raise OSError("no free port")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--port", type=int)
    asked = options.parse_args()
    if not (SITE / "index.html").is_file():
        print("there is no site/ yet: run `make site` first", file=sys.stderr)
        return 2
    try:
        serving = server(port=asked.port)
    except (OSError, OverflowError) as error:
        print(f"port {asked.port} cannot be used: {error}", file=sys.stderr)
        return 2
    print(f"the book is at http://127.0.0.1:{serving.server_address[1]}/  (Ctrl-C ends)", flush=True)
    try:
        serving.serve_forever()
    except KeyboardInterrupt:
        print()
    finally:
        serving.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
