package cmd

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/cmd/dev"
	"github.com/batonkv/baton/cmd/sidecar"
	"github.com/batonkv/baton/internal/bounded"
	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/plugins/adapter/child"
)

func newAdapterCmd() *cobra.Command {
	names := slices.Sorted(maps.Keys(sidecar.BuiltIn))
	return &cobra.Command{
		Use:   "adapter NAME",
		Short: "Serve a sidecar as an adapter of a process of its own, which it starts itself",
		Long: `An adapter that is built in, as a process of its own: what it does wrong, or needs, then
does not touch its sidecar. The sidecar starts it, and it ends with its sidecar. Name it in
the sidecar's configuration, with the adapter's own section:

  adapters:
    - name: dynamo
      command: [baton, adapter, dynamo]
      config: {...}

docs/PLUGINS.md says what adapters are.`,
		ValidArgs: names,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &UsageError{Why: fmt.Sprintf("adapter: %d names given: want one of %s", len(args), strings.Join(names, ", "))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			open := sidecar.BuiltIn[args[0]]
			if open == nil {
				return &UsageError{Why: fmt.Sprintf("adapter: %q: want one of %s", args[0], strings.Join(names, ", "))}
			}
			if os.Getenv(child.CookieKey) != child.CookieValue {
				return &UsageError{Why: "adapter: no sidecar started this process: it speaks for a group to its control plane",
					Hint: "name it in the sidecar's configuration: adapters: [{name: mine, command: [baton, adapter, " + args[0] + "]}]"}
			}
			child.Serve(open(slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))))
			return nil
		},
	}
}

// devAdapters are those of each group that are given as NAME=FILE.
func devAdapters(ctx context.Context, given []string) (dev.Adapters, error) {
	var all []config.Adapter
	for _, s := range given {
		name, file, _ := strings.Cut(s, "=")
		if sidecar.BuiltIn[name] == nil || file == "" {
			return nil, fmt.Errorf("%q: want NAME=FILE, NAME one of %s", s, strings.Join(slices.Sorted(maps.Keys(sidecar.BuiltIn)), ", "))
		}
		if slices.ContainsFunc(all, func(a config.Adapter) bool { return a.Name == name }) {
			return nil, fmt.Errorf("%q: %s is given twice: want one file for each", s, name)
		}
		b, err := bounded.File(file, adapter.MaxSection)
		if err != nil {
			return nil, err
		}
		if err := sidecar.BuiltIn[name](slog.New(slog.DiscardHandler)).Configure(ctx, b); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, config.Adapter{Name: name, BuiltIn: name, Section: string(b)})
	}
	return func(dev.Group) []config.Adapter { return all }, nil
}
