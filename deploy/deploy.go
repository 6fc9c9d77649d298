// Package deploy embeds the manifests. Package manifests reads and applies them.
package deploy

import "embed"

// Files are the manifests and CRDs, by their paths below deploy/.
//
//go:embed crds hosted hub/*.yaml hub/policies operator propagation push member/*.yaml member/*/*.yaml
var Files embed.FS
