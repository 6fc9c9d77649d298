// Package kube holds what pelago adds to controller-runtime, one noun per file: ObjectSet (apply a set of owned
// objects), Claim (create-once names), Owner (ownership labels), Expectations (own writes that a cache has not shown
// yet), Requeue intervals, Fence (refuse writes without the leader lease), indexes, StringTable and the stream cache
// (memory and CPU of large caches), and Hub (a member's access to the broker namespace).
//
// It knows no policy of any controller. Agents, hub and node daemon import it; it imports only api.
package kube
