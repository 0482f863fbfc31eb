{{/*
training-runtimes.metadata: labels and annotations of an object that is no runtime.
Argument: a list of the root context and whether the object stays when the release no longer has it.
*/}}
{{- define "training-runtimes.metadata" -}}
{{- $root := index . 0 }}
{{- $policy := ternary (include "stoker.keep" $root | fromYaml) dict (index . 1) -}}
labels:
  {{- include "stoker.labels" $root | nindent 2 }}
  {{- with $root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with include "training-runtimes.overlay" (list $root.Values.commonAnnotations $policy) | fromYaml }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
training-runtimes.runLabels: labels of everything a TrainJob makes. The SDK and the runner key on the framework.
Argument: a resolved entry.
*/}}
{{- define "training-runtimes.runLabels" -}}
trainer.kubeflow.org/framework: {{ toYaml .framework }}
stoker.dev/runtime: {{ toYaml .name }}
stoker.dev/accelerator: {{ .accelerator | quote }}
{{- with .labels }}
{{ toYaml . }}
{{- end }}
{{- end }}
