// Command metricsserver is Kubernetes' metrics-server: it serves metrics.k8s.io from what the
// kubelets report.
package main

import (
	"os"

	"k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/cli"
	"sigs.k8s.io/metrics-server/cmd/metrics-server/app"
)

func main() { os.Exit(cli.Run(app.NewMetricsServerCommand(server.SetupSignalHandler()))) }
