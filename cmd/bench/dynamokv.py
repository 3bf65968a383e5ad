"""Dynamo's own KV event publisher and KV routers for `baton bench --row dynamo`, steered by lines of JSON."""

import asyncio
import json
import os
import sys

from dynamo.llm import KvEventPublisher, KvRouter, KvRouterConfig
from dynamo.runtime import DistributedRuntime


async def publish(runtime, lines, endpoint, worker, block):
    """Tells of a chain of blocks, an event for each."""
    block = int(block)
    publisher = KvEventPublisher(runtime.endpoint(endpoint), worker_id=int(worker), kv_block_size=block, enable_local_indexer=True)
    print("=> ready", flush=True)
    while line := await lines():
        q = json.loads(line)
        blocks = [(q["tokens"][n * block : (n + 1) * block], [i]) for n, i in enumerate(q["ids"])]
        print("=> prepared", flush=True)
        await lines()
        parent = None
        for tokens, ids in blocks:
            publisher.publish_stored(tokens, [block], ids, parent)
            parent = ids[0]


async def route(runtime, lines, block, *endpoints):
    """Says when a router expects a worker to have all blocks of a prompt."""
    routers = {}
    for e in endpoints:
        await asyncio.wait_for((await runtime.endpoint(e).client()).wait_for_instances(), 60)
        routers[e] = KvRouter(runtime.endpoint(e), int(block), KvRouterConfig())
    print("=> ready", flush=True)
    while line := await lines():
        q = json.loads(line)
        router, want = routers[q["endpoint"]], len(q["tokens"]) // int(block)
        print("=> prepared", flush=True)
        while True:
            rows = await router.get_overlap_scores(q["tokens"])
            if any(w["device_blocks"] == want for w in rows["workers"]):
                break
            await asyncio.sleep(0.001)
        print("=> all", flush=True)


async def main(role, *args):
    loop = asyncio.get_running_loop()
    runtime = DistributedRuntime(loop, "file", "tcp", event_plane="zmq")

    def lines():
        return loop.run_in_executor(None, sys.stdin.readline)

    await {"publish": publish, "route": route}[role](runtime, lines, *args)
    os._exit(0)


asyncio.run(main(*sys.argv[1:]))
