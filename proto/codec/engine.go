package codec

import (
	"time"

	enginev1 "github.com/batonkv/baton/proto/engine/v1"
	"github.com/batonkv/baton/proto/errs"
	"github.com/batonkv/baton/sidecar/handoff"
)

// EncodeFromEngine encodes a message of an engine.
func EncodeFromEngine(m handoff.FromEngine) (*enginev1.FromEngine, error) {
	var b bound
	p := &enginev1.FromEngine{}
	switch m := m.(type) {
	case handoff.Attach:
		p.Message = &enginev1.FromEngine_Attach{Attach: toAttach(&b, m)}
	case handoff.BuffersReady:
		p.Message = &enginev1.FromEngine_BuffersReady{BuffersReady: &enginev1.BuffersReady{}}
	case handoff.Announce:
		p.Message = &enginev1.FromEngine_Announce{Announce: &enginev1.Announce{Label: b.str("announce.label", m.Label)}}
	case handoff.Export:
		p.Message = &enginev1.FromEngine_Export{Export: toExport(&b, m)}
	case handoff.ExportPart:
		p.Message = &enginev1.FromEngine_ExportPart{ExportPart: toExportPart(&b, m)}
	case handoff.Import:
		p.Message = &enginev1.FromEngine_ImportRequest{ImportRequest: toImport(&b, m)}
	case handoff.Held:
		p.Message = &enginev1.FromEngine_Held{Held: &enginev1.Held{N: m.N}}
	case handoff.Applied:
		p.Message = &enginev1.FromEngine_Applied{Applied: &enginev1.Applied{N: m.N}}
	case handoff.Reserved:
		p.Message = &enginev1.FromEngine_Reserved{Reserved: toReserved(&b, m)}
	case handoff.Freed:
		p.Message = &enginev1.FromEngine_Freed{Freed: &enginev1.Freed{
			Blocks: b.count("freed.blocks", m.Blocks), Slots: b.count("freed.slots", m.Slots)}}
	case handoff.AbortImport:
		p.Message = &enginev1.FromEngine_AbortImport{AbortImport: &enginev1.AbortImport{
			Label: b.str("abort_import.label", m.Label)}}
	case handoff.ReleaseExport:
		p.Message = &enginev1.FromEngine_ReleaseExport{ReleaseExport: &enginev1.ReleaseExport{
			Label: b.str("release_export.label", m.Label)}}
	case handoff.Fenced:
		p.Message = &enginev1.FromEngine_Fenced{Fenced: &enginev1.Fenced{N: m.N}}
	case handoff.BlockEvents:
		p.Message = &enginev1.FromEngine_BlockEvents{BlockEvents: &enginev1.BlockEvents{
			Events: each(&b, "block_events.events", m.Events, MaxEvents, toBlockEvent)}}
	case handoff.LifecycleAck:
		p.Message = &enginev1.FromEngine_LifecycleAck{LifecycleAck: toAck(m)}
	default:
		b.fail("message", "unknown kind %T", m)
	}
	return done(&b, p)
}

// DecodeFromEngine decodes a message of an engine.
func DecodeFromEngine(p *enginev1.FromEngine) (handoff.FromEngine, error) {
	var b bound
	var m handoff.FromEngine
	switch p := p.GetMessage().(type) {
	case *enginev1.FromEngine_Attach:
		m = fromAttach(&b, p.Attach)
	case *enginev1.FromEngine_BuffersReady:
		m = handoff.BuffersReady{}
	case *enginev1.FromEngine_Announce:
		m = handoff.Announce{Label: b.str("announce.label", p.Announce.GetLabel())}
	case *enginev1.FromEngine_Export:
		m = fromExport(&b, p.Export)
	case *enginev1.FromEngine_ExportPart:
		m = fromExportPart(&b, p.ExportPart)
	case *enginev1.FromEngine_ImportRequest:
		m = fromImport(&b, p.ImportRequest)
	case *enginev1.FromEngine_Held:
		m = handoff.Held{N: p.Held.GetN()}
	case *enginev1.FromEngine_Applied:
		m = handoff.Applied{N: p.Applied.GetN()}
	case *enginev1.FromEngine_Reserved:
		m = fromReserved(&b, p.Reserved)
	case *enginev1.FromEngine_Freed:
		m = handoff.Freed{Blocks: b.count("freed.blocks", p.Freed.GetBlocks()), Slots: b.count("freed.slots", p.Freed.GetSlots())}
	case *enginev1.FromEngine_AbortImport:
		m = handoff.AbortImport{Label: b.str("abort_import.label", p.AbortImport.GetLabel())}
	case *enginev1.FromEngine_ReleaseExport:
		m = handoff.ReleaseExport{Label: b.str("release_export.label", p.ReleaseExport.GetLabel())}
	case *enginev1.FromEngine_Fenced:
		m = handoff.Fenced{N: p.Fenced.GetN()}
	case *enginev1.FromEngine_BlockEvents:
		m = handoff.BlockEvents{Events: each(&b, "block_events.events", p.BlockEvents.GetEvents(), MaxEvents, fromBlockEvent)}
	case *enginev1.FromEngine_LifecycleAck:
		m = fromAck(p.LifecycleAck)
	default:
		b.fail("message", "empty, or of a newer version")
	}
	if b.err != nil {
		return nil, b.err
	}
	return m, nil
}

