// Package deploy holds the manifests of Pelago and puts them into API servers.
//
// Hub installs what the broker needs, Member what a joined cluster needs; both may be run again at any time and lead
// to the same state. They are called by the command line tool and by tests. Objects are written by server-side apply
// with the field manager "pelago". What belongs to one cluster (its configuration and its secrets) is not written here
// but by its caller.
package deploy

import (
	"embed"
)

//go:embed crds hub member propagation push
var manifests embed.FS

// Manager is the field manager of everything that is installed.
const Manager = "pelago"

// Names that the manifests use.
const (
	// BrokerNamespace is the namespace of the hub in which members meet.
	BrokerNamespace = "submariner-k8s-broker"
	// SystemNamespace is the namespace of a member in which Pelago runs.
	SystemNamespace = "pelago-system"
	// RegistrarAccount is the ServiceAccount, in BrokerNamespace, whose token broker-info.subm carries.
	RegistrarAccount = "submariner-k8s-broker-admin"
	// MemberRole is the Role, in BrokerNamespace, of every member.
	MemberRole = "submariner-k8s-broker-cluster"
	// HubName is the ServiceAccount, the lease and the Deployment of pelago-hub, in SystemNamespace of the hub.
	HubName = "pelago-hub"

	// NodeDaemonSet, AgentDeployment and DNSDeployment run in SystemNamespace; their pods carry the label app with
	// the same value, and their first container has the same name.
	NodeDaemonSet   = "pelago-node"
	AgentDeployment = "pelago-agent"
	DNSDeployment   = "pelago-dns"
	// ExecutionDeployment is pelago-agent in the role execution.
	ExecutionDeployment = "pelago-agent-execution"
)

// DefaultImage is the image that is run when none is named.
const DefaultImage = "localhost/pelago:dev"
