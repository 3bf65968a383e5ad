"""Dynamo's own client and worker for `baton bench --row dynamo`: a line of JSON asks, a line answers."""

import asyncio
import json
import os
import sys
import time

from dynamo.runtime import DistributedRuntime


async def serve(runtime, endpoint):
    """Answers each request with the item that it brings."""

    async def answer(request, context):
        yield request["item"]

    await runtime.endpoint(endpoint).serve_endpoint(answer)


async def once(client, body):
    async for _ in await client.round_robin(body, annotated=False):
        pass


async def latency(clients, q):
    """Calls of each endpoint in turn, in microseconds."""
    took = {name: [] for name in clients}
    for _ in range(q["n"]):
        for name, client in clients.items():
            began = time.perf_counter_ns()
            await once(client, q["bodies"][name])
            took[name].append((time.perf_counter_ns() - began) / 1e3)
    return took


async def rate(clients, q):
    """Calls a second of each endpoint, so many at once; the endpoints take short turns, in either order."""
    took = dict.fromkeys(clients, 0.0)
    for turn in range(q["turns"]):
        for name in list(clients)[:: 1 if turn % 2 else -1]:
            left = iter(range(q["n"]))

            async def some(name=name, left=left):
                for _ in left:
                    await once(clients[name], q["bodies"][name])

            began = time.perf_counter()
            await asyncio.gather(*(some() for _ in range(q["at_once"])))
            took[name] += time.perf_counter() - began
    return {name: q["turns"] * q["n"] / t for name, t in took.items()}


async def main(role, *endpoints):
    loop = asyncio.get_running_loop()
    runtime = DistributedRuntime(loop, "file", "tcp", event_plane="zmq")
    if role == "worker":
        serving = asyncio.ensure_future(serve(runtime, endpoints[0]))
        await loop.run_in_executor(None, sys.stdin.readline)  # its end is ours
        os._exit(1 if serving.done() else 0)
    clients = {}
    for e in endpoints:
        clients[e] = await runtime.endpoint(e).client()
        await asyncio.wait_for(clients[e].wait_for_instances(), 60)
    print("=> ready", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        q = json.loads(line)
        got = await (latency if q["do"] == "latency" else rate)(clients, q)
        print("=> " + json.dumps(got), flush=True)
    os._exit(0)


asyncio.run(main(*sys.argv[1:]))
