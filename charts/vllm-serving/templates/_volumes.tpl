{{/*
vllm-serving.volumes: the volumes of a replica that the chart itself gives it, a YAML list.
Arguments, a list: the root context, the accelerator's profile.
*/}}
{{- define "vllm-serving.volumes" -}}
{{- $root := index . 0 }}
{{- $profile := index . 1 -}}
- name: settings
  downwardAPI:
    items:
      {{- range $name, $_ := include "vllm-serving.files" $root | fromYaml }}
      - path: {{ $name }}
        fieldRef:
          fieldPath: metadata.annotations['stoker.dev/{{ $name }}']
      {{- end }}
- name: config
  emptyDir:
    sizeLimit: 64Mi
{{- if not $root.Values.api.anonymous }}
- name: keys
  secret:
    secretName: {{ $root.Values.api.keySecret | quote }}
{{- end }}
{{- if $root.Values.model.image.reference }}
- name: model
  image:
    reference: {{ $root.Values.model.image.reference }}
    pullPolicy: {{ $root.Values.imagePullPolicy }}
{{- else if and $root.Values.model.uri (not (include "vllm-serving.modelCache" $root)) }}
- name: model
  emptyDir:
    sizeLimit: {{ $root.Values.model.cacheSize }}
{{- end }}
{{- range concat (include "vllm-serving.claims" $root | fromYamlArray) (list (include "vllm-serving.modelCache" $root) $root.Values.scratch.cacheClaim) | compact | uniq }}
- name: {{ include "vllm-serving.claimVolume" . }}
  persistentVolumeClaim:
    claimName: {{ . | quote }}
{{- end }}
{{- with $root.Values.published.configMap }}
- name: listed
  configMap:
    name: {{ . | quote }}
    optional: true
{{- end }}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ $profile.sharedMemory | quote }}
{{- if not $root.Values.scratch.cacheClaim }}
- name: scratch
  emptyDir:
    sizeLimit: {{ $root.Values.scratch.cacheSize }}
{{- end }}
- name: tmp
  emptyDir:
    sizeLimit: {{ $root.Values.scratch.tmpSize }}
{{- include "stoker.reachVolumes" $root }}
{{- end }}

{{/*
vllm-serving.serverMounts: the mounts of vLLM's container that the chart itself gives it, a YAML list.
Argument: the root context.
*/}}
{{- define "vllm-serving.serverMounts" -}}
{{ include "vllm-serving.dataMounts" . }}
- name: config
  mountPath: /config
  readOnly: true
- name: shm
  mountPath: /dev/shm
- name: {{ include "vllm-serving.scratchVolume" . }}
  mountPath: /cache
- name: tmp
  mountPath: /tmp
{{- end }}

{{/*
vllm-serving.dataMounts: model, adapters and settings, at the same places in every container, and never written to.
Argument: the root context.
*/}}
{{- define "vllm-serving.dataMounts" -}}
- name: settings
  mountPath: /settings
  readOnly: true
{{- if not .Values.model.claim.name }}
- name: {{ include "vllm-serving.modelVolume" . }}
  mountPath: /models/{{ .Values.model.uri | empty | ternary "image" "fetched" }}
  readOnly: true
{{- end }}
{{- range include "vllm-serving.claims" . | fromYamlArray }}
- name: {{ include "vllm-serving.claimVolume" . }}
  mountPath: /claims/{{ . }}
  readOnly: true
{{- end }}
{{- if .Values.published.configMap }}
- name: listed
  mountPath: /listed
  readOnly: true
{{- end }}
{{- end }}

{{/*
vllm-serving.modelVolume: name of the volume of a model that is fetched or comes as an image.
Argument: the root context.
*/}}
{{- define "vllm-serving.modelVolume" -}}
{{- with include "vllm-serving.modelCache" . }}{{ include "vllm-serving.claimVolume" . }}{{ else }}model{{ end }}
{{- end }}

{{/*
vllm-serving.modelCache: the claim that keeps a model that is fetched; empty without one.
Argument: the root context.
*/}}
{{- define "vllm-serving.modelCache" -}}
{{- with .Values.model }}{{ if .uri }}{{ default "" .cacheClaim }}{{ end }}{{ end }}
{{- end }}

{{/*
vllm-serving.scratchVolume: name of the volume at /cache.
Argument: the root context.
*/}}
{{- define "vllm-serving.scratchVolume" -}}
{{- if .Values.scratch.cacheClaim }}{{ include "vllm-serving.claimVolume" .Values.scratch.cacheClaim }}{{ else }}scratch{{ end }}
{{- end }}
