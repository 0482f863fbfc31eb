{{/*
stoker.vllmReach: flags that decide how vLLM is reached, and by how many servers, a YAML list. No chart takes them from
values: its proxy, its probes and what loads adapters know one server that speaks plain HTTP on loopback, without a key.
*/}}
{{- define "stoker.vllmReach" -}}
{{- toYaml (list "config" "api-key" "uds" "root-path" "ssl-keyfile" "ssl-certfile" "middleware" "headless" "grpc"
      "enable-offline-docs" "api-server-count" "data-parallel-size" "data-parallel-size-local"
      "data-parallel-supervisor-port" "nnodes") }}
{{- end }}
