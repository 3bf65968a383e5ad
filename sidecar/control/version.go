package control

import (
	"context"
	"fmt"

	"google.golang.org/grpc/metadata"

	"github.com/batonkv/baton/proto/version"
	"github.com/batonkv/baton/sidecar/handoff"
)

// VersionsKey names, in a call's metadata, the versions of the control service that its
// caller speaks. A caller that does not say speaks version 1.
const VersionsKey = "baton-control-versions"

// checkVersion fails with ErrVersion when caller and sidecar speak no common version.
func checkVersion(ctx context.Context) error {
	said := ""
	if v := metadata.ValueFromIncomingContext(ctx, VersionsKey); len(v) > 0 {
		said = v[0]
	}
	theirs, err := version.Parse(said)
	if err != nil {
		return fmt.Errorf("%w: control: %w", handoff.ErrVersion, err)
	}
	if ours := version.Control(); !common(ours, theirs) {
		return fmt.Errorf("%w: control: this sidecar speaks %s and its caller %s: upgrade the older of the two",
			handoff.ErrVersion, version.Format(ours), version.Format(theirs))
	}
	return nil
}

func common(a, b []int) bool {
	_, ok := version.Common(a, b)
	return ok
}
