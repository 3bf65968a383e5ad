package codec

import (
	"time"

	commonv1 "github.com/batonkv/baton/proto/common/v1"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer/layout"
)

// ToID encodes a hand-off id.
func ToID(id handoff.ID) (*commonv1.HandoffID, error) {
	var b bound
	return done(&b, toID(&b, id))
}

// FromID decodes a hand-off id.
func FromID(p *commonv1.HandoffID) (handoff.ID, error) {
	var b bound
	return fromID(&b, p), b.err
}

// FromKey decodes the key of a manifest.
func FromKey(p []byte) (handoff.Key, error) {
	var b bound
	return b.key("key", p), b.err
}

// ToMember encodes a member.
func ToMember(m handoff.Member) (*commonv1.Member, error) {
	var b bound
	return done(&b, toMember(&b, m))
}

// FromMember decodes a member.
func FromMember(p *commonv1.Member) (handoff.Member, error) {
	var b bound
	return fromMember(&b, p), b.err
}

// ToManifest encodes a manifest.
func ToManifest(m handoff.Manifest) (*commonv1.Manifest, error) {
	var b bound
	return done(&b, toManifest(&b, m))
}

// FromManifest decodes a manifest.
func FromManifest(p *commonv1.Manifest) (handoff.Manifest, error) {
	var b bound
	return fromManifest(&b, p), b.err
}

// ToImport encodes an import.
func ToImport(m handoff.Import) (*commonv1.Import, error) {
	var b bound
	return done(&b, toImport(&b, m))
}

// FromImport decodes an import.
func FromImport(p *commonv1.Import) (handoff.Import, error) {
	var b bound
	return fromImport(&b, p), b.err
}

// ToImported encodes the end of an import.
func ToImported(m handoff.Imported) (*commonv1.Imported, error) {
	var b bound
	return done(&b, toImported(&b, m))
}

// FromImported decodes the end of an import.
func FromImported(p *commonv1.Imported) (handoff.Imported, error) {
	var b bound
	return fromImported(&b, p), b.err
}

func toMember(b *bound, m handoff.Member) *commonv1.Member {
	return &commonv1.Member{Group: b.str("member.group", m.Group), Rank: b.rank("member.rank", m.Rank),
		Incarnation: uint64(m.Incarnation)}
}

func fromMember(b *bound, p *commonv1.Member) handoff.Member {
	return handoff.Member{Group: b.str("member.group", p.GetGroup()),
		Rank:        layout.Rank(b.rank("member.rank", layout.Rank(p.GetRank()))),
		Incarnation: handoff.Incarnation(p.GetIncarnation())}
}

func toID(b *bound, id handoff.ID) *commonv1.HandoffID {
	return &commonv1.HandoffID{Group: b.str("id.group", id.Group), Instance: uint64(id.Instance),
		Leader: uint64(id.Leader), N: id.N}
}

func fromID(b *bound, p *commonv1.HandoffID) handoff.ID {
	return handoff.ID{Group: b.str("id.group", p.GetGroup()), Instance: handoff.Instance(p.GetInstance()),
		Leader: handoff.Incarnation(p.GetLeader()), N: p.GetN()}
}

func toImporter(b *bound, m handoff.Importer) *commonv1.Importer {
	return &commonv1.Importer{Group: b.str("importer.group", m.Group), Instance: uint64(m.Instance), Leader: uint64(m.Leader)}
}

func fromImporter(b *bound, p *commonv1.Importer) handoff.Importer {
	return handoff.Importer{Group: b.str("importer.group", p.GetGroup()), Instance: handoff.Instance(p.GetInstance()),
		Leader: handoff.Incarnation(p.GetLeader())}
}

func toResume(b *bound, r handoff.Resume) *commonv1.Resume {
	if len(r.Tokens) == 0 && len(r.Logprobs) == 0 && len(r.Sampler) == 0 && !r.Finished {
		return nil
	}
	return &commonv1.Resume{
		Tokens:   clone(b, "resume.tokens", r.Tokens, MaxResume),
		Logprobs: clone(b, "resume.logprobs", r.Logprobs, MaxResume),
		Sampler:  clone(b, "resume.sampler", r.Sampler, MaxSampler),
		Finished: r.Finished,
	}
}

