"""A control plane in a page: it waits for a hand-off of a prefill group and brings
it into a decode group. gRPC is all it needs; ../README.md says how to run it."""

import argparse
import base64
import json
import os
import pathlib
import ssl
import subprocess
import sys
import tempfile

import grpc

from plugin.v1 import plugin_pb2, plugin_pb2_grpc
from control.v1 import control_pb2

# What go-plugin says between a host and the program that it starts.
COOKIE = {"BATON_PLUGIN": "5a1f0c2e7b9d4386a0e1d2c3b4f59687"}
VERSIONS = "1"  # of proto/plugin/v1 that this host speaks, with commas between
LINE = ("core", "version", "network", "address", "protocol", "certificate")


class Plugin:
    """The plugin's process, and a channel to it. With mtls, both sides show certificates."""

    def __init__(self, command, mtls):
        env = {**os.environ, **COOKIE, "PLUGIN_PROTOCOL_VERSIONS": VERSIONS}
        if mtls:
            key, own = make_certificate()
            env["PLUGIN_CLIENT_CERT"] = own.decode()
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"the plugin ended with {self.process.wait()}; what it wrote above says why")
        said = dict(zip(LINE, line.split("|")))
        if said["version"] not in VERSIONS.split(",") or said["protocol"] != "grpc":
            raise SystemExit(f"the plugin speaks {said['protocol']} {said['version']}, this host grpc {VERSIONS}")
        address = f"{said['network']}:{said['address']}"
        if not mtls:
            self.channel = grpc.insecure_channel(address)
            return
        code = said["certificate"]  # base64 of DER, without padding
        theirs = ssl.DER_cert_to_PEM_cert(base64.b64decode(code + "=" * (-len(code) % 4)))
        self.channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(theirs.encode(), key, own),
                                           [("grpc.ssl_target_name_override", "localhost")])

    def __enter__(self):
        return self.channel

    def __exit__(self, *_):
        self.channel.close()
        self.process.terminate()  # it keeps nothing, and removes its socket
        self.process.wait()


def make_certificate():
    """A key and a certificate of this host alone, PEM."""
    with tempfile.TemporaryDirectory() as d:
        key, own = pathlib.Path(d, "key.pem"), pathlib.Path(d, "own.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-subj", "/CN=host", "-addext", "extendedKeyUsage=clientAuth", "-days", "1",
                        "-keyout", key, "-out", own], check=True, capture_output=True)
        return key.read_bytes(), own.read_bytes()


def bring(channel, prefill, decode, tokens):
    """Imports the first hand-off that prefill tells of into decode."""
    handoffs = plugin_pb2_grpc.HandoffStub(channel)
    for w in handoffs.Watch(plugin_pb2.WatchRequest(group=prefill)):
        n = w.notice
        if n.kind != control_pb2.NOTICE_KIND_EXPORTED:
            continue
        request = plugin_pb2.ImportRequest(group=decode)
        request.import_request.label = n.label
        request.import_request.manifest.CopyFrom(n.manifest)
        request.import_request.tokens.extend(tokens)
        try:
            got = handoffs.Import(request).imported
        except grpc.RpcError as e:
            if b"handoff.gone" in dict(e.trailing_metadata()).get("grpc-status-details-bin", b""):
                continue  # the Watch begins with what the leader keeps of the past
            raise
        return f"{got.label} went from {prefill} to {decode}: {got.bytes} bytes"


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--mtls", action="store_true", help="speak TLS with the plugin")
    p.add_argument("prefill", help="group that exports")
    p.add_argument("decode", help="group that imports")
    p.add_argument("prompt", type=json.loads, help="its tokens: '[256, 72, 105]'")
    p.add_argument("command", nargs=argparse.REMAINDER, help="baton plugin --config control.yaml")
    a = p.parse_args()
    try:
        with Plugin(a.command, a.mtls) as channel:
            print(bring(channel, a.prefill, a.decode, a.prompt), flush=True)
    except grpc.RpcError as e:
        sys.exit(f"{e.code().name}: {e.details()}")


if __name__ == "__main__":
    main()
