// Hostplugin is a control plane in a page: it waits for a hand-off of a prefill
// group and brings it into a decode group. README.md says how to run it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/batonkv/baton/plugins/host"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

func main() {
	if len(os.Args) < 5 {
		log.Fatal(`usage: hostplugin PREFILL DECODE '[256, 72, 105]' baton plugin --config control.yaml`)
	}
	if err := bring(context.Background(), os.Args[1], os.Args[2], os.Args[3], os.Args[4:]); err != nil {
		log.Fatal(err)
	}
}

func bring(ctx context.Context, prefill, decode, prompt string, plugin []string) error {
	var in handoff.Import
	if err := json.Unmarshal([]byte(prompt), &in.Tokens); err != nil {
		return fmt.Errorf("prompt: %w", err)
	}
	h, err := host.Open(ctx, host.Config{Command: plugin, Stderr: os.Stderr})
	if err != nil {
		return err
	}
	defer h.Close()
	for n, err := range h.Handoff().Watch(ctx, prefill, control.Cursor{}) {
		if err != nil {
			return err
		}
		if n.Kind == control.Exported {
			in.Label, in.Manifest = n.Label, *n.Manifest
			got, err := h.Handoff().Import(ctx, decode, in)
			if errors.Is(err, handoff.ErrGone) {
				continue // the Watch begins with what the leader keeps of the past
			}
			if err == nil {
				fmt.Printf("%s went from %s to %s: %d bytes\n", n.Label, prefill, decode, got.Bytes)
			}
			return err
		}
	}
	return nil
}
