// Whose definitions the chart's monitors are held to; nothing is built of it.
module archipelago.dev/tests/deploy/definitions

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.86.1
