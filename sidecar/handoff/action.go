package handoff

// Action is what a control plane asks of the engines of a group, beside its requests.
// Every engine carries it out at the same place of the group's decisions.
type Action uint8

const (
	ActionPause        Action = iota + 1 // step no request until ActionUnpause; what is held stays held
	ActionUnpause                        // go on after ActionPause
	ActionSuspend                        // pause, and give up what the engine may rebuild: caches, graphs
	ActionResume                         // go on after ActionSuspend
	ActionStop                           // finish what runs and exit
	ActionProfileStart                   // of the engine
	ActionProfileStop                    // the profile is where the engine keeps it
	ActionStopIntake                     // take no new request; what runs goes on
	ActionResumeIntake                   // take requests again
)

// Known reports whether a is one of the actions.
func (a Action) Known() bool { return a >= ActionPause && a <= ActionResumeIntake }

var actionNames = [...]string{ActionPause: "pause", ActionUnpause: "unpause", ActionSuspend: "suspend", ActionResume: "resume", ActionStop: "stop",
	ActionProfileStart: "profile-start", ActionProfileStop: "profile-stop", ActionStopIntake: "stop-intake", ActionResumeIntake: "resume-intake"}

func (a Action) String() string {
	if int(a) < len(actionNames) && a > 0 {
		return actionNames[a]
	}
	return "action(?)"
}
