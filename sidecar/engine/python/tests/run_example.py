"""Runs the README's engine as prefill and as decode. e2e runs it."""

import json
import sys

import numpy

import baton
import example


def until(engines, ok):
    while not ok():
        for e in engines:
            if e.rank.error or e.failed:
                sys.exit(f"{e.rank.error} {e.failed}")
            e.step()
        engines[0].rank.wait(0.002)


def main():
    told = json.loads(sys.stdin.readline())
    prefill, decode = (example.Engine(g["dirs"][0], g["group"], int(g["instance"], 16)) for g in (told["prefill"], told["decode"]))
    sys.stdin.readline()  # the cluster is up
    engines, prompt = [prefill, decode], list(range(40))
    prefill.export("r", prompt, 7)
    until(engines, lambda: "r" in prefill.manifests)
    decode.rank.import_("r", baton.Manifest.parse(bytes(prefill.manifests["r"])), prompt)
    until(engines, lambda: "r" in decode.running and not prefill.exports)
    tokens, blocks = decode.running["r"]
    got = numpy.concatenate([decode.kv[:, :, b] for b in blocks], axis=2)[:, :, :40]
    if tokens != (7,) or not (got == numpy.arange(40).reshape(1, 1, 40, 1, 1)).all() or len(prefill.free) != example.BLOCKS:
        sys.exit(f"{tokens} {blocks} {got}")
    for e in engines:
        e.rank.close()


main()
