#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""usage: serve.py DIRECTORY FILE
Serves a directory on this machine by HTTP, and writes the address to a file. Wheels are also in
simple/vbts/, as an index of Python packages has them.
"""

import functools
import http.server
import os
import sys


class Handler(http.server.SimpleHTTPRequestHandler):
    def translate_path(self, path):
        index = "/simple/vbts/"
        return super().translate_path("/" + path[len(index) :] if path.startswith(index) else path)

    def log_message(self, *_):
        pass


def main():
    directory, file = sys.argv[1:]
    handler = functools.partial(Handler, directory=directory)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        with open(file + ".new", "w", encoding="utf-8") as f:
            f.write(f"http://127.0.0.1:{server.server_port}")
        os.rename(file + ".new", file)
        server.serve_forever()


if __name__ == "__main__":
    main()
