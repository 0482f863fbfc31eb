{{/*
training-runtimes.nodePod: spec of the pods that train.
Arguments, a dict:
  root     the root context
  runtime  a resolved entry
*/}}
{{- define "training-runtimes.nodePod" -}}
restartPolicy: Never
terminationGracePeriodSeconds: {{ .root.Values.terminationGracePeriodSeconds | int }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .runtime.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .runtime.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .runtime.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "training-runtimes.podSecurityContext" .root | nindent 2 }}
containers:
  - name: node
    image: {{ .runtime.image | quote }}
    imagePullPolicy: {{ .root.Values.imagePullPolicy }}
    command: [stoker, run]
    env:
      {{- include "training-runtimes.env" . | nindent 6 }}
    resources:
      {{- include "training-runtimes.resources" .runtime | nindent 6 }}
    securityContext:
      {{- include "training-runtimes.containerSecurityContext" . | nindent 6 }}
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
      - name: initializer
        mountPath: /workspace
      - name: shm
        mountPath: /dev/shm
      - name: cache
        mountPath: /cache
      - name: tmp
        mountPath: /tmp
volumes:
  - name: shm
    emptyDir:
      medium: Memory
      sizeLimit: {{ .runtime.sharedMemory | quote }}
  - name: cache
    emptyDir:
      sizeLimit: {{ .root.Values.scratch.cacheSize | quote }}
  - name: tmp
    emptyDir:
      sizeLimit: {{ .root.Values.scratch.tmpSize | quote }}
{{- end }}
