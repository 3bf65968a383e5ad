"""What peer.py is asked about KV events: hashes, a tree, routers, publishers."""

import asyncio
import time

from dynamo.llm import KvEventPublisher, KvRouter, KvRouterConfig, RadixTree, compute_block_hash_for_seq

routers = {}
publishers = {}


async def hashes(_, q):
    return [[str(h) for h in compute_block_hash_for_seq(i["tokens"], i["block"], lora_name=i.get("lora"))] for i in q["lists"]]


async def tree(_, q):
    t = RadixTree()
    for e in q["events"]:
        t.apply_event(int(q["worker"]), e.encode())
    scores = t.find_matches([int(h) for h in q["find"]]).scores
    return {str(k[0] if isinstance(k, tuple) else k): v for k, v in scores.items()}


async def router(runtime, q):
    routers[q["endpoint"]] = KvRouter(runtime.endpoint(q["endpoint"]), q["block"], KvRouterConfig(**q.get("config", {})))


async def overlap(_, q):
    """Waits until a router expects so many blocks of a worker."""
    began, n, rows = time.monotonic(), None, None
    while time.monotonic() - began < q.get("within", 40):
        rows = await routers[q["endpoint"]].get_overlap_scores(q["tokens"])
        if (n := count(rows, q["worker"])) == q["want"]:
            return time.monotonic() - began
        await asyncio.sleep(0.01)
    raise TimeoutError(f"overlap is {n} of {rows}")


def count(rows, worker):
    if isinstance(rows, dict) and "workers" in rows:
        rows = {w["worker_id"]: w["device_blocks"] for w in rows["workers"]}
    for k, v in getattr(rows, "scores", rows).items():
        if str(k[0] if isinstance(k, tuple) else k) == worker:
            return v
    return 0


async def best(_, q):
    worker, _, blocks = await routers[q["endpoint"]].best_worker(q["tokens"])
    return {"worker": str(worker), "blocks": blocks}


async def publish(runtime, q):
    """Tells events as Dynamo's own workers do."""
    at = q["endpoint"]
    if at not in publishers:
        publishers[at] = KvEventPublisher(runtime.endpoint(at), kv_block_size=q["block"], enable_local_indexer=True)
        await asyncio.sleep(q.get("pause", 0))
    for e in q["events"]:
        if "removed" in e:
            publishers[at].publish_removed(e["removed"])
        else:
            ids = e["ids"]
            publishers[at].publish_stored(e["tokens"], [q["block"]] * len(ids), ids, e.get("parent"), lora_name=e.get("lora"))


words = {w.__name__: w for w in (hashes, tree, router, overlap, best, publish)}
