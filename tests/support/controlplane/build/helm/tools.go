// Package tools names the command that the test control plane builds, so that `go mod tidy` keeps it.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