func fromResume(b *bound, p *commonv1.Resume) handoff.Resume {
	return handoff.Resume{
		Tokens:   list(b, "resume.tokens", p.GetTokens(), MaxResume),
		Logprobs: list(b, "resume.logprobs", p.GetLogprobs(), MaxResume),
		Sampler:  list(b, "resume.sampler", p.GetSampler(), MaxSampler),
		Finished: p.GetFinished(),
	}
}

func toSalt(b *bound, s handoff.Salt) *commonv1.Salt {
	if s == (handoff.Salt{}) {
		return nil
	}
	return &commonv1.Salt{Lora: b.str("salt.lora", s.LoRA), Namespace: b.str("salt.namespace", s.Namespace), Media: sum(s.Media)}
}

func fromSalt(b *bound, p *commonv1.Salt) handoff.Salt {
	return handoff.Salt{LoRA: b.str("salt.lora", p.GetLora()), Namespace: b.str("salt.namespace", p.GetNamespace()),
		Media: b.digest("salt.media", p.GetMedia())}
}

func toManifest(b *bound, m handoff.Manifest) *commonv1.Manifest {
	return &commonv1.Manifest{
		Id:           toID(b, m.ID),
		Key:          sum(m.Key),
		Label:        b.str("manifest.label", m.Label),
		Model:        sum(m.Model),
		Geometry:     sum(m.Geometry),
		Tokens:       b.num("manifest.tokens", m.Tokens, 0, MaxTokens),
		Position:     b.num("manifest.position", m.Position, 0, MaxTokens),
		WeightsEpoch: m.WeightsEpoch,
		BlockTokens:  b.count("manifest.block_tokens", m.BlockTokens),
		Resume:       toResume(b, m.Resume),
	}
}

func fromManifest(b *bound, p *commonv1.Manifest) handoff.Manifest {
	return handoff.Manifest{
		ID:           fromID(b, p.GetId()),
		Key:          b.key("manifest.key", p.GetKey()),
		Label:        b.str("manifest.label", p.GetLabel()),
		Model:        b.digest("manifest.model", p.GetModel()),
		Geometry:     b.digest("manifest.geometry", p.GetGeometry()),
		Tokens:       b.num("manifest.tokens", p.GetTokens(), 0, MaxTokens),
		Position:     b.num("manifest.position", p.GetPosition(), 0, MaxTokens),
		WeightsEpoch: p.GetWeightsEpoch(),
		BlockTokens:  b.count("manifest.block_tokens", p.GetBlockTokens()),
		Resume:       fromResume(b, p.GetResume()),
	}
}

func toPin(b *bound, p handoff.PinInfo) *commonv1.PinInfo {
	return &commonv1.PinInfo{
		Rank:       b.rank("pin.rank", p.Rank),
		Pin:        uint64(p.Pin),
		Generation: uint64(p.Generation),
		Blocks:     clone(b, "pin.blocks", p.Blocks, MaxBlocks),
		Slot:       b.slot("pin.slot", p.Slot),
		Tokens:     b.num("pin.tokens", p.Tokens, 0, MaxTokens),
		Position:   b.num("pin.position", p.Position, 0, MaxTokens),
		Sums:       toSums(b, p.Sums),
	}
}

func fromPin(b *bound, p *commonv1.PinInfo) handoff.PinInfo {
	return handoff.PinInfo{
		Rank:       layout.Rank(b.rank("pin.rank", layout.Rank(p.GetRank()))),
		Pin:        handoff.PinID(p.GetPin()),
		Generation: handoff.Generation(p.GetGeneration()),
		Blocks:     list(b, "pin.blocks", p.GetBlocks(), MaxBlocks),
		Slot:       b.slot("pin.slot", p.GetSlot()),
		Tokens:     b.num("pin.tokens", p.GetTokens(), 0, MaxTokens),
		Position:   b.num("pin.position", p.GetPosition(), 0, MaxTokens),
		Sums:       fromSums(b, p.GetSums()),
	}
}

