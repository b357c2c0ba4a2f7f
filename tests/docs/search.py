#!/usr/bin/env python3
"""search.py SITE WORD: a browser that opens the page SITE/index.html from the folder, without a server, finds pages with WORD.

Speaks DevTools' protocol by pipes, as only a page that goes on running gets an answer of its worker.
"""
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 60
FOUND = "[...document.querySelectorAll('a.md-search-result__link')].map(link => link.href).join(' ')"


def browse(program, url):
    with tempfile.TemporaryDirectory() as profile:
        to_browser, our_end = os.pipe()
        their_answers, from_browser = os.pipe()
        # The browser reads from 3 and writes to 4.
        browser = subprocess.Popen(["bash", "-c", f'exec 3<&{to_browser} 4>&{from_browser} "$@"', "browser", program, "--headless", "--no-sandbox",
                                    "--disable-gpu", f"--user-data-dir={profile}", "--remote-debugging-pipe"],
                                   pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        requests, answers = open(our_end, "wb", buffering=0), open(their_answers, "rb")
        numbers, rest = itertools.count(1), b""

        def call(method, session=None, **parameters):
            nonlocal rest
            number = next(numbers)
            message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
            requests.write(json.dumps(message).encode() + b"\0")
            while True:
                while b"\0" not in rest:
                    more = answers.read1(65536)
                    if not more:
                        sys.exit("the browser has ended")
                    rest += more
                text, rest = rest.split(b"\0", 1)
                answer = json.loads(text)
                if answer.get("id") == number:
                    return answer.get("result") or sys.exit(f"{method}: {answer}")

        try:
            target = call("Target.createTarget", url=url)["targetId"]
            session = call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            until = time.monotonic() + PATIENCE_S
            while time.monotonic() < until:
                found = call("Runtime.evaluate", session, expression=FOUND)["result"].get("value")
                if found:
                    return found.split()
                time.sleep(0.2)
            return []
        finally:
            browser.kill()
            browser.wait()


program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if not program:
    print("not checked: the search, in a browser (no Chromium: package chromium)")
    sys.exit()
links = browse(program, pathlib.Path(sys.argv[1], "index.html").resolve().as_uri() + "?q=" + sys.argv[2])
if not links or not all(link.startswith("file:") for link in links):
    sys.exit(f"{sys.argv[2]} is not found: {links}")
print(f"{sys.argv[2]} is found in {len(links)} places, the first in {links[0].rsplit('/', 1)[1]}")
