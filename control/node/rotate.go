package node

import (
	"fmt"
	"time"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane/cable"
)

// rotateKeys has the wire change its keys if the node's annotation asks for it, once for each value, and says how far that is.
// It is called with every reconcile.
func rotateKeys(w cable.Wire, objs Objects) (cable.Rotation, []string) {
	request := ownNode(objs).Annotations[pelagov1alpha1.AnnotationRotateKeys]
	if request == "" {
		return cable.Rotation{}, nil
	}
	if _, err := time.Parse(time.RFC3339, request); err != nil {
		return cable.Rotation{}, []string{fmt.Sprintf("annotation %s of node %s: %q is no RFC 3339 time such as 2026-01-31T12:00:00Z",
			pelagov1alpha1.AnnotationRotateKeys, objs.Name, request)}
	}
	keyed, ok := w.(cable.Keyed)
	if !ok {
		return cable.Rotation{Request: request, Waits: keysOf(objs.Config.CableDriver)}, nil
	}
	if err := keyed.Rotate(request); err != nil {
		return cable.Rotation{}, []string{err.Error()}
	}
	return keyed.Rotation(), nil
}

// keysOf says why the wire of a driver has no keys to change on command.
func keysOf(driver string) string {
	if driver == config.CableVXLAN {
		return fmt.Sprintf("the wire %s is not encrypted and has no keys", driver)
	}
	return fmt.Sprintf("IKE changes the keys of the wire %s by itself", driver)
}

// rotationReport is what stands in the NodeIndex; nil if nothing was asked for.
func rotationReport(r cable.Rotation) *pelagov1alpha1.KeyRotation {
	if r.Request == "" {
		return nil
	}
	return &pelagov1alpha1.KeyRotation{Request: r.Request, TunnelsLeft: int32(r.Left), Message: r.Waits}
}
