{{/*
training-runtimes.runLabels: labels of everything a TrainJob makes. The SDK and the runner key on the framework.
Argument: a resolved entry.
*/}}
{{- define "training-runtimes.runLabels" -}}
trainer.kubeflow.org/framework: {{ toYaml .framework }}
stoker.dev/runtime: {{ toYaml .name }}
stoker.dev/accelerator: {{ .accelerator | quote }}
stoker.dev/catalogue: {{ .catalogue | quote }}
{{- with .labels }}
{{ toYaml . }}
{{- end }}
{{- end }}