func toDecision(b *bound, d handoff.Decision) *commonv1.Decision {
	return &commonv1.Decision{
		N:        d.N,
		Kind:     commonv1.DecisionKind(enum(b, "decision.kind", d.Kind, handoff.Reserve, handoff.Lifecycle)),
		Id:       toID(b, d.ID),
		Attempt:  uint64(d.Attempt),
		Label:    b.str("decision.label", d.Label),
		Tokens:   b.num("decision.tokens", d.Tokens, 0, MaxTokens),
		Hashes:   clone(b, "decision.hashes", d.Hashes, MaxBlocks),
		Position: b.num("decision.position", d.Position, 0, MaxTokens),
		Resume:   toResume(b, d.Resume),
		Plan:     sum(d.Plan),
		Source:   sum(d.Source),
		Members:  each(b, "decision.members", d.Members, MaxRanks, toMember),
		Sources:  each(b, "decision.sources", d.Sources, MaxRanks, toPin),
		Of:       d.Of,

		WeightsEpoch: d.WeightsEpoch,
		Settled:      d.Settled,
		Action:       commonv1.Action(enum(b, "decision.action", d.Action, 0, handoff.ActionResumeIntake)),
		Extent:       toExtent(b, d.Extent),
	}
}

func fromDecision(b *bound, p *commonv1.Decision) handoff.Decision {
	return handoff.Decision{
		N: p.GetN(),
		Kind: handoff.DecisionKind(enum(b, "decision.kind", p.GetKind(),
			commonv1.DecisionKind(handoff.Reserve), commonv1.DecisionKind(handoff.Lifecycle))),
		ID:       fromID(b, p.GetId()),
		Attempt:  handoff.Attempt(p.GetAttempt()),
		Label:    b.str("decision.label", p.GetLabel()),
		Tokens:   b.num("decision.tokens", p.GetTokens(), 0, MaxTokens),
		Hashes:   list(b, "decision.hashes", p.GetHashes(), MaxBlocks),
		Position: b.num("decision.position", p.GetPosition(), 0, MaxTokens),
		Resume:   fromResume(b, p.GetResume()),
		Plan:     b.digest("decision.plan", p.GetPlan()),
		Source:   b.digest("decision.source", p.GetSource()),
		Members:  each(b, "decision.members", p.GetMembers(), MaxRanks, fromMember),
		Sources:  each(b, "decision.sources", p.GetSources(), MaxRanks, fromPin),
		Of:       p.GetOf(),

		WeightsEpoch: p.GetWeightsEpoch(),
		Settled:      p.GetSettled(),
		Action:       handoff.Action(enum(b, "decision.action", p.GetAction(), 0, commonv1.Action(handoff.ActionResumeIntake))),
		Extent:       fromExtent(b, p.GetExtent()),
	}
}

func toReserved(b *bound, r handoff.Reserved) *commonv1.Reserved {
	return &commonv1.Reserved{
		N:      r.N,
		Full:   r.Full,
		Why:    b.text("reserved.why", r.Why, MaxText),
		Blocks: clone(b, "reserved.blocks", r.Blocks, MaxBlocks),
		Cached: b.num("reserved.cached", r.Cached, 0, MaxTokens),
		Slot:   b.slot("reserved.slot", r.Slot),
		Digest: sum(r.Digest),
		Fence:  r.Fence,
	}
}

func fromReserved(b *bound, p *commonv1.Reserved) handoff.Reserved {
	return handoff.Reserved{
		N:      p.GetN(),
		Full:   p.GetFull(),
		Why:    b.text("reserved.why", p.GetWhy(), MaxText),
		Blocks: list(b, "reserved.blocks", p.GetBlocks(), MaxBlocks),
		Cached: b.num("reserved.cached", p.GetCached(), 0, MaxTokens),
		Slot:   b.slot("reserved.slot", p.GetSlot()),
		Digest: b.digest("reserved.digest", p.GetDigest()),
		Fence:  p.GetFence(),
	}
}

func toAck(a handoff.LifecycleAck) *commonv1.LifecycleAck {
	return &commonv1.LifecycleAck{N: a.N, Error: errs.ToProto(a.Err)}
}

