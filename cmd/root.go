// Package cmd is baton's command line: one file per command, and the only place
// that names implementations. Commands write results to stdout and everything else
// to stderr; they return errors, and Execute prints each once.
package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/batonkv/baton/cmd/config"
	"github.com/batonkv/baton/cmd/steer"
	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/lifeline"
)

// Exit codes.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitNotSafe     = 3   // a drain's timeout is over
	exitInterrupted = 130 // a signal ended what was not done yet
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
// command failed, 2 when it was called wrongly, 3 when a drain's timeout is over, 130 when a signal ended it before it
// was done. SIGINT, SIGTERM and SIGHUP end the command's context; a second one ends the
// process at once. So does a failed write to stdout, with exit code 1.
func Execute(args []string, stdout, stderr io.Writer) int {
	return execute(newRoot(), args, stdout, stderr)
}

// repeat is how long after the first signal a second one is taken for the same.
const repeat = 500 * time.Millisecond

func execute(root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	signalled, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	defer context.AfterFunc(signalled, func() { // one Ctrl-C can arrive as two signals
		time.Sleep(repeat)
		stop()
	})()
	broken := make(chan os.Signal, 1) // a closed pipe is an error of the write, and no end without cleaning up
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	ctx, cancel := context.WithCancel(signalled)
	defer cancel()
	out := &output{to: stdout, failed: cancel}
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if e := out.error(); e != nil {
		err = e
	} else if err != nil && signalled.Err() != nil {
		return interrupted(stderr, err)
	}
	return report(stderr, err)
}

// interrupted says so in one line: errors of what was cut short tell nothing. A child's
// owner, who sent the signal, says it instead.
func interrupted(stderr io.Writer, err error) int {
	slog.Debug("interrupted", "err", err)
	if lifeline.Watch() == nil {
		fmt.Fprintln(stderr, "baton: interrupted")
	}
	return exitInterrupted
}

// output is stdout: the first write that fails ends the command.
type output struct {
	to     io.Writer
	failed func()

	mu  sync.Mutex // guards:
	err error
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.to.Write(b)
	if err != nil {
		o.lost(err)
	}
	return n, err
}

// lost ends the command: what it writes reaches nobody.
func (o *output) lost(err error) {
	o.mu.Lock()
	if o.err == nil {
		o.err = err
	}
	o.mu.Unlock()
	o.failed()
}

func (o *output) error() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return nil
	}
	cause := o.err
	var path *fs.PathError
	if errors.As(cause, &path) {
		cause = path.Err
	}
	return fmt.Errorf("write to stdout: %w", cause)
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
	if errors.Is(err, steer.ErrNotSafe) {
		code = exitNotSafe
	}
	if hint != "" {
		fmt.Fprintf(stderr, "hint: %s\n", hint)
	}
	return code
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "baton",
		Short:         "Move the state of a running request between inference engines, in the right shape",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version(), // makes --version a flag
	}
	root.SetVersionTemplate(versionLine() + "\n")
	root.PersistentFlags().String("log-level", "info", "how much to log: debug, info, warn, error")
	root.PersistentFlags().String("log-format", "text", "how to log: text, json")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return setLogger(cmd) }
	root.SetFlagErrorFunc(flagError)
	group(root)
	root.SetHelpCommand(newHelpCmd(root))
	root.AddCommand(
		newAdapterCmd(),
		newBenchCmd(),
		newCertsCmd(),
		newDemoCmd(),
		newDevCmd(),
		newDoctorCmd(),
		newDrainCmd(),
		newDynamoWorkerCmd(),
		newEngineCmd(),
		newHostCmd(),
		newLoadCmd(),
		newMoverCmd(),
		newPlanCmd(),
		newPluginCmd(),
		newSidecarCmd(),
		newVersionCmd(),
		newWatchCmd(),
	)
	return root
}

// newHelpCmd is `baton help`, which knows an unknown command for a mistake.
func newHelpCmd(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Say how to call a command",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err == nil && len(rest) > 0 && cmd.Args != nil {
				err = cmd.Args(cmd, rest)
			}
			if err != nil {
				return err
			}
			return cmd.Help()
		},
	}
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

// groupNames refuses arguments that name no group; hint says what a command without a name
// does.
func groupNames(hint string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for _, a := range args {
			if discovery.CheckName("group", a) != nil {
				return &UsageError{Why: fmt.Sprintf("%s: %q is no name of a group", cmd.Name(), a), Hint: hint}
			}
		}
		return nil
	}
}

// textOrJSON refuses other values of --output.
func textOrJSON(output string) error {
	if output != "text" && output != "json" {
		return &UsageError{Why: fmt.Sprintf("--output %q: want text or json", output)}
	}
	return nil
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
