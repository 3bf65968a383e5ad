package wire

// Event is one message of Dynamo's event plane, in msgpack whatever the request plane has.
// Sequence counts from 0 for each publisher: a gap tells that some were lost.
type Event struct {
	Publisher   uint64 `json:"publisher_id"`
	Sequence    uint64 `json:"sequence"`
	PublishedAt uint64 `json:"published_at"` // Unix time in milliseconds
	Topic       string `json:"topic"`
	Payload     []byte `json:"payload"` // msgpack of what the topic tells
}

// Encode writes e.
func (e Event) Encode() ([]byte, error) { return Msgpack.Encode(e) }

// DecodeEvent reads an event.
func DecodeEvent(b []byte) (e Event, err error) {
	err = Msgpack.Decode(b, &e)
	return e, err
}
