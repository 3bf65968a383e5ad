// Package kv tells the routers of an NVIDIA Dynamo deployment which blocks the caches of its
// workers hold, so that a request goes where its prefix is: on Dynamo's event plane, over
// NATS or ZMQ, and to whom asks for what it missed.
//
// A Log numbers what happens in a group's cache and keeps what that holds. A Source tells it
// for one worker. A Teller reads the group's cache, finds the group's workers in the directory
// and keeps a Source for each. Nothing waits for a router: one that is slow misses events,
// sees that by their numbers, and asks.
package kv