func fromAck(p *commonv1.LifecycleAck) handoff.LifecycleAck {
	return handoff.LifecycleAck{N: p.GetN(), Err: errs.FromProto(p.GetError())}
}

// ToAction encodes an action.
func ToAction(a handoff.Action) (commonv1.Action, error) {
	var b bound
	return commonv1.Action(enum(&b, "action", a, handoff.ActionPause, handoff.ActionResumeIntake)), b.err
}

// FromAction decodes an action.
func FromAction(p commonv1.Action) (handoff.Action, error) {
	var b bound
	return handoff.Action(enum(&b, "action", p, commonv1.Action(handoff.ActionPause), commonv1.Action(handoff.ActionResumeIntake))), b.err
}

func toImport(b *bound, m handoff.Import) *commonv1.Import {
	return &commonv1.Import{
		Label:      b.str("import.label", m.Label),
		Manifest:   toManifest(b, m.Manifest),
		Tokens:     clone(b, "import.tokens", m.Tokens, MaxTokens),
		DeadlineNs: int64(b.dur("import.deadline_ns", m.Deadline)),
	}
}

func fromImport(b *bound, p *commonv1.Import) handoff.Import {
	return handoff.Import{
		Label:    b.str("import.label", p.GetLabel()),
		Manifest: fromManifest(b, p.GetManifest()),
		Tokens:   list(b, "import.tokens", p.GetTokens(), MaxTokens),
		Deadline: b.dur("import.deadline_ns", time.Duration(p.GetDeadlineNs())),
	}
}

func toImported(b *bound, m handoff.Imported) *commonv1.Imported {
	return &commonv1.Imported{
		Label:  b.str("imported.label", m.Label),
		Id:     toID(b, m.ID),
		Bytes:  b.bytes64("imported.bytes", m.Bytes),
		Cached: b.num("imported.cached", m.Cached, 0, MaxTokens),
		Phases: toPhases(b, m.Phases),
	}
}

func fromImported(b *bound, p *commonv1.Imported) handoff.Imported {
	return handoff.Imported{
		Label:  b.str("imported.label", p.GetLabel()),
		ID:     fromID(b, p.GetId()),
		Bytes:  b.bytes64("imported.bytes", p.GetBytes()),
		Cached: b.num("imported.cached", p.GetCached(), 0, MaxTokens),
		Phases: fromPhases(b, p.GetPhases()),
	}
}

// ToPhases encodes the times of an import.
func ToPhases(p handoff.Phases) (*commonv1.Phases, error) {
	var b bound
	return done(&b, toPhases(&b, p))
}

// FromPhases decodes the times of an import.
func FromPhases(p *commonv1.Phases) (handoff.Phases, error) {
	var b bound
	return fromPhases(&b, p), b.err
}

func toPhases(b *bound, p handoff.Phases) *commonv1.Phases {
	return &commonv1.Phases{
		OpenNs:    int64(b.dur("phases.open_ns", p.Open)),
		ReserveNs: int64(b.dur("phases.reserve_ns", p.Reserve)),
		MoveNs:    int64(b.dur("phases.move_ns", p.Move)),
		CheckNs:   int64(b.dur("phases.check_ns", p.Check)),
		DoneNs:    int64(b.dur("phases.done_ns", p.Done)),
		AdmitNs:   int64(b.dur("phases.admit_ns", p.Admit)),
	}
}

func fromPhases(b *bound, p *commonv1.Phases) handoff.Phases {
	return handoff.Phases{
		Open:    b.dur("phases.open_ns", time.Duration(p.GetOpenNs())),
		Reserve: b.dur("phases.reserve_ns", time.Duration(p.GetReserveNs())),
		Move:    b.dur("phases.move_ns", time.Duration(p.GetMoveNs())),
		Check:   b.dur("phases.check_ns", time.Duration(p.GetCheckNs())),
		Done:    b.dur("phases.done_ns", time.Duration(p.GetDoneNs())),
		Admit:   b.dur("phases.admit_ns", time.Duration(p.GetAdmitNs())),
	}
}
