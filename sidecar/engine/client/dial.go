package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/batonkv/baton/proto/codec"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/sidecar/sockfd"
)

// The names in a sidecar's run directory, and the answers of the descriptor socket.
const (
	socket   = "engine.sock"
	fdSocket = "engine.fd.sock"
	fdKept   = 0
)

var fdAnswers = map[byte]string{
	1: "no such key: the session has ended",
	2: "more of the buffer than were declared",
	3: "not a descriptor",
}

// dialGRPC makes a connection to engine.sock that takes a server of the same user only.
func dialGRPC(dir string) (*grpc.ClientConn, error) {
	path := filepath.Join(dir, socket)
	if err := sockfd.CheckPath(path); err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, "unix", path)
			if err != nil {
				return nil, err
			}
			cred, err := sockfd.PeerCred(c.(*net.UnixConn))
			if err == nil && cred.UID != uint32(os.Geteuid()) {
				err = fmt.Errorf("%s: served by user %d, this is user %d", path, cred.UID, os.Geteuid())
			}
			if err != nil {
				c.Close()
				return nil, err
			}
			return c, nil
		}),
		grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(1<<20),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(codec.MaxMessage), grpc.MaxCallSendMsgSize(codec.MaxMessage)),
	)
}

// sendFiles passes the descriptor of every buffer and waits until each is kept, so
// that BuffersReady cannot overtake one.
func sendFiles(ctx context.Context, cfg Config, key uint64) error {
	if len(cfg.Files) == 0 {
		return nil
	}
	c, err := sockfd.Dial(ctx, filepath.Join(cfg.Dir, fdSocket))
	if err != nil {
		return fmt.Errorf("%w: %w", handoff.ErrAttach, err)
	}
	defer c.Close()
	defer sockfd.Until(ctx, c)()
	left := cfg.Files
	for _, d := range cfg.Attach.Buffers {
		n := d.Descriptors()
		for _, fd := range left[:n] {
			if err := sendFile(c, key, d.ID, fd); err != nil {
				return fmt.Errorf("%w: descriptor of buffer %d: %w", handoff.ErrAttach, d.ID, err)
			}
		}
		left = left[n:]
	}
	return nil
}

// sendFile passes one descriptor and takes its answer.
func sendFile(c *net.UnixConn, key uint64, id uint32, fd int) error {
	packet := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, key), id)
	if err := sockfd.Send(c, packet, fd); err != nil {
		return err
	}
	var answer [1]byte
	n, got, err := sockfd.Recv(c, answer[:])
	if got >= 0 {
		_ = os.NewFile(uintptr(got), "unasked").Close()
	}
	if err == nil && n != 1 {
		err = errors.New("empty")
	}
	if err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	if answer[0] != fdKept {
		return errors.New(fdAnswers[answer[0]])
	}
	return nil
}
