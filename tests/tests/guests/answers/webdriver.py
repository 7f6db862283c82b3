"""Shows a file in Chromium, and prints what it is asked for as JSON.

The arguments are the file, and pairs: "click" and the selector of an element, "find" and what to
type into the prompt that Ctrl-F opens, or "get" and an expression in JavaScript. The last value is
a list of what Chromium has reported as errors.
"""

import json
import pathlib
import subprocess
import sys
import urllib.request

CONTROL = "\ue009"
OPTIONS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,900",
]
CAPABILITIES = {
    "goog:chromeOptions": {"args": OPTIONS},
    "goog:loggingPrefs": {"browser": "ALL"},
    "unhandledPromptBehavior": "ignore",
}


def main():
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        for line in driver.stdout:
            if "started successfully on port " in line:
                base = f"http://127.0.0.1:{line.split()[-1].rstrip('.')}"
                break
        else:
            sys.exit("chromedriver has not started")
        steps = list(zip(sys.argv[2::2], sys.argv[3::2]))
        print(json.dumps(show(base, pathlib.Path(sys.argv[1]), steps)))
    finally:
        driver.kill()
        driver.wait()


def show(base, file, steps):
    created = post(f"{base}/session", {"capabilities": {"alwaysMatch": CAPABILITIES}})
    session = f"{base}/session/{created['sessionId']}"
    try:
        post(f"{session}/url", {"url": file.absolute().as_uri()})
        values = [value for step in steps for value in take(session, *step)]
        log = post(f"{session}/se/log", {"type": "browser"})
        values.append([entry for entry in log if entry["level"] == "SEVERE"])
        return values
    finally:
        request("DELETE", session)


def take(session, kind, argument):
    match kind:
        case "click":
            using = {"using": "css selector", "value": argument}
            (element,) = post(f"{session}/element", using).values()
            post(f"{session}/element/{element}/click", {})
        case "find":
            keys = [(kind, key) for kind in ("keyDown", "keyUp") for key in (CONTROL, "f")]
            keyboard = {
                "type": "key",
                "id": "keyboard",
                "actions": [{"type": kind, "value": key} for kind, key in keys],
            }
            post(f"{session}/actions", {"actions": [keyboard]})
            post(f"{session}/alert/text", {"text": argument})
            post(f"{session}/alert/accept", {})
        case "get":
            script = {"script": f"return {argument}", "args": []}
            return [post(f"{session}/execute/sync", script)]
    return []


def post(url, body):
    return request("POST", url, json.dumps(body).encode())


def request(method, url, body=None):
    query = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(query, timeout=60) as response:
            return json.load(response)["value"]
    except urllib.error.HTTPError as error:
        sys.exit(f"{method} {url}: {error.read().decode()}")


main()
