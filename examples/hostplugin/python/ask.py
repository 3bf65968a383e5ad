"""Asks a prefill engine to run a prompt and hold its state, and a decode engine to go on
with it once somebody has imported it: what a router does. Standard library alone."""

import json
import socket
import sys


def ask(path, request):
    """Sends one request to an engine's front and yields its answers."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        s.sendall(json.dumps(request).encode() + b"\n")
        for line in s.makefile():
            yield json.loads(line)


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: ask.py PREFILL-FRONT DECODE-FRONT '[256, 72, 105]'")
    prefill, decode, prompt = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    for answer in ask(prefill, {"tokens": prompt, "max_new": 8, "mode": "export", "label": "asked"}):
        if "error" in answer:
            sys.exit(f"prefill: {answer['error']}")
    for answer in ask(decode, {"max_new": 8, "mode": "adopt", "label": "asked"}):
        print(answer)


if __name__ == "__main__":
    main()
