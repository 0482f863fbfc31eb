{{/*
vllm-serving.requests: how many requests of each state a replica is for, a YAML map by vLLM's names of the states.
Argument: the root context.
*/}}
{{- define "vllm-serving.requests" -}}
running: {{ int .Values.autoscaling.runningRequests }}
waiting: {{ int .Values.autoscaling.waitingRequests }}
{{- end }}

{{/*
vllm-serving.least: how many replicas there are at least; 0 where it is right that there is none.
Argument: the root context.
*/}}
{{- define "vllm-serving.least" -}}
{{- eq .Values.autoscaling.kind "none" | ternary .Values.replicas .Values.autoscaling.minReplicas | int }}
{{- end }}
