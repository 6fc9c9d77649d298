// Package kinds knows the kinds of templates: replicas, health, status, dependencies, which fields a member may own,
// and how statuses of several members aggregate. Built-in rules cover Kubernetes' own kinds and the bundled ones
// (bundled/); users add KindRules in CEL.
//
// pelago-hub and agents that execute Works run SetupRules, which feeds KindRules into an Interpreter; the hub also
// writes their conditions. ResourceInterpreterCustomizations in Lua are accepted, get a condition that names the
// remedy, and are not run.
package kinds