// EncodeToEngine encodes a message to an engine.
func EncodeToEngine(m handoff.ToEngine) (*enginev1.ToEngine, error) {
	var b bound
	p := &enginev1.ToEngine{}
	switch m := m.(type) {
	case handoff.Attached:
		p.Message = &enginev1.ToEngine_Attached{Attached: &enginev1.Attached{Incarnation: uint64(m.Incarnation), FdKey: m.FDKey}}
	case handoff.MoverStarted:
		p.Message = &enginev1.ToEngine_MoverStarted{MoverStarted: &enginev1.MoverStarted{Pid: b.count("mover_started.pid", m.PID)}}
	case handoff.Exported:
		p.Message = &enginev1.ToEngine_Exported{Exported: &enginev1.Exported{
			Label: b.str("exported.label", m.Label), Manifest: toManifest(&b, m.Manifest), More: m.More}}
	case handoff.Decision:
		p.Message = &enginev1.ToEngine_Decision{Decision: toDecision(&b, m)}
	case handoff.Through:
		p.Message = &enginev1.ToEngine_Through{Through: &enginev1.Through{N: m.N}}
	case handoff.UnpinExport:
		p.Message = &enginev1.ToEngine_UnpinExport{UnpinExport: &enginev1.UnpinExport{
			Label: b.str("unpin_export.label", m.Label), Id: toID(&b, m.ID)}}
	case handoff.Imported:
		p.Message = &enginev1.ToEngine_Imported{Imported: toImported(&b, m)}
	case handoff.Failed:
		p.Message = &enginev1.ToEngine_Failed{Failed: &enginev1.Failed{Label: b.str("failed.label", m.Label),
			Error: errs.ToProto(m.Err), SourceSafe: m.SourceSafe}}
	case handoff.TellBlocks:
		p.Message = &enginev1.ToEngine_TellBlocks{TellBlocks: &enginev1.TellBlocks{On: m.On}}
	default:
		b.fail("message", "unknown kind %T", m)
	}
	return done(&b, p)
}

// DecodeToEngine decodes a message to an engine.
func DecodeToEngine(p *enginev1.ToEngine) (handoff.ToEngine, error) {
	var b bound
	var m handoff.ToEngine
	switch p := p.GetMessage().(type) {
	case *enginev1.ToEngine_Attached:
		m = handoff.Attached{Incarnation: handoff.Incarnation(p.Attached.GetIncarnation()), FDKey: p.Attached.GetFdKey()}
	case *enginev1.ToEngine_MoverStarted:
		m = handoff.MoverStarted{PID: b.count("mover_started.pid", p.MoverStarted.GetPid())}
	case *enginev1.ToEngine_Exported:
		m = handoff.Exported{Label: b.str("exported.label", p.Exported.GetLabel()), Manifest: fromManifest(&b, p.Exported.GetManifest()),
			More: p.Exported.GetMore()}
	case *enginev1.ToEngine_Decision:
		m = fromDecision(&b, p.Decision)
	case *enginev1.ToEngine_Through:
		m = handoff.Through{N: p.Through.GetN()}
	case *enginev1.ToEngine_UnpinExport:
		m = handoff.UnpinExport{Label: b.str("unpin_export.label", p.UnpinExport.GetLabel()), ID: fromID(&b, p.UnpinExport.GetId())}
	case *enginev1.ToEngine_Imported:
		m = fromImported(&b, p.Imported)
	case *enginev1.ToEngine_Failed:
		m = handoff.Failed{Label: b.str("failed.label", p.Failed.GetLabel()), Err: errs.FromProto(p.Failed.GetError()),
			SourceSafe: p.Failed.GetSourceSafe()}
	case *enginev1.ToEngine_TellBlocks:
		m = handoff.TellBlocks{On: p.TellBlocks.GetOn()}
	default:
		b.fail("message", "empty, or of a newer version")
	}
	if b.err != nil {
		return nil, b.err
	}
	return m, nil
}

func toExport(b *bound, m handoff.Export) *enginev1.Export {
	return &enginev1.Export{
		Label:        b.str("export.label", m.Label),
		Blocks:       clone(b, "export.blocks", m.Blocks, MaxBlocks),
		Slot:         b.slot("export.slot", m.Slot),
		Tokens:       b.num("export.tokens", m.Tokens, 0, MaxTokens),
		Position:     b.num("export.position", m.Position, 0, MaxTokens),
		Resume:       toResume(b, m.Resume),
		Copies:       b.count("export.copies", m.Copies),
		MaxHoldNs:    int64(b.dur("export.max_hold_ns", m.MaxHold)),
		WeightsEpoch: m.WeightsEpoch,
		Salt:         toSalt(b, m.Salt),
		Fence:        m.Fence,
		Parts:        m.Parts,
	}
}

func fromExport(b *bound, p *enginev1.Export) handoff.Export {
	return handoff.Export{
		Label:        b.str("export.label", p.GetLabel()),
		Blocks:       list(b, "export.blocks", p.GetBlocks(), MaxBlocks),
		Slot:         b.slot("export.slot", p.GetSlot()),
		Tokens:       b.num("export.tokens", p.GetTokens(), 0, MaxTokens),
		Position:     b.num("export.position", p.GetPosition(), 0, MaxTokens),
		Resume:       fromResume(b, p.GetResume()),
		Copies:       b.count("export.copies", p.GetCopies()),
		MaxHold:      b.dur("export.max_hold_ns", time.Duration(p.GetMaxHoldNs())),
		WeightsEpoch: p.GetWeightsEpoch(),
		Salt:         fromSalt(b, p.GetSalt()),
		Fence:        p.GetFence(),
		Parts:        p.GetParts(),
	}
}
