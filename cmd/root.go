// Package cmd is baton's command line: one file per command, and the only place
// that names implementations. Commands write results to stdout and everything else
// to stderr; they return errors, and Execute prints each once.
package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/batonkv/baton/cmd/config"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

// UsageError is a mistake in how baton was called: exit code 2.
type UsageError struct {
	Why  string
	Hint string // what to do, "" when Why says it
}

func (e *UsageError) Error() string { return e.Why }

// HintError adds what to do to an error that does not say it.
type HintError struct {
	Err  error
	Hint string
}

func (e *HintError) Error() string { return e.Err.Error() }
func (e *HintError) Unwrap() error { return e.Err }

// Execute runs the command that args name and returns the exit code: 0, 1 when the
// command failed, 2 when it was called wrongly. SIGINT and SIGTERM end the command's
// context; a second one ends the process at once.
func Execute(args []string, stdout, stderr io.Writer) int {
	return execute(newRoot(), args, stdout, stderr)
}

func execute(root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return report(stderr, root.ExecuteContext(ctx))
}

// report prints err once, with what to do about it, and gives its exit code.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "baton: %v\n", err)
	code, hint := exitFailed, ""
	var usage *UsageError
	var hinted *HintError
	if errors.As(err, &usage) {
		code, hint = exitUsage, usage.Hint
	} else if errors.As(err, &hinted) {
		hint = hinted.Hint
	} else if errors.Is(err, config.ErrConfig) {
		code = exitUsage
	}
	if hint != "" {
		fmt.Fprintf(stderr, "hint: %s\n", hint)
	}
	return code
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "baton",
		Short:         "Move the state of a running request between GPUs, in the right shape",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.PersistentFlags().String("log-level", "info", "how much to log: debug, info, warn, error")
	root.PersistentFlags().String("log-format", "text", "how to log: text, json")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return setLogger(cmd) }
	root.SetFlagErrorFunc(flagError)
	group(root)
	root.AddCommand(
		newBenchCmd(),
		newCertsCmd(),
		newDemoCmd(),
		newDevCmd(),
		newEngineCmd(),
		newMoverCmd(),
		newPlanCmd(),
		newSidecarCmd(),
		newVersionCmd(),
	)
	return root
}

// setLogger makes the process's logger from the log flags of cmd, which are its own
// where a config section binds them.
func setLogger(cmd *cobra.Command) error {
	level, err := cmd.Flags().GetString("log-level")
	if err != nil {
		return err
	}
	format, err := cmd.Flags().GetString("log-format")
	if err != nil {
		return err
	}
	log, err := config.NewLogger(cmd.ErrOrStderr(), level, format)
	if err != nil {
		return err
	}
	slog.SetDefault(log)
	return nil
}

// group makes cmd, which only has commands below it, print its help when it stands
// alone and name the nearest command when the word after it is unknown.
func group(cmd *cobra.Command) {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		var known []string
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				known = append(known, c.Name())
			}
		}
		return &UsageError{
			Why:  fmt.Sprintf("unknown command %q for %q%s", args[0], cmd.CommandPath(), meant(args[0], known, "")),
			Hint: fmt.Sprintf("%s --help lists the commands", cmd.CommandPath()),
		}
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

func flagError(cmd *cobra.Command, err error) error {
	usage := &UsageError{Why: err.Error(), Hint: fmt.Sprintf("%s --help lists the flags", cmd.CommandPath())}
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) {
		usage.Why = fmt.Sprintf("--%s: %s", bad.GetFlag().Name, wrongValue(bad))
		return usage
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		var known []string
		add := func(f *pflag.Flag) {
			if !f.Hidden {
				known = append(known, f.Name)
			}
		}
		cmd.Flags().VisitAll(add)
		cmd.InheritedFlags().VisitAll(add)
		name := unknown.GetSpecifiedName()
		usage.Why = fmt.Sprintf("unknown flag --%s for %q%s", name, cmd.CommandPath(), meant(name, known, "--"))
	}
	return usage
}

// wrongValue says what a flag wants, in words of ours where the value is a number, a
// duration or a switch.
func wrongValue(bad *pflag.InvalidValueError) string {
	kind, got := bad.GetFlag().Value.Type(), bad.GetValue()
	if len(got) > 64 {
		got = got[:64] + "…"
	}
	var number *strconv.NumError
	switch {
	case errors.As(bad, &number) && errors.Is(number.Err, strconv.ErrRange):
		return fmt.Sprintf("%q: too large for a number of type %s", got, kind)
	case strings.HasPrefix(bad.Unwrap().Error(), strconv.Quote(got)):
		return bad.Unwrap().Error() // a value of package config
	case kind == "uint64":
		return fmt.Sprintf("%q: want a whole number from 0", got)
	case strings.HasPrefix(kind, "int"):
		return fmt.Sprintf("%q: want a whole number", got)
	case kind == "duration":
		return fmt.Sprintf("%q: want a duration such as 30s", got)
	case kind == "bool":
		return fmt.Sprintf("%q: want true or false", got)
	}
	return bad.Unwrap().Error()
}

func meant(word string, known []string, prefix string) string {
	if near := config.Nearest(strings.ToLower(word), known); near != "" {
		return fmt.Sprintf(": did you mean %q?", prefix+near)
	}
	return ""
}

// noArgs refuses words after a command that takes none.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &UsageError{
			Why:  fmt.Sprintf("unexpected word %q after %q", args[0], cmd.CommandPath()),
			Hint: fmt.Sprintf("%s --help says how to call it", cmd.CommandPath()),
		}
	}
	return nil
}
