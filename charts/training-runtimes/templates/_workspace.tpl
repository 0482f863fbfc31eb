{{/*
training-runtimes.volumeClaimPolicies: the claim of each TrainJob. JobSet adds the volume to the pods by itself; Trainer
looks for it under the name `initializer`.
Argument: a resolved entry.
*/}}
{{- define "training-runtimes.volumeClaimPolicies" -}}
- templates:
    - metadata:
        name: initializer
      spec:
        accessModes:
          {{- toYaml .workspace.accessModes | nindent 10 }}
        {{- with .workspace.storageClassName }}
        storageClassName: {{ . | quote }}
        {{- end }}
        resources:
          requests:
            storage: {{ .workspace.size | quote }}
  retentionPolicy:
    whenDeleted: {{ .workspace.retention }}
{{- end }}

{{/*
training-runtimes.workspaceVolume: the volume of a claim that all TrainJobs share; nothing where each has its own.
Argument: a resolved entry.
*/}}
{{- define "training-runtimes.workspaceVolume" -}}
{{- with .workspace.existingClaim }}
- name: initializer
  persistentVolumeClaim:
    claimName: {{ toYaml . }}
{{- end }}
{{- end }}

{{/*
training-runtimes.workspaceMount: the mount at /workspace; of a shared claim only the TrainJob's own folder.
Argument: a resolved entry.
*/}}
{{- define "training-runtimes.workspaceMount" -}}
- name: initializer
  mountPath: /workspace
  {{- if .workspace.existingClaim }}
  subPathExpr: $(JOBSET_NAME)
  {{- end }}
{{- end }}

{{/*
training-runtimes.scratchVolumes: the volumes of /cache and /tmp.
Argument: the root context.
*/}}
{{- define "training-runtimes.scratchVolumes" -}}
- name: cache
  {{- with .Values.scratch.cacheClaim }}
  persistentVolumeClaim:
    claimName: {{ toYaml . }}
  {{- else }}
  emptyDir:
    sizeLimit: {{ .Values.scratch.cacheSize | quote }}
  {{- end }}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.scratch.tmpSize | quote }}
{{- end }}
