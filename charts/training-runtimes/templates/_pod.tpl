{{/*
training-runtimes.nodePodTemplate: template of the pods that train, with what values merge over it.
Arguments, a dict:
  root     the root context
  runtime  a resolved entry
*/}}
{{- define "training-runtimes.nodePodTemplate" -}}
{{- $template := include "training-runtimes.renderedPodTemplate" . }}
{{- with .runtime.podTemplate }}
{{- $template = mergeOverwrite ($template | fromYaml) . | toYaml }}
{{- end }}
{{- $template }}
{{- end }}

{{- define "training-runtimes.renderedPodTemplate" -}}
metadata:
  labels:
    {{- include "training-runtimes.runLabels" .runtime | nindent 4 }}
    {{- if or .runtime.samplers .runtime.externalSamplers }}
    stoker.dev/role: node
    {{- end }}
  {{- with .runtime.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "training-runtimes.nodePod" . | nindent 2 }}
{{- end }}

{{/*
training-runtimes.podBasics: what all pods share.
Arguments, a dict:
  root       the root context
  runtime    a resolved entry
  token      whether the pod gets a token of its service account (optional)
  scheduler  what schedules the pod, unless all have the same (optional)
*/}}
{{- define "training-runtimes.podBasics" -}}
restartPolicy: Never
terminationGracePeriodSeconds: {{ .root.Values.terminationGracePeriodSeconds | int }}
automountServiceAccountToken: {{ .token | default false }}
enableServiceLinks: false
{{- with .scheduler | default .root.Values.schedulerName }}
schedulerName: {{ toYaml . }}
{{- end }}
{{- with .runtime.priorityClassName }}
priorityClassName: {{ toYaml . }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "stoker.podSecurityContext" .root.Values.podSecurityContext | nindent 2 }}
{{- end }}

{{/*
training-runtimes.nodePod: spec of the pods that train.
Arguments: as above.
*/}}
{{- define "training-runtimes.nodePod" -}}
{{- include "training-runtimes.podBasics" . }}
{{- include "training-runtimes.serviceAccount" .root }}
{{- with .runtime.runtimeClassName }}
runtimeClassName: {{ toYaml . }}
{{- end }}
{{- include "training-runtimes.placement" (list .root "trainer" (list .runtime.nodeSelector) .runtime.tolerations) }}
{{- with .runtime.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .runtime.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- include "training-runtimes.podClaims" (list .root .runtime) }}
containers:
  - name: node
    image: {{ .runtime.image | quote }}
    imagePullPolicy: {{ .root.Values.imagePullPolicy }}
    {{- if .runtime.endpoint }}
    command: [stoker, {{ .runtime.endpoint }}]
    ports:
      - name: {{ .runtime.endpoint }}
        containerPort: 8000
    {{- /* It only says when clients may come: the runner itself ends an endpoint that hangs. */}}
    readinessProbe:
      httpGet: {path: /api/v1/healthz, port: {{ .runtime.endpoint }}}
      periodSeconds: 2
      timeoutSeconds: 5
    {{- else if .runtime.command }}
    command:
      {{- concat (list "stoker" "run") .runtime.command | toYaml | nindent 6 }}
    {{- else }}
    command: [stoker, run]
    {{- end }}
    env:
      {{- include "training-runtimes.env" . | nindent 6 }}
    {{- /* An endpoint shows no metrics of a training. */}}
    {{- with .runtime.endpoint | empty | ternary (include "training-runtimes.metricsPort" .root) "" }}
    ports:
      - name: metrics
        containerPort: {{ . }}
    {{- end }}
    resources:
      {{- include "training-runtimes.resources" .runtime | nindent 6 }}
    securityContext:
      {{- include "training-runtimes.nodeSecurityContext" . | nindent 6 }}
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
      {{- include "training-runtimes.workspaceMount" .runtime | nindent 6 }}
      - name: shm
        mountPath: /dev/shm
      - name: cache
        mountPath: /cache
      - name: tmp
        mountPath: /tmp
      {{- if dig "claim" "" .runtime.externalSamplers }}
      - name: adapters
        mountPath: /adapters
        subPath: {{ toYaml .runtime.externalSamplers.path }}
      {{- end }}
      {{- with include "stoker.reachMounts" .root }}
      {{- trim . | nindent 6 }}
      {{- end }}
      {{- with .runtime.volumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
volumes:
  {{- with include "training-runtimes.workspaceVolume" .runtime }}
  {{- trim . | nindent 2 }}
  {{- end }}
  - name: shm
    emptyDir:
      medium: Memory
      sizeLimit: {{ .runtime.sharedMemory | quote }}
  {{- include "training-runtimes.scratchVolumes" .root | nindent 2 }}
  {{- with dig "claim" "" .runtime.externalSamplers }}
  - name: adapters
    persistentVolumeClaim:
      claimName: {{ toYaml . }}
  {{- end }}
  {{- with include "stoker.reachVolumes" .root }}
  {{- trim . | nindent 2 }}
  {{- end }}
  {{- with .runtime.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/*
training-runtimes.placement: labels of the nodes that pods go to, and the taints that they tolerate, for their spec.
Arguments, a list:
  the root context
  what the pods do: trainer or sampler
  maps of labels, the last one winning
  tolerations
*/}}
{{- define "training-runtimes.placement" -}}
{{- $role := index . 1 }}
{{- $nodes := dict }}
{{- $tolerations := index . 3 }}
{{- if (index . 0).Values.separateRoles }}
  {{- $nodes = dict "stoker.dev/role" $role }}
  {{- $taint := dict "key" "stoker.dev/role" "operator" "Equal" "value" $role "effect" "NoSchedule" }}
  {{- $tolerations = append $tolerations $taint | uniq }}
{{- end }}
{{- with include "stoker.overlay" (prepend (index . 2) $nodes) | fromYaml }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
training-runtimes.nodeSecurityContext: what the container `node` gives up, but for what RDMA needs.
Arguments: as above.
*/}}
{{- define "training-runtimes.nodeSecurityContext" -}}
{{- $context := include "stoker.containerSecurityContext" . }}
{{- if .runtime.rdma.lockMemory }}
{{- $context = replace "  drop:" "  add:\n    - IPC_LOCK\n  drop:" $context }}
{{- end }}
{{- $context }}
{{- end }}

{{/*
training-runtimes.serviceAccount: the service account that the pods of runtimes run as, for their spec.
Argument: the root context.
*/}}
{{- define "training-runtimes.serviceAccount" -}}
{{- include "stoker.serviceAccount" (dict "root" . "name" .Release.Name) }}
{{- end }}
