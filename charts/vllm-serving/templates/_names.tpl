{{/*
vllm-serving.name: name of the objects, and value of the label `release` of their metrics. Write it with toYaml: it may
read as a number or as true.
Argument: the root context.
*/}}
{{- define "vllm-serving.name" -}}
{{- include "stoker.dnsLabel" (dict "name" (.Values.fullnameOverride | default .Release.Name) "max" 50) }}
{{- end }}

{{/*
vllm-serving.podLabels: labels of the pods, which no version of the chart changes.
Argument: the root context.
*/}}
{{- define "vllm-serving.podLabels" -}}
{{ include "stoker.selector" . }}
{{ include "stoker.origin" . }}
{{- end }}

{{/*
vllm-serving.modelName: what requests call the model.
Argument: the root context.
*/}}
{{- define "vllm-serving.modelName" -}}
{{- .Values.model.name | default .Release.Name }}
{{- end }}

{{/*
vllm-serving.modelPath: where the pods see the model.
Argument: the root context.
*/}}
{{- define "vllm-serving.modelPath" -}}
{{- if .Values.model.claim.name }}/claims/{{ .Values.model.claim.name }}/{{ .Values.model.claim.path | trimSuffix "/" }}
{{- else if .Values.model.uri }}/models/fetched/{{ include "vllm-serving.fetched" . }}/model
{{- else }}/models/image{{ with .Values.model.image.path }}/{{ . | trimAll "/" }}{{ end }}
{{- end }}
{{- end }}

{{/*
vllm-serving.modelValue: the values that name the model, for messages.
Argument: the root context.
*/}}
{{- define "vllm-serving.modelValue" -}}
{{- if .Values.model.claim.name }}model.claim.name and model.claim.path{{ else if .Values.model.uri }}model.uri{{ else }}model.image{{ end }}
{{- end }}

{{/*
vllm-serving.fetched: the folder that a model is fetched into. Each URI has its own, so that one claim keeps the models
of several releases, and replicas that are still to go keep theirs.
Argument: the root context.
*/}}
{{- define "vllm-serving.fetched" -}}
{{- .Values.model.uri | sha256sum | trunc 12 }}
{{- end }}

{{/*
vllm-serving.fetchPorts: the ports that fetching a model needs, a YAML list: that of stores, and those of the proxies and
stores that values name. What is in a secret, nobody here knows.
Argument: the root context.
*/}}
{{- define "vllm-serving.fetchPorts" -}}
{{- $addresses := list .Values.outbound.httpProxy .Values.outbound.httpsProxy }}
{{- range $name, $value := .Values.model.env }}
  {{- if and (kindIs "string" $value) (regexMatch "(?i)(^|_)(proxy|endpoint(_url(_s3)?)?)$" $name) (ne (lower $name) "no_proxy") }}
    {{- $addresses = append $addresses $value }}
  {{- end }}
{{- end }}
{{- $ports := list 443 }}
{{- range compact $addresses }}
  {{- $authority := regexReplaceAll "^[A-Za-z0-9+.-]+://" . "" | regexFind "^[^/?#]+" }}
  {{- $port := regexFind ":[0-9]+$" $authority | trimPrefix ":" }}
  {{- $ports = append $ports ($port | default (hasPrefix "https://" . | ternary 443 80) | int) }}
{{- end }}
{{- $ports | uniq | toYaml }}
{{- end }}

{{/*
vllm-serving.claims: the claims that models and adapters are read from, each once, a YAML list.
Argument: the root context.
*/}}
{{- define "vllm-serving.claims" -}}
{{- $claims := list .Values.model.claim.name .Values.published.claim }}
{{- range .Values.adapters }}
  {{- $claims = append $claims .claim }}
{{- end }}
{{- $claims | compact | uniq | sortAlpha | toYaml }}
{{- end }}

{{/*
vllm-serving.claimVolume: name of a claim's volume. Each claim has one: a pod with two volumes of one claim never starts.
Argument: the claim's name.
*/}}
{{- define "vllm-serving.claimVolume" -}}
claim-{{ regexMatch "^[a-z0-9-]{1,57}$" . | ternary . (. | sha256sum | trunc 16) }}
{{- end }}

{{/*
vllm-serving.drain: how the seconds of a pod's end are spent, a YAML map. What comes first and what comes then are
together less than the whole, so that vLLM ends by itself before it is killed.
Argument: the root context.
*/}}
{{- define "vllm-serving.drain" -}}
{{- $grace := int .Values.drain.seconds }}
{{- $preStop := min 15 (div $grace 4) | int }}
grace: {{ $grace }}
preStop: {{ $preStop }}
shutdown: {{ sub (sub $grace $preStop) 10 }}
{{- end }}
