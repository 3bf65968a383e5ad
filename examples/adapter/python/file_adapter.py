"""An adapter in a page, with gRPC alone: it keeps in a file what a group holds and runs.
A sidecar starts it; ../README.md says how to name it there."""

import base64
import functools
import json
import os
import pathlib
import ssl
import subprocess
import sys
import tempfile
import threading
from concurrent import futures

import grpc
from google.protobuf import any_pb2

from adapter.v1 import adapter_pb2 as pb, adapter_pb2_grpc
from common.v1 import common_pb2
from control.v1 import control_pb2

COOKIE = ("BATON_ADAPTER", "0f6c1b7a94d34e5f8a2b9c5d7e13a860")
VERSION = "1"  # of proto/adapter/v1
MAX_MESSAGE = 16 << 20
AFTER = {"": "Register", "Register": "Configure", "Configure": "Sync", "Sync": "Notify Drain", "Notify": "Notify Drain"}


def refuse(context, name, why):
    """Ends a call with an error that the sidecar decides by: a google.rpc.Status whose detail is
    common.v1.Error, put together by hand, since grpcio brings no such message."""
    detail = any_pb2.Any()
    detail.Pack(common_pb2.Error(names=[name], text=why))
    code, status = grpc.StatusCode.FAILED_PRECONDITION, b""
    for field, value in ((2, why.encode()), (3, detail.SerializeToString())):
        size, n = b"", len(value)
        while n > 127:
            size, n = size + bytes([n & 127 | 128]), n >> 7
        status += bytes([field << 3 | 2]) + size + bytes([n]) + value
    context.set_trailing_metadata((("grpc-status-details-bin", bytes([8, code.value[0]]) + status),))
    context.abort(code, why)


def ordered(call):
    """A call in its place of the order; one that fails is the last."""
    @functools.wraps(call)
    def checked(self, request, context):
        if call.__name__ not in AFTER.get(self.last, "").split():
            refuse(context, "handoff.order", f"{call.__name__} after {self.last or 'nothing'}")
        self.last = "a call that failed"
        answer = call(self, request, context)
        self.last = call.__name__
        return answer
    return checked


class Adapter(adapter_pb2_grpc.AdapterServicer):
    """Speaks for one group. Calls come one at a time."""

    last, file = "", None

    @ordered
    def Register(self, request, context):
        return pb.RegisterResponse(name="file", version="1")

    @ordered
    def Configure(self, request, context):
        key, _, path = request.section.decode(errors="replace").strip().partition(": ")
        if key != "file" or not os.path.isabs(path) or "\n" in path:
            refuse(context, "handoff.section", f"want file: and an absolute path, got {key[:64]!r}: {path[:256]!r}")
        self.file = pathlib.Path(path)
        return pb.ConfigureResponse()

    @ordered
    def Sync(self, request, context):
        self.whole(request.state)
        self.tell("sync")
        return pb.SyncResponse()

    @ordered
    def Notify(self, request, context):
        if request.HasField("whole"):
            self.whole(request.whole)
        if request.HasField("group"):
            self.group = request.group
        self.handoffs |= {name(i.id): i for i in request.changed}
        for gone in request.gone:
            self.handoffs.pop(name(gone), None)
        self.tell("update")
        return pb.NotifyResponse()

    @ordered
    def Drain(self, request, context):
        self.tell("drain")
        return pb.DrainResponse()

    def whole(self, state):
        self.group, self.handoffs = state.group, {name(i.id): i for i in state.handoffs}

    def tell(self, kind):
        """Brings the file up to date. What fails ends this life: the next begins with a Sync."""
        status = self.group.status
        new = self.file.with_name(self.file.name + ".new")
        new.write_text(json.dumps({"kind": kind, "group": self.group.name, "ready": status.ready, "draining": status.draining, "handoffs": {
            n: control_pb2.Phase.Name(i.phase).removeprefix("PHASE_").lower() for n, i in self.handoffs.items()}}))
        new.replace(self.file)


def name(handoff):
    return f"{handoff.group}@{handoff.leader:x}.{handoff.n}"


def make_certificate(folder):
    """A key and a certificate of this process alone, PEM."""
    key, own = pathlib.Path(folder, "key.pem"), pathlib.Path(folder, "own.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=adapter",
                    "-addext", "subjectAltName=DNS:localhost", "-days", "3650", "-keyout", key, "-out", own], check=True, capture_output=True)
    return key.read_bytes(), own.read_bytes()


def end_with(fd):
    """Ends this process when the pipe does: the sidecar is gone."""
    os.set_inheritable(fd, False)
    threading.Thread(target=lambda: (os.read(fd, 1), os._exit(0)), daemon=True).start()


def main():
    if os.environ.get(COOKIE[0]) != COOKIE[1] or VERSION not in os.environ.get("PLUGIN_PROTOCOL_VERSIONS", "").split(","):
        sys.exit(f"an adapter of baton, of protocol version {VERSION}, which its sidecar starts: name it in the sidecar's configuration")
    if "BATON_LIFELINE_FD" in os.environ:
        end_with(int(os.environ["BATON_LIFELINE_FD"]))
    over = threading.Event()
    server = grpc.server(futures.ThreadPoolExecutor(1), options=[("grpc.max_receive_message_length", MAX_MESSAGE)])
    adapter_pb2_grpc.add_AdapterServicer_to_server(Adapter(), server)
    end = grpc.unary_unary_rpc_method_handler(lambda request, context: over.set() or b"")  # how go-plugin asks a process to end
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("plugin.GRPCController", {"Shutdown": end})])
    with tempfile.TemporaryDirectory(dir=os.environ.get("PLUGIN_UNIX_SOCKET_DIR")) as folder:
        pair, socket = make_certificate(folder), os.path.join(folder, "sock")
        theirs = os.environ["PLUGIN_CLIENT_CERT"].encode()
        server.add_secure_port("unix:" + socket, grpc.ssl_server_credentials([pair], theirs, require_client_auth=True))
        server.start()
        certificate = base64.b64encode(ssl.PEM_cert_to_DER_cert(pair[1].decode())).decode().rstrip("=")
        print(f"1|{VERSION}|unix|{socket}|grpc|{certificate}", flush=True)
        over.wait()
        server.stop(grace=1).wait()


if __name__ == "__main__":
    main()
