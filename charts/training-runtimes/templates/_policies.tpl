{{/*
training-runtimes.policies: the rules for TrainJobs, a YAML map by the value that switches them on. Each is CEL for
ValidatingAdmissionPolicy: what must hold, and what the user reads if it does not. `params` is the ConfigMap.
No argument.
*/}}
{{- define "training-runtimes.policies" -}}
nameLength:
  expression: "!variables.ours || size(object.metadata.name) <= variables.room"
  message: >-
    "the name has " + string(size(object.metadata.name)) + " characters and may have " + string(variables.room) +
    " with runtime " + variables.runtime + ", for Kubernetes adds to it: choose a shorter one"
catalogueRuntimes:
  expression: variables.ours || variables.runtime in params.data.otherRuntimes.split(" ")
  message: >-
    variables.kind + " " + variables.runtime + " is not in the catalogue: set spec.runtimeRef to kind " +
    params.data.kind + " and one of " + params.data.runtimes.replace(" ", ", ")
noDeprecatedRuntimes:
  expression: "!variables.ours || !(variables.runtime in params.data.deprecated.split(' '))"
  message: >-
    "runtime " + variables.runtime + " is deprecated" +
    params.data[?"replacement." + variables.runtime].optMap(name, ": use " + name).orValue("")
maxNodes:
  expression: variables.nodes <= int(params.data.nodes)
  message: >-
    "spec.trainer.numNodes is " + string(variables.nodes) + " and may be " + params.data.nodes + " at most"
imageRegistries:
  expression: >-
    variables.image == "" || params.data.registries.split(" ").exists(registry, variables.image.startsWith(registry + "/"))
  message: >-
    "spec.trainer.image " + variables.image + " must come from one of " + params.data.registries.replace(" ", ", ")
queue:
  expression: params.data.queueLabel in object.metadata.?labels.orValue({})
  message: >-
    "a TrainJob here waits in a queue: name one in the label " + params.data.queueLabel
{{- end }}

{{/*
training-runtimes.enabledPolicies: names of the rules that hold, a YAML list.
Argument: the root context.
*/}}
{{- define "training-runtimes.enabledPolicies" -}}
{{- $enabled := list }}
{{- if and .Values.enabled .Values.policies.enabled }}
  {{- range $rule, $_ := include "training-runtimes.policies" . | fromYaml }}
    {{- if get (get $.Values.policies $rule) "enabled" }}
      {{- $enabled = append $enabled $rule }}
    {{- end }}
  {{- end }}
{{- end }}
{{- toYaml $enabled }}
{{- end }}

{{/*
training-runtimes.policyName: name of a rule's policy and binding; those of two releases differ.
Argument: a list of the root context and the rule.
*/}}
{{- define "training-runtimes.policyName" -}}
{{- printf "%s-%s" (index . 0).Release.Name (kebabcase (index . 1)) }}
{{- end }}
