{{/*
training-runtimes.initializerJob: one of the two jobs that fetch what a TrainJob names in spec.initializer, or what the
runtime names where it does not. Trainer and the SDK know job and container by their names.
Arguments, a dict:
  root     the root context
  runtime  a resolved entry
  what     dataset or model
*/}}
{{- define "training-runtimes.initializerJob" -}}
{{- $name := printf "%s-initializer" .what -}}
- name: {{ $name }}
  template:
    metadata:
      labels:
        trainer.kubeflow.org/trainjob-ancestor-step: {{ $name }}
    spec:
      completionMode: Indexed
      backoffLimit: {{ .root.Values.initializers.backoffLimit | int }}
      podFailurePolicy:
        {{- /* It waits for nobody: a pod that went is made anew, without the others. */}}
        {{- include "training-runtimes.podFailurePolicy" (dict "container" $name "action" "Ignore") | nindent 8 }}
      template:
        metadata:
          labels:
            {{- include "training-runtimes.runLabels" .runtime | nindent 12 }}
          {{- with include "stoker.overlay" (list .runtime.annotations .root.Values.initializers.annotations) | fromYaml }}
          annotations:
            {{- toYaml . | nindent 12 }}
          {{- end }}
        spec:
          {{- include "training-runtimes.podBasics" (merge (dict "scheduler" .root.Values.initializers.schedulerName) .) | nindent 10 }}
          {{- with include "training-runtimes.serviceAccount" .root }}
          {{- trim . | nindent 10 }}
          {{- end }}
          {{- with include "training-runtimes.fetchNodes" .root | fromYaml }}
          nodeSelector:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- with .root.Values.tolerations }}
          tolerations:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- with include "stoker.extraContainers" (pick .root.Values.initializers "sidecars" "initContainers") }}
          initContainers:
            {{- . | nindent 12 }}
          {{- end }}
          containers:
            - name: {{ $name }}
              image: {{ include "training-runtimes.fetchImage" .root | quote }}
              imagePullPolicy: {{ .root.Values.imagePullPolicy }}
              command: [stoker, fetch, {{ .what }}]
              env:
                {{- include "training-runtimes.jobIdentity" . | nindent 16 }}
                - name: STORAGE_URI
                  value: {{ get .runtime .what | quote }}
                - name: STOKER_WORKSPACE
                  value: /workspace
                {{- $env := include "training-runtimes.outboundEnv" (list .root (list .root.Values.initializers.env)) | fromYaml }}
                {{- with include "stoker.variables" $env }}
                {{- trim . | nindent 16 }}
                {{- end }}
              resources:
                {{- toYaml .root.Values.initializers.resources | nindent 16 }}
              securityContext:
                {{- include "stoker.containerSecurityContext" . | nindent 16 }}
              terminationMessagePolicy: FallbackToLogsOnError
              volumeMounts:
                {{- include "training-runtimes.initializerMounts" . | nindent 16 }}
                {{- with .root.Values.initializers.volumeMounts }}
                {{- toYaml . | nindent 16 }}
                {{- end }}
          volumes:
            {{- include "training-runtimes.initializerVolumes" . | trim | nindent 12 }}
            {{- with .root.Values.initializers.volumes }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
{{- end }}

{{/*
training-runtimes.initializerMounts: the mounts of an initializer that the chart itself gives it, a YAML list.
Arguments: as above.
*/}}
{{- define "training-runtimes.initializerMounts" -}}
{{ include "training-runtimes.workspaceMount" .runtime }}
- name: cache
  mountPath: /cache
- name: tmp
  mountPath: /tmp
{{- include "stoker.reachMounts" .root }}
{{- end }}

{{/*
training-runtimes.initializerVolumes: the volumes of an initializer that the chart itself gives it, a YAML list.
Arguments: as above.
*/}}
{{- define "training-runtimes.initializerVolumes" -}}
{{- include "training-runtimes.workspaceVolume" .runtime }}
{{ include "training-runtimes.scratchVolumes" .root }}
{{- include "stoker.reachVolumes" .root }}
{{- end }}

{{/*
training-runtimes.fetchImage: the initializers' image, the same for every accelerator.
Argument: the root context.
*/}}
{{- define "training-runtimes.fetchImage" -}}
{{- include "stoker.image" (dict "root" . "name" "fetch" "variant" "any") }}
{{- end }}

{{/*
training-runtimes.fetchNodes: labels of the nodes for pods of the initializers' image, a YAML map.
Argument: the root context.
*/}}
{{- define "training-runtimes.fetchNodes" -}}
{{- $nodes := include "stoker.imageNodes" (dict "root" . "names" (list "fetch")) | fromYaml }}
{{- include "stoker.overlay" (list $nodes .Values.nodeSelector) }}
{{- end }}
