package lifeline

import "context"

// Context is ctx that also ends when the parent does. Call cancel when it is no
// longer needed.
func Context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	gone := Watch()
	if gone == nil {
		return ctx, cancel
	}
	go func() { // ends with the parent or with ctx
		select {
		case <-gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
