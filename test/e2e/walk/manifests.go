package walk

// podSpec is that of every pod of the workload, which prints its name and node.
const podSpec = `    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: whereami
        image: localhost/whereami:dev
        imagePullPolicy: IfNotPresent
        ports: [{containerPort: 80}]
        env:
        - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
        - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        readinessProbe: {httpGet: {path: /healthz, port: 80}, periodSeconds: 1}
`

// workload is the walk-through's: three pods behind a ClusterIP service, three behind a headless
// one.
const workload = `
apiVersion: v1
kind: Namespace
metadata: {name: sample}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: whereami, namespace: sample}
spec:
  replicas: 3
  selector: {matchLabels: {app: whereami}}
  template:
    metadata: {labels: {app: whereami}}
` + podSpec + `---
apiVersion: v1
kind: Service
metadata: {name: whereami-cs, namespace: sample}
spec:
  selector: {app: whereami}
  ports: [{port: 80}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: whereami, namespace: sample}
spec:
  serviceName: whereami-ss
  replicas: 3
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: whereami-ss}}
  template:
    metadata: {labels: {app: whereami-ss}}
` + podSpec + `---
apiVersion: v1
kind: Service
metadata: {name: whereami-ss, namespace: sample}
spec:
  clusterIP: None
  selector: {app: whereami-ss}
  ports: [{name: whereami, port: 80}]
`

// clientPod takes the name of its node.
const clientPod = `
apiVersion: v1
kind: Namespace
metadata: {name: sample}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: sample, labels: {app: client}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers:
  - name: client
    image: localhost/whereami:dev
    imagePullPolicy: IfNotPresent
    command: [sleep, infinity]
`
