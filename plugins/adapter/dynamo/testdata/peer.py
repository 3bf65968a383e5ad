"""A Dynamo client and worker, steered by lines of JSON: one asks, one answers."""

import asyncio
import importlib.metadata
import json
import os
import sys
import time

sys.dont_write_bytecode = True

import kvwords
from dynamo.llm import HttpError
from dynamo.runtime import Context, DistributedRuntime

clients = {}
contexts = {}
seen = {"stopped": 0}


async def client(runtime, endpoint):
    if endpoint not in clients:
        clients[endpoint] = await runtime.endpoint(endpoint).client()
    return clients[endpoint]


async def live(runtime, endpoint):
    c = await client(runtime, endpoint)
    await asyncio.wait_for(c.wait_for_instances(), 30)
    return c


async def items(stream, most=None):
    got = []
    async for item in stream:
        got.append(item.data() if hasattr(item, "data") else item)
        if most is not None and len(got) == most:
            break
    return got


async def serve(request, context):
    """The worker's endpoint: answers as it is asked to."""
    mode = request.get("mode")
    if mode == "conflict":
        raise HttpError(409, "busy")
    if mode == "fail":
        raise ValueError("boom")
    if mode == "slow":
        try:
            for i in range(10**6):
                if context.is_stopped():
                    return
                yield {"i": i}
                await asyncio.sleep(0.01)
        finally:  # it may be closed before it looks
            seen["stopped"] += 1
    if mode == "big":
        yield {"s": "x" * request["size"]}
        return
    for i in range(3):
        yield {"i": i, "echo": request.get("echo")}


async def act(runtime, q):
    do = q["do"]
    if do == "wait":
        c = await client(runtime, q["endpoint"])
        await asyncio.wait_for(c.wait_for_instances(), 30)
        return sorted(str(i) for i in c.instance_ids())
    if do == "until":
        c = await client(runtime, q["endpoint"])
        began = time.monotonic()
        while [str(i) for i in c.instance_ids()] != q["ids"]:
            if time.monotonic() - began > q.get("within", 60):
                raise TimeoutError(f"instances are {c.instance_ids()}")
            await asyncio.sleep(0.005)
        return time.monotonic() - began
    if do == "both":
        c = await client(runtime, q["endpoint"])
        while len(c.instance_ids()) < q["n"]:
            await asyncio.sleep(0.005)
        return None
    if do == "find":
        c = await client(runtime, q["endpoint"])
        return str(await c.wait_for_instance_by_runtime_data(q["key"], q["value"], 30))
    if do == "call":
        c = await live(runtime, q["endpoint"])
        for _ in range(q.get("times", 1)):
            if "id" in q:
                stream = await c.direct(q["body"], int(q["id"]), annotated=False)
            else:
                stream = await c.round_robin(q["body"], annotated=False)
            got = await items(stream, q.get("most"))
        return got
    if do == "many":
        c = await live(runtime, q["endpoint"])

        async def one():
            return len(await items(await c.round_robin(q["body"], annotated=False)))

        return sum(await asyncio.gather(*(one() for _ in range(q["n"]))))
    if do == "begin":
        c = await live(runtime, q["endpoint"])
        context = Context(q["name"])
        stream = await c.round_robin(q["body"], annotated=False, context=context)
        contexts[q["name"]] = (context, stream)
        return await items(stream, q.get("most", 0)) if q.get("most") else None
    if do == "stop":
        context, _ = contexts[q["name"]]
        context.stop_generating()
        return None
    if do == "rest":
        _, stream = contexts.pop(q["name"])
        return await items(stream)
    if do == "serve":
        endpoint = runtime.endpoint(q["endpoint"])
        asyncio.ensure_future(endpoint.serve_endpoint(serve))
        return str(endpoint.connection_id())
    if do == "version":
        return importlib.metadata.version("ai-dynamo-runtime")
    if do == "stopped":
        while seen["stopped"] < q["n"]:
            await asyncio.sleep(0.005)
        return None
    if do in kvwords.words:
        return await kvwords.words[do](runtime, q)
    raise ValueError(f"no such word: {do}")


async def main():
    loop = asyncio.get_running_loop()
    runtime = DistributedRuntime(loop, os.environ["DYN_DISCOVERY_BACKEND"], os.environ.get("DYN_REQUEST_PLANE", "tcp"), event_plane=os.environ.get("DYN_EVENT_PLANE", "zmq"))

    async def answer(q):
        try:
            a = {"n": q["n_"], "is": await act(runtime, q)}
        except Exception as e:  # what a caller sees is what is tested
            a = {"n": q["n_"], "error": f"{type(e).__name__}: {e}"}
        print("=> " + json.dumps(a), flush=True)

    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asyncio.ensure_future(answer(json.loads(line)))
    os._exit(0)


asyncio.run(main())
