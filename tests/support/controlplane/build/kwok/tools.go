// Package tools names the command that the test control plane builds, so that `go mod tidy` keeps it.
package tools

import _ "sigs.k8s.io/kwok/cmd/kwok"
