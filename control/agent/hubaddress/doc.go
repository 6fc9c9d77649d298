// Package hubaddress keeps a member's access to a hub that moves: it reads what the hub announces
// of its address and CA (config.Announcement), and writes them into the Secret
// submariner-broker-secret once the hub has answered there. The agent restarts with another server
// (cmd/pelago-agent).
//
// An address counts only if its certificate is of the announced CAs, it accepts the member's token,
// and it is the hub by its id. A hub that is away is looked for at the other address that the
// Secret has. What the member uses is reported at the hub, in the Lease cluster-<id>.
package hubaddress
