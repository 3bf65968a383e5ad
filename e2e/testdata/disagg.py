"""A Dynamo router in a page: prefill, then decode with what that answered. Prompts come as
lines of JSON, and what was generated goes out as lines of JSON."""

import asyncio
import json
import os
import sys

from dynamo.runtime import DistributedRuntime


async def call(client, body):
    return [item async for item in await client.round_robin(body, annotated=False)]


async def main():
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
    prefill = await runtime.endpoint("dynamo.prefill.generate").client()
    decode = await runtime.endpoint("dynamo.backend.generate").client()
    await prefill.wait_for_instances()
    await decode.wait_for_instances()

    async def one(q):
        body = {"token_ids": q["tokens"], "stop_conditions": {"max_tokens": 1}, "sampling_options": {"temperature": 0.0}, "output_options": {}}
        (first,) = await call(prefill, body)
        body["stop_conditions"]["max_tokens"] = q["max_new"]
        body["prefill_result"] = {"disaggregated_params": first["disaggregated_params"]}
        items = await call(decode, body)
        tokens = [t for i in items for t in i["token_ids"]]
        return {"tokens": tokens, "first": first["token_ids"], "finish": items[-1]["finish_reason"], "carrier": sorted(first["disaggregated_params"])}

    for answer in await asyncio.gather(*(one(json.loads(line)) for line in sys.stdin)):
        print("=> " + json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)


asyncio.run(main())
