{{/*
vllm-serving.own: the flags that the chart sets itself, a YAML map from flag to text, true or false.
Argument: the root context.
*/}}
{{- define "vllm-serving.own" -}}
{{- $drain := include "vllm-serving.drain" . | fromYaml }}
{{- $own := dict
      "served-model-name" (include "vllm-serving.modelName" .)
      "host" "127.0.0.1"
      "port" "8000"
      "shutdown-timeout" (toString $drain.shutdown)
      "log-config-file" "/settings/logging.json"
      "disable-uvicorn-access-log" true
      "disable-fastapi-docs" true }}
{{- if gt (int .Values.devices) 1 }}
  {{- $_ := set $own "tensor-parallel-size" (toString .Values.devices) }}
{{- end }}
{{- if .Values.rl.enabled }}
  {{- /* Log-probabilities of what was sampled, all of them, with no sampling default of the model's own. */}}
  {{- $_ := set $own "logprobs-mode" "processed_logprobs" }}
  {{- $_ := set $own "max-logprobs" "-1" }}
  {{- $_ := set $own "generation-config" "vllm" }}
  {{- if not .Values.rl.adaptersOnly }}
    {{- $_ := set $own "enable-scale-out" true }}
  {{- end }}
{{- end }}
{{- with .Values.chatTemplate }}
  {{- $_ := set $own "chat-template" "/settings/chat-template.jinja" }}
{{- end }}
{{- toYaml $own }}
{{- end }}

{{/*
vllm-serving.rlFlags: the flags for reinforcement learning that values may change, a YAML map: memory of the devices
that a trainer may borrow (sleep mode), and the way that weights come. vLLM has neither on CPUs, and a release that runs
share has neither anywhere.
Argument: the root context.
*/}}
{{- define "vllm-serving.rlFlags" -}}
{{- $flags := dict }}
{{- if include "vllm-serving.lendsDevices" . }}
  {{- $_ := set $flags "enable-sleep-mode" true }}
  {{- if .Values.rl.weightTransfer }}
    {{- $_ := set $flags "weight-transfer-config" (dict "backend" "nccl" | toJson) }}
  {{- end }}
{{- end }}
{{- range $flag, $_ := .Values.args }}
  {{- $flags = omit $flags (splitList "." $flag | first) }}
{{- end }}
{{- toYaml $flags }}
{{- end }}

{{/*
vllm-serving.lendsDevices: "true" if a trainer may use the devices of the replicas.
Argument: the root context.
*/}}
{{- define "vllm-serving.lendsDevices" -}}
{{- if and .Values.rl.enabled (not .Values.rl.adaptersOnly) (has (include "vllm-serving.accelerator" . | fromYaml).kind (list "nvidia" "amd")) }}true{{ end }}
{{- end }}

{{/*
vllm-serving.transfersWeights: "true" if weights come between processes that choose their own ports: over NCCL, or
another way that values name.
Argument: the root context.
*/}}
{{- define "vllm-serving.transfersWeights" -}}
{{- $named := and .Values.rl.enabled (not .Values.rl.adaptersOnly) (hasKey (.Values.args | default dict) "weight-transfer-config") }}
{{- if and .Values.rl.weightTransfer (or (include "vllm-serving.lendsDevices" .) $named) }}true{{ end }}
{{- end }}

{{/*
vllm-serving.args: arguments of vLLM's container: the chart's own flags, then the user's.
Argument: the root context.
*/}}
{{- define "vllm-serving.args" -}}
- {{ include "vllm-serving.modelPath" . | quote }}
{{- /* Two words: vLLM 0.31 does not see --config=FILE, and says nothing. */}}
- --config
- /config/vllm.yaml
{{- $kind := (include "vllm-serving.accelerator" . | fromYaml).kind }}
{{- $given := merge (deepCopy (.Values.args | default dict)) (include "stoker.vllmOnCpus" $kind | fromYaml | dig "args" dict) }}
{{- range $flags := list (include "vllm-serving.own" . | fromYaml) (include "vllm-serving.rlFlags" . | fromYaml) $given }}
{{- range $flag, $value := $flags }}
{{- if kindIs "bool" $value }}
- --{{ $value | ternary "" "no-" }}{{ $flag }}
{{- else }}
- {{ printf "--%s=%s" $flag $value | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
vllm-serving.ownEnv: environment of vLLM's container that the chart sets itself, a YAML map.
Arguments, a list: the root context, the accelerator's profile.
*/}}
{{- define "vllm-serving.ownEnv" -}}
{{- $root := index . 0 }}
{{- $env := dict "HF_HUB_OFFLINE" "1" "VLLM_LOGGING_CONFIG_PATH" "/settings/logging.json" "VLLM_NO_USAGE_STATS" "1" }}
{{- if or $root.Values.published.claim $root.Values.published.configMap $root.Values.rl.enabled }}
  {{- $_ := set $env "VLLM_ALLOW_RUNTIME_LORA_UPDATING" "1" }}
{{- end }}
{{- if and $root.Values.rl.enabled (or $root.Values.fleet.enabled (not $root.Values.rl.adaptersOnly)) }}
  {{- $_ := set $env "VLLM_SERVER_DEV_MODE" "1" }}
{{- end }}
{{- if include "vllm-serving.takesWeights" $root }}
  {{- /* Where `stoker adapters prepare` leaves the code that vLLM's workers get. */}}
  {{- $_ := set $env "PYTHONPATH" "/config/python" }}
{{- end }}
{{- toYaml $env }}
{{- end }}
