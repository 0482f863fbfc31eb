{{/*
The retry contract, in two halves that must agree. The Job half sorts a failure by its cause, the JobSet half reads the
number of the Job's rule out of the Job's failure message and decides what becomes of the run. What no rule names (a
crash, a lost peer) counts against maxRestarts. The exit codes are the runner's.
*/}}

{{/*
training-runtimes.podFailurePolicy: the Job half. The order of the rules is part of the contract.
Arguments, a dict:
  container  the container whose exit code counts
  action     what an interruption leads to: FailJob, which has the whole run start again, or Ignore, which has the pod
  server     the container that serves, whose wrong flags end the run too; none without it
*/}}
{{- define "training-runtimes.podFailurePolicy" -}}
rules:
  {{- /* 0: evicted, preempted, drained */}}
  - action: {{ .action }}
    onPodConditions:
      - type: DisruptionTarget
        status: "True"
  {{- /* 1: stopped by a signal, can be resumed */}}
  - action: {{ .action }}
    onExitCodes:
      containerName: {{ .container }}
      operator: In
      values: [75]
  {{- /* 2: usage, bad data, no model or data, configuration: the same again would fail again */}}
  - action: FailJob
    onExitCodes:
      containerName: {{ .container }}
      operator: In
      values: [64, 65, 66, 78]
  {{- with .server }}
  {{- /* 3: flags that its parser refuses; a device that it may never use */}}
  - action: FailJob
    onExitCodes:
      containerName: {{ . }}
      operator: In
      values: [2, 78]
  {{- end }}
{{- end }}

{{/*
training-runtimes.failurePolicy: the JobSet half. Without its rules JobSet would start user errors again, too.
Arguments, a dict:
  root     the root context
  runtime  a resolved entry
*/}}
{{- define "training-runtimes.failurePolicy" -}}
maxRestarts: {{ .root.Values.retries.maxRestarts | int }}
restartStrategy: BlockingRecreate
rules:
  - name: Interrupted
    action: RestartJobSetAndIgnoreMaxRestarts
    onJobFailureReasons: [PodFailurePolicy]
    onJobFailureMessagePatterns: ["rule at index [01]$"]
  - name: UserError
    action: FailJobSet
    onJobFailureReasons: [PodFailurePolicy]
    onJobFailureMessagePatterns: [{{ empty .runtime.samplers | ternary "rule at index 2$" "rule at index [23]$" | quote }}]
{{- end }}
