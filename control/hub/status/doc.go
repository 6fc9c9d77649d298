// Package status aggregates status: from the Works of a binding into the binding's status, from there into the
// template's status. It runs in pelago-hub and is the only writer of both. Events within a short delay are coalesced
// into one write.
package status
