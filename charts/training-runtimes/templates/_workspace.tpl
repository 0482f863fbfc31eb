{{/*
training-runtimes.volumeClaimPolicies: the claim of each TrainJob. JobSet adds the volume to the pods by itself; Trainer
looks for it under the name `initializer`.
Argument: the root context.
*/}}
{{- define "training-runtimes.volumeClaimPolicies" -}}
- templates:
    - metadata:
        name: initializer
      spec:
        accessModes:
          {{- toYaml .Values.workspace.accessModes | nindent 10 }}
        {{- with .Values.workspace.storageClassName }}
        storageClassName: {{ . | quote }}
        {{- end }}
        resources:
          requests:
            storage: {{ .Values.workspace.size | quote }}
  retentionPolicy:
    whenDeleted: {{ .Values.workspace.retention }}
{{- end }}
