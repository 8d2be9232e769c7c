{{- define "kvmem.name" -}}
{{ .Release.Name }}-serve
{{- end }}

{{- define "kvmem.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* A size such as 4GiB, or a quantity such as 1Gi, in mebibytes. */}}
{{- define "kvmem.mebibytes" -}}
{{- $units := dict "M" 1 "G" 1024 "T" 1048576 -}}
{{- mul (regexFind "^[0-9]+" . | int64) (get $units (regexFind "[MGT]" .)) -}}
{{- end }}

{{/* The largest size of the pool. */}}
{{- define "kvmem.largest" -}}
{{ .Values.max | default .Values.size }}
{{- end }}

{{/* The memory of the server's container: with the pool if that is not in hugepages. */}}
{{- define "kvmem.memory" -}}
{{- if .Values.hugepages.enabled -}}
{{ .Values.resources.serve.memory }}
{{- else -}}
{{ add (include "kvmem.mebibytes" .Values.resources.serve.memory) (include "kvmem.mebibytes" (include "kvmem.largest" .)) }}Mi
{{- end -}}
{{- end }}

{{/* The options of the disk tier: its codec and its key file. */}}
{{- define "kvmem.encoding" -}}
{{- with .Values.tier -}}
{{- if ne .codec "none" }},codec={{ .codec }}{{ end -}}
{{- if .keySecret }},key-file=/keys/key-file{{ end -}}
{{- end -}}
{{- end }}

{{- define "kvmem.small" -}}
requests:
  cpu: {{ .Values.resources.holder.cpu | quote }}
  memory: {{ .Values.resources.holder.memory }}
limits:
  memory: {{ .Values.resources.holder.memory }}
{{- end }}
