{{/*
training-runtimes.testedRuntime: name of the runtime that `helm test` trains with: one for TRL on CPUs that fetches no
model, the generic one first. Empty where the release has none.
Argument: the resolved runtimes by name.
*/}}
{{- define "training-runtimes.testedRuntime" -}}
{{- $able := dict }}
{{- range $name, $runtime := . }}
  {{- if and (eq $runtime.framework "trl") (eq $runtime.acceleratorKind "cpu") (not $runtime.model) (not $runtime.command) }}
    {{- $_ := set $able $name $runtime }}
  {{- end }}
{{- end }}
{{- if $able }}
  {{- include "training-runtimes.shownRuntime" $able }}
{{- end }}
{{- end }}

{{/*
training-runtimes.testNamespace: where `helm test` runs: where the runtimes are, and what they refer to.
Argument: the root context.
*/}}
{{- define "training-runtimes.testNamespace" -}}
{{- include "training-runtimes.namespaces" . | fromYamlArray | first }}
{{- end }}

{{/*
training-runtimes.testName: name of the objects of `helm test`.
Argument: the root context.
*/}}
{{- define "training-runtimes.testName" -}}
{{- printf "%s-test" .Release.Name }}
{{- end }}

{{/*
training-runtimes.testTrainJobName: name of the TrainJob of `helm test`: a DNS label of at most 33 characters, for
Kubernetes adds to it.
Argument: the root context.
*/}}
{{- define "training-runtimes.testTrainJobName" -}}
{{- include "stoker.dnsLabel" (dict "name" (printf "test-%s" .Release.Name) "max" 33) }}
{{- end }}

{{/*
training-runtimes.testTrainJob: the TrainJob of `helm test`.
Arguments, a dict:
  root     the root context
  runtime  the resolved entry that is tested
*/}}
{{- define "training-runtimes.testTrainJob" -}}
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: {{ include "training-runtimes.testTrainJobName" .root }}
  namespace: {{ include "training-runtimes.testNamespace" .root | toYaml }}
  {{- with .root.Values.test.labels }}
  labels:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  runtimeRef:
    name: {{ toYaml .runtime.name }}
    kind: {{ .root.Values.kind }}
  trainer:
    numNodes: 1
    command:
      {{- list "python" "-c" (.root.Files.Get "files/test/ten_steps.py") | toYaml | nindent 6 }}
    env:
      # Rows and steps of the test are for this method, whatever the runtime's own is.
      - name: STOKER_METHOD
        value: sft
{{- end }}
