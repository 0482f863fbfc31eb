{{/*
stoker.vllmOnCpus: what vLLM needs on CPUs unless the user says otherwise, a YAML map of `args` and `env`; empty on
devices. The image for CPUs has no compiler; vLLM knows that by itself only where it serves adapters. Without a number it
takes nearly all of the container's memory for its cache, and does not start where the rest is too small. It would
compute in a process of its own, which takes memory and spins for a second after each step: trainers may want the same
cores. It would start a thread for every core of the node, whatever the container's limit is; Kubernetes gives the
node's cores as the limit of a container that has none.
Argument: the kind of the accelerator.
*/}}
{{- define "stoker.vllmOnCpus" -}}
{{- if eq . "cpu" }}
args: {enforce-eager: true}
env:
  OMP_NUM_THREADS: {resourceFieldRef: {resource: limits.cpu, divisor: "1"}}
  VLLM_CPU_KVCACHE_SPACE: "1"
  VLLM_ENABLE_V1_MULTIPROCESSING: "0"
{{- end }}
{{- end }}

{{/*
stoker.vllmReach: flags that decide how vLLM is reached, and by how many servers, a YAML list. No chart takes them from
values: its proxy, its probes and what loads adapters know one server that speaks plain HTTP on loopback, without a key.
*/}}
{{- define "stoker.vllmReach" -}}
{{- toYaml (list "config" "api-key" "uds" "root-path" "ssl-keyfile" "ssl-certfile" "middleware" "headless" "grpc"
      "enable-offline-docs" "api-server-count" "data-parallel-size" "data-parallel-size-local"
      "data-parallel-supervisor-port" "nnodes") }}
{{- end }}
