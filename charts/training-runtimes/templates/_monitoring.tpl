{{/*
training-runtimes.metricsPort: the port at which nodes of runs show metrics; empty where nobody reads them.
Argument: the root context.
*/}}
{{- define "training-runtimes.metricsPort" -}}
{{- with .Values.monitoring }}
{{- if or .podMonitor .scrapedElsewhere }}
{{- int .port }}
{{- end }}
{{- end }}
{{- end }}

{{/*
training-runtimes.monitoringNamespaces: namespaces that get a PodMonitor and a PrometheusRule, a YAML list.
Argument: the root context.
*/}}
{{- define "training-runtimes.monitoringNamespaces" -}}
{{- if .Values.monitoring.perNamespace }}
{{- include "training-runtimes.namespaces" . }}
{{- else }}
{{- toYaml (list .Release.Namespace) }}
{{- end }}
{{- end }}

{{/*
training-runtimes.watchedNamespaces: namespaces whose runs one of these objects is about, a YAML list; an empty one for
all. Other namespaces may have TrainingRuntimes of these names, too.
Arguments, a list: the root context, the object's namespace.
*/}}
{{- define "training-runtimes.watchedNamespaces" -}}
{{- $root := index . 0 }}
{{- if $root.Values.monitoring.perNamespace }}
{{- toYaml (list (index . 1)) }}
{{- else if eq $root.Values.kind "TrainingRuntime" }}
{{- include "training-runtimes.namespaces" $root }}
{{- else }}
{{- toYaml list }}
{{- end }}
{{- end }}

{{/*
training-runtimes.validateMonitoring: refuses alerts that would see nothing, and a cluster without the Prometheus
Operator. Renders nothing.
Argument: the root context.
*/}}
{{- define "training-runtimes.validateMonitoring" -}}
{{- if and .Values.monitoring.rules (not (include "training-runtimes.metricsPort" .)) }}
  {{- fail (join " " (list
        "\n\nmonitoring.rules asks Prometheus for series of runs, and nothing lets it scrape them. Set"
        "monitoring.podMonitor=true, or monitoring.scrapedElsewhere=true if something else scrapes the nodes of runs.\n")) }}
{{- end }}
{{- if and (or .Values.monitoring.podMonitor .Values.monitoring.rules) (not .Values.skipApiCheck)
      (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) }}
  {{- fail (join " " (list
        "\n\nThe cluster does not serve monitoring.coreos.com/v1. Install the Prometheus Operator, or set"
        "monitoring.podMonitor and monitoring.rules to false. Rendering without a cluster? Set skipApiCheck=true.\n")) }}
{{- end }}
{{- end }}
