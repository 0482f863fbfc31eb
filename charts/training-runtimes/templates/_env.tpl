{{/*
training-runtimes.defaults: what the entry itself decides for the runner, a YAML map from variable to value.
Argument: a resolved entry.
*/}}
{{- define "training-runtimes.defaults" -}}
{{- $defaults := dict }}
{{- with .method }}
  {{- $_ := set $defaults "STOKER_METHOD" . }}
{{- end }}
{{- with .sharding }}
  {{- $_ := set $defaults "STOKER_SHARDING" . }}
{{- end }}
{{- range $flag, $value := .args }}
  {{- if $value }}
    {{- $_ := set $defaults (printf "STOKER_ARG_%s" (upper (replace "." "__" $flag))) $value }}
  {{- end }}
{{- end }}
{{- toYaml $defaults }}
{{- end }}

{{/*
training-runtimes.env: environment of the container `node`. Kubernetes expands $(NAME) only from variables above.
Arguments, a dict:
  root     the root context
  runtime  a resolved entry
*/}}
{{- define "training-runtimes.env" -}}
{{- $defaults := include "training-runtimes.defaults" .runtime | fromYaml }}
{{- include "training-runtimes.jobIdentity" . }}
{{- /* Trainer sets PET_* only for a TrainJob with spec.trainer, and then in place of these. */}}
- name: PET_NNODES
  value: {{ .runtime.numNodes | int | quote }}
- name: PET_NPROC_PER_NODE
  value: {{ ternary "1" "auto" (eq .runtime.acceleratorKind "cpu") | quote }}
- name: PET_NODE_RANK
  valueFrom:
    fieldRef:
      fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']
- name: PET_MASTER_ADDR
  value: $(JOBSET_NAME)-node-0-0.$(JOBSET_NAME)
- name: PET_MASTER_PORT
  value: "29500"
- name: STOKER_FRAMEWORK
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['trainer.kubeflow.org/framework']
- name: STOKER_RUN_ID
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['batch.kubernetes.io/controller-uid']
- name: STOKER_RESTART_ATTEMPT
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['jobset.sigs.k8s.io/restart-attempt']
- name: STOKER_CPU_REQUEST
  valueFrom:
    resourceFieldRef:
      containerName: node
      resource: requests.cpu
      divisor: "1"
- name: STOKER_CPU_LIMIT
  valueFrom:
    resourceFieldRef:
      containerName: node
      resource: limits.cpu
      divisor: "1"
- name: STOKER_GRACE_PERIOD_SECONDS
  value: {{ .runtime.podTemplate | default dict | dig "spec" "terminationGracePeriodSeconds" .root.Values.terminationGracePeriodSeconds | int | quote }}
- name: STOKER_RENDEZVOUS_TIMEOUT_SECONDS
  value: {{ .root.Values.rendezvousTimeoutSeconds | int | quote }}
- name: STOKER_RUNTIME
  value: {{ .runtime.name | quote }}
- name: STOKER_ACCELERATOR
  value: {{ .runtime.acceleratorKind | quote }}
{{- with .runtime.processesPerNode }}
- name: STOKER_NPROC_PER_NODE
  value: {{ . | int | quote }}
{{- end }}
{{- with .runtime.method }}
- name: STOKER_METHOD
  value: {{ . | quote }}
{{- end }}
- name: STOKER_WORKSPACE
  value: /workspace
{{- with .runtime.endpoint | empty | ternary (include "training-runtimes.metricsPort" .root) "" }}
- name: STOKER_METRICS_PORT
  value: {{ . | quote }}
{{- end }}
{{- with .runtime.endpoint }}
- name: STOKER_ROLE
  value: {{ . | quote }}
{{- end }}
{{- if .runtime.samplers }}
- name: STOKER_SAMPLERS
  value: {{ include "training-runtimes.samplerAddresses" .runtime | quote }}
{{- end }}
{{- range $name, $value := omit $defaults "STOKER_METHOD" }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- /* TrainJobs overwrite the variables above; this one keeps what the runtime itself said. */}}
- name: STOKER_RUNTIME_DEFAULTS
  value: {{ toRawJson $defaults | quote }}
{{- include "stoker.variables" .runtime.env }}
{{- end }}

{{/*
training-runtimes.jobIdentity: the TrainJob's name, for variables that are made of it, and its id, the same in all
attempts and jobs.
*/}}
{{- define "training-runtimes.jobIdentity" -}}
- name: JOBSET_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['jobset.sigs.k8s.io/jobset-name']
- name: STOKER_JOB_ID
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['jobset.sigs.k8s.io/jobset-uid']
{{- end }}

{{/*
training-runtimes.outboundEnv: environment for proxies and certificate authorities, with what values add to it, a YAML
map. The pods of a run ask each other directly.
Arguments, a list: the root context, environment that wins over it (a list of maps, the last one winning).
*/}}
{{- define "training-runtimes.outboundEnv" -}}
{{- include "stoker.outboundEnv" (dict "root" (index . 0) "env" (index . 1) "direct" (list ".$(JOBSET_NAME)")) }}
{{- end }}
