package engine

// ListenAllow is Listen with another judge of who may connect.
var ListenAllow = listen
