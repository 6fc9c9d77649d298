package kube

import (
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/recorder"
)

// EventRecorder returns a manager's recorder of Events of the core API.
//
// controller-runtime prefers that of events.k8s.io, which does not fit: it merges Events of an
// object that differ only in their message into a series and drops all messages but the first.
func EventRecorder(mgr recorder.Provider, name string) record.EventRecorder {
	return mgr.GetEventRecorderFor(name) //lint:ignore SA1019 see above
}
