{{/*
vllm-serving.files: the files at /settings, a YAML map from name to text. They travel as annotations of the pod: a
replica of an older version reads its own settings again when it restarts or moves, whatever an upgrade has brought.
Argument: the root context.
*/}}
{{- define "vllm-serving.files" -}}
{{- $files := dict
      "adapters.yaml" (include "vllm-serving.settings" .)
      "logging.json" (include "vllm-serving.logging" .)
      "Caddyfile" (include "vllm-serving.caddyfile" . | trim) }}
{{- with .Values.chatTemplate }}
  {{- $_ := set $files "chat-template.jinja" . }}
{{- end }}
{{- toYaml $files }}
{{- end }}

{{/*
vllm-serving.podAnnotations: annotations of the pods: those files, and the container that kubectl means.
Argument: the root context.
*/}}
{{- define "vllm-serving.podAnnotations" -}}
kubectl.kubernetes.io/default-container: vllm
{{- range $name, $text := include "vllm-serving.files" . | fromYaml }}
{{- if eq $name "chat-template.jinja" }}
{{- /* To a template every space counts, also at the end of its lines. */}}
stoker.dev/{{ $name }}: {{ toRawJson $text }}
{{- else }}
stoker.dev/{{ $name }}: |
  {{- nindent 2 $text }}
{{- end }}
{{- end }}
{{- end }}

{{/*
vllm-serving.settings: what `stoker adapters` is told.
Argument: the root context.
*/}}
{{- define "vllm-serving.settings" -}}
model:
  value: {{ include "vllm-serving.modelValue" . | quote }}
  path: {{ include "vllm-serving.modelPath" . | quote }}
  name: {{ include "vllm-serving.modelName" . | quote }}
  source: {{ .Values.model.source | default "" | quote }}
  uri: {{ .Values.model.uri | quote }}
adapters:
  {{- range .Values.adapters }}
  - name: {{ .name | quote }}
    path: {{ printf "/claims/%s/%s" .claim (.path | trimSuffix "/") | quote }}
  {{- else }} []
  {{- end }}
published:
  {{- if and .Values.published.claim (not (include "vllm-serving.takesWeights" .)) }}
  folder: {{ printf "/claims/%s/%s" .Values.published.claim (.Values.published.path | trimSuffix "/") | quote }}
  {{- end }}
  {{- if .Values.published.configMap }}
  list: /listed/adapters.yaml
  {{- end }}
  keep: {{ int .Values.published.keep }}
lora:
  maxRank: {{ .Values.lora.maxRank | int | default "null" }}
  maxLoras: {{ int .Values.lora.maxLoras }}
  maxCpuLoras: {{ int .Values.lora.maxCpuLoras }}
  requireManifest: {{ .Values.lora.requireManifest }}
  others: {{ and (.Values.rl.enabled | default false) (not .Values.rl.adaptersOnly) }}
{{- if .Values.fleet.enabled }}
fleet:
  folder: {{ include "vllm-serving.fleetFolder" . | quote }}
{{- end }}
{{- end }}

{{/*
vllm-serving.logging: vLLM's log as lines of JSON (Python's logging.config, for vLLM and for uvicorn). No argument.
*/}}
{{- define "vllm-serving.logging" -}}
{{- $logger := dict "handlers" (list "out") "level" "INFO" "propagate" false }}
{{- dict
      "version" 1
      "disable_existing_loggers" false
      "formatters" (dict "json" (dict
        "class" "pythonjsonlogger.json.JsonFormatter"
        "format" "%(asctime)s %(levelname)s %(name)s %(message)s"))
      "handlers" (dict "out" (dict "class" "logging.StreamHandler" "formatter" "json" "stream" "ext://sys.stdout"))
      "loggers" (dict "vllm" $logger "uvicorn" $logger "uvicorn.error" $logger "uvicorn.access" $logger)
    | toJson }}
{{- end }}
