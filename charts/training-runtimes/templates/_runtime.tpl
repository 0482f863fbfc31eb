{{/*
training-runtimes.runtimeMetadata: labels and annotations of a runtime.
Arguments, a dict:
  root     the root context
  runtime  a resolved entry
*/}}
{{- define "training-runtimes.runtimeMetadata" -}}
labels:
  {{- include "stoker.labels" .root | nindent 2 }}
  {{- include "training-runtimes.runLabels" .runtime | nindent 2 }}
  {{- if .runtime.deprecated }}
  {{- /* Trainer's webhook warns whoever makes a TrainJob of it. */}}
  trainer.kubeflow.org/support: deprecated
  {{- end }}
annotations:
  stoker.dev/description: {{ .runtime.description | quote }}
  {{- if kindIs "map" .runtime.deprecated }}
  stoker.dev/replacement: {{ toYaml .runtime.deprecated.replacement }}
  {{- end }}
  {{- if .root.Values.keep }}
  {{- include "stoker.keep" . | nindent 2 }}
  {{- end }}
  {{- with .runtime.annotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/*
training-runtimes.runtimeSpec: spec of a runtime.
Arguments: as above.
*/}}
{{- define "training-runtimes.runtimeSpec" -}}
mlPolicy:
  numNodes: {{ .runtime.numNodes | int }}
  torch: {}
{{- with .runtime.podGroupPolicy }}
podGroupPolicy:
  {{- toYaml . | nindent 2 }}
{{- end }}
template:
  metadata:
    labels:
      {{- include "training-runtimes.runLabels" .runtime | nindent 6 }}
    {{- with .runtime.annotations }}
    annotations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    {{- include "training-runtimes.immutableSpec" . | nindent 4 }}
    replicatedJobs:
      {{- if .runtime.initializers }}
      {{- range $what := list "dataset" "model" }}
      {{- include "training-runtimes.initializerJob" (merge (dict "what" $what) $) | nindent 6 }}
      {{- end }}
      {{- end }}
      {{- if .runtime.samplers }}
      {{- include "training-runtimes.samplerJob" . | nindent 6 }}
      {{- end }}
      - name: node
        {{- with include "training-runtimes.afterInitializers" .runtime }}
        {{- . | nindent 8 }}
        {{- end }}
        template:
          metadata:
            labels:
              trainer.kubeflow.org/trainjob-ancestor-step: trainer
          spec:
            completionMode: Indexed
            backoffLimit: 0
            podFailurePolicy:
              {{- include "training-runtimes.podFailurePolicy" (dict "container" "node" "action" "FailJob") | nindent 14 }}
            template:
              {{- include "training-runtimes.nodePodTemplate" . | nindent 14 }}
{{- end }}

{{/*
training-runtimes.afterInitializers: has a job wait until model and data set are there.
Argument: a resolved entry.
*/}}
{{- define "training-runtimes.afterInitializers" -}}
{{- if .initializers -}}
dependsOn:
  - name: dataset-initializer
    status: Complete
  - name: model-initializer
    status: Complete
{{- end }}
{{- end }}

{{/*
training-runtimes.immutableSpec: the part of a runtime's JobSet that Kubernetes will not let change.
Arguments: as above.
*/}}
{{- define "training-runtimes.immutableSpec" -}}
failurePolicy:
  {{- include "training-runtimes.failurePolicy" . | nindent 2 }}
{{- if .runtime.samplers }}
successPolicy:
  operator: All
  targetReplicatedJobs: [node]
{{- end }}
{{- if not .runtime.workspace.existingClaim }}
volumeClaimPolicies:
  {{- include "training-runtimes.volumeClaimPolicies" .runtime | nindent 2 }}
{{- end }}
{{- end }}
